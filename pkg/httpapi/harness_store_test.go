package httpapi_test

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// testStore is a store that counts its calls, and has a hook.
type testStore struct {
	tablestore.Store

	all   tablestore.Walker // walks the whole store, without the hook
	mu    sync.Mutex
	hook  func(ctx context.Context) error
	alias string // The partition that is read in place of any other of the ledger's.

	reads   []string // The partitions.
	commits int
}

func newTestStore() *testStore {
	split := ledgertest.Split()
	s := &testStore{all: split.(tablestore.Walker)}
	s.Store = storetest.Hooked(split, s.request)
	return s
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
	s.called(t, what, 0)
}

// uncalled is untouched, except that the guard may have looked up an owner for the audit
// record.
func (s *testStore) uncalled(t *testing.T, what string) {
	t.Helper()
	s.called(t, what, 1)
}

// unchanged fails the test if anything was written since the reset.
func (s *testStore) unchanged(t *testing.T, what string) {
	t.Helper()
	s.called(t, what, math.MaxInt)
}

// called fails the test if anything was written since the reset, or more than that was read.
func (s *testStore) called(t *testing.T, what string, reads int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reads) > reads || s.commits > 0 {
		t.Errorf("%.80s: a use case was called: it read %q and wrote %d times", what, s.reads, s.commits)
	}
}

// committed reports whether anything was written since the reset.
func (s *testStore) committed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits > 0
}

// read returns the partitions that were read since the reset.
func (s *testStore) read() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reads)
}

// uncounted is the context key of what goes on beside the requests.
type uncounted struct{}

// request counts a request, and calls the hook.
func (s *testStore) request(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
	s.mu.Lock()
	hook := s.hook
	switch {
	case ctx.Value(uncounted{}) != nil:
	case r.Call == storetest.CommitCall:
		s.commits++
	default:
		s.reads = append(s.reads, r.Key().Partition)
	}
	if s.alias != "" {
		r.Query.Partition = s.alias
		for i := range r.Keys {
			r.Keys[i].Partition = s.alias
		}
	}
	s.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return err
		}
	}
	return do(ctx)
}
