package pebblestore

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// lockedFolder returns the folder of a directory in memory.
func lockedFolder(memory *vfs.MemFS) *folder {
	if _, err := memory.Create(lockName, "test"); err != nil {
		panic(err)
	}
	folder, err := newFolder(memory, "", "")
	if err != nil {
		panic(err)
	}
	return folder
}

// fatal panics instead of ending the process.
func fatal(cause error) { panic(cause) }

// causeOf returns why the operation would end the process, or nil.
func causeOf(operation func()) (cause error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			cause = recovered.(error)
		}
	}()
	operation()
	return nil
}

// change makes every kind of change to the file system, through files opened
// before and new ones, and returns the first error.
func change(fs vfs.FS, file, dir vfs.File) error {
	created, errCreate := fs.Create("new", "test")
	reused, errReuse := fs.ReuseForWrite("old", "newer", "test")
	opened, errOpen := fs.OpenReadWrite("file", "test")
	openedDir, errDir := fs.OpenDir("")
	errs := []error{errCreate, errReuse, errOpen, errDir}
	for _, f := range []vfs.File{file, created, reused, opened} {
		if f == nil {
			continue
		}
		_, errWrite := f.Write([]byte("changed"))
		_, errSyncTo := f.SyncTo(1)
		errs = append(errs, errWrite, errSyncTo, f.Preallocate(0, 1), f.SyncData(), f.Sync())
	}
	if opened != nil {
		_, err := opened.WriteAt([]byte("changed"), 0)
		errs = append(errs, err)
	}
	for _, f := range []vfs.File{created, reused, opened, openedDir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(append(errs, dir.Sync(), fs.Link("file", "link"), fs.Rename("file", "renamed"),
		fs.Remove("other"), fs.RemoveAll("other"), fs.MkdirAll("dir/dir", 0o700))...)
}

// newFenced returns a fence around a file system with some files.
func newFenced(t *testing.T, rule func(op errorfs.Op) error) (f *fence, memory *vfs.MemFS, file, dir vfs.File) {
	t.Helper()
	memory = vfs.NewMem()
	f = &fence{FS: errorfs.Wrap(memory, errorfs.InjectorFunc(rule)), fatal: fatal}
	f.folder = lockedFolder(memory)
	var err error
	for _, name := range []string{"old", "other", "file"} {
		if file, err = f.Create(name, "test"); err != nil {
			t.Fatal(err)
		}
	}
	if dir, err = f.OpenDir(""); err != nil {
		t.Fatal(err)
	}
	return f, memory, file, dir
}

func TestFenceLetsEverythingThroughAtFirst(t *testing.T) {
	t.Parallel()
	for _, armed := range []bool{false, true} {
		f, memory, file, dir := newFenced(t, func(errorfs.Op) error { return nil })
		f.armed.Store(armed)
		before := memory.String()
		if err := change(f, file, dir); err != nil {
			t.Errorf("armed %t: %v", armed, err)
		}
		if memory.String() == before {
			t.Errorf("armed %t: unchanged", armed)
		}
	}
}

func TestFenceChangesNothingOnceTheDirectoryIsLost(t *testing.T) {
	t.Parallel()
	f, memory, _, _ := newFenced(t, func(errorfs.Op) error { return nil })
	f.armed.Store(true)
	musttest.NoError(t, memory.Remove(lockName))
	before := memory.String()
	for name, operation := range map[string]func(){
		"create": func() { _, _ = f.Create("new", "test") }, "reuse": func() { _, _ = f.ReuseForWrite("old", "newer", "test") },
		"open": func() { _, _ = f.Open("file") }, "open the directory": func() { _, _ = f.OpenDir("") },
		"link": func() { _ = f.Link("file", "link") }, "rename": func() { _ = f.Rename("file", "renamed") },
		"remove": func() { _ = f.Remove("other") },
	} {
		if cause := causeOf(operation); !errors.Is(cause, tablestore.ErrLost) {
			t.Errorf("%s: %v, want ErrLost", name, cause)
		}
	}
	if diff := cmp.Diff(before, memory.String()); diff != "" {
		t.Errorf("the disk changed (-before +after):\n%s", diff)
	}
}

func TestFenceReturnsErrorsWhileOpening(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	var failing bool
	f, _, file, dir := newFenced(t, func(errorfs.Op) error {
		if failing {
			return failure
		}
		return nil
	})
	failing = true
	if err := change(f, file, dir); !errors.Is(err, failure) {
		t.Errorf("%v, want the failure", err)
	}
}

func TestFenceEndsTheProcessForFilesOnWhichWritesDepend(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		file string
		ends bool
	}{
		"log": {"000001.log", true}, "manifest": {"MANIFEST-000002", true}, "marker": {"marker.manifest.1", true},
		"table": {"000003.sst", false}, "values": {"000004.blob", false},
	} {
		failure := errors.New("failure of " + name)
		var failing bool
		f, _, _, _ := newFenced(t, func(op errorfs.Op) error {
			if failing && op.Kind == errorfs.OpFileSync {
				return failure
			}
			return nil
		})
		file, err := f.Create(test.file, "test")
		musttest.NoError(t, err)
		failing = true
		f.armed.Store(true)
		cause := causeOf(func() { err = file.Sync() })
		if ends := cause != nil; ends != test.ends || !ends && !errors.Is(err, failure) {
			t.Errorf("%s: the process ends with %v, pebble is told of %v", name, cause, err)
		}
		if test.ends && !strings.Contains(cause.Error(), "sync "+test.file+": failure of "+name) {
			t.Errorf("%s: cause %q does not say what failed", name, cause)
		}
	}
	if f, _, _, _ := newFenced(t, func(errorfs.Op) error { return nil }); f.Unwrap() != f.FS {
		t.Error("Unwrap does not return the wrapped file system")
	}
}

// TestBackgroundTellsAFailedFlushFromOtherErrors calls the hooks as the engine
// does.
func TestBackgroundTellsAFailedFlushFromOtherErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken disk")
	full := fmt.Errorf("write table: %w", syscall.ENOSPC)
	for name, test := range map[string]struct {
		flush        error // The flush's error.
		reported     error // The error reported after it, if any.
		failed, full bool  // The process ends; the disk is full.
	}{
		"a good flush":                        {},
		"a flush with nothing to write":       {flush: errors.New("empty table")},
		"a failed flush":                      {flush: broken, reported: broken, failed: true},
		"a flush on a full disk":              {flush: full, reported: full, full: true},
		"a failed compaction":                 {reported: broken},
		"a compaction on a full disk":         {reported: full},
		"a compaction after a useless flush":  {flush: errors.New("empty table"), reported: broken},
		"a failed flush, reported with a why": {flush: broken, reported: fmt.Errorf("flush: %w", broken), failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := &engine{space: &space{}, logger: slog.New(slog.DiscardHandler)}
				e.fence = &fence{folder: lockedFolder(vfs.NewMem()), fatal: fatal}
				e.fence.armed.Store(true)
				hooks := e.listener()
				hooks.FlushEnd(pebble.FlushInfo{Err: test.flush})
				if got := e.space.shortage(0) != nil; got != test.full {
					t.Errorf("disk full right after the flush: %t, want %t", got, test.full)
				}
				if test.reported != nil {
					if cause := causeOf(func() { hooks.BackgroundError(test.reported) }); (cause != nil) != test.failed {
						t.Errorf("the process ends with %v, want %t", cause, test.failed)
					}
				}
				if got := e.space.shortage(0) != nil; got != test.full {
					t.Errorf("disk full: %t, want %t", got, test.full)
				}
				hooks.FlushEnd(pebble.FlushInfo{})
				if err := e.space.shortage(0); err != nil {
					t.Errorf("after a good flush: %v", err)
				}
			})
		})
	}
}
