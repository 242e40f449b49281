package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// layoutVersion is the version of the layout of keys and rows.
const layoutVersion = 2

// headerKey is the key of the header row, which holds the layout version, how
// often the store was opened, and when it was made. It sorts before every
// table.
var headerKey = []byte{divider, 'h'}

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
)

// Open opens the store in options.Dir, and makes it if there is none. Each
// error names the directory and wraps [ErrLocked], [ErrDamaged], [ErrNoStore]
// or [ErrNoSpace] if that is the reason; otherwise the directory cannot be made
// or written.
func Open(options Options) (*Store, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	options = options.withDefaults()
	path, err := prepare(&options)
	if err != nil {
		return nil, err
	}
	lock, err := acquire(options)
	if err != nil {
		return nil, err
	}
	store, err := open(options, path, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return store, nil
}

// prepare makes the directory and resolves its path, so that a directory with
// two names is locked only once. It returns the path before links are resolved.
func prepare(options *Options) (path string, err error) {
	files := options.FS
	if info, err := files.Stat(options.Dir); err == nil && !info.IsDir() {
		return "", fmt.Errorf("data directory %q is not a directory", options.Dir)
	}
	if options.ReadOnly {
		if _, err := files.Stat(options.Dir); err != nil {
			return "", fmt.Errorf("%w: %q: %w", ErrNoStore, options.Dir, err)
		}
	} else if err := makeDir(files, options.Dir); err != nil {
		return "", fmt.Errorf("data directory %q cannot be made: %w", options.Dir, err)
	}
	if files != vfs.Default {
		return options.Dir, nil
	}
	path, err = filepath.Abs(options.Dir)
	if err == nil {
		options.Dir, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", fmt.Errorf("data directory %q cannot be found: %w", options.Dir, err)
	}
	return path, nil
}

// makeDir makes the directory and its missing parents durably: a power loss
// removes none of them.
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
	return syncDir(files, parent)
}

// syncDir makes the names in a directory durable.
func syncDir(files vfs.FS, dir string) error {
	handle, err := files.OpenDir(dir)
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
	// An error with a path comes from making the lock file, one without from
	// taking the lock.
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return nil, fmt.Errorf("data directory %q cannot be written: %w", options.Dir, err)
	}
	return nil, fmt.Errorf("%w: %q: %w", ErrLocked, options.Dir, err)
}

// open opens the locked directory.
func open(options Options, path string, lock *pebble.Lock) (*Store, error) {
	space, err := measure(options)
	if err != nil {
		return nil, err
	}
	found, fresh, err := inspect(options.FS, options.Dir)
	if err != nil {
		return nil, err
	}
	folder, err := newFolder(options.FS, options.Dir, path)
	if err != nil {
		return nil, err
	}
	if fresh && !options.ReadOnly {
		if err := beginCreation(options.FS, options.Dir, found); err != nil {
			return nil, fmt.Errorf("data directory %q cannot be opened: %w", options.Dir, err)
		}
	} else {
		folder.add(found...)
	}
	latch := newLatch(options.Logger.With("dir", options.Dir))
	latch.folder = folder
	fence := &fence{FS: options.FS, latch: latch, folder: folder}
	db, header, err := openEngine(options, fresh, fence, space, lock)
	if err != nil {
		return nil, err
	}
	if fresh && !options.ReadOnly {
		if err := endCreation(options.FS, options.Dir); err != nil {
			return nil, errors.Join(fmt.Errorf("data directory %q cannot be written: %w", options.Dir, err), db.Close())
		}
	}
	store := &Store{
		db: db, lock: lock, latch: latch, space: space, folder: folder, stripes: newStripes(),
		header: header, isNew: fresh, readOnly: options.ReadOnly,
		applied: make(chan applied, maxUnsettled), closing: make(chan struct{}),
	}
	go store.settleAll()
	if !options.ReadOnly {
		store.running.Add(1)
		go store.watch()
	}
	return store, nil
}

// measure reads the free space of the directory, which must exceed the reserve
// unless the store is opened read-only.
func measure(options Options) (*space, error) {
	space := newSpace(options.FS, options.Dir, uint64(options.Reserve))
	if err := space.look(); err != nil {
		return nil, fmt.Errorf("data directory %q: free disk space is not known: %w", options.Dir, err)
	}
	if err := space.verdict(); err != nil && !options.ReadOnly {
		return nil, fmt.Errorf("%w: data directory %q: %w", ErrNoSpace, options.Dir, err)
	}
	return space, nil
}

// maxUnsettled is how many writes can wait for settleAll without blocking their
// senders: more than the engine has under way.
const maxUnsettled = 1024

// openEngine opens the engine, counts the opening in the header, and arms the
// fence. The engine panics on some kinds of damage.
func openEngine(options Options, fresh bool, fence *fence, space *space, lock *pebble.Lock) (
	db *pebble.DB, header header, err error,
) {
	latch := fence.latch
	engine := tune(options.memTable)
	engine.FS, engine.Lock = fence, lock
	engine.Logger = engineLogger{latch.logger, latch}
	engine.EventListener = (&background{space: space, latch: latch, logger: latch.logger}).listener()
	engine.ReadOnly, engine.ErrorIfNotExists = options.ReadOnly, options.ReadOnly
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%v", cause)
		}
		if err == nil {
			fence.armed.Store(true)
			latch.armed.Store(true)
			if latch.tripped() {
				err = latch.cause
			}
		}
		if err != nil {
			err = openingError(options.Dir, fence.lastRead(), err)
			if db != nil {
				err = errors.Join(err, db.Close())
			}
		}
	}()
	if db, err = pebble.Open(options.Dir, engine); err != nil {
		return nil, header, err
	}
	header, err = countOpening(db, fresh, options)
	return db, header, err
}

// header is the row that describes the store itself.
type header struct {
	epoch   uint64    // How often the store was opened for writing.
	created time.Time // When it was made.
}

// countOpening checks the header and writes one with a new epoch, which no ETag
// has used before. A read-only opening is not counted.
func countOpening(db *pebble.DB, fresh bool, options Options) (header, error) {
	h := header{created: time.Now()}
	data, closer, err := db.Get(headerKey)
	switch {
	case errors.Is(err, pebble.ErrNotFound) && fresh:
	case errors.Is(err, pebble.ErrNotFound):
		return h, damaged(options.Dir, "what every store begins with is not there, so a log or table is missing")
	case err != nil:
		return h, err
	default:
		if h, err = decodeHeader(data); err != nil {
			err = fmt.Errorf("%w: %q: %w", ErrDamaged, options.Dir, err)
		}
		if err = errors.Join(err, closer.Close()); err != nil {
			return h, err
		}
	}
	if options.ReadOnly {
		return h, nil
	}
	h.epoch++
	return h, db.Set(headerKey, h.encode(), pebble.Sync)
}

func (h header) encode() []byte {
	data := binary.AppendUvarint([]byte{layoutVersion}, h.epoch)
	return binary.AppendUvarint(data, uint64(h.created.UnixMilli()))
}

func decodeHeader(data []byte) (header, error) {
	if len(data) == 0 || data[0] != layoutVersion {
		return header{}, errors.New("unknown layout in its header, written by another version of this program")
	}
	epoch, size := binary.Uvarint(data[1:])
	created, more := binary.Uvarint(data[1+max(size, 0):])
	if size <= 0 || more <= 0 || 1+size+more != len(data) {
		return header{}, errors.New("malformed header")
	}
	return header{epoch, time.UnixMilli(int64(created))}, nil
}
