package upkeep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// offeredSize is how many webhooks wait for an attempt at once; the schedule has the rest.
const offeredSize = 1024

// settleTimeout bounds the write after an attempt, also while the process stops.
const settleTimeout = 10 * time.Second

// WebhooksLedger is what the webhooks need of the ledger.
type WebhooksLedger interface {
	Schedule
	TakeWebhook(ctx context.Context, entry ledger.Entry, hold time.Duration,
	) (*ledger.WebhookRow, *statemachine.Aggregate, error)
	RecordWebhookAttempt(ctx context.Context, taken, next *ledger.WebhookRow) (bool, error)
}

// WebhooksConfig configures a [Webhooks].
type WebhooksConfig struct {
	// Ledger holds the webhooks. Required.
	Ledger WebhooksLedger
	// Dispatcher makes the attempts. Required.
	Dispatcher *webhook.Dispatcher
	// Workers is how many attempts are under way at once. Optional. Defaults
	// to 64.
	Workers int
	// Hold is for how long a webhook is claimed; it must be longer than an attempt may
	// take. Optional. Defaults to 1 min.
	Hold time.Duration
	// Logger logs webhooks whose attempt could not be stored. Optional.
	Logger *slog.Logger
	// Observe is called after each attempt with the job and when the attempt began, from
	// the workers' goroutines. Optional.
	Observe func(job *statemachine.Job, began time.Time, result webhook.Result)
	// Traceparent returns the place of a job in its trace, which its webhooks carry.
	// Optional. Defaults to that of the job's command.
	Traceparent func(job *statemachine.Job) string
}

// Webhooks tells the URLs of a command how its job ended. Any number may run on one
// store.
//
// The ledger writes the rows and their entries with the end of the job. Those of a job
// that this process ends are handed over by [Webhooks.Offer], and sent at once; passes
// over the schedule find the retries, and what was not handed over. An attempt is
// claimed before it is sent, so that replicas do not send the same webhook
// concurrently; if a process crashes in between, the next one sends it under the same id.
// The bytes of an event follow from the job, which does not change any more, so they
// are made again for each attempt.
type Webhooks struct {
	cfg     WebhooksConfig
	offered chan ledger.Entry
	next    cursor         // where the next pass begins
	slots   chan struct{}  // one for each attempt under way
	busy    sync.WaitGroup // the attempts of passes
	// full says that the last pass left no worker free: then wake gets a value as soon
	// as one is.
	full atomic.Bool
	wake chan struct{}
}

// NewWebhooks returns a runner that sends webhooks. The error names the invalid field.
func NewWebhooks(cfg WebhooksConfig) (*Webhooks, error) {
	if cfg.Ledger == nil || cfg.Dispatcher == nil {
		return nil, errors.New("webhooks: Ledger and Dispatcher are required")
	}
	cfg.Workers = cmp.Or(cfg.Workers, 64)
	cfg.Hold = cmp.Or(cfg.Hold, time.Minute)
	if cfg.Workers < 0 || cfg.Hold < 0 {
		return nil, fmt.Errorf("webhooks: Workers and Hold must be positive, are %d and %s", cfg.Workers, cfg.Hold)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Observe == nil {
		cfg.Observe = func(*statemachine.Job, time.Time, webhook.Result) {}
	}
	if cfg.Traceparent == nil {
		cfg.Traceparent = func(job *statemachine.Job) string { return job.Traceparent }
	}
	w := &Webhooks{
		cfg: cfg, offered: make(chan ledger.Entry, offeredSize),
		slots: make(chan struct{}, cfg.Workers), wake: make(chan struct{}, 1),
	}
	return w, cfg.Dispatcher.Validate()
}

// Offer hands over the webhooks of a job that has just ended, or leaves them to the
// schedule if too many wait. It never blocks.
func (w *Webhooks) Offer(ended *statemachine.Job) {
	for _, entry := range ledger.WebhookEntries(ended) {
		select {
		case w.offered <- entry:
		default:
		}
	}
}

// Run sends what is handed over until the context ends, which interrupts the attempts
// under way. It returns nil.
func (w *Webhooks) Run(ctx context.Context) error {
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
					w.cfg.Logger.WarnContext(ctx, "webhook not taken up; the next pass takes it", entry.Fields().With("error", err)...)
				case err == nil && claimed != nil:
					w.attempt(ctx, claimed)
				}
			})
		case <-ctx.Done():
			return nil
		}
	}
}

// enter waits for a free worker. It returns false if the context ends before.
func (w *Webhooks) enter(ctx context.Context) bool {
	select {
	case w.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// leave frees a worker, and asks for a pass if the last one left none free.
func (w *Webhooks) leave() {
	<-w.slots
	w.wakeIfFull()
}

// Loop returns the loop that sends what the schedule says is due. While more may be due,
// it makes the next pass as soon as a worker is free. Its end interrupts the attempts
// under way, whose webhooks stay due.
func (w *Webhooks) Loop() Loop {
	return Loop{Name: "webhooks", Wake: w.wake, Drain: w.Wait, Pass: func(ctx context.Context) error {
		_, err := w.RunOnce(ctx)
		return err
	}}
}

// Wait returns when no attempt of a pass is under way.
func (w *Webhooks) Wait() { w.busy.Wait() }

// RunOnce takes as many due webhooks as there are free workers, and does not
// wait for their attempts. A webhook that cannot be claimed is left to the next pass and
// does not hold up the others; the error joins all errors. One pass runs at a time.
func (w *Webhooks) RunOnce(ctx context.Context) (Pass, error) {
	free := cap(w.slots) - len(w.slots)
	var pass Pass
	var errs []error
	read := 0
	room := func() int {
		if errors.Is(errors.Join(errs...), tablestore.ErrUnavailable) {
			return 0 // The next ones would fail as well.
		}
		return min(free-pass.Done, sweepLimit-read)
	}
	err := w.next.round(ctx, w.cfg.Ledger, ledger.Webhook, room, func(entry ledger.Entry) {
		read++
		taken, err := w.take(ctx, entry)
		if err != nil {
			errs = append(errs, err)
		}
		if taken {
			pass.Done++
		}
	})
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		w.full.Store(false)
		return pass, fmt.Errorf("webhooks: %w", errors.Join(errs...))
	}
	pass.More = pass.Done >= free
	if w.full.Store(pass.More); pass.More && len(w.slots) < cap(w.slots) {
		w.wakeIfFull() // A worker became free before full was set.
	}
	return pass, nil
}

// take claims one webhook and starts its attempt. It reports false if there is none to
// make.
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

// claim claims a webhook for one attempt, and makes the bytes to send. It returns nil if
// the entry stands for none, or another process has it.
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
	sent, result := w.cfg.Dispatcher.Attempt(ctx, message, webhook.Delivery{
		State: webhook.State(row.State), Attempts: row.Attempts, NextAttemptAt: row.NextAttemptAt,
		LastStatus: row.LastStatus, LastError: row.LastError,
	})
	w.cfg.Observe(claimed.job, began, result)
	next := *row
	next.State, next.Attempts, next.NextAttemptAt = ledger.WebhookState(sent.State), sent.Attempts, sent.NextAttemptAt
	next.LastStatus, next.LastError = sent.LastStatus, sent.LastError
	// The attempt was made, so it is stored even while the process stops.
	settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	moved, err := w.cfg.Ledger.RecordWebhookAttempt(settle, row, &next)
	about := statemachine.FieldsOf(claimed.job, nil, 0).With("webhook_id", row.ID(), "outcome", result.Outcome)
	switch {
	case errors.Is(err, ledger.ErrJobNotFound):
		w.cfg.Logger.InfoContext(ctx, "webhook not settled: its job has been purged", about...)
	case err != nil:
		w.cfg.Logger.WarnContext(ctx, "webhook not settled; it will be sent again", append(about, "error", err)...)
	case !moved:
		w.cfg.Logger.WarnContext(ctx, "webhook settled by another process", about...)
	}
}
