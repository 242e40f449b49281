package pgstore

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/pgsession"
)

// Waiting returns the number of changes that wait for a sender.
func (s *Store) Waiting() int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	return len(s.writer.shared.waiting)
}

// Writer is the writer of a store.
type Writer struct{ *writer }

// NewWriter returns a writer whose pool is not connected.
func NewWriter(pool *pgsession.Pool) Writer { return Writer{newWriter(pool, time.Minute)} }

// Write writes a change without rows.
func (w Writer) Write(ctx context.Context) error {
	return w.write(ctx, &change{done: make(chan error, 1)})
}

// Close closes the writer.
func (w Writer) Close() { w.close() }

// Objects are the objects that the migrations make, and Present is the query for those of a
// database.
var (
	Objects = objects
	Present = present
)

// VersionLocks are the locks of sessions, by the schema version of their programs.
const VersionLocks = versionLocks

// Serves returns the oldest version that each migration serves.
func Serves() (versions []int) {
	for _, m := range migrations() {
		versions = append(versions, m.serves)
	}
	return versions
}
