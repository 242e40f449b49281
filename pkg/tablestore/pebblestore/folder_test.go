package pebblestore_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

func rename(t *testing.T, from, to string) {
	t.Helper()
	musttest.NoError(t, os.Rename(from, to))
}

// losses are the ways in which the directory of an open store can be lost, and
// the file that the error names. If linked, dir is a symbolic link. The store may look before
// the replacement is there.
var losses = map[string]struct {
	linked bool
	lose   func(t *testing.T, dir string)
	file   string
}{
	"removed": {lose: func(t *testing.T, dir string) { removeAll(t, dir) }, file: "LOCK is missing"},
	"moved":   {lose: func(t *testing.T, dir string) { rename(t, dir, dir+".old") }, file: "LOCK is missing"},
	"replaced by another store": {lose: func(t *testing.T, dir string) {
		rename(t, dir, dir+".old")
		occupy(t, dir)()
	}, file: "LOCK is"},
	"replaced by a copy of itself": {lose: func(t *testing.T, dir string) {
		rename(t, dir, dir+".old")
		musttest.NoError(t, os.CopyFS(dir, os.DirFS(dir+".old")))
	}, file: "LOCK is"},
	"replaced by a file": {lose: func(t *testing.T, dir string) {
		removeAll(t, dir)
		musttest.WriteFile(t, dir, "")
	}, file: "LOCK "},
	"under a link that leads elsewhere": {linked: true, lose: func(t *testing.T, dir string) {
		removeAll(t, dir)
		musttest.NoError(t, os.Symlink(t.TempDir(), dir))
	}, file: "LOCK is missing"},
	"emptied": {lose: func(t *testing.T, dir string) {
		removeAll(t, matching(t, dir, "*")...)
	}, file: "is missing"},
	"without its lock": {lose: func(t *testing.T, dir string) {
		removeAll(t, filepath.Join(dir, "LOCK"))
	}, file: "LOCK is missing"},
	"without its logs": {lose: func(t *testing.T, dir string) {
		removeAll(t, matching(t, dir, "*.log")...)
	}, file: ".log is missing"},
}

// TestFolder_NothingIsAcknowledgedInALostDirectory loses the directory of an open store: no
// write after that is acknowledged, and the process ends. It also ends without a writer.
func TestFolder_NothingIsAcknowledgedInALostDirectory(t *testing.T) {
	t.Parallel()
	for name, loss := range losses {
		for _, writes := range []bool{true, false} {
			if !writes && !strings.HasPrefix(loss.file, "LOCK") {
				continue
			}
			t.Run(fmt.Sprintf("%s, writer %t", name, writes), func(t *testing.T) {
				t.Parallel()
				if !inChild(t, tablestore.ErrLost.Error()+": ", loss.file, "put the directory back") {
					return
				}
				dir := filepath.Join(t.TempDir(), "data")
				options := pebblestore.Options{Dir: dir, Fatal: ends(t, func(cause error) {
					if !errors.Is(cause, tablestore.ErrLost) || !strings.Contains(cause.Error(), dir) || strings.Contains(cause.Error(), "\n") {
						t.Errorf("the process ends for %v, want a sentence with ErrLost and %s", cause, dir)
					}
				})}
				if loss.linked {
					musttest.NoError(t, os.Symlink(t.TempDir(), options.Dir))
				}
				store := open(t, options)
				musttest.NoError(t, commitOne(t, store, rowOf(1, 10)))
				loss.lose(t, options.Dir)
				if writes {
					t.Fatalf("a commit to a lost directory returns %v", commitOne(t, store, rowOf(2, 10)))
				}
				time.Sleep(time.Minute)
				t.Fatal("the loss is not noticed")
			})
		}
	}
}

// TestFolder_ALossRightBeforeTheStopIsNoOrderlyStop removes a file that no write needs.
func TestFolder_ALossRightBeforeTheStopIsNoOrderlyStop(t *testing.T) {
	t.Parallel()
	options, _ := filled(t)
	store := open(t, options)
	removeAll(t, matching(t, options.Dir, "*.sst")...)
	closeStore(t, store)
	expectOpenError(t, options, tablestore.ErrDamaged, ".sst is missing or damaged")
}

// TestFolder_AnotherStoreAtThePathIsLeftAlone moves the directory of a busy store away and
// makes another store at its path. The first store, whose files have the same names, changes
// nothing there; once put back, it holds every row that it acknowledged.
func TestFolder_AnotherStoreAtThePathIsLeftAlone(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv("PEBBLESTORE_TEST_BUSY"); dir != "" {
		write := open(t, pebblestore.Options{Dir: dir, Fatal: ends(t, func(error) {})}.WithMemTable(512<<10))
		for w := range 4 {
			go func() {
				for n := 1000 * w; commitOne(t, write, rowOf(n, 10_000)) == nil; n++ {
					say("row", n)
				}
			}()
		}
		select {}
	}
	options := pebblestore.Options{Dir: filepath.Join(t.TempDir(), "data")}
	busy := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	busy.Env = append(os.Environ(), "PEBBLESTORE_TEST_BUSY="+options.Dir)
	output, err := busy.StdoutPipe()
	if err == nil {
		err = busy.Start()
	}
	musttest.NoError(t, err)
	var acknowledged []int
	said := ""
	for lines := bufio.NewScanner(output); lines.Scan(); {
		var n int
		if _, err := fmt.Sscanf(lines.Text(), "row %d", &n); err != nil {
			said += lines.Text()
		} else if acknowledged = append(acknowledged, n); len(acknowledged) == 200 {
			rename(t, options.Dir, options.Dir+".old")
			occupy(t, options.Dir)()
		}
	}
	if err := busy.Wait(); busy.ProcessState.ExitCode() != childStatus || !strings.Contains(said, tablestore.ErrLost.Error()) {
		t.Errorf("the first process ends with %v: %s", err, said)
	}
	second := open(t, options)
	expectThere(t, second, 1)
	if info := second.Info(); info.Opened != 2 {
		t.Errorf("the second store is %+v", info)
	}
	closeStore(t, second)
	rename(t, options.Dir, options.Dir+".new")
	rename(t, options.Dir+".old", options.Dir)
	first := open(t, options)
	expectThere(t, first, acknowledged...)
	closeStore(t, first)
}
