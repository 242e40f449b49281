package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// admitted is a message that its circuit lets pass.
type admitted struct {
	message ledger.Message
	grant   breaker.Grant
}

// flight is an admitted message in the window.
type flight struct {
	admitted
	seq   seqledger.Seq
	lease *seqledger.Lease
}

// publish brings one batch through the window. It returns after the publish
// deadline at the latest: a publisher that does not come back is left behind,
// its leases expire, and what it still reports is dropped. The error is that
// of a halted window, which stops the relay.
func (r *Relay) publish(ctx context.Context, batch []admitted) error {
	flights, err := r.begin(batch)
	if err != nil || len(flights) == 0 {
		return err
	}
	// What is under way is finished also when the process is asked to stop.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Deadline)
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- r.fly(work, flights)
	}()
	watchdog := time.NewTimer(r.cfg.Deadline + r.cfg.Deadline/4)
	defer watchdog.Stop()
	select {
	case err := <-done:
		return err
	case <-watchdog.C:
		r.cfg.Logger.ErrorContext(ctx, "publisher did not come back within its deadline", "messages", len(flights))
		return nil
	}
}

// begin takes the batch into the window; what does not fit is left to the
// schedule.
func (r *Relay) begin(batch []admitted) ([]flight, error) {
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
			return nil, fmt.Errorf("take up: %w", err)
		}
		lease, err := r.window.Begin(seq, r.cfg.Owner, now)
		if err != nil {
			return nil, fmt.Errorf("take up: %w", err)
		}
		flights = append(flights, flight{admitted: batch[i], seq: seq, lease: lease})
	}
	return flights, nil
}

// fly publishes the flights, and again those whose outcome is not known, under
// the same seq and message id, until the deadline.
func (r *Relay) fly(ctx context.Context, flights []flight) error {
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond), backoff.WithRandomizationFactor(0),
		backoff.WithMaxElapsedTime(0))
	for len(flights) > 0 {
		again, err := r.round(ctx, flights)
		if err != nil || len(again) == 0 {
			return err
		}
		// Half of the delay either way, from the source that a simulation can repeat.
		timer := time.NewTimer(time.Duration(float64(pause.NextBackOff()) * (0.5 + r.cfg.Random())))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		if flights, err = r.retry(ctx, again); err != nil {
			return err
		}
	}
	return nil
}

// round publishes once and settles each flight by its own outcome. It returns
// those whose outcome is not known.
func (r *Relay) round(ctx context.Context, flights []flight) ([]flight, error) {
	messages := make([]ledger.Message, len(flights))
	for i := range flights {
		messages[i] = flights[i].message
	}
	outcomes := r.cfg.Publisher.Publish(ctx, messages)
	var again []flight
	var group errgroup.Group
	group.SetLimit(r.cfg.Marks)
	for i := range flights {
		kind := judge(outcomes[i])
		held, err := r.window.Finish(flights[i].lease, kind.terminal(), time.Now())
		if err != nil {
			return nil, fmt.Errorf("settle: %w", err)
		}
		switch {
		case !held:
			// Reclaimed and left to the schedule: the outcome is dropped.
			r.report(&flights[i], ErrUncertain)
		case kind == Uncertain:
			again = append(again, flights[i])
		default:
			group.Go(func() error { return r.settle(ctx, &flights[i], kind, outcomes[i]) })
		}
	}
	return again, group.Wait()
}

// judge tells what kind of outcome a publish had.
func judge(err error) Outcome {
	var rejected *RejectedError
	var outage *OutageError
	switch {
	case err == nil:
		return Marked
	case errors.As(err, &rejected):
		return Rejected
	case errors.As(err, &outage):
		return Outage
	}
	return Uncertain
}

// report tells the circuits what became of a message.
func (r *Relay) report(f *flight, err error) {
	outcome := breaker.Outcome{Verdict: breaker.NoVerdict}
	var rejected *RejectedError
	var outage *OutageError
	switch {
	case err == nil, errors.As(err, &rejected):
		outcome.Verdict = breaker.Answered
	case errors.As(err, &outage) && outage.Entity != "":
		outcome = breaker.Outcome{Verdict: breaker.EntityFailed, Reason: outage.Error()}
	case outage != nil:
		outcome = breaker.Outcome{Verdict: breaker.BusFailed, Reason: outage.Error()}
	}
	r.cfg.Breakers.Report(f.grant, outcome, time.Now())
}

// terminal is the state that an outcome leaves in the window.
func (o Outcome) terminal() seqledger.State {
	if o == Marked {
		return seqledger.TerminalSuccess
	}
	return seqledger.TerminalFail
}

// settle brings an outcome to the ledger, and then out of the window. A row
// that cannot be settled is left to the schedule: it is published again with
// the same message id.
func (r *Relay) settle(ctx context.Context, f *flight, kind Outcome, cause error) error {
	r.report(f, cause)
	final := kind
	switch kind {
	case Marked:
		final = r.bring(ctx, f, kind, statemachine.Published{
			OutboxID: f.message.OutboxID, AttemptNo: f.message.AttemptNo,
		})
	case Rejected:
		var rejected *RejectedError
		errors.As(cause, &rejected)
		r.cfg.Logger.WarnContext(ctx, "message refused by the bus", "jobId", f.message.JobID, "topic", f.message.Topic, "error", cause)
		final = r.bring(ctx, f, kind, statemachine.PublishRejected{
			OutboxID: f.message.OutboxID, AttemptNo: f.message.AttemptNo,
			Permanent: rejected.Permanent, Reason: rejected.Reason,
		})
	case Outage, Uncertain:
		r.cfg.Logger.WarnContext(ctx, "row not published", "jobId", f.message.JobID, "topic", f.message.Topic, "error", cause)
	case Settled, Overload, Gated, Held, Unmarked:
	}
	r.cfg.Observe(final)
	if _, err := r.window.Commit(f.seq, time.Now()); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	return nil
}

// bring brings the event to the row's job.
func (r *Relay) bring(ctx context.Context, f *flight, kind Outcome, event statemachine.Event) Outcome {
	result, err := r.cfg.Ledger.Change(ctx, f.message.JobID, event, ledger.By("relay", ""))
	switch {
	case err != nil:
		r.cfg.Logger.WarnContext(ctx, "row not settled", "jobId", f.message.JobID, "stepId", f.message.StepID, "error", err)
		return Unmarked
	case result.Outcome != statemachine.Applied:
		return Settled
	}
	return kind
}

// retry asks the window for another attempt of each flight; those that may not
// have one, or for which no time is left, are left to the schedule.
func (r *Relay) retry(ctx context.Context, flights []flight) ([]flight, error) {
	var again []flight
	for i := range flights {
		f := &flights[i]
		retried := false
		var err error
		if ctx.Err() == nil {
			if retried, err = r.window.Retry(f.seq, uncertain, time.Now()); err != nil {
				return nil, fmt.Errorf("retry: %w", err)
			}
		}
		if !retried {
			if err := r.settle(ctx, f, Uncertain, ErrUncertain); err != nil {
				return nil, err
			}
			continue
		}
		if f.lease, err = r.window.Begin(f.seq, r.cfg.Owner, time.Now()); err != nil {
			return nil, fmt.Errorf("retry: %w", err)
		}
		again = append(again, *f)
	}
	return again, nil
}
