package aztablestore

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// The delays between tries, unless the service asks for a longer one.
const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second
)

// request is one request, which may take several tries.
type request struct {
	name       string // For logs, as is the target.
	target     string
	repeatable bool // Safe to send twice, as a read is.
}

// again reports whether the request may be sent again after that failure. A
// write may be only if it was certainly not applied: otherwise it could
// conflict with itself, or bring back rows that other writers have removed
// since.
func (r request) again(failed *requestError) bool {
	return failed.effect == notTaken || failed.effect == unclear && r.repeatable
}

// send calls try, each time under a deadline of its own, until the request
// succeeds, is refused, or no tries are left. It returns the last failure;
// turnedAway says that the service answered an earlier try, so it has at least
// seen the request.
func (s *Store) send(ctx context.Context, r request, try func(context.Context) error) (turnedAway bool, failed *requestError) {
	delays := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(firstDelay), backoff.WithMaxInterval(lastDelay), backoff.WithMaxElapsedTime(0))
	for tries := 1; ; tries++ {
		failed = s.try(ctx, try)
		if failed == nil || tries >= s.options.Tries || !r.again(failed) {
			return turnedAway, failed
		}
		if ctx.Err() != nil {
			return turnedAway, failed // The caller has given up.
		}
		delay := max(delays.NextBackOff(), failed.wait)
		s.options.Logger.WarnContext(ctx, "sending a table request again",
			slog.String("request", r.name), slog.String("target", r.target), slog.Int("tries", tries),
			slog.Duration("delay", delay), slog.String("error", failed.Error()))
		if !pause(ctx, delay) {
			return turnedAway, failed
		}
		turnedAway = turnedAway || failed.status != 0
	}
}

// try sends one request once.
func (s *Store) try(ctx context.Context, try func(ctx context.Context) error) *requestError {
	way := &delivery{}
	ctx, end := context.WithTimeout(context.WithValue(ctx, deliveryKey{}, way), s.options.RequestTimeout)
	defer end()
	if err := try(ctx); err != nil {
		return failureOf(err, way)
	}
	return nil
}

// pause waits, and reports whether the context has time left afterwards. If the
// deadline comes before the end of the delay, it returns at once.
func pause(ctx context.Context, delay time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= delay {
		return false
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
