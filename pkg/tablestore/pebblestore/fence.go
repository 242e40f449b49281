package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// latch records the first failure that the store cannot survive. It is never
// reset: after a failed write or sync the content of the disk is unknown until
// the directory is opened again.
type latch struct {
	failed chan struct{} // Closed by the first trip.
	once   sync.Once
	cause  error // Written before failed is closed, read only after.
	logger *slog.Logger
	folder *folder
	// armed is false during Open: errors are then returned to the engine, and a
	// failure is not logged.
	armed atomic.Bool
}

func newLatch(logger *slog.Logger, folder *folder) *latch {
	return &latch{failed: make(chan struct{}), logger: logger, folder: folder}
}

// trip fails the store with that cause, or with the loss of its directory if that
// caused it. Later causes are ignored.
func (l *latch) trip(cause error) {
	l.once.Do(func() {
		if lost := l.folder.check(); lost != nil {
			cause = lost
		}
		l.cause = cause
		close(l.failed)
		if l.armed.Load() {
			l.logger.Error("local store has failed and must be opened again", "error", cause)
		}
	})
}

// tripped reports whether the store has failed.
func (l *latch) tripped() bool {
	select {
	case <-l.failed:
		return true
	default:
		return false
	}
}

// failure returns the error for callers. It is called only after the latch has
// tripped.
func (l *latch) failure() error { return &failure{l.cause} }

// failure is the error of a store whose latch has tripped. It wraps the cause
// without repeating its text, which is logged once.
type failure struct{ cause error }

func (f *failure) Error() string {
	return "local store has failed and must be opened again: see the log"
}

func (f *failure) Unwrap() error { return f.cause }

// fence is the file system that the engine uses. When a write or sync of its log
// or manifest fails, the engine panics or raises a fatal error, sometimes while
// it holds its locks, which would end or hang the process.
//
// The fence trips the latch instead, before the engine sees the outcome, and from
// then on drops every write, sync, rename and removal and reports success to the
// engine, which can then be closed in order. The disk keeps the state at the
// moment of the failure, as after a crash. Errors in sorted tables do not trip
// the latch: the engine survives those and retries.
//
// The fence also trips the latch when another directory is at the data
// directory's path. It checks before each operation on names, which would take
// effect in that other directory, and after each sync of a file, before the
// writes that share the sync are acknowledged.
type fence struct {
	vfs.FS
	latch *latch
	read  atomic.Pointer[string] // The store file that was last opened for reading.
	logs  sync.Map               // The *atomic.Int64 of how much was written to each log, by name.
}

// down reports whether all further writes are dropped.
func (f *fence) down() bool { return f.latch.armed.Load() && f.latch.tripped() }

// lost reports whether operations on names are dropped.
func (f *fence) lost() bool {
	if f.latch.armed.Load() && !f.latch.tripped() {
		if err := f.latch.folder.check(); err != nil {
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

// report trips the latch if an operation on that file failed, and returns the
// error that the engine gets.
func (f *fence) report(name, doing string, err error) error {
	if err == nil || !f.latch.armed.Load() {
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

// open runs an operation that opens a file for writing. After the failure it
// returns a file that discards what the engine writes.
func (f *fence) open(name, doing string, opener func() (vfs.File, error)) (vfs.File, error) {
	discarding := &fencedFile{File: vfs.NewMemFile(nil), fence: f}
	inBackup := f.latch.folder.inBackup(name)
	switch {
	case f.lost() && inBackup:
		return nil, f.latch.failure()
	case f.down():
		return discarding, nil
	case inBackup: // Its failures are those of the backup alone.
		return opener()
	}
	file, err := opener()
	var opened fs.FileInfo
	if err == nil {
		f.latch.folder.add(name)
		if opened, err = f.latch.folder.stat(name); err != nil {
			err = errors.Join(err, file.Close())
		}
	}
	switch {
	case err == nil:
		fenced := &fencedFile{File: file, name: name, opened: opened, fence: f}
		if isLog(name) {
			fenced.written = new(atomic.Int64)
			f.logs.Store(name, fenced.written)
		}
		return fenced, nil
	case f.report(name, doing, err) != nil:
		return nil, err
	default:
		return discarding, nil
	}
}

// change runs an operation that changes the directory.
func (f *fence) change(name, doing string, operation func() error) error {
	inBackup := f.latch.folder.inBackup(name)
	switch {
	case f.lost() && inBackup:
		return f.latch.failure()
	case f.down():
		return nil
	case inBackup:
		return operation()
	}
	err := operation()
	if err == nil {
		f.latch.folder.add(name)
	}
	return f.report(name, doing, err)
}

func (f *fence) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	if base := f.PathBase(name); isStoreFile(base) {
		f.read.Store(&base)
	}
	f.lost() // If the directory was replaced, the latch trips: no caller sees the wrong file's content.
	written, inUse := f.logs.Load(name)
	if !inUse {
		return f.FS.Open(name, options...)
	}
	left := written.(*atomic.Int64).Load()
	file, err := f.FS.Open(name, options...)
	if err != nil {
		return nil, err
	}
	return &logReader{File: file, left: left}, nil
}

func (f *fence) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(name, "create", func() (vfs.File, error) { return f.FS.Create(name, category) })
}

func (f *fence) OpenReadWrite(
	name string, category vfs.DiskWriteCategory, options ...vfs.OpenOption,
) (vfs.File, error) {
	return f.open(name, "open", func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, options...) })
}

func (f *fence) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(newname, "reuse", func() (vfs.File, error) {
		f.latch.folder.drop(oldname)
		f.logs.Delete(oldname)
		return f.FS.ReuseForWrite(oldname, newname, category)
	})
}

func (f *fence) OpenDir(name string) (vfs.File, error) {
	return f.open(name, "open", func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f *fence) Link(oldname, newname string) error {
	return f.change(newname, "link", func() error { return f.FS.Link(oldname, newname) })
}

func (f *fence) Rename(oldname, newname string) error {
	return f.change(newname, "rename", func() error {
		f.latch.folder.drop(oldname)
		return f.FS.Rename(oldname, newname)
	})
}

// Remove implements [vfs.FS]. A leftover file is harmless, so errors do not
// trip the latch.
func (f *fence) Remove(name string) error {
	if f.lost() {
		return nil
	}
	f.latch.folder.drop(name)
	f.logs.Delete(name)
	return f.FS.Remove(name)
}

// RemoveAll implements [vfs.FS]. Leftover files are harmless, so errors do not
// trip the latch.
func (f *fence) RemoveAll(name string) error {
	if f.lost() {
		return nil
	}
	return f.FS.RemoveAll(name)
}

func (f *fence) MkdirAll(dir string, perm os.FileMode) error {
	return f.change(dir, "make", func() error { return f.FS.MkdirAll(dir, perm) })
}

func (f *fence) Unwrap() vfs.FS { return f.FS }

// fencedFile is a file that was opened for writing.
type fencedFile struct {
	vfs.File
	name   string
	opened fs.FileInfo // The file at that name when it was opened.
	fence  *fence
	// written is how many bytes of a log were written, nil for other files. The engine
	// writes logs from their beginning to their end.
	written *atomic.Int64
}

func (f *fencedFile) Write(p []byte) (int, error) {
	return f.write(len(p), func() (int, error) { return f.File.Write(p) })
}

func (f *fencedFile) WriteAt(p []byte, offset int64) (int, error) {
	return f.write(len(p), func() (int, error) { return f.File.WriteAt(p, offset) })
}

func (f *fencedFile) write(length int, write func() (int, error)) (int, error) {
	if f.fence.down() {
		return length, nil
	}
	n, err := write()
	if f.written != nil {
		f.written.Add(int64(n))
	}
	if err = f.fence.report(f.name, "write", err); err == nil {
		n = length
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

func (f *fencedFile) Sync() error { return f.sync(f.File.Sync) }

func (f *fencedFile) SyncData() error { return f.sync(f.File.SyncData) }

// sync syncs the file and checks that the next start will find it at its name.
func (f *fencedFile) sync(sync func() error) error {
	if f.fence.down() {
		return nil
	}
	err := sync()
	latch := f.fence.latch
	if err == nil && !f.fence.lost() && latch.armed.Load() {
		if lost := latch.folder.checkFile(f.name, f.opened); lost != nil {
			latch.trip(lost)
		}
	}
	if base := f.fence.PathBase(f.name); err == nil && strings.HasPrefix(base, "MANIFEST-") && !f.fence.down() {
		noteManifest(f.fence.FS, latch.folder, f.name)
	}
	return f.fence.report(f.name, "sync", err)
}

func (f *fencedFile) SyncTo(length int64) (full bool, err error) {
	if f.fence.down() {
		return true, nil
	}
	full, err = f.File.SyncTo(length)
	return full, f.fence.report(f.name, "sync", err)
}

func (f *fencedFile) Close() error { return f.fence.report(f.name, "close", f.File.Close()) }

// engineLogger forwards the engine's messages. A fatal error fails the store
// instead of ending the process.
type engineLogger struct{ *latch }

func (l engineLogger) Infof(format string, args ...any) {
	l.logger.Debug("storage engine", "note", fmt.Sprintf(format, args...))
}

func (l engineLogger) Errorf(format string, args ...any) {
	l.logger.Error("storage engine", "note", fmt.Sprintf(format, args...))
}

// Fatalf implements [pebble.Logger]. It returns, and the engine continues with
// all its writes dropped by the fence.
func (l engineLogger) Fatalf(format string, args ...any) {
	l.trip(fmt.Errorf("storage engine: %s", firstLine(fmt.Errorf(format, args...))))
}

// flushPause is the delay after a failed flush, which the engine would
// otherwise retry at once.
const flushPause = 100 * time.Millisecond

// background handles events of the engine's background work. The engine calls
// its methods while it holds its locks.
type background struct {
	space   *space
	latch   *latch
	flushed atomic.Pointer[error] // The outcome of the last flush.
	stalls  atomic.Int64
}

// listener returns the hooks for the engine.
func (b *background) listener() *pebble.EventListener {
	return &pebble.EventListener{
		// The engine also reports a real error to failed, but not the error of a
		// flush that had nothing to write.
		FlushEnd: func(info pebble.FlushInfo) {
			b.flushed.Store(&info.Err)
			b.space.full.Store(false)
		},
		BackgroundError: b.failed,
		WriteStallBegin: func(pebble.WriteStallBeginInfo) { b.stalls.Add(1) },
		// It is unknown which other parts of the file can be read.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			what := filepath.Base(info.Path) + " is damaged (" + firstLine(info.Details) + ")"
			b.latch.trip(damaged(filepath.Dir(info.Path), what))
		},
	}
}

// failed handles a background error. The engine retries by itself: compactions
// may keep failing for long, but without flushes the log and the memory fill
// up.
func (b *background) failed(err error) {
	if b.latch.tripped() {
		return // The engine keeps retrying; the store's failure is already logged.
	}
	b.latch.logger.Error("storage engine: background work failed", "error", firstLine(err))
	if last := b.flushed.Load(); last == nil || *last == nil || !errors.Is(err, *last) {
		return
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		// The log still holds the data, so the flush can wait for space.
		b.space.full.Store(true)
		time.Sleep(flushPause)
		return
	}
	b.latch.trip(fmt.Errorf("flush: %w", err))
}
