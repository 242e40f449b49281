package aztablestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// account names what the one circuit is about.
const account = "account"

// circuitOf returns the settings of the account's circuit. It opens only if nothing succeeds any
// more.
func circuitOf(call time.Duration) breaker.Config {
	return breaker.Config{Bus: breaker.Settings{
		TripAfter: 20, CoolDown: firstCoolDown, MaxCoolDown: 10 * time.Second,
		Probes: 3, ProbeTimeout: call + call/2,
		RampStep: 500,
	}}
}

// firstCoolDown is the first cool-down of the circuit. A request waits for the end of no
// longer one: this bridges a brief outage; in a longer one the caller gets an error at
// once, so that requests do not pile up.
const firstCoolDown = time.Second

// patience is the longest time that the circuit holds a request back: the first cool-down,
// and as long again for its turn among the requests that the circuit admits slowly after it.
const patience = 2 * firstCoolDown

// errHeld is wrapped by the cause of a request that an open circuit held back.
var errHeld = errors.New("held back")

// Sample describes one request to the account, for metrics.
type Sample struct {
	// Operation is get, scan, commit or create.
	Operation string
	Outcome   Outcome
	// Took is how long it took; 0 if it was not sent.
	Took time.Duration
}

// Outcome is what became of a request.
type Outcome string

// The outcomes.
const (
	Succeeded   Outcome = "succeeded"
	Refused     Outcome = "refused"     // answered: a conflict, no such row, no right, an invalid request
	Throttled   Outcome = "throttled"   // answered: the account or the partition has too much to do
	Unreachable Outcome = "unreachable" // not sent: no connection, or no token
	Unanswered  Outcome = "unanswered"  // sent, without an answer that tells the outcome
	Cancelled   Outcome = "cancelled"   // the caller gave up
	Held        Outcome = "held"        // not sent: the circuit is open
)

// outcomeOf returns the outcome of a request that was sent, or tried to be.
func outcomeOf(ctx context.Context, failed *requestError) Outcome {
	switch {
	case failed == nil:
		return Succeeded
	case failed.status == http.StatusTooManyRequests, failed.code == "ServerBusy", failed.code == "OperationTimedOut":
		return Throttled
	case failed.status >= 400 && failed.status < 500 && failed.status != http.StatusRequestTimeout:
		return Refused
	case ctx.Err() != nil, errors.Is(failed, tablestore.ErrLapsed):
		return Cancelled
	case failed.effect == notTaken && failed.status == 0:
		return Unreachable
	default:
		return Unanswered
	}
}

// verdictOf returns what an outcome says about the account.
func verdictOf(outcome Outcome) breaker.Verdict {
	switch outcome {
	case Succeeded, Refused:
		return breaker.Answered
	case Cancelled, Held:
		return breaker.NoVerdict
	case Throttled, Unreachable, Unanswered:
	}
	return breaker.BusFailed
}

// attempt sends one request once, unless the circuit is open. The context is that of the
// call.
func (s *Store) attempt(ctx context.Context, r request, try func(context.Context) error) *requestError {
	grant := s.circuit.Allow(account, 1, time.Now())
	if grant.N == 0 {
		s.options.Observe(Sample{Operation: r.name, Outcome: Held})
		return s.held(grant.RetryAt)
	}
	began := time.Now()
	failed := s.try(ctx, try)
	now := time.Now()
	outcome := outcomeOf(ctx, failed)
	reason := ""
	if failed != nil {
		reason = failed.Error()
	}
	s.circuit.Report(grant, breaker.Outcome{Verdict: verdictOf(outcome), Reason: reason}, now)
	s.options.Observe(Sample{Operation: r.name, Outcome: outcome, Took: now.Sub(began)})
	switch s.circuit.State(breaker.Bus, now) {
	case breaker.Open:
		if s.outage.CompareAndSwap(0, now.UnixNano()) {
			s.options.Logger.ErrorContext(ctx, "storage account is out of service; requests are held back", slog.String("error", reason))
		}
	case breaker.Closed:
		if since := s.outage.Swap(0); since != 0 {
			s.options.Logger.InfoContext(ctx, "storage account is back", slog.Duration("after", now.Sub(time.Unix(0, since))))
		}
	case breaker.HalfOpen: // a half-open circuit is neither
	}
	return failed
}

// held returns the failure of a request that the circuit did not admit before that time.
// An open circuit admits none earlier; one that is half-open, or has closed since, may, so the
// request waits no longer than between any two tries.
func (s *Store) held(retryAt time.Time) *requestError {
	now := time.Now()
	f := &requestError{effect: notTaken, op: -1, cause: errHeld}
	if s.circuit.State(breaker.Bus, now) == breaker.Open {
		f.wait = retryAt.Sub(now)
	}
	for _, open := range s.circuit.Open(now) {
		since := open.Since.UTC().Format(time.RFC3339)
		f.cause = fmt.Errorf("%w: the account is out of service since %s: %s", errHeld, since, open.Reason)
	}
	return f
}

// Outage returns for how long the account has been out of service, 0 if it is
// in service.
func (s *Store) Outage() time.Duration {
	if since := s.outage.Load(); since != 0 {
		return time.Since(time.Unix(0, since))
	}
	return 0
}

// maxRoundTrip is the longest time between request and answer for which the answer's
// date still says enough about the clock.
const maxRoundTrip = time.Second

// clock compares the own clock with the account's. It is safe for concurrent use.
type clock struct{ skew atomic.Int64 }

// observe reads the date of an answer of the account itself, not of a proxy before it.
//
// The account wrote the date, cut to a second, between sent and received. So its clock
// was in [date, date+1s) at a moment of [sent, received] of the own clock, and the skew
// is the least that explains both. If the own clock was set back during the request,
// there is no such interval.
func (c *clock) observe(sent, received time.Time, header http.Header) {
	sent, received = sent.Round(0), received.Round(0) // The wall clock, which deadlines use.
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil || header.Get("X-Ms-Request-Id") == "" ||
		received.Before(sent) || received.Sub(sent) > maxRoundTrip {
		return
	}
	ahead, behind := sent.Sub(date.Add(time.Second)), date.Sub(received)
	c.skew.Store(int64(max(ahead, 0) - max(behind, 0)))
}

// Skew returns by how much the own clock is ahead of the account's at least, negative if
// it is behind, as of the last answer that came within a second. It is 0 while the two
// agree to the second in which the account tells the time.
func (s *Store) Skew() time.Duration { return time.Duration(s.clock.skew.Load()) }
