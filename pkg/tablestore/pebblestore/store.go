package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// DefaultReserve is the default of Options.Reserve. The engine needs some of it: a flush
// or compaction writes new files before it removes the old ones.
const DefaultReserve = 256 << 20

// reclaimShare is the part of the reserve below which not even commits that free space
// are taken.
const reclaimShare = 4

// checkInterval is how often the store checks the disk.
const checkInterval = time.Second

var (
	// ErrLocked is returned by Open when another store, in this process or
	// another, has the data directory open.
	ErrLocked = errors.New("data directory is in use by another process")

	// ErrNoStore is returned by Open in read-only mode when the directory holds
	// no data.
	ErrNoStore = errors.New("no data directory")

	errClosed = errors.New("local store is closed")
)

// Options configures a store.
type Options struct {
	// Dir is the data directory. It is made if it is missing, and belongs to
	// one store at a time. Required.
	Dir string

	// Reserve is the free disk space, in bytes, below which the store refuses
	// commits. Below a quarter of it, the store also refuses to open, and the
	// commits of [tablestore.Reclaiming] contexts. Optional. Defaults to
	// [DefaultReserve]; negative keeps none.
	Reserve int64

	// ReadOnly opens an existing directory without changing it: not even the
	// leftovers of a crash are removed. Writes return [tablestore.ErrInvalid].
	// Optional. Defaults to false.
	ReadOnly bool

	// Fatal is called when a write or sync has failed, the directory was removed or replaced
	// while it was open, or a file in it is found to be damaged. It must not return, and must
	// end the process: the content of the disk is unknown until the directory is opened again.
	// The log has the cause. Optional. Defaults to [os.Exit] with status 1.
	Fatal func(cause error)

	// Logger gets failures at level error and the storage engine's messages at
	// level debug. Optional. Defaults to discarding.
	Logger *slog.Logger

	// FS is the file system that holds Dir. Optional. Defaults to the operating
	// system's.
	FS vfs.FS

	// Observe is told of each get, scan, walk and commit: how long it took, and its error.
	// It must not block. Optional.
	Observe func(operation string, took time.Duration, err error)

	// memTable is the size of the engine's memtables. Tests make it small so
	// that tables are written soon.
	memTable uint64
}

// Validate reports the first field that is wrong.
func (o Options) Validate() error {
	if o.Dir == "" {
		return errors.New("pebblestore: Options.Dir is required")
	}
	return nil
}

// Store is a durable table store in a directory. See the package comment.
type Store struct {
	db      *pebble.DB
	lock    *pebble.Lock
	engine  *engine
	space   *space
	folder  *folder
	stripes *stripes

	header   header // without the names added since: see names
	names    names
	isNew    bool
	readOnly bool
	writes   atomic.Uint64

	observe   func(operation string, took time.Duration, err error)
	commits   atomic.Uint64 // Written since the store was opened.
	reads     atomic.Uint64 // Requests to read: Get, Scan and Walk.
	rowsRead  atomic.Uint64 // The rows that these returned.
	backingUp atomic.Bool   // A backup is open.
	slow      slowness

	gate    sync.RWMutex // Guards closed against requests that enter during Close.
	closed  bool
	running sync.WaitGroup // Requests under way and writes that are not durable yet.
	applied chan *pending  // Applied writes that wait for their sync.
	closing chan struct{}  // Closed by the first Close.
}

var (
	_ tablestore.AtomicStore = (*Store)(nil)
	_ tablestore.Walker      = (*Store)(nil)
	_ tablestore.Paced       = (*Store)(nil)
)

// enter begins a request, which ends with running.Done, or returns why the
// store refuses it.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, errClosed)
	}
	s.running.Add(1)
	return nil
}

// Writable returns why the store would refuse a write now, or nil:
// [tablestore.ErrUnavailable] with [tablestore.ErrNoSpace] while less disk space is free than
// the reserve; [tablestore.ErrInvalid] if it was opened read-only. It is safe for concurrent
// use.
func (s *Store) Writable(context.Context) error {
	if s.readOnly {
		return fmt.Errorf("%w: local store was opened read-only", tablestore.ErrInvalid)
	}
	return s.admit(s.space.reserve)
}

// admit returns [tablestore.ErrNoSpace] while less than that is free.
func (s *Store) admit(needed uint64) error {
	if err := s.space.admit(needed); err != nil {
		return fmt.Errorf("%w: %w: %w", tablestore.ErrUnavailable, tablestore.ErrNoSpace, err)
	}
	return nil
}

// admitCommit returns why a commit must be refused, or nil.
func (s *Store) admitCommit(ctx context.Context) error {
	err := s.Writable(ctx)
	if errors.Is(err, tablestore.ErrNoSpace) && tablestore.IsReclaiming(ctx) {
		s.space.reclaimed.Store(true)
		return s.admit(s.space.reserve / reclaimShare)
	}
	return err
}

// monitor periodically checks, even without writes, that enough disk space is
// free and that the directory is still the one that was opened. It ends with
// the store.
func (s *Store) monitor() {
	defer s.running.Done()
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-ticker.C:
		}
		_ = s.space.measure()
		// Deleted rows take space until they are flushed, and compacted away.
		if s.space.reclaimed.Swap(false) {
			if _, err := s.db.AsyncFlush(); err != nil {
				s.engine.logger.Error("local store could not be flushed to free space", "error", err)
			}
		}
		s.engine.fence.check(nil)
	}
}

// Info describes an open store.
type Info struct {
	Dir     string    // The data directory's absolute path, with links resolved.
	New     bool      // Open made the store.
	Created time.Time // When the store was made.
	Opened  uint64    // How often it was opened for writing, this time included.
	Bytes   uint64    // The size of its files on disk.
}

// Info describes the store.
func (s *Store) Info() Info {
	return Info{
		Dir: s.folder.dir, New: s.isNew, Created: s.header.created, Opened: s.header.epoch,
		Bytes: s.db.Metrics().DiskSpaceUsage(),
	}
}

// Compact moves all rows to the last level, where replaced and deleted ones take no space,
// and returns the size of the tables. It reads and writes the whole store.
func (s *Store) Compact(ctx context.Context) (bytes int64, err error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.running.Done()
	if err := s.db.Compact(ctx, []byte{divider}, []byte(partitionEnd), false); err != nil {
		return 0, fmt.Errorf("%w: compact: %w", tablestore.ErrUnavailable, err)
	}
	return s.db.Metrics().Total().TablesSize, nil
}

// Space returns the free disk space, as of the last second, and the reserve, in bytes.
// Both are equal on a file system that does not tell. It is safe for concurrent use.
func (s *Store) Space() (free, reserve uint64) { return s.space.free.Load(), s.space.reserve }

// Close implements [tablestore.Store]. It waits for requests under way and for
// writes that are not durable yet, even if their callers have given up.
func (s *Store) Close() error {
	s.gate.Lock()
	again := s.closed
	s.closed = true
	s.gate.Unlock()
	if again {
		return nil
	}
	close(s.closing)
	s.running.Wait()
	close(s.applied)
	if err := errors.Join(s.closeEngine(), s.lock.Close()); err != nil {
		return fmt.Errorf("close local store: %w", err)
	}
	return nil
}

// closeEngine closes the engine and notes that this was an orderly stop.
func (s *Store) closeEngine() error {
	if err := s.db.Close(); err != nil || s.readOnly {
		return err
	}
	s.engine.fence.check(nil)
	return writeClosed(s.space.fs, s.folder.dir)
}

// space keeps the reserve of free disk space: writes are refused while less is
// free, so that a write to the log never fails on a full disk. Measuring costs
// a system call, so it is done once a second and after enough bytes were
// written.
type space struct {
	fs      vfs.FS
	dir     string
	reserve uint64

	written atomic.Uint64 // Bytes written since the last measurement.
	free    atomic.Uint64 // The result of the last measurement, in bytes.
	full    atomic.Bool   // A flush failed on a full disk and none has succeeded since.

	reclaimed atomic.Bool // Space was freed below the reserve, in the memtable only.
}

// admit returns why a write must be refused that needs that much free space, or nil.
func (s *space) admit(needed uint64) error {
	// One writer measures; the others use the last result.
	if written := s.written.Load(); written > s.reserve/16 && s.written.CompareAndSwap(written, 0) {
		_ = s.measure()
	}
	return s.shortage(needed)
}

// measure updates the free space. A file system that does not support it has no
// reserve; after an error the last result stays in use.
func (s *space) measure() error {
	s.written.Store(0)
	usage, err := s.fs.GetDiskUsage(s.dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		s.free.Store(s.reserve)
		return nil
	}
	if err == nil {
		s.free.Store(usage.AvailBytes)
	}
	return err
}

// FreeSpace returns the free space, in bytes, of the disk that has the folder.
func FreeSpace(dir string) (uint64, error) {
	usage, err := vfs.Default.GetDiskUsage(dir)
	if err != nil {
		return 0, fmt.Errorf("free disk space of %q is not known: %w", dir, err)
	}
	return usage.AvailBytes, nil
}

// shortage returns an error while less space is free than needed.
func (s *space) shortage(needed uint64) error {
	if free := s.free.Load(); free < needed {
		return fmt.Errorf("%d MiB of disk space are free, and %d MiB are needed", free>>20, needed>>20)
	}
	if s.full.Load() {
		return errors.New("the disk is full")
	}
	return nil
}
