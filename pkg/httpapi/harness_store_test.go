package httpapi_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// testStore is a store that counts its calls, and has a hook.
type testStore struct {
	tablestore.Store

	mu    sync.Mutex
	hook  func(ctx context.Context) error
	alias string // The partition that is read in place of any other of the ledger's.

	reads   []string // The partitions.
	commits int
}

// on sets the hook that runs before each call of the store, and returns the previous
// one. Its error is the call's.
func (s *testStore) on(hook func(ctx context.Context) error) func(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	former := s.hook
	s.hook = hook
	return former
}

// fail makes each call of the store fail from now on with err, or none if err is nil.
func (s *testStore) fail(err error) {
	s.on(func(context.Context) error { return err })
}

// reset sets the counts to zero.
func (s *testStore) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads, s.commits = nil, 0
}

// untouched fails the test if the store was called since the reset.
func (s *testStore) untouched(t *testing.T, what string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reads) > 0 || s.commits > 0 {
		t.Errorf("%.80s: a use case was called: it read %q and wrote %d times", what, s.reads, s.commits)
	}
}

// uncalled is untouched, except that the guard may have looked up an owner for the audit
// record.
func (s *testStore) uncalled(t *testing.T, what string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reads) > 1 || s.commits > 0 {
		t.Errorf("%.80s: a use case was called: it read %q and wrote %d times", what, s.reads, s.commits)
	}
}

// unchanged fails the test if anything was written since the reset.
func (s *testStore) unchanged(t *testing.T, what string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.commits > 0 {
		t.Errorf("%.80s: something was written, %d times", what, s.commits)
	}
}

// read returns the partitions that were read since the reset.
func (s *testStore) read() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reads)
}

func (s *testStore) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	partition, err := s.asked(ctx, key.Partition)
	if err != nil {
		return tablestore.Row{}, err
	}
	key.Partition = partition
	return s.Store.Get(ctx, key)
}

func (s *testStore) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	partition, err := s.asked(ctx, query.Partition)
	if err != nil {
		return tablestore.Page{}, err
	}
	query.Partition = partition
	return s.Store.Scan(ctx, query)
}

// asked counts a read, and returns the partition to read instead.
func (s *testStore) asked(ctx context.Context, partition string) (string, error) {
	s.mu.Lock()
	s.reads = append(s.reads, partition)
	hook := s.hook
	if s.alias != "" {
		partition = s.alias
	}
	s.mu.Unlock()
	if hook == nil {
		return partition, nil
	}
	return partition, hook(ctx)
}

func (s *testStore) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	s.mu.Lock()
	s.commits++
	hook := s.hook
	s.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return nil, err
		}
	}
	return s.Store.Commit(ctx, batch)
}
