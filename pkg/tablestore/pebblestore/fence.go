package pebblestore

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fence stands between pebble and the file system. Pebble answers a failed
// write or sync of its log or manifest with a panic or a fatal error, partly
// while its locks are held, which would take the process down or hang it.
//
// The fence trips the latch instead, and from then on nothing reaches the
// disk: every write, sync, rename and removal is dropped and reported as done.
// Pebble goes on and can be closed in good order; callers learn from the
// latch, which trips before pebble sees the outcome, so that nothing is
// acknowledged. The disk keeps the state of the moment of the failure, as
// after a crash.
//
// Errors in sorted tables trip nothing: pebble survives those and tries again.
type fence struct {
	vfs.FS
	latch *latch
	// armed is false while the store is opened: errors are then returned.
	armed atomic.Bool
}

// down reports whether nothing may reach the disk any more.
func (f *fence) down() bool { return f.armed.Load() && f.latch.tripped() }

// judge returns what pebble is told about an outcome on that file.
func (f *fence) judge(name, doing string, err error) error {
	if err == nil || !f.armed.Load() {
		return err
	}
	if f.latch.tripped() {
		return nil
	}
	if strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
		return err
	}
	f.latch.trip(fmt.Errorf("%s %s: %w", doing, f.PathBase(name), err))
	return nil
}

// open runs an operation that opens a file for writing.
func (f *fence) open(name, doing string, opener func() (vfs.File, error)) (vfs.File, error) {
	if f.down() {
		return f.void(), nil
	}
	file, err := opener()
	if err = f.judge(name, doing, err); err != nil {
		return nil, err
	}
	if file == nil {
		return f.void(), nil
	}
	return &fencedFile{File: file, name: name, fence: f}, nil
}

// void returns a file for pebble to write into after the failure.
func (f *fence) void() vfs.File {
	return &fencedFile{File: vfs.NewMemFile(nil), fence: f}
}

// do runs an operation that changes the directory.
func (f *fence) do(name, doing string, operation func() error) error {
	if f.down() {
		return nil
	}
	return f.judge(name, doing, operation())
}

// Create implements [vfs.FS].
func (f *fence) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(name, "create", func() (vfs.File, error) { return f.FS.Create(name, category) })
}

// OpenReadWrite implements [vfs.FS].
func (f *fence) OpenReadWrite(
	name string, category vfs.DiskWriteCategory, options ...vfs.OpenOption,
) (vfs.File, error) {
	return f.open(name, "open", func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, options...) })
}

// ReuseForWrite implements [vfs.FS].
func (f *fence) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(newname, "reuse", func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, category) })
}

// OpenDir implements [vfs.FS].
func (f *fence) OpenDir(name string) (vfs.File, error) {
	return f.open(name, "open", func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

// Link implements [vfs.FS].
func (f *fence) Link(oldname, newname string) error {
	return f.do(newname, "link", func() error { return f.FS.Link(oldname, newname) })
}

// Rename implements [vfs.FS].
func (f *fence) Rename(oldname, newname string) error {
	return f.do(newname, "rename", func() error { return f.FS.Rename(oldname, newname) })
}

// Remove implements [vfs.FS]. A file that cannot be removed harms nothing.
func (f *fence) Remove(name string) error {
	if f.down() {
		return nil
	}
	return f.FS.Remove(name)
}

// RemoveAll implements [vfs.FS]. Files that cannot be removed harm nothing.
func (f *fence) RemoveAll(name string) error {
	if f.down() {
		return nil
	}
	return f.FS.RemoveAll(name)
}

// MkdirAll implements [vfs.FS].
func (f *fence) MkdirAll(dir string, perm os.FileMode) error {
	return f.do(dir, "make", func() error { return f.FS.MkdirAll(dir, perm) })
}

// Unwrap implements [vfs.FS].
func (f *fence) Unwrap() vfs.FS { return f.FS }

// fencedFile is a file that was opened for writing.
type fencedFile struct {
	vfs.File
	name  string
	fence *fence
}

// Write implements [vfs.File].
func (f *fencedFile) Write(p []byte) (int, error) {
	if f.fence.down() {
		return len(p), nil
	}
	n, err := f.File.Write(p)
	if err = f.fence.judge(f.name, "write", err); err == nil {
		n = len(p)
	}
	return n, err
}

// WriteAt implements [vfs.File].
func (f *fencedFile) WriteAt(p []byte, offset int64) (int, error) {
	if f.fence.down() {
		return len(p), nil
	}
	n, err := f.File.WriteAt(p, offset)
	if err = f.fence.judge(f.name, "write", err); err == nil {
		n = len(p)
	}
	return n, err
}

// Preallocate implements [vfs.File]. It is only a hint to the file system.
func (f *fencedFile) Preallocate(offset, length int64) error {
	if f.fence.down() {
		return nil
	}
	return f.File.Preallocate(offset, length)
}

// Sync implements [vfs.File].
func (f *fencedFile) Sync() error { return f.fence.do(f.name, "sync", f.File.Sync) }

// SyncData implements [vfs.File].
func (f *fencedFile) SyncData() error { return f.fence.do(f.name, "sync", f.File.SyncData) }

// SyncTo implements [vfs.File].
func (f *fencedFile) SyncTo(length int64) (full bool, err error) {
	if f.fence.down() {
		return true, nil
	}
	full, err = f.File.SyncTo(length)
	return full, f.fence.judge(f.name, "sync", err)
}

// Close implements [vfs.File].
func (f *fencedFile) Close() error { return f.fence.judge(f.name, "close", f.File.Close()) }
