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

// DefaultReserve is the default of Options.Reserve.
const DefaultReserve = 64 << 20

// checkInterval is how often the store checks the disk.
const checkInterval = time.Second

var (
	// ErrLocked is returned by Open when another store, in this process or
	// another, has the data directory open.
	ErrLocked = errors.New("data directory is in use by another process")

	// ErrDamaged is returned by Open when the directory's data cannot be read
	// or has another version's layout.
	ErrDamaged = errors.New("data directory cannot be read")

	// ErrNoStore is returned by Open in read-only mode when the directory holds
	// no data.
	ErrNoStore = errors.New("no data directory")

	// ErrNoSpace is returned by Open, by writes and by [Store.Writable] when less
	// disk space is free than the reserve.
	ErrNoSpace = errors.New("too little free disk space")

	// ErrLost is returned after the open data directory, or a file in it, was
	// removed or replaced. The store stays unavailable: a directory that is put
	// back may lack what was written in the meantime.
	ErrLost = errors.New("data directory was removed or replaced while it was open")

	errClosed = errors.New("local store is closed")
)

// Options configures a store.
type Options struct {
	// Dir is the data directory. It is made if it is missing, and belongs to
	// one store at a time. Required.
	Dir string

	// Reserve is the free disk space, in bytes, below which the store refuses
	// to open and to write. Optional. Defaults to [DefaultReserve]; negative
	// keeps none.
	Reserve int64

	// ReadOnly opens an existing directory without changing it: not even the
	// leftovers of a crash are removed. Writes return [tablestore.ErrInvalid].
	// Optional. Defaults to false.
	ReadOnly bool

	// Logger gets failures at level error and the storage engine's messages at
	// level debug. Optional. Defaults to discarding.
	Logger *slog.Logger

	// FS is the file system that holds Dir. Optional. Defaults to the operating
	// system's.
	FS vfs.FS

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
	latch   *latch
	space   *space
	folder  *folder
	stripes *stripes

	header   header
	isNew    bool
	readOnly bool
	writes   atomic.Uint64

	gate    sync.RWMutex // Guards closed against requests that enter during Close.
	closed  bool
	running sync.WaitGroup // Requests under way and writes that are not durable yet.
	applied chan *pending  // Applied writes that wait for their sync.
	closing chan struct{}  // Closed by the first Close.
}

var (
	_ tablestore.AtomicStore = (*Store)(nil)
	_ tablestore.Walker      = (*Store)(nil)
)

// enter begins a request, which ends with running.Done, or returns why the
// store refuses it.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	if err := s.healthy(); err != nil {
		return err
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, errClosed)
	}
	s.running.Add(1)
	return nil
}

// healthy returns an error once the store has failed.
func (s *Store) healthy() error {
	if s.latch.tripped() {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, s.latch.failure())
	}
	return nil
}

// Writable returns why the store would refuse a write now, or nil:
// [tablestore.ErrUnavailable] once it has failed, with [ErrLost] if its
// directory was removed or replaced, and with [ErrNoSpace] while less disk
// space is free than the reserve; [tablestore.ErrInvalid] if it was opened
// read-only. It is safe for concurrent use.
func (s *Store) Writable() error {
	if s.readOnly {
		return fmt.Errorf("%w: local store was opened read-only", tablestore.ErrInvalid)
	}
	if err := s.healthy(); err != nil {
		return err
	}
	if err := s.space.admit(); err != nil {
		return fmt.Errorf("%w: %w: %w", tablestore.ErrUnavailable, ErrNoSpace, err)
	}
	return nil
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
		case <-s.latch.failed:
			return
		case <-ticker.C:
		}
		_ = s.space.measure()
		if err := s.folder.checkFiles(); err != nil {
			s.latch.trip(err)
		}
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
	if err := errors.Join(s.db.Close(), s.lock.Close()); err != nil {
		return fmt.Errorf("close local store: %w", err)
	}
	return nil
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
}

// admit returns why a write must be refused, or nil.
func (s *space) admit() error {
	// One writer measures; the others use the last result.
	if written := s.written.Load(); written > s.reserve/8 && s.written.CompareAndSwap(written, 0) {
		_ = s.measure()
	}
	return s.shortage()
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

// shortage returns an error while too little space is free.
func (s *space) shortage() error {
	if free := s.free.Load(); free < s.reserve {
		return fmt.Errorf("%d MiB of disk space are free, and the reserve is %d MiB", free>>20, s.reserve>>20)
	}
	if s.full.Load() {
		return errors.New("the disk is full")
	}
	return nil
}
