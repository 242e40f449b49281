package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fence is the file system that pebble uses. When a write or sync of its log or
// manifest fails, pebble panics or raises a fatal error, sometimes while it
// holds its locks, which would end or hang the process.
//
// The fence trips the latch instead. From then on it drops every write, sync,
// rename and removal and reports success to pebble, which continues and can be
// closed in order. Callers learn of the failure from the latch, which trips
// before pebble sees the outcome, so no later write is acknowledged. The disk
// keeps the state at the moment of the failure, as after a crash.
//
// Errors in sorted tables do not trip the latch: pebble survives those and
// retries.
//
// The fence also trips the latch when another directory is at the data
// directory's path. It checks before each operation on names, which would take
// effect in that other directory, and after each sync of a file, before the
// writes that share the sync are acknowledged.
type fence struct {
	vfs.FS
	latch  *latch
	folder *folder
	read   atomic.Pointer[string] // The store file that was last opened for reading.
	// armed is false during Open: errors are then returned to pebble.
	armed atomic.Bool
}

// down reports whether all further writes are dropped.
func (f *fence) down() bool { return f.armed.Load() && f.latch.tripped() }

// gone reports whether operations on names are dropped.
func (f *fence) gone() bool {
	if f.armed.Load() && !f.latch.tripped() {
		if err := f.folder.check(); err != nil {
			f.latch.trip(err)
		}
	}
	return f.down()
}

// lastRead returns the name of the store file that was last opened for reading.
func (f *fence) lastRead() string {
	if name := f.read.Load(); name != nil {
		return *name
	}
	return "a file"
}

// judge returns the error that pebble gets for an operation on that file.
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
	if f.gone() {
		return f.void(), nil
	}
	file, err := opener()
	var opened fs.FileInfo
	if err == nil {
		f.folder.add(name)
		if opened, err = f.folder.stat(name); err != nil {
			err = errors.Join(err, file.Close())
			file = nil
		}
	}
	if err = f.judge(name, doing, err); err != nil {
		return nil, err
	}
	if file == nil {
		return f.void(), nil
	}
	return &fencedFile{File: file, name: name, opened: opened, fence: f}, nil
}

// void returns a file that discards what pebble writes after the failure.
func (f *fence) void() vfs.File {
	return &fencedFile{File: vfs.NewMemFile(nil), fence: f}
}

// do runs an operation that changes the directory.
func (f *fence) do(name, doing string, operation func() error) error {
	if f.gone() {
		return nil
	}
	err := operation()
	if err == nil {
		f.folder.add(name)
	}
	return f.judge(name, doing, err)
}

// Open implements [vfs.FS].
func (f *fence) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	if base := f.PathBase(name); isStoreFile(base) {
		f.read.Store(&base)
	}
	f.gone() // If the directory was replaced, the latch trips: no caller sees the wrong file's content.
	return f.FS.Open(name, options...)
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
	return f.open(newname, "reuse", func() (vfs.File, error) {
		f.folder.drop(oldname)
		return f.FS.ReuseForWrite(oldname, newname, category)
	})
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
	return f.do(newname, "rename", func() error {
		f.folder.drop(oldname)
		return f.FS.Rename(oldname, newname)
	})
}

// Remove implements [vfs.FS]. A leftover file is harmless, so errors do not
// trip the latch.
func (f *fence) Remove(name string) error {
	if f.gone() {
		return nil
	}
	f.folder.drop(name)
	return f.FS.Remove(name)
}

// RemoveAll implements [vfs.FS]. Leftover files are harmless, so errors do not
// trip the latch.
func (f *fence) RemoveAll(name string) error {
	if f.gone() {
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
	name   string
	opened fs.FileInfo // The file at that name when it was opened.
	fence  *fence
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
func (f *fencedFile) Sync() error { return f.sync(f.File.Sync) }

// SyncData implements [vfs.File].
func (f *fencedFile) SyncData() error { return f.sync(f.File.SyncData) }

// sync syncs the file and checks that the next start will find it at its name.
func (f *fencedFile) sync(syncer func() error) error {
	if f.fence.down() {
		return nil
	}
	err := syncer()
	if err == nil && !f.fence.gone() && f.fence.armed.Load() {
		if lost := f.fence.folder.holds(f.name, f.opened); lost != nil {
			f.fence.latch.trip(lost)
		}
	}
	return f.fence.judge(f.name, "sync", err)
}

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
