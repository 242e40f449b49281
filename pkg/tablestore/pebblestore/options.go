package pebblestore

import (
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// DefaultReserve is the default of Options.Reserve.
const DefaultReserve = 64 << 20

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
		return fmt.Errorf("pebblestore: Options.Dir is required")
	}
	return nil
}

// withDefaults returns the options with every optional field filled in.
func (o Options) withDefaults() Options {
	if o.Reserve == 0 {
		o.Reserve = DefaultReserve
	}
	o.Reserve = max(o.Reserve, 0)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.memTable == 0 {
		o.memTable = memTableBytes
	}
	return o
}

// The memory that the engine uses. The engine counts its memtables towards the
// cache: a cache no larger than the memtables would hold nothing.
const (
	memTableBytes = 32 << 20
	memTables     = 4
	blockBytes    = 64 << 20
	cacheBytes    = memTables*memTableBytes + blockBytes
)

// tune returns the engine's options for a small server: few and large
// memtables, a modest cache, two compactions at most, and Bloom filters at
// every level, as each insert looks up an absent row.
func tune(memTable uint64) *pebble.Options {
	options := &pebble.Options{
		CacheSize:                   cacheBytes,
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                memTable,
		MemTableStopWritesThreshold: memTables,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       1000,
		LBaseMaxBytes:               64 << 20,
		MaxOpenFiles:                500,
		CompactionConcurrencyRange:  func() (lower, upper int) { return 1, 2 },
	}
	for i := range options.Levels {
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return options
}
