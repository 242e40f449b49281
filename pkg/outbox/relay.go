package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Config configures a [Relay].
type Config struct {
	// Ledger holds the outbox rows. Required.
	Ledger *ledger.Ledger
	// Publisher is the bus. Required.
	Publisher Publisher
	// Handoff is the hot path's queue. Required.
	Handoff *Handoff
	// Breakers are the circuits of the topics and of the bus. Required.
	Breakers *breaker.Set
	// Replica names this process in the owner tokens of the window, in logs. Optional.
	Replica string
	// Fatal is called with an illegal transition in the window, a defect: it logs
	// the facts and stops the process. Required.
	Fatal func(*seqledger.IllegalTransitionError)
	// Deadline is how long one publish may take, retries included; it must be
	// shorter than the ledger's hold. Optional. Defaults to 10 s.
	Deadline time.Duration
	// Batch is the maximum number of messages that are published together. Optional.
	// Defaults to 64.
	Batch int
	// Workers is the number of batches under way on the hot path. Optional.
	// Defaults to 4.
	Workers int
	// Marks is the number of rows of a batch that are marked concurrently. Optional.
	// Defaults to 32.
	Marks int
	// PassLimit is the maximum number of rows that one pass takes up; it bounds the drain
	// rate after an outage. Optional. Defaults to 2048.
	PassLimit int
	// Admit reports whether such a directive may be published now; otherwise it stays
	// in the schedule. Optional. It must not block.
	Admit func(target statemachine.Target) bool
	// Expires reports whether this process may end jobs that have expired: its clock is right. It must
	// not block. Optional.
	Expires func() bool
	// Held reports whether a pause covers such a directive. If so, its publish is not
	// retried, and one under way is cancelled after a grace period. Optional. It must not
	// block, and has no side effects.
	Held func(target statemachine.Target) bool
	// Random returns numbers in [0, 1), for the shard at which a pass starts and for the
	// delays between publishes. Optional. Defaults to math/rand/v2. It must be safe for
	// concurrent use.
	Random func() float64
	// Logger logs rows that could not be published. Optional.
	Logger *slog.Logger
	// Observe is called with each outcome. Optional.
	Observe func(Outcome)
	// Sent is called with the bus's answer for each message, [Marked], [Rejected],
	// [Uncertain] or [Outage], and the time that its batch took. It is not called if a
	// mark publishes. Optional.
	Sent func(answer Outcome, took time.Duration)
}

// Outcome is the result of taking up one row.
type Outcome string

// The outcomes.
const (
	Marked    Outcome = "marked"    // published, and its row SENT
	Settled   Outcome = "settled"   // published, but the row had been settled before
	Rejected  Outcome = "rejected"  // refused by the bus because of the message itself
	Uncertain Outcome = "uncertain" // left to the schedule, outcome unknown
	Outage    Outcome = "outage"    // left to the schedule, bus or topic out of service
	Overload  Outcome = "overload"  // left to the schedule, the window is full
	Gated     Outcome = "gated"     // left to the schedule, the circuit is open
	Held      Outcome = "held"      // left to the schedule, dispatch is paused
	Skipped   Outcome = "skipped"   // not tried again, the row was withdrawn or settled
	Unmarked  Outcome = "unmarked"  // published, but the row could not be marked
)

// actor is the relay's name in the journal.
const actor = "relay"

// uncertain is the only class of failure that is retried under the same seq, within the
// publish deadline.
const uncertain seqledger.Class = "uncertain"

// Relay publishes outbox rows and marks them SENT. Any number may run on one
// store; each works on what its own process commits, and on what the dispatch
// schedule says is due.
type Relay struct {
	cfg    Config
	window *seqledger.Window
	walk   ledger.Walker
}

// NewRelay returns a relay. The error names the invalid field.
func NewRelay(cfg Config) (*Relay, error) {
	if cfg.Deadline = cmp.Or(cfg.Deadline, 10*time.Second); cfg.Deadline < 0 {
		return nil, errors.New("relay: Deadline must be positive")
	}
	cfg.Batch = cmp.Or(cfg.Batch, 64)
	cfg.Workers = cmp.Or(cfg.Workers, 4)
	cfg.Marks = cmp.Or(cfg.Marks, 32)
	cfg.PassLimit = cmp.Or(cfg.PassLimit, 2048)
	if cfg.Admit == nil {
		cfg.Admit = func(statemachine.Target) bool { return true }
	}
	if cfg.Expires == nil {
		cfg.Expires = func() bool { return true }
	}
	if cfg.Held == nil {
		cfg.Held = func(statemachine.Target) bool { return false }
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Outcome) {}
	}
	if cfg.Sent == nil || cfg.Publisher.PublishedByMark() {
		cfg.Sent = func(Outcome, time.Duration) {}
	}
	window := seqledger.New(seqledger.Config{
		LeaseDuration: 2 * cfg.Deadline / beats,
		Window:        max(4*cfg.Batch*cfg.Workers, 2*cfg.PassLimit),
		Retry:         seqledger.Policy{MaxAttempts: 8, Retryable: []seqledger.Class{uncertain}},
		Fatal:         cfg.Fatal,
	})
	return &Relay{cfg: cfg, window: window, walk: ledger.Walker{
		Schedule: cfg.Ledger, Kind: ledger.Dispatch, Limit: cfg.PassLimit, Random: cfg.Random,
	}}, nil
}

// Window is the relay's window, for gauges. Only the relay may change it.
func (r *Relay) Window() *seqledger.Window { return r.window }

// Run publishes what the process's own commits hand over, until the context ends and
// the handoff is empty. What the dispatch schedule says is due is published by
// [Relay.RunOnce].
func (r *Relay) Run(ctx context.Context) error {
	ctx = tablestore.ForLoop(ctx, "relay handoff")
	var group errgroup.Group
	for i := range r.cfg.Workers {
		group.Go(func() error { return r.drainHandoff(ctx, r.owner("handoff-"+strconv.Itoa(i))) })
	}
	return group.Wait()
}

// drainHandoff is the hot path. Messages that a pause or an open circuit holds back are
// left to the schedule.
func (r *Relay) drainHandoff(ctx context.Context, owner string) error {
	for {
		var messages []ledger.Message
		select {
		case message := <-r.cfg.Handoff.messages:
			messages = append(messages, message)
		case <-ctx.Done(): // Publish the rest of the handoff too, so that it need not wait for the safety net.
		}
		messages = r.cfg.Handoff.take(messages, r.cfg.Batch)
		if len(messages) == 0 {
			return nil
		}
		batch := make([]admitted, 0, len(messages))
		for i := range messages {
			m := &messages[i]
			if grant, ok := r.admit(m.Target, m.Topic); ok {
				batch = append(batch, admitted{message: *m, grant: grant})
			}
		}
		if err := r.publish(ctx, owner, batch); err != nil {
			return err
		}
	}
}

// owner is a worker's token in the window.
//
// Source: Stage1 seq ledger spec, Lease Ownership, leaseOwner.
func (r *Relay) owner(worker string) string { return r.cfg.Replica + "/" + worker }

// admit reports whether the pauses and the circuits let a row be published now.
func (r *Relay) admit(target statemachine.Target, topic string) (breaker.Grant, bool) {
	if !r.cfg.Admit(target) {
		r.cfg.Observe(Held)
		return breaker.Grant{}, false
	}
	grant := r.cfg.Breakers.Allow(topic, 1, time.Now())
	if grant.N == 0 {
		r.cfg.Observe(Gated)
		return breaker.Grant{}, false
	}
	return grant, true
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
	taken := 0
	var halted error
	room := func() int {
		if halted != nil {
			return 0
		}
		return r.cfg.PassLimit - taken
	}
	err := r.walk.Pass(ctx, room, func(entries []ledger.Entry) bool {
		rows := r.takeUp(ctx, entries)
		taken += len(rows)
		for batch := range slices.Chunk(rows, r.cfg.Batch) {
			if halted = r.publish(ctx, r.owner("schedule"), batch); halted != nil {
				break
			}
		}
		return true
	})
	if err = cmp.Or(halted, err); err != nil {
		return taken, fmt.Errorf("dispatch schedule: %w", err)
	}
	return taken, nil
}

// reclaim takes back the leases of publishes that no longer send heartbeats: they exceeded
// their deadline, or the process was suspended. The rows are left to the schedule; a late
// outcome is dropped.
func (r *Relay) reclaim(now time.Time) error {
	expired, err := r.window.Reclaim(now)
	if err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	for _, lease := range expired {
		r.cfg.Logger.Warn("publish exceeded its deadline", "seq", lease.Seq, "owner", lease.Owner)
		r.cfg.Observe(Uncertain)
		if _, err := r.window.Commit(lease.Seq, now); err != nil {
			return fmt.Errorf("reclaim: %w", err)
		}
	}
	return nil
}

// takeUp takes due rows by compare-and-swap, so that replicas do not publish the same
// row. Rows that a pause or an open circuit holds back are left as they are. A row whose job has expired
// is withdrawn: no entry but this one leads to the job.
func (r *Relay) takeUp(ctx context.Context, entries []ledger.Entry) []admitted {
	taken := make([]admitted, len(entries))
	var group errgroup.Group
	group.SetLimit(r.cfg.Marks)
	for i, entry := range entries {
		if !entry.NotAfter.IsZero() && !entry.NotAfter.After(time.Now()) {
			if r.cfg.Expires() {
				group.Go(func() error {
					if _, _, err := r.cfg.Ledger.Fire(ctx, entry, statemachine.DeadlinePassed{}); err != nil {
						r.cfg.Logger.WarnContext(ctx, "expired row not withdrawn", entry.Fields().With("error", err)...)
					}
					return nil
				})
			}
			continue
		}
		grant, ok := r.admit(entry.Target, entry.Topic)
		if !ok {
			continue
		}
		group.Go(func() error {
			message, err := r.takeRow(ctx, entry)
			if err != nil {
				r.cfg.Logger.WarnContext(ctx, "row not taken up", entry.Fields().With("error", err)...)
			}
			if message == nil {
				r.cfg.Breakers.Report(grant, breaker.Outcome{Verdict: breaker.NoVerdict}, time.Now())
				return nil
			}
			taken[i] = admitted{message: *message, grant: grant}
			return nil
		})
	}
	_ = group.Wait() // The rows' errors are logged one by one; their entries stay.
	return slices.DeleteFunc(taken, func(a admitted) bool { return a.grant.N == 0 })
}

// takeRow takes one row; it returns nil if there is nothing left to publish. If the row's
// mark is its publish, the row is taken unchanged, unless it was made for another bus.
func (r *Relay) takeRow(ctx context.Context, entry ledger.Entry) (*ledger.Message, error) {
	if r.cfg.Publisher.PublishedByMark() {
		agg, err := r.cfg.Ledger.Job(ctx, entry.JobID)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound): // Fire decides what to do with the entry.
		case err != nil:
			return nil, err
		case agg.Job.Rev >= entry.Rev && agg.Outbox != nil && agg.Outbox.State == statemachine.OutboxPending &&
			agg.Outbox.Bus == statemachine.BusQueue:
			return r.cfg.Ledger.Message(ctx, agg)
		}
	}
	fired, result, err := r.cfg.Ledger.Fire(ctx, entry, statemachine.DispatchClaimed{})
	if err != nil || fired != ledger.Acted || result.Outcome != statemachine.Applied {
		return nil, err
	}
	if result.Message != nil {
		return result.Message, nil
	}
	return r.cfg.Ledger.Message(ctx, &result.Job)
}
