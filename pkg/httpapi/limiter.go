package httpapi

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// limiter bounds what requests hold, such as streams or the bytes of bodies. One caller may hold
// half of the total at most, so that no caller keeps the others out. It is safe for concurrent use.
type limiter struct {
	half int64 // of the total, rounded up: what one caller may hold
	all  *semaphore.Weighted
	// refusal is the problem of a request for which there is no room; nil if it waits for room
	// instead, after those of the same caller that came before it.
	refusal *apierror.Error
	// late is the problem of a request that has waited for [longestTurn]; nil if the wait has no bound.
	late *apierror.Error

	mu      sync.Mutex              // Guards callers, and their numbers of requests.
	callers map[string]*callerShare // invariant: callers[c].requests > 0
}

// callerShare is what one caller may hold.
type callerShare struct {
	room     *semaphore.Weighted
	requests int // How many hold a part of it, or wait for one.
}

// newLimiter returns a limiter with that total.
func newLimiter(total int64, refusal *apierror.Error) *limiter {
	return &limiter{half: (total + 1) / 2, all: semaphore.NewWeighted(total), refusal: refusal, callers: map[string]*callerShare{}}
}

// acquire takes that much for a request of the caller, at most its whole share. The request calls
// release once, when it holds it no longer. The error is the limiter's refusal, or the cause of
// the context's end: a request that is over gets nothing, even if there is room.
func (l *limiter) acquire(ctx context.Context, caller string, weight int64) (release func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	weight = min(weight, l.half)
	share := l.enter(caller)
	if err := l.take(ctx, share.room, weight); err != nil {
		l.leave(caller, share)
		return nil, err
	}
	if err := l.take(ctx, l.all, weight); err != nil {
		share.room.Release(weight)
		l.leave(caller, share)
		return nil, err
	}
	return func() {
		l.all.Release(weight)
		share.room.Release(weight)
		l.leave(caller, share)
	}, nil
}

// longestTurn is how long a request waits at most for room in its caller's share, and as long again for
// room in the total. A longer wait could meet the write deadline of the connection, and end without an answer.
const longestTurn = MaxWait / 2

// take takes from the room: at once, or it refuses, if the limiter has a refusal; otherwise as
// soon as there is enough, unless that is too late.
func (l *limiter) take(ctx context.Context, room *semaphore.Weighted, weight int64) error {
	switch {
	case room.TryAcquire(weight):
		return nil
	case l.refusal != nil:
		return l.refusal
	case l.late != nil:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, longestTurn, l.late)
		defer cancel()
	}
	if room.Acquire(ctx, weight) != nil {
		return context.Cause(ctx)
	}
	return nil
}

// enter returns the caller's share, and keeps it until leave.
func (l *limiter) enter(caller string) *callerShare {
	l.mu.Lock()
	defer l.mu.Unlock()
	share := l.callers[caller]
	if share == nil {
		share = &callerShare{room: semaphore.NewWeighted(l.half)}
		l.callers[caller] = share
	}
	share.requests++
	return share
}

// leave forgets the share of a caller without requests.
func (l *limiter) leave(caller string, share *callerShare) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if share.requests--; share.requests == 0 {
		delete(l.callers, caller)
	}
}
