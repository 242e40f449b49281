package lucius

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/sdk/go/internal/workerlog"
)

// WorkerConfig configures a [Worker]. Its zero value is valid.
type WorkerConfig struct {
	// Client calls the server. Optional. Defaults to one with the zero [ClientConfig],
	// which takes the variables LUCIUS_URL and LUCIUS_TOKEN.
	Client *Client
	// Service is the service whose steps the worker does, and Services are more of them, up
	// to 64 in total. Optional. Without either it is all.
	Service  string
	Services []string
	// Owner is the worker's name, unique among the running workers, up to 128 bytes.
	// Optional. Defaults to the names of the host and the process, and a random part.
	Owner string
	// Version is the version of the program, up to 128 bytes, which the server's list of workers
	// shows beside the host. Optional.
	Version string
	// Parallel limits the handlers that run at once. Optional. Defaults to 4.
	Parallel int
	// ClaimWait is how long a claim waits for work, up to a minute. Optional. Defaults to
	// 20s.
	ClaimWait time.Duration
	// Lease is how long the server waits for a heartbeat before it gives a step to another
	// worker: 3s to a day, at most the step's own lease. A third of it is the time between
	// heartbeats, up to 30s. Optional. Defaults to 90s.
	Lease time.Duration
	// Grace is how long handlers may still run after a stop, before their contexts end.
	// Optional. Defaults to 10s.
	Grace time.Duration
	// Log receives a line for the start, for each task, and for what fails: sdk/README.md
	// lists them. Optional. Defaults to [slog.Default].
	Log *slog.Logger
}

// validate returns an error that names the first invalid field.
func (c *WorkerConfig) validate() error {
	switch {
	case c.Parallel < 0:
		return fmt.Errorf("Parallel is %d, it must not be negative", c.Parallel)
	case c.ClaimWait < 0 || c.ClaimWait > time.Minute:
		return fmt.Errorf("ClaimWait is %s, it must be at most a minute", c.ClaimWait)
	case c.Lease != 0 && c.Lease < 3*time.Second || c.Lease > maxLease:
		return fmt.Errorf("Lease is %s, it must be from 3s to %s", c.Lease, maxLease)
	case len(c.Version) > maxName:
		return fmt.Errorf("Version is %d bytes long, it must be at most %d", len(c.Version), maxName)
	case len(c.services()) > maxServices:
		return fmt.Errorf("Services is too long: with Service it must have at most %d names", maxServices)
	case slices.Contains(c.Services, ""):
		return errors.New("Services is invalid: it has an empty name")
	case c.Grace < 0:
		return fmt.Errorf("Grace is %s, it must not be negative", c.Grace)
	}
	return nil
}

// The limits of a claim.
const (
	maxLease    = 24 * time.Hour
	maxServices = 64
	maxName     = 128
)

// services are all services of the worker, none if it does the steps of all.
func (c *WorkerConfig) services() []string {
	if c.Service == "" {
		return c.Services
	}
	return append([]string{c.Service}, c.Services...)
}

// Handler does the work of one step. It returns a reference to its result: nil for none,
// a [Reference] such as [URI] returns, any other value that encodes to a JSON object with
// a uri, or a [Result]. An error is a [StepError], or has the step tried again.
//
// Delivery is at least once: a handler may see a step again, and must be idempotent. Its
// context ends with [ErrCancelled], [ErrLeaseLost] or [ErrStopped] as its cause; it should
// return soon then, and must return some time. [Task.PauseRequested] asks for less.
type Handler func(ctx context.Context, task *Task) (any, error)

// AnyStep stands for all step types, see [Worker.Handle].
const AnyStep = "*"

// Worker pulls steps and does them by its handlers:
//
//	       ┌──────────── free slots ◀───────────┐
//	       ▼                                    │
//	claim (long poll, many at once, started)    │
//	       │                                    │
//	       ├──▶ handler ──▶ complete or fail ───┤
//	       │       ┆ heartbeats                 │
//	       ├──▶ handler ──▶ complete or fail ───┤
//	       ┆                                    ┆
//
// It survives restarts of the server: it repeats a claim for as long as it runs, and a
// report until the server answers. A handler goes on while the server is away.
// Create it with [NewWorker].
type Worker struct {
	cfg        WorkerConfig
	handlers   map[string]Handler
	middleware []func(Handler) Handler
}

// NewWorker returns a worker without handlers. [Worker.Run] returns what is wrong with the
// configuration.
func NewWorker(cfg WorkerConfig) *Worker {
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	return &Worker{cfg: cfg, handlers: map[string]Handler{}}
}

// Handle has the handler do the steps of a type, or with [AnyStep] those of all types that
// have no handler of their own. The handler is called from many goroutines. Handle must not
// be called after Run, and panics if the type has a handler.
func (w *Worker) Handle(stepType string, handler Handler) {
	if _, exists := w.handlers[stepType]; exists {
		panic(fmt.Sprintf("lucius: the step type %q has two handlers", stepType))
	}
	w.handlers[stepType] = handler
}

// Handle has the handler do the steps of a type as [Worker.Handle], with their payload decoded
// as by [Task.Decode]. Its result is one of those that a [Handler] may return:
//
//	lucius.Handle(w, "EXTRACT", func(ctx context.Context, task *lucius.Task, payload Extract) (Extracted, error) {
func Handle[T, R any](w *Worker, stepType string, handler func(ctx context.Context, task *Task, payload T) (R, error)) {
	w.Handle(stepType, func(ctx context.Context, task *Task) (any, error) {
		var payload T
		if err := task.Decode(&payload); err != nil {
			return nil, err
		}
		return handler(ctx, task, payload)
	})
}

// Handles reports whether a handler does the steps of the type. It is for other ways to get
// work than [Worker.Run], which claims only such steps.
func (w *Worker) Handles(stepType string) bool { return w.handler(stepType) != nil }

// StepTypes returns the step types that have a handler, sorted, or none if a handler does all.
func (w *Worker) StepTypes() []string {
	if w.handlers[AnyStep] != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(w.handlers))
}

// handler returns the handler of a step type, nil if there is none.
func (w *Worker) handler(stepType string) Handler {
	if handler := w.handlers[stepType]; handler != nil {
		return handler
	}
	return w.handlers[AnyStep]
}

// Use puts the middleware around all handlers, the first one outermost. It must not be
// called after Run.
func (w *Worker) Use(middleware ...func(Handler) Handler) {
	w.middleware = append(w.middleware, middleware...)
}

// Run works until the context ends. Then it claims no more, lets its handlers finish
// within the grace, and returns nil once all have returned. It returns an error only if the
// configuration is invalid or the server refuses a claim, which it would refuse again. Once the
// server has answered a claim, a proxy in its place is no reason, nor is a token that is no
// longer accepted if the client has a source of tokens.
func (w *Worker) Run(ctx context.Context) error {
	r, err := w.newRun()
	if err == nil {
		err = r.run(ctx)
	}
	if err != nil {
		return fmt.Errorf("lucius worker: %w", err)
	}
	return nil
}

// run is one run of a worker.
type run struct {
	WorkerConfig

	worker *Worker
	// claim is the worker's claim, without its number of items and request id.
	claim       ClaimRequest
	completions chan *completion
	link        *workerlog.Link
	// welcome is true once the server has answered a claim.
	welcome bool
	// warnings are those of the last claim.
	warnings []ClaimWarning
}

// newRun returns a run, with the defaults filled in.
func (w *Worker) newRun() (r *run, err error) {
	if err := w.cfg.validate(); err != nil {
		return nil, err
	}
	if len(w.handlers) == 0 {
		return nil, errors.New("it has no handler: call Handle before Run")
	}
	r = &run{WorkerConfig: w.cfg, worker: w, completions: make(chan *completion)}
	if r.Client == nil {
		if r.Client, err = NewClient(ClientConfig{}); err != nil {
			return nil, err
		}
	}
	host, _ := os.Hostname() // Without it the rest is unique enough.
	if r.Owner == "" {
		r.Owner = fmt.Sprintf("%.64s-%d-%.8s", cmp.Or(host, "worker"), os.Getpid(), rand.Text())
	}
	r.Parallel = cmp.Or(r.Parallel, 4)
	r.ClaimWait = cmp.Or(r.ClaimWait, 20*time.Second)
	r.Grace = cmp.Or(r.Grace, 10*time.Second)
	r.link = &workerlog.Link{Log: r.Log, Server: r.Client.address}
	lease := cmp.Or(r.Lease, 90*time.Second)
	r.claim = ClaimRequest{
		Owner: r.Owner, Services: r.services(), WaitSeconds: r.ClaimWait.Seconds(), LeaseSeconds: lease.Seconds(), Start: true,
		StepTypes: w.StepTypes(), Version: r.Version, Host: host[:min(len(host), maxName)],
	}
	return r, nil
}

// lastCalls is how long the calls after the grace may take: those that give unfinished
// work to other workers.
const lastCalls = 2 * time.Second

// run claims and attends to items until the context ends.
func (r *run) run(ctx context.Context) error {
	// A refused claim is a stop, too.
	ctx, stop := context.WithCancel(ctx)
	// Handlers run within handling, their reports are made within reporting.
	reporting, stopReporting := afterwards(ctx, r.Grace+lastCalls)
	defer stopReporting()
	handling, stopHandling := afterwards(ctx, r.Grace)
	defer stopHandling()
	var completer, inHand sync.WaitGroup
	completer.Go(func() { r.sendCompletions(reporting) })
	defer completer.Wait()
	defer close(r.completions)
	defer inHand.Wait()
	defer stop() // before the rest
	slots := make(chan struct{}, r.Parallel)
	r.Log.InfoContext(ctx, "worker started", "owner", r.Owner, "services", workerlog.Names(r.claim.Services),
		"steps", workerlog.Names(r.claim.StepTypes), "server", r.Client.address, "parallel", r.Parallel)
	for {
		free := takeSlots(ctx, slots)
		if free == 0 {
			return nil
		}
		items, since, err := r.claimItems(ctx, reporting, free)
		for range free - len(items) {
			<-slots
		}
		if err != nil {
			return err
		}
		for i := range items {
			inHand.Go(func() {
				defer func() { <-slots }()
				r.attend(handling, reporting, &items[i], since)
			})
		}
	}
}

// takeSlots takes all free slots that one claim can fill, and waits for the first. It takes
// none once the context has ended.
func takeSlots(ctx context.Context, slots chan struct{}) int {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	if ctx.Err() != nil {
		<-slots
		return 0
	}
	for free := 1; free < maxBatch; free++ {
		select {
		case slots <- struct{}{}:
		default:
			return free
		}
	}
	return maxBatch
}

// claimItems claims and starts up to most items, and waits for the first. A claim that is
// interrupted by the context's end may have succeeded, so it is repeated once with the
// same request id and no wait; otherwise its items would stay claimed. It returns since when
// the items may be claimed: the first try of a claim that was repeated may have claimed them.
func (r *run) claimItems(ctx, reporting context.Context, most int) (items []WorkItem, since time.Time, err error) {
	request := r.claim
	request.Max, request.RequestID = int32(most), rand.Text()
	begun, welcome := time.Now(), r.welcome
	items, tries, err := r.claimOnce(ctx, request)
	if ctx.Err() == nil || err == nil {
		if err == nil && len(items) == 0 && welcome { // The server may answer at once, while it shuts down.
			pause(ctx, min(minPoll, r.ClaimWait)-time.Since(begun))
		}
		if tries == 1 {
			return items, time.Now(), err
		}
		return items, begun, err
	}
	request.WaitSeconds = 0
	again, cancel := context.WithTimeout(reporting, lastCalls)
	defer cancel()
	if items, _, err = r.claimOnce(again, request); err != nil {
		r.Log.WarnContext(ctx, "last claim unanswered", "error", err)
	}
	return items, begun, nil
}

// claimOnce makes one claim and repeats it until it is answered.
func (r *run) claimOnce(ctx context.Context, request ClaimRequest) (items []WorkItem, tries int, err error) {
	var claimed ClaimedWork
	// Before its first answer the URL or the token may be wrong for good.
	passes := func(err error) bool {
		return mayPass(err) || r.welcome && (fromProxy(err) || r.Client.source != nil && tokenRefused(err))
	}
	err = r.persist(ctx, "claim", longestWait, passes, func(ctx context.Context) error {
		tries++
		// An answer at once says what is wrong with the first claim, and that the server is back.
		if !r.welcome || r.link.Down() {
			request.WaitSeconds = 0
		}
		return r.Client.try(ctx, call{
			method: http.MethodPost, path: "/v1/work:claim", body: request, wait: r.ClaimWait, answer: &claimed,
		})
	})
	if err == nil {
		r.welcome = true
		r.warn(ctx, claimed.Warnings)
	}
	return claimed.Items, tries, err
}

// warn logs those warnings of a claim that the last one did not have.
func (r *run) warn(ctx context.Context, warnings []ClaimWarning) {
	for _, warning := range warnings {
		if !slices.Contains(r.warnings, warning) {
			r.Log.WarnContext(ctx, "claim warning", "code", string(warning.Code), "warning", warning.Message)
		}
	}
	r.warnings = warnings
}

// persist repeats a call while its errors pass, or until the context ends. It waits at most
// longest between two tries.
func (r *run) persist(
	ctx context.Context, name string, longest time.Duration, passes func(error) bool, try func(context.Context) error,
) error {
	noted := func(ctx context.Context) error {
		asked := time.Now()
		err := try(ctx)
		if hasAnswer(err) {
			r.link.Answered(ctx, asked)
		}
		return err
	}
	return retry(ctx, longest, noted, passes, func(n int, _ time.Duration, err error) bool {
		switch {
		case !hasAnswer(err):
			r.link.Lost(ctx, err)
		case workerlog.Sparse(n):
			r.Log.WarnContext(ctx, "call repeated", "call", name, "tries", n, "error", err)
		}
		return true
	})
}

// afterwards returns a context that ends with [ErrStopped] when the time after the given
// context's end is over.
func afterwards(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if pause(later, grace) {
			cancel(ErrStopped)
		}
	})
	return later, func() {
		stop()
		cancel(ErrStopped)
	}
}
