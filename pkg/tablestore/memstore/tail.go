package memstore

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Tail lets a simulation separate the moment at which its store applies a commit from the
// moment at which the commit is durable, as a disk does. The store's reads return commits
// that are not durable, which the port forbids: the simulation has to delay their answers.
// It belongs to one store, and is safe for concurrent use.
type Tail struct {
	store *store
	// commits holds the rows that each commit replaced, oldest commit first; guarded by
	// the store's mutex.
	commits [][]replaced
}

// replaced is a row before a commit changed it; old is nil if it was absent.
type replaced struct {
	key tablestore.Key
	old *row
}

// Len returns how many commits are not durable.
func (t *Tail) Len() int {
	t.store.mu.RLock()
	defer t.store.mu.RUnlock()
	return len(t.commits)
}

// Sync makes the oldest n commits of the tail durable.
func (t *Tail) Sync(n int) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	t.commits = slices.Delete(t.commits, 0, n)
}

// Lose undoes all commits that are not durable, as a power loss does. Their ETags are not
// used again.
func (t *Tail) Lose() {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	for _, commit := range slices.Backward(t.commits) {
		for _, was := range commit {
			if was.old == nil {
				t.store.rows.Delete(&row{key: was.key})
			} else {
				t.store.rows.Set(was.old)
			}
		}
	}
	t.commits = nil
}
