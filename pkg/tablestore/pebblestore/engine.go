package pebblestore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

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

// engine handles the events of the storage engine, which calls it while it holds its locks.
type engine struct {
	fence   *fence
	logger  *slog.Logger
	space   *space
	flushes atomic.Bool           // A flush is under way.
	flushed atomic.Pointer[error] // The outcome of the last flush.
	stalls  atomic.Int64          // How often writes had to wait.
}

// open opens the engine and counts the opening in the header. The engine panics on some
// kinds of damage.
//
// It is tuned for a small server: few and large memtables, a modest cache, two compactions
// at most, and Bloom filters at every level, as each insert looks up an absent row. The
// levels below the first, to which compactions write, have large blocks: a job's rows repeat
// each other, so it takes half the space of the usual 4 KiB, and compactions less time. In
// return a row that is not cached takes twice as long to read. Zstandard would save another
// quarter, for a tenth more CPU a job.
func (e *engine) open(options Options, fresh bool, lock *pebble.Lock) (db *pebble.DB, header header, err error) {
	config := &pebble.Options{
		FS: e.fence, Lock: lock, Logger: e, EventListener: e.listener(),
		ReadOnly: options.ReadOnly, ErrorIfNotExists: options.ReadOnly,
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
	for i := range config.Levels {
		level := &config.Levels[i]
		level.FilterPolicy = bloom.FilterPolicy(10)
		if i > 0 {
			level.BlockSize = lowerBlockBytes
			level.Compression = func() *block.CompressionProfile { return block.FastestCompression }
		}
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%v", cause)
			if failed, ok := cause.(error); ok {
				err = failed
			}
		}
		if err != nil {
			err = openingError(options.Dir, e.fence.read.Load(), err)
			if db != nil {
				err = errors.Join(err, db.Close())
			}
		}
	}()
	if db, err = pebble.Open(options.Dir, config); err != nil {
		return nil, header, err
	}
	header, err = countOpening(db, fresh, options)
	return db, header, err
}

// Infof implements [pebble.Logger].
func (e *engine) Infof(format string, args ...any) {
	e.logger.Debug("storage engine", "note", fmt.Sprintf(format, args...))
}

// Errorf implements [pebble.Logger].
func (e *engine) Errorf(format string, args ...any) {
	e.logger.Error("storage engine", "note", fmt.Sprintf(format, args...))
}

// Fatalf implements [pebble.Logger]. During Open it panics, which open recovers, unless a flush fails, which another
// goroutine does.
func (e *engine) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	e.fence.check(fmt.Errorf("storage engine: %s", firstLine(err)))
	for _, arg := range args {
		if cause, ok := arg.(error); ok { // The format does not wrap it.
			err = cause
		}
	}
	if e.flushes.Load() {
		e.failOpening(err)
	}
	panic(err)
}

// failOpening ends the process for a flush that fails during the engine's Open, which would repeat it for ever.
func (e *engine) failOpening(err error) {
	if !e.fence.armed.Load() {
		e.fence.fatal(openingError(e.fence.folder.dir, nil, fmt.Errorf("flush of the log: %w", err)))
		select {}
	}
}

// flushPause is the delay after a failed flush, which the engine would otherwise retry at
// once.
const flushPause = 100 * time.Millisecond

// listener returns the hooks for the engine.
func (e *engine) listener() *pebble.EventListener {
	return &pebble.EventListener{
		FlushBegin: func(pebble.FlushInfo) { e.flushes.Store(true) },
		// The engine also reports a real error to failed, but not the error of a flush that
		// had nothing to write.
		FlushEnd: func(info pebble.FlushInfo) {
			e.flushes.Store(false)
			e.flushed.Store(&info.Err)
			e.space.full.Store(noSpace(info.Err))
		},
		BackgroundError: e.failed,
		WriteStallBegin: func(pebble.WriteStallBeginInfo) { e.stalls.Add(1) },
		// It is unknown which other parts of the file can be read.
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			what := filepath.Base(info.Path) + " is damaged (" + firstLine(info.Details) + ")"
			e.fence.check(damaged(filepath.Dir(info.Path), what))
		},
	}
}

// failed handles an error of the engine's background work. The engine retries by itself:
// compactions may keep failing for long, but without flushes the log and the memory fill up.
func (e *engine) failed(err error) {
	e.logger.Error("storage engine: background work failed", "error", firstLine(err))
	if last := e.flushed.Load(); last == nil || *last == nil || !errors.Is(err, *last) {
		return
	}
	e.failOpening(err)
	if noSpace(err) {
		time.Sleep(flushPause) // The log still holds the data, so the flush can wait for space.
		return
	}
	e.fence.check(fmt.Errorf("flush: %w", err))
}

func noSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

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

// Patterns of files in the engine's errors, which name a table only by its
// number.
var (
	namedFile     = regexp.MustCompile(`\b(?:` + engineFile + `)`)
	numberedTable = regexp.MustCompile(`\b(?:L\d: |file |table )(\d{6,})\b`)
)

// openingError turns an error of the engine's start into one sentence that
// names the directory and, if it is damage, the file. reading is the file that was opened last.
func openingError(dir string, reading *string, err error) error {
	var errno syscall.Errno
	var path *fs.PathError
	switch {
	case errors.Is(err, tablestore.ErrDamaged), errors.Is(err, ErrLayout):
		return err
	case noSpace(err):
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
	file := "a file"
	if reading != nil {
		file = *reading
	}
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
