package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

// ErrReplayed is returned when the server answers a new command with the job of an earlier
// one.
var ErrReplayed = errors.New("a fresh command was answered as a replay")

// The names of the loads; see the package comment.
const (
	One       = "one step"
	Three     = "three steps"
	Callbacks = "callbacks"
	Open      = "open loop"
	Lines     = "lines"
	Limits    = "limits"
	Batch     = "batches"
	Retention = "retention"
	Bulk      = "bulk"
	Schedules = "schedules"
)

// load is one kind of load.
type load struct {
	name string
	// steps is how many steps a job has.
	steps int
	// produce sends commands until the window's end, and returns once their jobs have
	// ended.
	produce func(ctx context.Context, r *run) error
	// work does the steps of claimed items and returns once the server has confirmed that
	// they have ended. nil means that no worker takes the jobs.
	work func(ctx context.Context, w *workers, items []item) error
	// ordered gives each command an order key, so that its job is alone in a line.
	ordered bool
	// limited gives the service a limit far above the load.
	limited bool
	// delivery makes workers claim items without starting them.
	delivery bool
	// retention is how long the server keeps ended jobs, if not as long as it does by default.
	retention time.Duration
	// beside makes workers take few items at once and do them before they claim again, and counts
	// what they take.
	beside bool
}

var loads = []*load{
	{name: One, steps: 1, produce: closedLoop, work: complete},
	{name: Three, steps: 3, produce: closedLoop, work: complete},
	{name: Callbacks, steps: 3, produce: closedLoop, work: callBackAll, delivery: true},
	{name: Open, steps: 3, produce: openLoop, work: complete},
	{name: Lines, steps: 1, produce: closedLoop, work: complete, ordered: true},
	{name: Limits, steps: 1, produce: closedLoop, work: complete, limited: true},
	{name: Batch, steps: 1, produce: batchLoop}, // last, because its jobs remain on the server
}

// byName are the loads that are measured only by name, on servers of their own.
var byName = []*load{
	{name: Retention, steps: 1, produce: closedLoop, work: complete, retention: 20 * time.Second},
	{name: Bulk, steps: 1, produce: closedLoop, work: complete, beside: true},
	{name: Schedules},
}

// ByName returns the names of the loads that are measured only if the options name them.
func ByName() []string { return []string{Retention, Bulk, Schedules} }

// Loads returns the names of the loads that are measured by default, in their order: all but those
// of [ByName].
func Loads() []string {
	names := make([]string, len(loads))
	for i, load := range loads {
		names[i] = load.name
	}
	return names
}

// loadNamed returns the load of that name, or nil if there is none.
func loadNamed(name string) *load {
	for _, load := range slices.Concat(loads, byName) {
		if load.name == name {
			return load
		}
	}
	return nil
}

// run is the measurement of one load on one server. Producers and workers share it.
type run struct {
	options *Options
	load    *load
	client  *client
	dataDir string
	tracker *tracker
	window  window
	// name distinguishes the commands of this run from those of others.
	name    string
	payload json.RawMessage
	// count is called for each job that ended.
	count func()

	// endToEnd holds the times from the submission of each command of the window (in an open
	// loop, from when it was due) to the end of its job, and submit the times to the
	// responses.
	endToEnd, submit *latencies
	counted, all     atomic.Int64 // jobs in the window, and in the whole run

	mu      sync.Mutex
	sampled []string // ids of jobs for the audit

	picks picks // of [Bulk]

	row Row
}

// newRun returns a run that has not started. The caller closes its client.
func (b *bench) newRun(server Server, load *load, store string) *run {
	length := b.options.Duration
	if load.retention > 0 {
		length = b.options.RetentionDuration
	}
	return &run{
		options: &b.options, load: load, tracker: newTracker(), window: b.window(length), dataDir: server.dataDir,
		client: newClient(server.URL, 2*b.options.Submitters+b.options.Pullers),
		name:   "bench-" + uuid.NewString(), payload: payloadOf(b.options.PayloadBytes), count: b.progress.count,
		endToEnd: newLatencies(), submit: newLatencies(), picks: picks{claims: newLatencies()}, row: Row{Load: load.name, Store: store},
	}
}

// workers returns the workers of the run's jobs.
func (r *run) workers() *workers {
	w := &workers{
		client: r.client, owner: r.name, service: service, start: !r.load.delivery, most: claimMax,
		work: r.load.work, last: stepID(r.load.steps), ended: r.tracker.end,
	}
	if r.load.beside {
		w.most, w.claimed = bulkMax, r.claimed
	}
	return w
}

// run measures a load on a server.
func (b *bench) run(ctx context.Context, server Server, load *load, store string) (*run, error) {
	r := b.newRun(server, load, store)
	defer r.client.close()
	limited, cancel := context.WithDeadlineCause(ctx, r.window.end.Add(b.options.Drain), ErrUnfinished)
	defer cancel()
	if load.limited {
		starts := map[string]any{"starts": map[string]any{"count": 100_000_000, "window": "1m"}, "reason": "measured"}
		body, err := json.Marshal(starts)
		if err != nil {
			return r, fmt.Errorf("encode the limit: %w", err)
		}
		if err := r.client.send(ctx, http.MethodPut, "/v1/admin/limits/service:"+service, body, nil); err != nil {
			return r, fmt.Errorf("set the limit: %w", err)
		}
	}
	stop := b.progress.follow(limited, load.name+", "+store, "jobs", r.window)
	cost, err := r.drive(limited)
	stop()
	if err != nil {
		return r, err
	}
	if err := audit(ctx, r.client, r.sampled); err != nil {
		return r, err
	}
	r.row.Jobs, r.row.Audited = r.counted.Load(), len(r.sampled)
	r.row.PerSecond = float64(r.row.Jobs) / r.window.end.Sub(r.window.start).Seconds()
	r.row.EndToEnd, r.row.Submit = r.endToEnd.percentiles(), r.submit.percentiles()
	r.row.Cost = cost.per(r.row.Jobs)
	return r, nil
}

// drive runs the producers, and the workers until the producers have ended. It returns what
// server and client used in the window.
func (r *run) drive(whole context.Context) (used cost, err error) {
	group, ctx := errgroup.WithContext(whole)
	group.Go(func() (err error) {
		used, err = watchCost(ctx, r.client, r.window)
		return err
	})
	if r.load.retention > 0 {
		group.Go(func() (err error) {
			r.row.Kept, err = r.watchStore(ctx)
			return err
		})
	}
	stopWorkers := func() {}
	if r.load.work != nil {
		stopWorkers = r.workers().run(ctx, group, r.options.Pullers)
	}
	group.Go(func() error {
		defer stopWorkers()
		return r.load.produce(ctx, r)
	})
	if err = group.Wait(); err != nil {
		return used, err
	}
	return used, r.awaitIdle(whole)
}

// awaitIdle waits until the server has noticed that the workers' last claims were given up: it
// could still hand them a job of the next load.
func (r *run) awaitIdle(ctx context.Context) error {
	for at := time.Now(); ; at = at.Add(5 * time.Millisecond) {
		families, err := readMetrics(ctx, r.client)
		if err != nil {
			return err
		}
		requests := families["lucius_http_requests_in_flight"].GetMetric()
		if len(requests) == 0 || requests[0].GetGauge().GetValue() <= 1 { // This one.
			return nil
		}
		if !sleepUntil(ctx, at) {
			return context.Cause(ctx)
		}
	}
}

// carry submits the nth command of a submitter and waits for the end of its job. It returns
// when the command was answered and when the job ended.
func (r *run) carry(ctx context.Context, submitter, n int) (answered, ended time.Time, err error) {
	name := fmt.Sprintf("%s-%d-%d", r.name, submitter, n)
	waiting := r.tracker.expect(name)
	var accepted api.CommandAccepted
	command := r.command(name, requestType(r.load.steps), submitter)
	if err := r.client.post(ctx, "/v1/commands", command, &accepted); err != nil {
		return answered, ended, err
	}
	if accepted.Replayed {
		return answered, ended, fmt.Errorf("command %s: %w", name, ErrReplayed)
	}
	answered = time.Now()
	select {
	case ended = <-waiting:
	case <-ctx.Done():
		return answered, ended, fmt.Errorf("job %s: %w", accepted.JobID, context.Cause(ctx))
	}
	r.count()
	r.all.Add(1)
	if r.load.retention == 0 && bits.OnesCount(uint(n)) == 1 { // the 1st, 2nd, 4th and so on: a few from the whole run
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sampled = append(r.sampled, accepted.JobID)
	}
	return answered, ended, nil
}

// record records a job of the window.
func (r *run) record(begun, answered, ended time.Time) {
	r.counted.Add(1)
	r.submit.record(answered.Sub(begun))
	r.endToEnd.record(ended.Sub(begun))
}

// tenants is the number of tenants of the submitters, so that the server must be fair between
// tenants.
const tenants = 8

// command returns a command with that name, which must be unique.
func (r *run) command(name, requestType string, submitter int) api.Command {
	tenant, key := submitter%tenants, ""
	switch {
	case requestType == lineType:
		tenant, key = 0, "the line"
	case r.load.ordered:
		key = name
	}
	return api.Command{
		OrderKey:       key,
		TenantID:       fmt.Sprintf("bench-%d", tenant),
		RequestType:    requestType,
		SchemaVersion:  "1",
		InputRef:       json.RawMessage(`{"uri":"bench://input"}`),
		OutputRef:      json.RawMessage(`{"uri":"bench://output"}`),
		Payload:        r.payload,
		CorrelationID:  name,
		IdempotencyKey: name,
	}
}
