package console

import (
	"sync"
	"time"
)

// memo caches, for each user, answers that every page needs or that cost reads of the store. It bounds their
// number, not their size: see recallOwn.
type memo struct {
	mu   sync.Mutex
	kept map[memoKey]memoValue
}

type memoKey struct{ caller, token, question string }

type memoValue struct {
	at    time.Time
	value any
}

// memoMost is how many answers are kept. Those older than memoKeep are deleted when another
// is added.
const (
	memoKeep = time.Minute
	memoMost = 10000
)

func newMemo() *memo { return &memo{kept: map[memoKey]memoValue{}} }

// recall returns the user's answer to the question if it is younger than age; otherwise it
// asks. Errors are not kept.
func recall[T any](r *request, question string, age time.Duration, ask func() (T, error)) (T, error) {
	m, key := r.memo, memoKey{r.Who.Name, token(r.Request), question}
	m.mu.Lock()
	last, known := m.kept[key]
	m.mu.Unlock()
	if value, ok := last.value.(T); known && ok && r.now.Sub(last.at) < age {
		return value, nil
	}
	value, err := ask()
	if err != nil {
		return value, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, kept := range m.kept {
		if r.now.Sub(kept.at) > memoKeep || len(m.kept) >= memoMost {
			delete(m.kept, other)
		}
	}
	m.kept[key] = memoValue{r.now, value}
	return value, nil
}

// recallOwn is recall for answers about one object, which may be large and of which a user can ask for any
// number: a feed keeps them until it ends, and no other request does.
func recallOwn[T any](r *request, question string, age time.Duration, ask func() (T, error)) (T, error) {
	of := *r
	of.memo = r.own
	return recall(&of, question, age, ask)
}
