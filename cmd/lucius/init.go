package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/sdk/python"
)

// projectFiles are what lucius init writes. A name loses the ending .txt.
//
//go:embed project
var projectFiles embed.FS

// initialize returns lucius init, which writes a starter folder.
func (p *program) initialize() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "init [DIR]", GroupID: cli.GroupSetUp, Short: "Write a folder to begin with", Args: cli.Takes(0, 1),
		Long: "Writes a protocol, a command, a worker in Python with its SDK, a compose file and a README into the\n" +
			"folder, by default the current one. It overwrites no file unless --force is given.",
		Example: "  lucius init && lucius dev\n  lucius init pipeline",
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			written, err := writeProject(dir, force)
			if err != nil {
				return err
			}
			fmt.Fprintf(p.Stdout, "wrote %s\n\n", strings.Join(written, "\n      "))
			if dir != "." {
				fmt.Fprintf(p.Stdout, "cd %s\n", dir)
			}
			_, err = fmt.Fprintln(p.Stdout, "lucius dev   # see a job run through it")
			return err
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite files")
	return cmd
}

// writeProject writes the files into the folder and returns their paths. Without force, it
// writes nothing if it would overwrite a file.
func writeProject(dir string, force bool) (written []string, err error) {
	root, err := fs.Sub(projectFiles, "project")
	if err != nil {
		return nil, err
	}
	contents := map[string][]byte{}
	for _, files := range []fs.FS{root, python.Files} {
		err = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			path := filepath.Join(dir, filepath.FromSlash(strings.TrimSuffix(name, ".txt")))
			if err := checkFree(path, force); err != nil {
				return err
			}
			contents[path], err = fs.ReadFile(files, name)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	written = slices.Sorted(maps.Keys(contents))
	for _, path := range written {
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(contents[path], []byte("#!")) {
			mode = 0o755
		}
		// The containers of compose.yaml read the folders as other users.
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // They hold no secrets.
			return nil, err
		}
		if err := os.WriteFile(path, contents[path], mode); err != nil {
			return nil, err
		}
	}
	return written, nil
}

// checkFree refuses a path with a file, unless forced, and a path in a folder that cannot
// be created.
func checkFree(path string, force bool) error {
	folder := filepath.Dir(path)
	if info, err := os.Stat(folder); err == nil && !info.IsDir() {
		return &cli.Error{Code: cli.ExitRefused, Err: fmt.Errorf(
			"%s is a file, but the project has a folder of that name: nothing was written. Name another folder: lucius init DIR", folder)}
	}
	if _, err := os.Lstat(path); force || errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for %s: %w", path, err)
	}
	return &cli.Error{Code: cli.ExitRefused, Err: fmt.Errorf("%s exists: nothing was written. --force overwrites it", path)}
}
