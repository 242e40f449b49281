package pebblestore

import "github.com/cockroachdb/pebble/v2"

// SetHeader replaces the row that describes the store.
func (s *Store) SetHeader(header []byte) error { return s.db.Set(headerKey, header, pebble.Sync) }

// WithMemTable returns the options with memtables of that size.
func (o Options) WithMemTable(bytes uint64) Options {
	o.memTable = bytes
	return o
}

// Commits returns how many commits the store has written.
func (s *Store) Commits() uint64 { return s.commits.Load() }

// Check checks that the directory is still the one that was opened, as the
// store does after each sync of the log.
func (s *Store) Check() error { return s.folder.check() }
