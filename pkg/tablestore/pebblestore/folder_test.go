package pebblestore_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// losses are the ways in which the directory of an open store can be lost, and
// the file that the error names. If linked, dir is a symbolic link.
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
	}, file: "LOCK is another file"},
	"replaced by a copy of itself": {lose: func(t *testing.T, dir string) {
		rename(t, dir, dir+".old")
		if err := os.CopyFS(dir, os.DirFS(dir+".old")); err != nil {
			t.Fatal(err)
		}
	}, file: "LOCK is another file"},
	"replaced by a file": {lose: func(t *testing.T, dir string) {
		removeAll(t, dir)
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}, file: "LOCK cannot be read"},
	"under a link that leads elsewhere": {linked: true, lose: func(t *testing.T, dir string) {
		removeAll(t, dir)
		if err := os.Symlink(t.TempDir(), dir); err != nil {
			t.Fatal(err)
		}
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

// TestFolder_NothingIsAcknowledgedInALostDirectory loses the directory of an
// open store: no write after that, not even the first, is acknowledged.
func TestFolder_NothingIsAcknowledgedInALostDirectory(t *testing.T) {
	t.Parallel()
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log lockedBuffer
				options := pebblestore.Options{
					Dir: filepath.Join(t.TempDir(), "data"), Logger: slog.New(slog.NewTextHandler(&log, nil)),
				}
				if loss.linked {
					if err := os.Symlink(t.TempDir(), options.Dir); err != nil {
						t.Fatal(err)
					}
				}
				store := open(t, options)
				if err := commitOne(t, store, rowOf(1, 10)); err != nil {
					t.Fatal(err)
				}
				loss.lose(t, options.Dir)
				for n := range 3 {
					if err := commitOne(t, store, rowOf(2+n, 10)); !errors.Is(err, tablestore.ErrLost) {
						t.Errorf("commit: %v, want ErrLost", err)
					}
				}
				expectRefused(t, store)
				if err := store.Writable(t.Context()); !errors.Is(err, tablestore.ErrLost) || !errors.Is(err, tablestore.ErrUnavailable) {
					t.Errorf("writable: %v, want ErrLost and ErrUnavailable", err)
				}
				time.Sleep(time.Minute) // It no longer checks.
				closeStore(t, store)
				expectSentence(t, "log", log.String(), loss.file, options.Dir, "put the directory back")
			})
		})
	}
}

// TestFolder_AStoreWithoutWritersNoticesTheLoss removes the files of one kind
// from an open store without writers.
func TestFolder_AStoreWithoutWritersNoticesTheLoss(t *testing.T) {
	t.Parallel()
	for pattern, named := range map[string]string{
		"LOCK": "LOCK", "*.sst": ".sst", "*.log": ".log", "MANIFEST-*": "MANIFEST-", "OPTIONS-*": "OPTIONS-",
		"marker.manifest.*": "marker.manifest.", "marker.format-version.*": "marker.format-version.",
	} {
		t.Run(pattern, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				options, _ := filled(t)
				var log lockedBuffer
				options.Logger = slog.New(slog.NewTextHandler(&log, nil))
				store := open(t, options)
				defer closeStore(t, store)
				time.Sleep(time.Minute)
				if err := store.Writable(t.Context()); err != nil {
					t.Fatalf("writable: %v", err)
				}
				removeAll(t, matching(t, options.Dir, pattern)...)
				time.Sleep(2 * time.Second)
				if err := store.Writable(t.Context()); !errors.Is(err, tablestore.ErrLost) {
					t.Errorf("writable: %v, want ErrLost", err)
				}
				expectRefused(t, store)
				expectSentence(t, "log", log.String(), named, "is missing", options.Dir)
			})
		})
	}
}

// TestFolder_ALossRightBeforeTheStopIsNoOrderlyStop removes a file that no write needs.
func TestFolder_ALossRightBeforeTheStopIsNoOrderlyStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		options, _ := filled(t)
		store := open(t, options)
		removeAll(t, matching(t, options.Dir, "*.sst")...)
		if err := store.Close(); !errors.Is(err, tablestore.ErrLost) {
			t.Errorf("close: %v, want ErrLost", err)
		}
		expectOpenError(t, options, tablestore.ErrDamaged, ".sst is missing or damaged")
	})
}

// TestFolder_AnotherStoreAtThePathIsLeftAlone moves the directory of a busy
// store away and makes another store at its path. The first store, whose files
// have the same names, changes nothing there; once put back, it holds every row
// that it acknowledged.
func TestFolder_AnotherStoreAtThePathIsLeftAlone(t *testing.T) {
	t.Parallel()
	options := pebblestore.Options{Dir: filepath.Join(t.TempDir(), "data")}.WithMemTable(512 << 10)
	first := open(t, options)
	acknowledged, err := fill(t, first, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var busy sync.WaitGroup
	stop := make(chan struct{})
	var mu sync.Mutex
	for w := range 4 {
		busy.Go(func() {
			for n := 1000 * (w + 1); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := commitOne(t, first, rowOf(n, 10_000)); err == nil {
					mu.Lock()
					acknowledged = append(acknowledged, n)
					mu.Unlock()
				} else if !errors.Is(err, tablestore.ErrLost) {
					t.Errorf("commit: %v, want ErrLost", err)
				}
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	moved := options.Dir + ".old"
	rename(t, options.Dir, moved)
	leave := occupy(t, options.Dir)
	time.Sleep(100 * time.Millisecond)
	close(stop)
	busy.Wait()
	leave()
	before := files(t, options.Dir)
	closeStore(t, first)
	if diff := cmp.Diff(before, files(t, options.Dir)); diff != "" {
		t.Errorf("the first store changed the second's directory (-before +after):\n%.2000s", diff)
	}
	second := open(t, options)
	expectThere(t, second, 1)
	closeStore(t, second)

	rename(t, options.Dir, options.Dir+".new")
	rename(t, moved, options.Dir)
	if err := first.Writable(t.Context()); !errors.Is(err, tablestore.ErrLost) {
		t.Errorf("writable once the directory is back: %v, want ErrLost", err)
	}
	first = open(t, options)
	expectThere(t, first, acknowledged...)
	closeStore(t, first)
}

// TestFolder_ABusyStoreIsNotLost checks the directory continuously
// while the engine makes and removes tables and logs.
func TestFolder_ABusyStoreIsNotLost(t *testing.T) {
	t.Parallel()
	store := open(t, pebblestore.Options{Dir: t.TempDir()}.WithMemTable(512<<10))
	defer closeStore(t, store)
	filled := make(chan error, 1)
	go func() {
		_, err := fill(t, store, 0, 600)
		filled <- err
	}()
	for checks := 0; ; checks++ {
		if err := store.CheckFiles(); err != nil {
			t.Fatalf("check %d: %v", checks, err)
		}
		select {
		case err := <-filled:
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d checks", checks)
			return
		default:
		}
	}
}
