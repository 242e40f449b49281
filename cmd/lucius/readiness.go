package main

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/lucius-project/lucius/pkg/ledger"
)

const (
	// answerAge is how long an answer of the store holds for readyz, which anybody
	// may ask for.
	answerAge = time.Second
	// answerTime is how long the store may take for it.
	answerTime = 10 * time.Second
)

// readiness asks the store; what else is wrong is a warning.
type readiness struct{ s *system }

// Ready returns what is degraded, or an error if the store does not answer.
func (r readiness) Ready(ctx context.Context) ([]string, error) {
	if err := r.s.answer.get(ctx, r.ask); err != nil {
		return nil, err
	}
	return r.s.warnings(time.Now()), nil
}

// ask asks the store whether it can be read and takes writes. Why it takes none
// says more than a failed read.
func (r readiness) ask(ctx context.Context) error {
	_, _, err := r.s.ledger.Live(ctx, 0, 1, "")
	if why := r.s.writable(); why != nil {
		return unwritable(why)
	}
	return ledger.Problem(err)
}

// answered is an answer that is kept for a while, good or bad, however many ask for
// it. The zero value has none. It is safe for concurrent use.
type answered struct {
	flight singleflight.Group

	mu  sync.Mutex
	at  time.Time // When it came.
	err error
}

// get returns the answer, which it asks for where there is none that is new enough:
// one at a time, and not for the one who came first alone, who may go away.
func (a *answered) get(ctx context.Context, ask func(context.Context) error) error {
	_, err, _ := a.flight.Do("", func() (any, error) {
		if fresh, err := a.kept(); fresh {
			return nil, err
		}
		ctx, end := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
		defer end()
		err := ask(ctx)
		a.keep(err)
		return nil, err
	})
	return err
}

// kept returns the answer, if it is new enough.
func (a *answered) kept() (fresh bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.at.IsZero() && time.Since(a.at) < answerAge, a.err
}

// keep keeps an answer.
func (a *answered) keep(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at, a.err = time.Now(), err
}
