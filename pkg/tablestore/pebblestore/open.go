package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// layoutVersion is the version of the layout of keys and rows.
const layoutVersion = 1

// headerKey holds the layout version and the number of times that the store
// was opened. It sorts before every table.
var headerKey = []byte{divider, 'h'}

var (
	// ErrLocked is returned by Open when another store, in this process or
	// another, has the data directory open.
	ErrLocked = errors.New("data directory is in use by another process")

	// ErrDamaged is returned by Open when the directory holds data that cannot
	// be read, or that a newer version wrote.
	ErrDamaged = errors.New("data directory cannot be read")

	// ErrNoStore is returned by Open when a directory that is to be read alone
	// holds no data.
	ErrNoStore = errors.New("no data directory")

	// ErrNoSpace is returned by Open, by writes and by [Store.Writable] when less
	// disk space is free than the reserve.
	ErrNoSpace = errors.New("too little free disk space")
)

// Open opens the store in options.Dir, and makes it when there is none. Each
// error names the directory. It wraps [ErrLocked], [ErrDamaged],
// [ErrNoStore] or [ErrNoSpace] where that is the reason; else the directory cannot be made or
// written.
func Open(options Options) (*Store, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	options = options.withDefaults()
	if err := prepare(&options); err != nil {
		return nil, err
	}
	lock, err := acquire(options)
	if err != nil {
		return nil, err
	}
	store, err := open(options, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return store, nil
}

// prepare makes the directory and resolves its path, so that one directory
// under two names is still locked once.
func prepare(options *Options) error {
	files := options.FS
	if info, err := files.Stat(options.Dir); err == nil && !info.IsDir() {
		return fmt.Errorf("data directory %q is not a directory", options.Dir)
	}
	if options.ReadOnly {
		if _, err := files.Stat(options.Dir); err != nil {
			return fmt.Errorf("%w: %q: %w", ErrNoStore, options.Dir, err)
		}
	} else if err := makeDir(files, options.Dir); err != nil {
		return fmt.Errorf("data directory %q cannot be made: %w", options.Dir, err)
	}
	if files != vfs.Default {
		return nil
	}
	path, err := filepath.Abs(options.Dir)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return fmt.Errorf("data directory %q cannot be found: %w", options.Dir, err)
	}
	options.Dir = path
	return nil
}

// makeDir makes the directory and its missing parents, so that a loss of power
// takes none of them back.
func makeDir(files vfs.FS, dir string) error {
	if _, err := files.Stat(dir); err == nil {
		return nil
	}
	parent := files.PathDir(dir)
	if parent == dir {
		return nil
	}
	if err := makeDir(files, parent); err != nil {
		return err
	}
	if err := files.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	handle, err := files.OpenDir(parent)
	if err != nil {
		return err
	}
	return errors.Join(handle.Sync(), handle.Close())
}

// acquire locks the directory.
func acquire(options Options) (*pebble.Lock, error) {
	lock, err := pebble.LockDirectory(options.Dir, options.FS)
	if err == nil {
		return lock, nil
	}
	// Making the lock file fails with the path; taking the lock without it.
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return nil, fmt.Errorf("data directory %q cannot be written: %w", options.Dir, err)
	}
	return nil, fmt.Errorf("%w: %q: %w", ErrLocked, options.Dir, err)
}

// open opens the locked directory.
func open(options Options, lock *pebble.Lock) (*Store, error) {
	space := newSpace(options.FS, options.Dir, uint64(options.Reserve))
	if err := space.look(); err != nil {
		return nil, fmt.Errorf("data directory %q: free disk space is not known: %w", options.Dir, err)
	}
	if err := space.verdict(); err != nil && !options.ReadOnly {
		return nil, fmt.Errorf("%w: data directory %q: %w", ErrNoSpace, options.Dir, err)
	}
	logger := options.Logger.With("dir", options.Dir)
	latch := newLatch(logger)
	fence := &fence{FS: options.FS, latch: latch}
	engine := tune(options.memTable)
	engine.FS, engine.Lock = fence, lock
	engine.Logger = engineLogger{logger, latch}
	engine.EventListener = (&background{space: space, latch: latch, logger: logger}).listener()
	engine.ReadOnly, engine.ErrorIfNotExists = options.ReadOnly, options.ReadOnly
	db, err := openEngine(options.Dir, engine)
	if err != nil {
		return nil, err
	}
	epoch, err := countOpening(db, options.ReadOnly)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data directory %q: %w", options.Dir, err), db.Close())
	}
	if latch.tripped() {
		return nil, errors.Join(fmt.Errorf("%w: %q: %w", ErrDamaged, options.Dir, latch.cause), db.Close())
	}
	fence.armed.Store(true)
	store := &Store{
		db: db, lock: lock, latch: latch, space: space, stripes: newStripes(), epoch: epoch,
		applied: make(chan applied, maxUnsettled), readOnly: options.ReadOnly,
	}
	go store.settleAll()
	return store, nil
}

// maxUnsettled is how many writes may wait for the settler without keeping
// anyone: more than the engine has under way.
const maxUnsettled = 1024

// openEngine opens the engine. It panics on some kinds of damage.
func openEngine(dir string, options *pebble.Options) (db *pebble.DB, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			db, err = nil, fmt.Errorf("%w: %q: %v", ErrDamaged, dir, cause)
		}
	}()
	db, err = pebble.Open(dir, options)
	switch {
	case err == nil:
		return db, nil
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return nil, fmt.Errorf("%w: %q", ErrNoStore, dir)
	case pebble.IsCorruptionError(err), errors.Is(err, pebble.ErrDBNotPristine):
		return nil, fmt.Errorf("%w: %q: %w", ErrDamaged, dir, err)
	default:
		return nil, fmt.Errorf("data directory %q cannot be opened: %w", dir, err)
	}
}

// countOpening checks the header and returns the number of this opening, which
// no ETag has used before. One that only reads is not counted.
func countOpening(db *pebble.DB, readOnly bool) (epoch uint64, err error) {
	header, closer, err := db.Get(headerKey)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
	case err != nil:
		return 0, fmt.Errorf("read header: %w", err)
	default:
		if epoch, err = decodeHeader(header); err != nil {
			return 0, errors.Join(err, closer.Close())
		}
		if err := closer.Close(); err != nil {
			return 0, fmt.Errorf("read header: %w", err)
		}
	}
	if readOnly {
		return epoch, nil
	}
	epoch++
	if err := db.Set(headerKey, encodeHeader(epoch), pebble.Sync); err != nil {
		return 0, fmt.Errorf("write header: %w", err)
	}
	return epoch, nil
}

func encodeHeader(epoch uint64) []byte {
	return binary.AppendUvarint([]byte{layoutVersion}, epoch)
}

func decodeHeader(header []byte) (epoch uint64, err error) {
	if len(header) == 0 || header[0] != layoutVersion {
		return 0, fmt.Errorf("%w: unknown layout, written by another version of this program", ErrDamaged)
	}
	epoch, size := binary.Uvarint(header[1:])
	if size != len(header)-1 {
		return 0, fmt.Errorf("%w: malformed header", ErrDamaged)
	}
	return epoch, nil
}
