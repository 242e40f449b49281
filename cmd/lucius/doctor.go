package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// checkFiles checks protocol files and a data folder for lucius doctor, each if it is named.
func checkFiles(protocols, dataDir string) (checks []cli.Check) {
	if protocols != "" {
		report := validate([]string{protocols})
		for i := range report.Problems {
			checks = append(checks, cli.Check{
				Name: "protocols", Detail: report.Problems[i].Error(),
				Todo: "correct the file, then check it with lucius protocols validate",
			})
		}
		if report.Valid {
			detail := fmt.Sprintf("%d valid in %s", len(report.Protocols), protocols)
			checks = append(checks, cli.Check{Name: "protocols", OK: true, Detail: detail})
		}
	}
	if dataDir != "" {
		checks = append(checks, checkAccess(dataDir))
		if checks[len(checks)-1].OK {
			checks = append(checks, checkSpace(dataDir))
		}
	}
	return checks
}

// checkAccess checks that this user can use a data folder, and users that are neither its
// owner nor in its group cannot. Windows has no such permissions.
func checkAccess(dir string) cli.Check {
	check := cli.Check{Name: "data folder"}
	info, err := os.Stat(dir)
	switch {
	case os.IsNotExist(err):
		check.Detail, check.Todo = dir+" does not exist", "the server creates it when it first starts; is this the right folder?"
		return check
	case err != nil:
		check.Detail, check.Todo = err.Error(), "run this as the server's user"
		return check
	case !info.IsDir():
		check.Detail, check.Todo = dir+" is not a folder", "name the server's folder, LUCIUS_DATA_DIR"
		return check
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0:
		check.Detail, check.Todo = "other users of this host have access to "+dir, "run chmod o-rwx on it"
		return check
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o700 != 0o700:
		check.Detail, check.Todo = "its owner cannot read and write "+dir, "run chmod u+rwx on it"
		return check
	}
	if _, err := os.ReadDir(dir); err != nil {
		check.Detail, check.Todo = err.Error(), "run this as the server's user"
		return check
	}
	check.OK, check.Detail = true, dir+" can be read, but not by other users"
	return check
}

// checkSpace checks that the disk of a data folder has as much free space as a server needs
// to be ready without a warning.
func checkSpace(dir string) cli.Check {
	free, err := pebblestore.FreeSpace(dir)
	if err != nil {
		return cli.Check{Name: "disk", OK: true, Detail: "the free space is not known: " + err.Error()}
	}
	check := cli.Check{Name: "disk", OK: free >= server.SpaceAhead*pebblestore.DefaultReserve, Detail: cli.Size(int64(free)) + " free"}
	if !check.OK {
		check.Todo = "free some space, see \"A disk that fills up\" in docs/run/limits.md: without " +
			cli.Size(pebblestore.DefaultReserve) + " the server accepts no writes"
	}
	return check
}
