package console

import (
	"sync"
	"time"
)

// memo keeps answers for a while that cost a read of the store, or that every page needs:
// for each user apart.
type memo struct {
	mu   sync.Mutex
	kept map[memoKey]memoValue
}

type memoKey struct{ caller, token, question string }

type memoValue struct {
	at    time.Time
	value any
}

// memoKeep is how long an answer is kept at most, and memoMost how many are.
const (
	memoKeep = time.Minute
	memoMost = 10000
)

func newMemo() *memo { return &memo{kept: map[memoKey]memoValue{}} }

// recall returns the answer that the user got to the question, unless it is as old as
// that: then it asks. Errors are not kept.
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
