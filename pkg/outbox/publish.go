package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// admitted is a message that no pause and no circuit holds back.
type admitted struct {
	message ledger.Message
	grant   breaker.Grant
}

// flight is an admitted message in the window.
type flight struct {
	admitted
	seq    seqledger.Seq
	owner  string
	lease  *seqledger.Lease // nil once the flight is abandoned
	paused bool             // A pause covered it at the last heartbeat.
}

// publish takes one batch through the window; messages that do not fit are left to the
// schedule. It returns once the rows are marked, which has no deadline of its own: a row that
// a slow store has not marked would be published again. A halted window returns an error,
// which stops the relay.
func (r *Relay) publish(ctx context.Context, owner string, batch []admitted) error {
	flights := make([]flight, 0, len(batch))
	now := time.Now()
	for i := range batch {
		seq, err := r.window.Take(now)
		if errors.Is(err, seqledger.ErrWindowFull) {
			r.cfg.Breakers.Report(batch[i].grant, breaker.Outcome{Verdict: breaker.NoVerdict}, now)
			r.cfg.Observe(Overload)
			continue
		}
		if err != nil {
			return fmt.Errorf("take up: %w", err)
		}
		lease, err := r.window.Begin(seq, owner, now)
		if err != nil {
			return fmt.Errorf("take up: %w", err)
		}
		flights = append(flights, flight{admitted: batch[i], seq: seq, owner: owner, lease: lease})
	}
	if len(flights) == 0 {
		return nil
	}
	// A publish in progress is finished even if the process is asked to stop.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Deadline)
	defer cancel()
	return r.fly(work, flights)
}

// fly publishes the flights. Until the deadline it repeats those with an unknown outcome,
// under the same seq and message id.
func (r *Relay) fly(ctx context.Context, flights []flight) error {
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond), backoff.WithRandomizationFactor(0),
		backoff.WithMaxElapsedTime(0))
	for len(flights) > 0 {
		unknown, err := r.round(ctx, flights)
		if err != nil || len(unknown) == 0 {
			return err
		}
		// Jitter of half the delay, from a source that a simulation can repeat.
		timer := time.NewTimer(time.Duration(float64(pause.NextBackOff()) * (0.5 + r.cfg.Random())))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		flights = flights[:0]
		for _, f := range unknown {
			again := false
			if ctx.Err() == nil {
				if again, err = r.retry(&f); err != nil {
					return err
				}
			}
			if again {
				flights = append(flights, f)
			} else if err := r.settle(ctx, &f, ErrUncertain); err != nil { // The schedule has the row.
				return err
			}
		}
		if flights, err = r.skip(ctx, flights); err != nil {
			return err
		}
	}
	return nil
}

// retry asks the window for another attempt of a flight. If a pause has begun since, the
// attempt is cancelled before its work begins.
func (r *Relay) retry(f *flight) (bool, error) {
	again, err := r.window.Retry(f.seq, uncertain, time.Now())
	switch {
	case !again:
	case r.cfg.Held(f.message.Target):
		again, err = false, r.window.Cancel(f.seq, time.Now())
	default:
		f.lease, err = r.window.Begin(f.seq, f.owner, time.Now())
	}
	if err != nil {
		return false, fmt.Errorf("retry: %w", err)
	}
	return again, nil
}

// skip removes the flights that need no other try: their rows were withdrawn since, or a
// worker has reported on the last try. A row that cannot be read is tried again.
func (r *Relay) skip(ctx context.Context, flights []flight) ([]flight, error) {
	var group errgroup.Group
	group.SetLimit(r.cfg.Marks)
	for i := range flights {
		group.Go(func() error {
			m := &flights[i].message
			agg, err := r.cfg.Ledger.Job(ctx, m.JobID)
			gone := errors.Is(err, ledger.ErrJobNotFound)
			if err != nil && !gone || !gone && agg.Outbox != nil && agg.Outbox.State == statemachine.OutboxPending &&
				agg.Outbox.ID == m.OutboxID && agg.Outbox.AttemptNo == m.AttemptNo {
				return nil
			}
			return r.abandon(&flights[i], seqledger.TerminalSkip, Skipped)
		})
	}
	err := group.Wait()
	return slices.DeleteFunc(flights, func(f flight) bool { return f.lease == nil }), err
}

// abandon ends a flight without an outcome of the bus. If its lease was reclaimed, a
// pass has ended it already.
func (r *Relay) abandon(f *flight, terminal seqledger.State, outcome Outcome) error {
	now := time.Now()
	held, err := r.window.Finish(f.lease, terminal, now)
	if err != nil {
		return fmt.Errorf("abandon: %w", err)
	}
	f.lease = nil
	r.cfg.Breakers.Report(f.grant, breaker.Outcome{Verdict: breaker.NoVerdict}, now)
	if !held {
		return nil
	}
	r.cfg.Observe(outcome)
	if _, err := r.window.Commit(f.seq, now); err != nil {
		return fmt.Errorf("abandon: %w", err)
	}
	return nil
}

// beats is the number of heartbeats in a publish deadline. A lease lasts for two.
const beats = 4

// send publishes the flights once, with heartbeats for their leases. The publish ends early
// if no flight is waiting for it any more. A publisher that exceeds its deadline continues in
// the background and has no outcomes: the leases expire.
func (r *Relay) send(ctx context.Context, flights []flight) ([]error, error) {
	messages := make([]ledger.Message, len(flights))
	for i := range flights {
		messages[i] = flights[i].message
	}
	sending, end := context.WithCancel(ctx)
	defer end()
	beating := make(chan error, 1)
	go func() {
		defer end()
		beating <- r.keepLeases(sending, flights)
	}()
	published := make(chan []error, 1)
	go func() { published <- r.cfg.Publisher.Publish(sending, messages) }()
	deadline, _ := ctx.Deadline()
	watchdog := time.NewTimer(time.Until(deadline) + r.cfg.Deadline/4)
	defer watchdog.Stop()
	var outcomes []error
	select {
	case outcomes = <-published:
	case <-watchdog.C:
		r.cfg.Logger.ErrorContext(ctx, "publisher exceeded its deadline", "messages", len(flights))
	}
	end()
	return outcomes, <-beating // The heartbeats have ended: the caller owns the flights again.
}

// keepLeases extends the flights' leases at each heartbeat, until the publish ends, its
// deadline is over, or no flight is left.
//
// Source: Stage1 seq ledger spec, Lease Ownership, rule 2.
func (r *Relay) keepLeases(ctx context.Context, flights []flight) error {
	ticker := time.NewTicker(r.cfg.Deadline / beats)
	defer ticker.Stop()
	for range beats - 1 { // At the deadline the publish gets no further heartbeat.
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		left, err := r.beat(flights)
		if err != nil || left == 0 {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// beat extends the leases and returns how many are left. A flight that a pause covers
// is cancelled by force, if the pause covered it at the last heartbeat too: the time in
// between is its grace. A late outcome is dropped, and the row waits in the schedule.
//
// Source: Stage1 seq ledger spec, Transition Contract, 7.
func (r *Relay) beat(flights []flight) (left int, err error) {
	for i := range flights {
		f := &flights[i]
		if f.lease == nil {
			continue
		}
		grace := !f.paused
		if f.paused = r.cfg.Held(f.message.Target); f.paused && !grace {
			if err := r.abandon(f, seqledger.TerminalCancel, Held); err != nil {
				return 0, err
			}
			continue
		}
		held, err := r.window.Heartbeat(f.lease, time.Now())
		if err != nil {
			return 0, fmt.Errorf("heartbeat: %w", err)
		}
		if held {
			left++
		}
	}
	return left, nil
}

// round publishes once and settles each flight by its own outcome. It returns the flights
// with an unknown outcome.
func (r *Relay) round(ctx context.Context, flights []flight) ([]flight, error) {
	began := time.Now()
	outcomes, err := r.send(ctx, flights)
	took := time.Since(began)
	if err != nil {
		return nil, err
	}
	var unknown []flight
	var group errgroup.Group
	group.SetLimit(r.cfg.Marks)
	for i := range flights {
		f := &flights[i]
		if f.lease == nil {
			continue
		}
		if outcomes == nil { // A pass reclaims the lease.
			r.cfg.Breakers.Report(f.grant, breaker.Outcome{Verdict: breaker.NoVerdict}, time.Now())
			continue
		}
		outcome, _ := judge(outcomes[i])
		r.cfg.Sent(outcome, took)
		terminal := seqledger.TerminalFail
		if outcome == Marked {
			terminal = seqledger.TerminalSuccess
		}
		held, err := r.window.Finish(f.lease, terminal, time.Now())
		if err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
		switch {
		case !held: // A pass reclaimed the lease: the schedule has the row, the outcome is dropped.
			r.cfg.Breakers.Report(f.grant, breaker.Outcome{Verdict: breaker.NoVerdict}, time.Now())
		case outcome == Uncertain:
			unknown = append(unknown, *f)
		default:
			group.Go(func() error { return r.settle(ctx, f, outcomes[i]) })
		}
	}
	return unknown, group.Wait()
}

// judge returns what a publisher's error means for the row, and for the circuits.
func judge(err error) (Outcome, breaker.Outcome) {
	var rejected *RejectedError
	var outage *OutageError
	switch {
	case err == nil:
		return Marked, breaker.Outcome{Verdict: breaker.Answered}
	case errors.As(err, &rejected):
		return Rejected, breaker.Outcome{Verdict: breaker.Answered}
	case errors.As(err, &outage) && outage.Entity != "":
		return Outage, breaker.Outcome{Verdict: breaker.EntityFailed, Reason: outage.Error()}
	case outage != nil:
		return Outage, breaker.Outcome{Verdict: breaker.BusFailed, Reason: outage.Error()}
	}
	return Uncertain, breaker.Outcome{Verdict: breaker.NoVerdict}
}

// settle reports the result of a flight to the circuits and to the row's job, and removes
// the flight from the window. If the job could not be changed, its row is left to the
// schedule, which publishes it again with the same message id.
func (r *Relay) settle(ctx context.Context, f *flight, cause error) error {
	outcome, verdict := judge(cause)
	r.cfg.Breakers.Report(f.grant, verdict, time.Now())
	switch outcome {
	case Marked:
		outcome = r.applyEvent(ctx, f, outcome, statemachine.Published{
			OutboxID: f.message.OutboxID, AttemptNo: f.message.AttemptNo,
		})
	case Rejected:
		var rejected *RejectedError
		errors.As(cause, &rejected)
		r.cfg.Logger.WarnContext(ctx, "message refused by the bus", f.message.Fields().With("topic", f.message.Topic, "error", cause)...)
		outcome = r.applyEvent(ctx, f, outcome, statemachine.PublishRejected{
			OutboxID: f.message.OutboxID, AttemptNo: f.message.AttemptNo,
			Permanent: rejected.Permanent, Reason: rejected.Reason,
		})
	default:
		r.cfg.Logger.WarnContext(ctx, "row not published", f.message.Fields().With("topic", f.message.Topic, "error", cause)...)
	}
	r.cfg.Observe(outcome)
	if _, err := r.window.Commit(f.seq, time.Now()); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

// applyEvent changes the row's job, and returns the outcome if that succeeds. The deadline of
// the publish does not bound it.
func (r *Relay) applyEvent(ctx context.Context, f *flight, outcome Outcome, event statemachine.Event) Outcome {
	result, err := r.cfg.Ledger.Change(context.WithoutCancel(ctx), f.message.JobID, event, ledger.By(actor, ""))
	switch {
	case err != nil:
		r.cfg.Logger.WarnContext(ctx, "row not settled", f.message.Fields().With("error", err)...)
		return Unmarked
	case result.Outcome != statemachine.Applied:
		return Settled
	}
	return outcome
}
