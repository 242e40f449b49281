package pebblestore

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Open opens the store in options.Dir, and makes it if there is none. Each
// error names the directory and wraps [ErrLocked], [tablestore.ErrDamaged], [ErrNoStore] or
// [tablestore.ErrNoSpace] if that is the reason; otherwise the directory cannot be
// made or written. If the log that it finds cannot be written to tables, it calls options.Fatal.
func Open(options Options) (*Store, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	options.Reserve = max(cmp.Or(options.Reserve, DefaultReserve), 0)
	options.memTable = cmp.Or(options.memTable, memTableBytes)
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.FS == nil {
		options.FS = vfs.Default
	}
	if options.Fatal == nil {
		options.Fatal = func(error) {
			os.Exit(1) //nolint:revive // The content of the disk is unknown: nothing may go on.
		}
	}
	if options.Observe == nil {
		options.Observe = func(string, time.Duration, error) {}
	}
	path, err := makeAndResolve(&options)
	if err != nil {
		return nil, err
	}
	if options.ReadOnly { // Before the lock, which is a file.
		d := &folder{files: options.FS, dir: options.Dir}
		if fresh, _, err := d.inspect(); err == nil && fresh {
			return nil, fmt.Errorf("%w: %q", ErrNoStore, options.Dir)
		}
	}
	lock, err := pebble.LockDirectory(options.Dir, options.FS)
	if err != nil {
		// An error with a path comes from making the lock file, one without from
		// taking the lock.
		if path := (*fs.PathError)(nil); errors.As(err, &path) {
			return nil, fmt.Errorf("data directory %q cannot be written: %w", options.Dir, err)
		}
		return nil, fmt.Errorf("%w: %q: %w", ErrLocked, options.Dir, err)
	}
	store, err := openLocked(options, path, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return store, nil
}

// makeAndResolve makes the directory and resolves its path, so that a directory
// with two names is locked only once. It returns the path before links are
// resolved.
func makeAndResolve(options *Options) (path string, err error) {
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

// openLocked opens the locked directory.
func openLocked(options Options, path string, lock *pebble.Lock) (*Store, error) {
	cannotOpen := func(err error) error {
		if err == nil || errors.Is(err, tablestore.ErrDamaged) {
			return err
		}
		return fmt.Errorf("data directory %q cannot be opened: %w", options.Dir, err)
	}
	if err := removeLeftovers(&options); err != nil { // They take space.
		return nil, cannotOpen(err)
	}
	space := &space{fs: options.FS, dir: options.Dir, reserve: uint64(options.Reserve)}
	if err := space.measure(); err != nil {
		return nil, fmt.Errorf("data directory %q: free disk space is not known: %w", options.Dir, err)
	}
	if err := space.shortage(space.reserve / reclaimShare); err != nil && !options.ReadOnly {
		return nil, fmt.Errorf("%w: data directory %q: %w to open; remove other files from the disk, or enlarge it",
			tablestore.ErrNoSpace, options.Dir, err)
	}
	folder, err := newFolder(options.FS, options.Dir, path)
	if err != nil {
		return nil, cannotOpen(err)
	}
	fresh, remains, err := folder.inspect()
	if err == nil && !options.ReadOnly {
		state := stateOpen
		if fresh {
			state = stateCreating
		}
		err = folder.note(state)
		for _, name := range remains {
			err = errors.Join(err, options.FS.Remove(options.FS.PathJoin(options.Dir, name)))
		}
	}
	if err != nil {
		return nil, cannotOpen(err)
	}
	e := &engine{
		fence:  &fence{FS: options.FS, folder: folder},
		logger: options.Logger.With("dir", options.Dir), space: space,
	}
	e.fence.fatal = func(cause error) {
		e.logger.Error("local store has failed and must be opened again: the process ends", "error", cause)
		options.Fatal(cause)
	}
	db, header, err := e.open(options, fresh, lock)
	if err != nil {
		return nil, err
	}
	if fresh && !options.ReadOnly {
		if err := folder.note(stateOpen); err != nil {
			return nil, errors.Join(cannotOpen(err), db.Close())
		}
	}
	e.fence.armed.Store(!options.ReadOnly)
	store := &Store{
		db: db, lock: lock, engine: e, space: space, folder: folder, stripes: newStripes(),
		header: header, isNew: fresh, readOnly: options.ReadOnly, observe: options.Observe,
		applied: make(chan *pending, maxUnsynced), closing: make(chan struct{}),
	}
	store.names.known.Store(header.names)
	go store.awaitSyncs()
	if !options.ReadOnly {
		store.running.Add(1)
		go store.monitor()
	}
	return store, nil
}

// removeLeftovers removes what a backup and a completed restore leave if a crash ends them.
// A directory of that name with other files stays.
func removeLeftovers(options *Options) error {
	state, _, err := readState(options.FS, options.Dir)
	if err != nil || options.ReadOnly || state == stateRestoring {
		return err
	}
	for _, name := range []string{backupName, restoreName} {
		if err := removeCopy(options.FS, options.FS.PathJoin(options.Dir, name)); err != nil {
			options.Logger.Warn("remains of a backup or restore cannot be removed", "dir", options.Dir, "name", name, "error", err)
		}
	}
	return nil
}
