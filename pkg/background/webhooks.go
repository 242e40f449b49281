package background

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// offeredSize is the most offered webhooks that wait for an attempt in memory. Passes find
// the rest in the schedule.
const offeredSize = 1024

// recordTimeout bounds the write after an attempt, even while the process stops.
const recordTimeout = 10 * time.Second

// WebhooksLedger is the part of the ledger that [Webhooks] need.
type WebhooksLedger interface {
	ledger.Schedule
	TakeWebhook(ctx context.Context, entry ledger.Entry, hold time.Duration,
	) (*ledger.WebhookRow, *statemachine.Aggregate, error)
	RecordWebhookAttempt(ctx context.Context, taken, next *ledger.WebhookRow) (bool, error)
}

// WebhooksConfig configures a [Webhooks].
type WebhooksConfig struct {
	// Ledger holds the webhooks. Required.
	Ledger WebhooksLedger
	// Send makes one attempt, as [webhook.Sender.Send] does. Required. It must be safe for
	// concurrent use.
	Send func(ctx context.Context, message webhook.Message) webhook.Result
	// Gate isolates receivers from each other. Required.
	Gate *webhook.Gate
	// Policy decides when to retry. Optional. Its zero value never does; see
	// [StandardWebhookPolicy].
	Policy WebhookPolicy
	// Jitter returns numbers in [0, 1), for the jitter of the policy. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Jitter func() float64
	// Workers is the most concurrent attempts. Optional. Defaults to 64.
	Workers int
	// Hold is how long a claim on a webhook lasts. It must be longer than an attempt may
	// take. Optional. Defaults to 1 min.
	Hold time.Duration
	// Random is that of the [ledger.Walker]. Optional.
	Random func() float64
	// Logger logs webhooks that could not be claimed or whose attempt could not be
	// stored. Optional.
	Logger *slog.Logger
	// Observe is called after each attempt, with the job and the start of the attempt.
	// Optional. It must be safe for concurrent use.
	Observe func(job *statemachine.Job, began time.Time, result webhook.Result)
	// Traceparent returns the traceparent header of a job's webhooks. Optional. Defaults
	// to that of the job's command.
	Traceparent func(job *statemachine.Job) string
}

// Webhooks tells the URLs of a command how its job ended. Any number may run on one
// store.
//
// The ledger writes the rows and their schedule entries when the job ends. [Webhooks.Offer]
// sends those of jobs that end in this process at once; passes over the schedule find
// retries and the rest. A webhook is claimed before it is sent, so that replicas do not
// send it concurrently; if a process crashes in between, the next one sends it under the
// same id. The body follows from the job, which no longer changes, so each attempt makes it
// again.
type Webhooks struct {
	cfg     WebhooksConfig
	offered chan ledger.Entry
	walk    ledger.Walker
	permits chan struct{}  // one for each attempt under way
	busy    sync.WaitGroup // the attempts that passes have started
	// full says that the last pass left no worker free. The next worker to become free
	// then sends to wake.
	full atomic.Bool
	wake chan struct{}
}

// NewWebhooks returns a runner that sends webhooks.
func NewWebhooks(cfg WebhooksConfig) *Webhooks {
	cfg.Workers = cmp.Or(cfg.Workers, 64)
	cfg.Hold = cmp.Or(cfg.Hold, time.Minute)
	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(*statemachine.Job, time.Time, webhook.Result) {}
	}
	if cfg.Traceparent == nil {
		cfg.Traceparent = func(job *statemachine.Job) string { return job.Traceparent }
	}
	return &Webhooks{
		cfg: cfg, offered: make(chan ledger.Entry, offeredSize),
		walk:    ledger.Walker{Schedule: cfg.Ledger, Kind: ledger.Webhook, Random: cfg.Random},
		permits: make(chan struct{}, cfg.Workers), wake: make(chan struct{}, 1),
	}
}

// Offer queues the webhooks of a job that has just ended for Run, or leaves them to the
// next pass if the queue is full. It never blocks.
func (w *Webhooks) Offer(ended *statemachine.Job) {
	for _, entry := range ledger.WebhookEntries(ended) {
		select {
		case w.offered <- entry:
		default:
		}
	}
}

// Run sends offered webhooks until the context ends, which interrupts the attempts under
// way. It returns nil.
func (w *Webhooks) Run(ctx context.Context) error {
	ctx = tablestore.ForLoop(ctx, "webhooks")
	var busy sync.WaitGroup
	defer busy.Wait()
	for {
		select {
		case entry := <-w.offered:
			if !w.enter(ctx) {
				return nil
			}
			busy.Go(func() {
				defer w.leave()
				claimed, err := w.claim(ctx, entry)
				switch {
				case err != nil && ctx.Err() == nil:
					w.cfg.Logger.WarnContext(ctx, "webhook not claimed; the next pass tries again", entry.Fields().With("error", err)...)
				case err == nil && claimed != nil:
					w.attempt(ctx, claimed)
				}
			})
		case <-ctx.Done():
			return nil
		}
	}
}

// enter waits for a free worker. It returns false if the context ends first.
func (w *Webhooks) enter(ctx context.Context) bool {
	select {
	case w.permits <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave frees a worker, and asks for a pass if the last one left none free.
func (w *Webhooks) leave() {
	<-w.permits
	w.wakeIfFull()
}

// Loop returns the loop that sends due webhooks. While more may be due, the next pass starts
// as soon as a worker is free. The end of its context interrupts the attempts under way,
// whose webhooks stay due.
func (w *Webhooks) Loop() Loop {
	return Loop{Name: "webhooks", Wake: w.wake, Drain: w.Wait, Pass: func(ctx context.Context) error {
		_, err := w.RunOnce(ctx)
		return err
	}}
}

// Wait waits for the attempts that passes have started.
func (w *Webhooks) Wait() { w.busy.Wait() }

// RunOnce claims as many due webhooks as there are free workers, and does not wait for
// their attempts. A webhook that cannot be claimed is left to the next pass and does not
// hold up the others; the error joins all errors. One pass runs at a time.
func (w *Webhooks) RunOnce(ctx context.Context) (Pass, error) {
	free := cap(w.permits) - len(w.permits)
	var pass Pass
	var errs []error
	outages := 0
	room := func() int {
		if outages > 1 { // One may be its job's: another one is tried.
			return 0 // The next claims would fail as well.
		}
		return free - pass.Done
	}
	err := w.walk.Pass(ctx, room, func(entries []ledger.Entry) bool {
		for _, entry := range entries {
			taken, err := w.take(ctx, entry)
			if err != nil {
				errs = append(errs, err)
			}
			if tablestore.IsOutage(err) {
				outages++
			}
			if taken {
				pass.Done++
			}
		}
		return true
	})
	if err != nil {
		errs = append(errs, err)
	}
	// After the error of a row, too: the wake does not wait for the loop's delay.
	pass.More = pass.Done >= free && outages <= 1 && !tablestore.IsOutage(err)
	if w.full.Store(pass.More); pass.More && len(w.permits) < cap(w.permits) {
		w.wakeIfFull() // A worker may have become free before full was set.
	}
	if len(errs) > 0 {
		return pass, fmt.Errorf("webhooks: %w", errors.Join(errs...))
	}
	return pass, nil
}

// take claims one webhook and starts its attempt. It reports false if there is nothing to
// send.
func (w *Webhooks) take(ctx context.Context, entry ledger.Entry) (bool, error) {
	if !w.enter(ctx) {
		return false, ctx.Err()
	}
	claimed, err := w.claim(ctx, entry)
	if err != nil || claimed == nil {
		w.leave()
		return false, err
	}
	w.busy.Go(func() {
		defer w.leave()
		w.attempt(ctx, claimed)
	})
	return true, nil
}

// claimedWebhook is a webhook that this process holds for one attempt.
type claimedWebhook struct {
	row  *ledger.WebhookRow
	job  *statemachine.Job
	body []byte
}

// claim claims a webhook for one attempt, and makes its body. It returns nil if the entry
// has no webhook to send, or another process has claimed it.
func (w *Webhooks) claim(ctx context.Context, entry ledger.Entry) (*claimedWebhook, error) {
	row, job, err := w.cfg.Ledger.TakeWebhook(ctx, entry, w.cfg.Hold)
	if err != nil || row == nil {
		return nil, err
	}
	body, err := webhook.Body(&job.Job)
	if err != nil {
		return nil, err
	}
	return &claimedWebhook{row, &job.Job, body}, nil
}

// wakeIfFull asks for a pass if the last one left no worker free.
func (w *Webhooks) wakeIfFull() {
	if !w.full.Swap(false) {
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// attempt makes one attempt and stores its result.
func (w *Webhooks) attempt(ctx context.Context, claimed *claimedWebhook) {
	row, began := claimed.row, time.Now()
	message := webhook.Message{
		ID: row.ID(), TenantID: row.TenantID, URL: row.URL, Body: claimed.body, Traceparent: w.cfg.Traceparent(claimed.job),
	}
	pass, result := w.cfg.Gate.Enter(row.TenantID, webhook.HostOf(row.URL), began)
	if pass != nil {
		result = w.cfg.Send(ctx, message)
		pass.Leave(result, time.Now())
	}
	next := w.cfg.Policy.Apply(*row, result, time.Now(), w.cfg.Jitter())
	w.cfg.Observe(claimed.job, began, result)
	// The attempt was made, so store it even while the process stops.
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	recorded, err := w.cfg.Ledger.RecordWebhookAttempt(record, row, &next)
	about := statemachine.FieldsOf(claimed.job, nil, 0).With("webhook_id", row.ID(), "outcome", result.Outcome)
	switch {
	case errors.Is(err, ledger.ErrJobNotFound):
		w.cfg.Logger.InfoContext(ctx, "webhook attempt not stored: the job has been purged", about...)
	case err != nil:
		w.cfg.Logger.WarnContext(ctx, "webhook attempt not stored; it will be repeated", append(about, "error", err)...)
	case !recorded:
		w.cfg.Logger.WarnContext(ctx, "webhook attempt not stored: the webhook has changed since", about...)
	}
}
