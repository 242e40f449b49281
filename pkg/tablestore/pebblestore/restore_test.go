package pebblestore_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// sample returns a backup of a store with those rows.
func sample(t *testing.T, rows int) []byte {
	t.Helper()
	store := open(t, newDisk().options())
	if _, err := fill(t, store, rows); err != nil {
		t.Fatal(err)
	}
	backup := backUp(t, store)
	closeStore(t, store)
	return backup
}

// A restore whose Commit fails leaves the whole store, or a directory into which it can be
// repeated.
func TestRestore_FailedCommitCanBeRepeated(t *testing.T) {
	t.Parallel()
	backup := sample(t, 60)
	for left := 0; ; left++ {
		d := newDisk()
		unpacked, err := pebblestore.Unpack(bytes.NewReader(backup), pebblestore.RestoreOptions{Dir: "data", FS: d})
		musttest.NoError(t, err)
		ops := 0
		d.inject("", func() error {
			if ops++; ops > left {
				return errDisk
			}
			return nil
		}, errorfs.OpRename, errorfs.OpFileSync)
		err = unpacked.Commit()
		if err == nil {
			break
		}
		d.heal()
		if err := unpacked.Close(); err != nil {
			t.Errorf("close after %d operations: %v", left, err)
		}
		again, err := pebblestore.Unpack(bytes.NewReader(backup), pebblestore.RestoreOptions{Dir: "data", FS: d})
		if err == nil {
			err = errors.Join(again.Commit(), again.Close())
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			t.Errorf("restore after %d operations: %v", left, err)
		}
		store, err := pebblestore.Open(d.options())
		if err != nil {
			t.Errorf("open after %d operations: %v", left, err)
			continue
		}
		expectThere(t, store, 0, 59)
		closeStore(t, store)
	}
}

// The unpacked store can be read before it is moved into place, and is deleted without
// Commit.
func TestRestore_CanBeReadFirst(t *testing.T) {
	t.Parallel()
	d := newDisk()
	unpacked, err := pebblestore.Unpack(bytes.NewReader(sample(t, 60)), pebblestore.RestoreOptions{Dir: "data", FS: d})
	musttest.NoError(t, err)
	readOnly := d.options()
	readOnly.Dir, readOnly.ReadOnly = unpacked.Dir, true
	store := open(t, readOnly)
	expectThere(t, store, 0, 59)
	closeStore(t, store)
	if err := unpacked.Close(); err != nil {
		t.Error(err)
	}
	if _, err := d.Stat("data"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestRestore_NeedsAnEmptyDirectory(t *testing.T) {
	t.Parallel()
	backup := sample(t, 1)
	if _, err := pebblestore.Unpack(bytes.NewReader(backup), pebblestore.RestoreOptions{}); err == nil {
		t.Error("a restore without a directory succeeds")
	}
	refuse := func(dir string, want error, text string) {
		t.Helper()
		before := files(t, dir)
		_, err := pebblestore.Unpack(bytes.NewReader(backup), pebblestore.RestoreOptions{Dir: dir})
		if !errors.Is(err, want) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), dir) {
			t.Errorf("restore: %v, want %v and %q", err, want, text)
		}
		if after := files(t, dir); len(after) != len(before) {
			t.Errorf("it held %d files, and now %d", len(before), len(after))
		}
	}
	options, _ := filled(t)
	refuse(options.Dir, fs.ErrExist, "is not empty")
	unused := filepath.Join(t.TempDir(), "data")
	leave := occupy(t, unused)
	if _, err := pebblestore.Unpack(bytes.NewReader(backup), pebblestore.RestoreOptions{Dir: unused}); !errors.Is(err, pebblestore.ErrLocked) {
		t.Errorf("restore into the directory of another process: %v, want ErrLocked", err)
	}
	leave()
	foreign := t.TempDir()
	musttest.WriteFile(t, filepath.Join(foreign, "letter.txt"), "")
	refuse(foreign, fs.ErrExist, "it holds letter.txt")

	// The root of a separate file system.
	mount := t.TempDir()
	musttest.NoError(t, os.Mkdir(filepath.Join(mount, "lost+found"), 0o700))
	restore(t, backup, pebblestore.RestoreOptions{Dir: mount})
	restored := open(t, pebblestore.Options{Dir: mount})
	expectThere(t, restored, 0)
	closeStore(t, restored)
}

// A failing disk must not be reported as a bad backup.
func TestRestore_TellsAFailingDiskFromABadBackup(t *testing.T) {
	t.Parallel()
	backup := sample(t, 60)
	for _, kinds := range [][]errorfs.OpKind{makes, writes, syncs} {
		d := newDisk()
		d.inject("", func() error { return errDisk }, kinds...)
		if _, err := pebblestore.Unpack(bytes.NewReader(backup), pebblestore.RestoreOptions{Dir: "data", FS: d}); !errors.Is(err, errDisk) ||
			errors.Is(err, pebblestore.ErrBackup) {
			t.Errorf("restore to a failing disk: %v", err)
		}
	}
}
