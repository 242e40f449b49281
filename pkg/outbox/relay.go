package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Relay publishes outbox rows and marks them SENT. Any number may run on one
// store; each works on what its own process commits, and on what the dispatch
// schedule says is due.
type Relay struct {
	cfg    Config
	window *seqledger.Ledger
	from   map[int]string // where the next pass over a shard begins
}

// NewRelay returns a relay. The error names the field that is missing.
func NewRelay(cfg Config) (*Relay, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	window, err := seqledger.New(seqledger.Config{
		LeaseDuration: cfg.Deadline,
		Window:        max(4*cfg.Batch*cfg.Workers, 2*cfg.PassLimit),
		Retry:         seqledger.Policy{MaxAttempts: 8, Retryable: []seqledger.Class{uncertain}},
		Fatal:         cfg.Fatal,
	})
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &Relay{cfg: cfg, window: window, from: map[int]string{}}, nil
}

// Counters are the window's counters, for gauges.
func (r *Relay) Counters() seqledger.Counters { return r.window.Counters() }

// Run publishes what the process's own commits hand over, until the context ends;
// what is under way then is finished. What the dispatch schedule says is due is
// published by [Relay.RunOnce].
func (r *Relay) Run(ctx context.Context) error {
	var group errgroup.Group
	for range r.cfg.Workers {
		group.Go(func() error { return r.hot(ctx) })
	}
	return group.Wait()
}

// hot publishes what the process's own commits hand over.
func (r *Relay) hot(ctx context.Context) error {
	for {
		select {
		case message := <-r.cfg.Inbox.messages:
			batch := r.cfg.Inbox.take([]ledger.Message{message}, r.cfg.Batch)
			if err := r.publish(ctx, r.admit(batch)); err != nil {
				return err
			}
		case <-ctx.Done():
			return r.drain(ctx)
		}
	}
}

// drain publishes what is left in the inbox when the process stops, rather than
// leave it to the safety net of the next one.
func (r *Relay) drain(ctx context.Context) error {
	for {
		batch := r.cfg.Inbox.take(nil, r.cfg.Batch)
		if len(batch) == 0 {
			return nil
		}
		if err := r.publish(ctx, r.admit(batch)); err != nil {
			return err
		}
	}
}

// admit asks about messages that come straight from a commit; those that are
// paused, or behind an open circuit, are left to the schedule.
func (r *Relay) admit(messages []ledger.Message) []admitted {
	batch := make([]admitted, 0, len(messages))
	for i := range messages {
		m := &messages[i]
		if !r.cfg.Admit(m.TenantID, m.ProtocolID, m.Lane) {
			r.cfg.Observe(Held)
			continue
		}
		grant := r.cfg.Breakers.Allow(messages[i].Topic, 1, time.Now())
		if grant.N == 0 {
			r.cfg.Observe(Gated)
			continue
		}
		batch = append(batch, admitted{message: messages[i], grant: grant})
	}
	return batch
}

// RunOnce takes up what the dispatch schedule says is due and publishes it. It
// returns the number of rows taken up; the error is that of reading the
// schedule, or of a halted window. One pass runs at a time.
func (r *Relay) RunOnce(ctx context.Context) (int, error) {
	now := time.Now()
	if err := r.reclaim(now); err != nil {
		return 0, err
	}
	if r.cfg.Breakers.State(breaker.Bus, now) == breaker.Open {
		return 0, nil
	}
	shards := r.cfg.Ledger.Shards()
	start := int(r.cfg.Random() * float64(shards))
	taken := 0
	for i := range shards {
		n, err := r.shard(ctx, (start+i)%shards, now, r.cfg.PassLimit-taken)
		taken += n
		if err != nil {
			return taken, fmt.Errorf("dispatch schedule: %w", err)
		}
		if taken >= r.cfg.PassLimit {
			break
		}
	}
	return taken, nil
}

// shard takes up the due rows of one shard. Where many are held back, it goes on
// in the next pass where this one ended, so that they hide nothing behind them
// and are not all read in every pass.
func (r *Relay) shard(ctx context.Context, shard int, now time.Time, limit int) (int, error) {
	from, taken, read := r.from[shard], 0, 0
	for taken < limit && read < r.cfg.PassLimit && ctx.Err() == nil {
		entries, next, err := r.cfg.Ledger.Due(ctx, ledger.Dispatch, shard, now, min(limit-taken, 256), from)
		if err != nil {
			return taken, err
		}
		read += len(entries)
		batch := r.takeUp(ctx, entries)
		taken += len(batch)
		for len(batch) > 0 {
			n := min(len(batch), r.cfg.Batch)
			if err := r.publish(ctx, batch[:n]); err != nil {
				return taken, err
			}
			batch = batch[n:]
		}
		if from = next; from == "" {
			break
		}
	}
	r.from[shard] = from
	return taken, nil
}

// takeUp claims due rows by compare-and-swap, so that replicas do not publish
// them side by side. Rows that are paused, or behind an open circuit, are left as
// they are.
func (r *Relay) takeUp(ctx context.Context, entries []ledger.Entry) []admitted {
	slots := make([]admitted, len(entries))
	var group errgroup.Group
	group.SetLimit(r.cfg.Marks)
	for i, entry := range entries {
		if !r.cfg.Admit(entry.TenantID, entry.ProtocolID, entry.Lane) {
			r.cfg.Observe(Held)
			continue
		}
		grant := r.cfg.Breakers.Allow(entry.Topic, 1, time.Now())
		if grant.N == 0 {
			r.cfg.Observe(Gated)
			continue
		}
		group.Go(func() error {
			message, err := r.claim(ctx, entry)
			if err != nil {
				r.cfg.Logger.WarnContext(ctx, "row not taken up", "jobId", entry.JobID, "error", err)
			}
			if message == nil {
				r.cfg.Breakers.Report(grant, breaker.Outcome{Verdict: breaker.NoVerdict}, time.Now())
				return nil
			}
			slots[i] = admitted{message: *message, grant: grant}
			return nil
		})
	}
	_ = group.Wait() // The rows' errors are logged one by one; their entries stay.
	return slices.DeleteFunc(slots, func(a admitted) bool { return a.grant.N == 0 })
}

// claim takes one row up; nil if there is nothing to publish any more. A row whose
// mark is its publication is taken as it is, unless it was made for another bus.
func (r *Relay) claim(ctx context.Context, entry ledger.Entry) (*ledger.Message, error) {
	if r.cfg.Publisher.PublishedByMark() {
		agg, err := r.cfg.Ledger.Job(ctx, entry.JobID)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound): // Firing the entry tells what becomes of it.
		case err != nil:
			return nil, err
		case agg.Job.Rev >= entry.Rev && agg.Outbox != nil && agg.Outbox.State == statemachine.OutboxPending &&
			agg.Outbox.Bus == statemachine.BusQueue:
			return r.cfg.Ledger.Message(ctx, agg)
		}
	}
	standing, result, err := r.cfg.Ledger.Fire(ctx, entry, statemachine.DispatchClaimed{})
	if err != nil || standing != ledger.Acted || result.Outcome != statemachine.Applied {
		return nil, err
	}
	if result.Message != nil {
		return result.Message, nil
	}
	return r.cfg.Ledger.Message(ctx, &result.Job)
}

// reclaim takes the leases of publishes away that outlived their deadline. The
// rows are left to the schedule; a late outcome is dropped.
func (r *Relay) reclaim(now time.Time) error {
	expired, err := r.window.Reclaim(now)
	if err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	for _, lease := range expired {
		r.cfg.Logger.Warn("publish outlived its deadline", "seq", lease.Seq, "owner", lease.Owner)
		r.cfg.Observe(Uncertain)
		if _, err := r.window.Commit(lease.Seq, now); err != nil {
			return fmt.Errorf("reclaim: %w", err)
		}
	}
	return nil
}
