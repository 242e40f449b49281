package pebblestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// backupName is the directory within the store's that holds the files of a backup in
// progress. A start removes the files that a crash left.
const backupName = "BACKUP"

// ErrBackupRunning is returned by Backup while another backup of the store is open.
var ErrBackupRunning = errors.New("another backup of this store is under way")

// BackupNote is what the manifest of a backup says besides what the store knows.
type BackupNote struct {
	Version string         // of the program
	Jobs    map[string]int // live jobs by state
}

// Backup is a consistent copy of an open store: its files as of one moment, as links if the
// file system has them. It keeps the store from closing and disk space from being freed,
// so close it soon. It is not safe for concurrent use.
type Backup struct {
	manifest BackupManifest
	store    *Store
	dir      string
}

// Backup takes a copy that has every write that was acknowledged before the call. Writes go
// on. The caller closes the backup. It returns [ErrBackupRunning] while the store has
// another one open, and [tablestore.ErrUnavailable] when the store takes no writes, or would
// take none after it, as the copy takes disk space.
func (s *Store) Backup(ctx context.Context, note BackupNote) (_ *Backup, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.running.Done()
		}
	}()
	if err := s.Writable(ctx); err != nil {
		return nil, err
	}
	if !s.backingUp.CompareAndSwap(false, true) {
		return nil, ErrBackupRunning
	}
	b := &Backup{store: s, dir: s.folder.backupDir(), manifest: BackupManifest{
		Format: backupFormat, Layout: layoutVersion, Version: note.Version, Jobs: note.Jobs, TakenAt: time.Now().UTC(),
		StoreCreated: s.header.created.UTC(), StoreOpened: s.header.epoch,
	}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("backup of the local store: %w", err), b.remove())
			s.backingUp.Store(false)
		}
	}()
	if err := b.remove(); err != nil { // An earlier backup may have failed to.
		return nil, err
	}
	if err := b.copy(ctx); err != nil {
		return nil, err
	}
	// A restored store is checked by its state when it is opened.
	files := s.space.fs
	if err := writeClosed(files, b.dir); err != nil {
		return nil, err
	}
	names, err := storeFiles(files, b.dir)
	for _, name := range append(names, stateName) {
		info, errStat := files.Stat(files.PathJoin(b.dir, name))
		if err = errors.Join(err, errStat); err != nil {
			return nil, err
		}
		b.manifest.Files = append(b.manifest.Files, BackupFile{Name: name, Bytes: info.Size()})
	}
	return b, err
}

// copy makes the copy. Without hard links it takes as much space as the store, and minutes. The engine panics if a
// sync of its directory fails.
func (b *Backup) copy(ctx context.Context) (err error) {
	b.store.engine.fence.copying = func(bytes int) error {
		b.store.space.written.Add(uint64(bytes))
		return cmp.Or(ctx.Err(), b.store.admit(b.store.space.reserve))
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%v", cause)
			if failed, ok := cause.(error); ok {
				err = failed
			}
		}
	}()
	return b.store.db.Checkpoint(b.dir, pebble.WithFlushedWAL())
}

// Stream writes the backup in the format that [VerifyBackup] and [Unpack] read. Only its end
// makes it valid: after an error, what was written is no backup. It fails when the free disk
// space falls below the reserve: a backup must not make the server refuse writes.
func (b *Backup) Stream(ctx context.Context, w io.Writer) error {
	files, store := b.store.space.fs, b.store
	return writeBackup(w, &b.manifest, func(name string) (io.ReadCloser, error) {
		file, err := files.Open(files.PathJoin(b.dir, name), vfs.SequentialReadsOption)
		if err != nil {
			return nil, err
		}
		return readCloser{readerFunc(func(p []byte) (int, error) {
			if err := cmp.Or(ctx.Err(), store.admit(store.space.reserve)); err != nil {
				return 0, err
			}
			return file.Read(p)
		}), file}, nil
	})
}

// Close removes the copy. Call it once.
func (b *Backup) Close() error {
	err := b.remove()
	b.store.backingUp.Store(false)
	b.store.running.Done()
	return err
}

// remove removes the copy.
func (b *Backup) remove() error {
	b.store.engine.fence.check(nil)
	if err := removeCopy(b.store.space.fs, b.dir); err != nil {
		return fmt.Errorf("remove the copy of the local store: %w", err)
	}
	return nil
}

// removeCopy removes a directory with files of a store, unless it is missing. It leaves
// other files, with which removing the directory fails.
func removeCopy(files vfs.FS, dir string) error {
	names, err := files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		if own := strings.TrimSuffix(name, newSuffix); isStoreFile(own) || name == lockName {
			err = errors.Join(err, files.Remove(files.PathJoin(dir, name)))
		}
	}
	return errors.Join(err, files.Remove(dir))
}

// backupDir returns the path of the directory of a backup in progress.
func (d *folder) backupDir() string { return d.files.PathJoin(d.dir, backupName) }

// inBackup reports whether that is the directory of the backup, or a file in it.
func (d *folder) inBackup(name string) bool {
	dir := d.backupDir()
	return name == dir || d.files.PathDir(name) == dir
}

// copiedFile is a file of the copy, or its directory.
type copiedFile struct {
	vfs.File
	admit func(bytes int) error
}

// Write implements [vfs.File].
func (f copiedFile) Write(p []byte) (int, error) {
	if err := f.admit(len(p)); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

// logReader reads a log that may be in use up to the end of what was written to it when it
// was opened. The engine reuses logs: after its end, the file holds an older log, over
// which the engine writes while it is read. A copy could have a later record without
// those before it, and the engine takes that for damage.
type logReader struct {
	vfs.File
	left int64
}

// Read implements [io.Reader].
func (r *logReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.File.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	return n, err
}

// readerFunc adapts a function to [io.Reader].
type readerFunc func(p []byte) (int, error)

// Read implements [io.Reader].
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type readCloser struct {
	io.Reader
	io.Closer
}
