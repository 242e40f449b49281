package pebblestore

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Open opens the store in options.Dir, and makes it if there is none. Each
// error names the directory and wraps [ErrLocked], [tablestore.ErrDamaged], [ErrNoStore] or
// [tablestore.ErrNoSpace] if that is the reason; otherwise the directory cannot be
// made or written.
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
	if options.Observe == nil {
		options.Observe = func(string, time.Duration, error) {}
	}
	path, err := makeAndResolve(&options)
	if err != nil {
		return nil, err
	}
	if options.ReadOnly { // Before the lock, which is a file.
		if _, fresh, err := inspect(options.FS, options.Dir); err == nil && fresh {
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
	if err := removeLeftovers(&options); err != nil { // They take space.
		return nil, fmt.Errorf("data directory %q cannot be opened: %w", options.Dir, err)
	}
	space := &space{fs: options.FS, dir: options.Dir, reserve: uint64(options.Reserve)}
	if err := space.measure(); err != nil {
		return nil, fmt.Errorf("data directory %q: free disk space is not known: %w", options.Dir, err)
	}
	if err := space.shortage(space.reserve / reclaimShare); err != nil && !options.ReadOnly {
		return nil, fmt.Errorf("%w: data directory %q: %w to open; remove other files from the disk, or enlarge it",
			tablestore.ErrNoSpace, options.Dir, err)
	}
	found, fresh, err := inspect(options.FS, options.Dir)
	if err != nil {
		return nil, err
	}
	folder, err := newFolder(options.FS, options.Dir, path)
	if err != nil {
		return nil, err
	}
	create := fresh && !options.ReadOnly
	if create {
		if err := beginCreation(options.FS, options.Dir, found); err != nil {
			return nil, fmt.Errorf("data directory %q cannot be opened: %w", options.Dir, err)
		}
	} else {
		folder.add(found...)
	}
	latch := newLatch(options.Logger.With("dir", options.Dir), folder)
	background := &background{space: space, latch: latch}
	var db *pebble.DB
	var header header
	mark, err := markOpen(options, folder, fresh)
	if err == nil {
		db, header, err = openEngine(options, fresh, background, lock)
	}
	if errors.Is(err, tablestore.ErrDamaged) && mark.copied {
		return nil, fmt.Errorf("%w; it is a copy that was made while a store had the directory open, and no such copy is a backup", err)
	}
	if err != nil {
		return nil, err
	}
	if mark.copied { // Marked again only now: a start that fails leaves what it found.
		if !options.ReadOnly {
			err = writeOpenMark(options.FS, folder, mark.note)
		}
		options.Logger.Warn("data directory is a copy that was made while a store had it open: writes may be missing from it",
			"dir", options.Dir)
	}
	if create {
		err = removeFile(options.FS, options.FS.PathJoin(options.Dir, creating))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data directory %q cannot be written: %w", options.Dir, err), db.Close())
	}
	store := &Store{
		db: db, lock: lock, latch: latch, space: space, folder: folder, stripes: newStripes(),
		header: header, isNew: fresh, readOnly: options.ReadOnly, observe: options.Observe,
		applied: make(chan *pending, maxUnsynced), closing: make(chan struct{}), stalls: &background.stalls,
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
func removeLeftovers(options *Options) error {
	names, err := options.FS.List(options.Dir)
	if err != nil || options.ReadOnly {
		return err
	}
	for _, name := range []string{backupName, restoreName} {
		if !slices.Contains(names, name) || name == restoreName && isInterruptedRestore(names) {
			continue
		}
		// A directory of that name that holds other files is left.
		if err := removeCopy(options.FS, options.FS.PathJoin(options.Dir, name)); err != nil {
			options.Logger.Warn("remains of a backup or restore cannot be removed", "dir", options.Dir, "name", name, "error", err)
		}
	}
	return nil
}

// Prefixes of the two marker files that the engine makes before a new store
// takes its first write; the content of each is the rest of its name. If the
// first is missing, the engine treats the directory as empty and deletes the
// tables and logs in it.
const (
	manifestMarker = "marker.manifest."
	formatMarker   = "marker.format-version."
)

// creating is the name of a file that exists in the directory while a new store is being
// created there.
const creating = "CREATING"

// fileName matches the names of the engine's files.
const fileName = `\d+(?:-\d+)?\.(?:sst|blob|log)|(?:MANIFEST|OPTIONS)-\d+|marker\.(?:manifest|format-version)\.[\w.-]+`

var onlyFileName = regexp.MustCompile(`^(?:` + fileName + `|` + openMarkName + `|` + listName + `)$`)

// isStoreFile reports whether only the store can have made a file of that name.
// The lock is not one: opening an empty directory makes it as well.
func isStoreFile(name string) bool { return onlyFileName.MatchString(name) }

// inspect lists the store's files in the directory, and reports whether Open
// must make a new store there. A store that lacks a marker is damaged, unless
// its creation was interrupted, in which case it holds no writes and no table.
func inspect(files vfs.FS, dir string) (found []string, fresh bool, err error) {
	names, err := files.List(dir)
	if err != nil {
		return nil, false, fmt.Errorf("data directory %q cannot be listed: %w", dir, err)
	}
	slices.Sort(names)
	if isInterruptedRestore(names) {
		return nil, false, damaged(dir, "a restore into it was interrupted")
	}
	for _, name := range names {
		if isStoreFile(name) {
			found = append(found, files.PathJoin(dir, name))
		}
	}
	tables := slices.ContainsFunc(found, func(name string) bool { return strings.HasSuffix(name, ".sst") })
	if len(found) == 0 || slices.Contains(names, creating) && !tables {
		return found, true, nil
	}
	for _, marker := range []string{manifestMarker, formatMarker} {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, marker) }) {
			return nil, false, damaged(dir, files.PathBase(found[0])+" exists, but "+marker+"* is missing")
		}
	}
	return found, false, nil
}

// beginCreation makes the file that marks a creation in progress, and removes the files
// that an interrupted creation left.
func beginCreation(files vfs.FS, dir string, remains []string) error {
	if err := writeFile(files, files.PathJoin(dir, creating), func(fs.FileInfo) []byte { return nil }); err != nil {
		return err
	}
	for _, name := range remains {
		if err := files.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// The memory that the engine uses. The engine counts its memtables towards the
// cache: a cache no larger than the memtables would hold nothing.
const (
	memTableBytes = 32 << 20
	memTables     = 4
	blockBytes    = 64 << 20
	cacheBytes    = memTables*memTableBytes + blockBytes
)

// lowerBlockBytes is the size of a block below the first level, before compression.
const lowerBlockBytes = 32 << 10

// openEngine opens the engine, counts the opening in the header, and arms the
// latch. The engine panics on some kinds of damage.
//
// The engine is tuned for a small server: few and large memtables, a modest
// cache, two compactions at most, and Bloom filters at every level, as each
// insert looks up an absent row. The levels below the first, to which compactions
// write, have large blocks: a job's rows repeat each other, so it takes half the space
// of the usual 4 KiB, and compactions less time. In return a row that is not cached takes
// twice as long to read. Zstandard would save another quarter, for a tenth more CPU a job.
func openEngine(options Options, fresh bool, background *background, lock *pebble.Lock) (
	db *pebble.DB, header header, err error,
) {
	latch := background.latch
	fence := &fence{FS: options.FS, latch: latch}
	engine := &pebble.Options{
		FS: fence, Lock: lock, Logger: engineLogger{latch},
		EventListener: background.listener(),
		ReadOnly:      options.ReadOnly, ErrorIfNotExists: options.ReadOnly,
		CacheSize:                   cacheBytes,
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                options.memTable,
		MemTableStopWritesThreshold: memTables,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       1000,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                500,
		MaxManifestFileSize:         1 << 20, // It is read after each change.
		CompactionConcurrencyRange:  func() (lower, upper int) { return 1, 2 },
	}
	for i := range engine.Levels {
		level := &engine.Levels[i]
		level.FilterPolicy = bloom.FilterPolicy(10)
		if i > 0 {
			level.BlockSize = lowerBlockBytes
			level.Compression = func() *block.CompressionProfile { return block.FastestCompression }
		}
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%v", cause)
		}
		if err == nil {
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

// countOpening checks the header and writes one with a new epoch, which no ETag
// has used before. A read-only opening is not counted.
func countOpening(db *pebble.DB, fresh bool, options Options) (header, error) {
	h := header{created: time.Now()}
	data, closer, err := db.Get(headerKey)
	switch {
	case errors.Is(err, pebble.ErrNotFound) && fresh:
	case errors.Is(err, pebble.ErrNotFound):
		return h, damaged(options.Dir, "the header row is not found, so a log or table is missing")
	case err != nil:
		return h, err
	default:
		if h, err = decodeHeader(data); errors.Is(err, ErrLayout) {
			err = fmt.Errorf("data directory %q cannot be opened: %w", options.Dir, err)
		} else if err != nil {
			err = fmt.Errorf("%w: %q: %w", tablestore.ErrDamaged, options.Dir, err)
		}
		if err = errors.Join(err, closer.Close()); err != nil {
			return h, err
		}
	}
	if options.ReadOnly {
		return h, nil
	}
	h.epoch++
	return h, db.Set(headerKey, encodeHeader(h), pebble.Sync)
}

// damaged returns the error about damage in the directory.
func damaged(dir, what string) error {
	return fmt.Errorf("%w: %q: %s; restore the directory from a backup, or move it away to start with an empty store",
		tablestore.ErrDamaged, dir, what)
}

// Patterns of files in the engine's errors, which name a table only by its
// number.
var (
	namedFile     = regexp.MustCompile(`\b(?:` + fileName + `)`)
	numberedTable = regexp.MustCompile(`\b(?:L\d: |file |table )(\d{6,})\b`)
)

// openingError turns an error of the engine's start into one sentence that
// names the directory and, if it is damage, the file. reading is the file that
// was opened last.
func openingError(dir, reading string, err error) error {
	var errno syscall.Errno
	var path *fs.PathError
	switch {
	case errors.Is(err, tablestore.ErrDamaged), errors.Is(err, ErrLayout):
		return err
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: data directory %q: %w; remove other files from the disk, or enlarge it", tablestore.ErrNoSpace, dir, err)
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		return fmt.Errorf("%w: %q", ErrNoStore, dir)
	case (errors.As(err, &errno) || errors.As(err, &path)) && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("data directory %q cannot be opened: %w", dir, err)
	}
	text := err.Error()
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		text = info.Path
	}
	file := reading
	if name := namedFile.FindString(text); name != "" {
		file = name
	} else if table := numberedTable.FindStringSubmatch(text); table != nil {
		file = table[1] + ".sst"
	}
	return damaged(dir, file+" is missing or damaged ("+firstLine(err)+")")
}

// firstLine returns an error's first line, without details and stack traces.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
