package search

import (
	"cmp"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// CountsConfig configures [Counts].
type CountsConfig struct {
	// Store holds the rows, in Table. Required.
	Store tablestore.Store
	Table string
	// Replica names the row of this process. Required if other processes write the store;
	// it must be unique for each run of each process.
	Replica string
	// Exclusive says that no other process writes the store. Optional.
	Exclusive bool
	// Queue knows which workers poll this process, and learns which poll other processes.
	// Optional.
	Queue Queue
	// Paused returns the scopes that are paused, the oldest first. Optional. It must not call the
	// counts.
	Paused func() []statemachine.Scope
	// Waited is called with the time that an attempt waited for its worker, and Took with
	// the time that one ran until its RESULT and the state to which that moved the step.
	// Optional. They must not block or call the counts.
	Waited func(of ledger.WorkKind, waited time.Duration)
	Took   func(of ledger.WorkKind, to statemachine.StepState, took time.Duration)
	// Logger logs stored figures that cannot be read. Optional.
	Logger *slog.Logger
}

// Queue is the part of the pull queue that [Counts] needs.
type Queue interface {
	Pollers() []workqueue.Poller
	LastPolls() []workqueue.Poller
	PolledElsewhere(polls []workqueue.Poller)
}

// Counts counts jobs, and the attempts of their steps by service and step type, so that
// queries for these counts need no scan. No decision depends on them.
//
//	commits of this process ──Observe──► figures ──RunOnce──► a row for each process
//	                           │                                  │ RunOnce
//	walk of the live jobs ──Walked──► live jobs ──► Report ◄── figures of all processes
//
// Figures count events: accepted and ended jobs, refused commands, publishes, started and
// ended attempts. Those of the processes add up. Numbers of live jobs and of their steps
// come from the walk. If no other process writes the store, each commit keeps the live jobs
// that the last walk found current, so that the numbers are exact. Otherwise they are as of
// the last walk of any process. It is safe for concurrent use.
type Counts struct {
	cfg     CountsConfig
	workers *workers

	mu     sync.Mutex // Guards all below: a report has all of a commit, or nothing of it.
	own    *figures
	others []*figures // of the other processes, as last read
	dirty  bool       // own has changed since it was stored
	busy   bool       // a change was committed since the last call of Spare
	live   liveJobs   // unless Exclusive, those of the current walk, or of the last one
	began  time.Time  // when the current walk began
	kinds  map[kind]kind
}

// figures are what one process has counted.
type figures struct {
	AsOf     time.Time          `json:"as_of"`           // when they were stored
	Since    time.Time          `json:"since"`           // when counting began
	Whole    bool               `json:"whole,omitempty"` // the process ended in good order, and counted every event
	DaySince time.Time          `json:"day_since"`       // when counting by day began
	Lost     time.Time          `json:"lost,omitzero"`   // when an event may last have been missed
	Live     *gauges            `json:"live,omitempty"`  // of its last walk
	Accepted window             `json:"accepted"`
	Refused  window             `json:"refused"`   // commands
	Publish  window             `json:"published"` // directives; a rejected publish is a failure
	Started  window             `json:"started"`   // attempts
	Ended    map[ending]*ends   `json:"ended,omitempty"`
	Attempts map[kind]*attempts `json:"attempts,omitempty"`
	Pollers  []workqueue.Poller `json:"pollers,omitempty"` // the most recent
	Polls    []workqueue.Poller `json:"polls,omitempty"`   // the most recent of each filter
}

// attempts counts the ended attempts of one kind.
type attempts struct {
	window

	Queued window `json:"queued"` // changes of the number of queued steps
	// Took from the start to the RESULT, and waited from the publish to the claim, or to the ACK: the last
	// ones that this process saw, and all of a day.
	took, waited lastDurations
	DayTook      spread `json:"day_took,omitempty"`
	DayWaited    spread `json:"day_waited,omitempty"`
}

// ends counts the jobs that ended in one way.
type ends struct {
	window

	Day spread `json:"day,omitempty"` // all in its bucket 0
}

func newFigures(since time.Time) *figures {
	return &figures{Since: since, DaySince: since, Ended: map[ending]*ends{}, Attempts: map[kind]*attempts{}}
}

// windows returns all windows.
func (f *figures) windows() []*window {
	all := []*window{&f.Accepted, &f.Refused, &f.Publish, &f.Started}
	for _, w := range f.Ended {
		all = append(all, &w.window)
	}
	for _, a := range f.Attempts {
		all = append(all, &a.window, &a.Queued)
	}
	return all
}

// days returns all that is counted by day.
func (f *figures) days() (all []*spread) {
	for _, w := range f.Ended {
		all = append(all, &w.Day)
	}
	for _, a := range f.Attempts {
		all = append(all, &a.DayTook, &a.DayWaited)
	}
	return all
}

// add adds the events of other, but for those that are counted by day.
func (f *figures) add(other *figures) {
	if other.Since.Before(f.Since) {
		f.Since = other.Since
	}
	if other.DaySince.Before(f.DaySince) {
		f.DaySince = other.DaySince
	}
	f.lose(other.Lost)
	f.Accepted.add(&other.Accepted)
	f.Refused.add(&other.Refused)
	f.Publish.add(&other.Publish)
	f.Started.add(&other.Started)
	for of, w := range other.Ended {
		entry(f.Ended, of).add(&w.window)
	}
	for kind, a := range other.Attempts {
		entry(f.Attempts, kind).window.add(&a.window)
		f.Attempts[kind].Queued.add(&a.Queued)
	}
}

// lose records that an event may have been missed at that time.
func (f *figures) lose(at time.Time) {
	if at.After(f.Lost) {
		f.Lost = at
	}
}

// crashed returns when the process crashed, at the latest, and the zero time if it has not. A
// process that lives stores its figures in time.
func (f *figures) crashed(now time.Time) time.Time {
	if f.Whole || now.Sub(f.AsOf) < silence/4+fresh {
		return time.Time{}
	}
	return f.AsOf.Add(fresh)
}

// entry returns the key's value in the map, and adds one if there is none.
func entry[K comparable, V any](all map[K]*V, key K) *V {
	if all[key] == nil {
		all[key] = new(V)
	}
	return all[key]
}

// kind is a [ledger.WorkKind] of one protocol, or of all protocols if Protocol is empty. It
// can be the key of a JSON object.
type kind struct{ Protocol, Service, StepType string }

// ending is a state in which jobs of one protocol end, or those of all protocols if Protocol is
// empty. It can be the key of a JSON object.
type ending struct {
	Protocol string
	State    statemachine.JobState
}

// MarshalText implements [encoding.TextMarshaler].
func (e ending) MarshalText() ([]byte, error) {
	return []byte(tablestore.Join(e.Protocol, string(e.State))), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (e *ending) UnmarshalText(text []byte) error {
	parts, err := tablestore.Split(string(text))
	if err != nil || len(parts) != 2 {
		return fmt.Errorf("%q is not an end of jobs", text)
	}
	e.Protocol, e.State = parts[0], statemachine.JobState(parts[1])
	return nil
}

// maxEndings bounds the ends that are counted by protocol. Further ones count over all protocols alone.
const maxEndings = 400

// everywhere is the kind of work in all protocols.
func everywhere(of ledger.WorkKind) kind { return kind{Service: of.Service, StepType: of.StepType} }

func (k kind) work() ledger.WorkKind {
	return ledger.WorkKind{Service: k.Service, StepType: k.StepType}
}

// MarshalText implements [encoding.TextMarshaler].
func (k kind) MarshalText() ([]byte, error) {
	return []byte(tablestore.Join(k.Protocol, k.Service, k.StepType)), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *kind) UnmarshalText(text []byte) error {
	parts, err := tablestore.Split(string(text))
	if err != nil || len(parts) != 3 {
		return fmt.Errorf("%q is not a kind of work", text)
	}
	k.Protocol, k.Service, k.StepType = parts[0], parts[1], parts[2]
	return nil
}

// maxKinds bounds the kinds of work that are counted separately, over all protocols and, with
// the same bound, by protocol. All further kinds count as [Other].
const maxKinds = 100

// Other stands for all kinds of work beyond the first 100.
var Other = ledger.WorkKind{Service: "other", StepType: "other"}

// counted calls add with the kinds under which work of a kind is counted: over all protocols,
// and by protocol. The caller holds mu.
func (c *Counts) counted(k kind, add func(kind)) {
	add(c.bounded(everywhere(k.work())))
	if k.Protocol != "" {
		add(c.bounded(k))
	}
}

// bounded returns the kind, or the one for those beyond the bound. The caller holds mu.
func (c *Counts) bounded(k kind) kind {
	if known, ok := c.kinds[k]; ok {
		return known
	}
	alike := 0
	for known := range c.kinds {
		if (known.Protocol == "") == (k.Protocol == "") {
			alike++
		}
	}
	switch {
	case alike < maxKinds: // Copy the strings, which would otherwise keep whole rows in memory.
		k = kind{strings.Clone(k.Protocol), strings.Clone(k.Service), strings.Clone(k.StepType)}
		c.kinds[k] = k
		return k
	case k.Protocol == "":
		return everywhere(Other)
	}
	return kind{Other.Service, Other.Service, Other.StepType}
}

// NewCounts returns counts of nothing. Call [Counts.Open] next.
func NewCounts(cfg CountsConfig) *Counts {
	if cfg.Exclusive {
		cfg.Replica = "local"
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Paused == nil {
		cfg.Paused = func() []statemachine.Scope { return nil }
	}
	if cfg.Waited == nil {
		cfg.Waited = func(ledger.WorkKind, time.Duration) {}
	}
	if cfg.Took == nil {
		cfg.Took = func(ledger.WorkKind, statemachine.StepState, time.Duration) {}
	}
	return &Counts{cfg: cfg, workers: newWorkers(), own: newFigures(tablestore.Now()), live: newLiveJobs(), kinds: map[kind]kind{}}
}

// Observe counts a change that this process has committed. It is [ledger.Config]'s Observe.
func (c *Counts) Observe(before, after *statemachine.Aggregate, history []statemachine.Transition) {
	c.workers.observe(before, after, history)
	if len(history) == 0 {
		return // A heartbeat changes no count.
	}
	was, since := phaseOf(before)
	is, _ := phaseOf(after)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty, c.busy = true, true
	if c.cfg.Exclusive {
		c.live.observe(after)
	}
	if was == PhaseQueued {
		c.recordQueued(before, -1, after.Job.UpdatedAt)
	}
	if is == PhaseQueued {
		c.recordQueued(after, 1, after.Job.UpdatedAt)
	}
	for i := range history {
		c.recordTransition(before, after, &history[i], was, since)
	}
}

// attemptsOf calls add with the counts to which attempts of the step belong. The caller holds
// mu.
func (c *Counts) attemptsOf(agg *statemachine.Aggregate, step *statemachine.Step, add func(*attempts)) {
	c.counted(kind{agg.Job.ProtocolID, step.Service, step.Type}, func(k kind) { add(entry(c.own.Attempts, k)) })
}

// recordQueued adds by, which is 1 or -1, to the number of queued steps. The caller holds mu.
func (c *Counts) recordQueued(agg *statemachine.Aggregate, by int64, at time.Time) {
	i, _ := agg.Active()
	c.attemptsOf(agg, &agg.Steps[i], func(of *attempts) { of.Queued.record(at, count{All: by}) })
}

// recordTransition counts one transition. was is the phase before the change, and since its
// beginning. The caller holds mu.
func (c *Counts) recordTransition(
	before, after *statemachine.Aggregate, t *statemachine.Transition, was Phase, since time.Time,
) {
	now := after.Job.UpdatedAt
	switch {
	case t.Object == statemachine.ObjectJob && t.From == "":
		c.own.Accepted.record(now, one(false))
	case t.Object == statemachine.ObjectJob && statemachine.JobState(t.To).Terminal():
		c.recordEnd(after, now)
	case t.Object == statemachine.ObjectStep:
		c.recordStep(before, after, t, was, since)
	case t.Object == statemachine.ObjectOutbox:
		rejected := rejections(after, t.ID) > rejections(before, t.ID)
		if rejected || t.From != t.To && t.To == string(statemachine.OutboxSent) {
			c.own.Publish.record(now, one(rejected))
		}
	}
}

// recordEnd counts a job that has ended, over all protocols and by protocol. The caller holds mu.
func (c *Counts) recordEnd(agg *statemachine.Aggregate, now time.Time) {
	state := agg.Job.State
	n := one(state == statemachine.JobFailedFinal)
	for _, protocol := range []string{"", agg.Job.ProtocolID} {
		if of := c.endsOf(ending{protocol, state}); of != nil {
			of.record(now, n)
			of.Day.record(now, 0)
		}
	}
}

// endsOf returns the counts of one way in which jobs end, nil if there are none for lack of room. The caller holds mu.
func (c *Counts) endsOf(of ending) *ends {
	if c.own.Ended[of] == nil {
		if of.Protocol != "" && len(c.own.Ended) >= maxEndings {
			return nil
		}
		of.Protocol = strings.Clone(of.Protocol) // It would otherwise keep a whole row in memory.
	}
	return entry(c.own.Ended, of)
}

// rejections returns how often the bus rejected the outbox row.
func rejections(agg *statemachine.Aggregate, id string) int {
	if agg.Outbox == nil || agg.Outbox.ID != id {
		return 0
	}
	return agg.Outbox.Failures
}

// Refused counts a command that was refused.
func (c *Counts) Refused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own.Refused.record(tablestore.Now(), one(true))
	c.dirty = true
}

// recordStep counts the transition of a step. A failed attempt has an error code; one without
// was withdrawn or cancelled. An attempt that ended by its deadline does not count again when
// its late RESULT arrives. The caller holds mu.
func (c *Counts) recordStep(before, after *statemachine.Aggregate, t *statemachine.Transition, was Phase, since time.Time) {
	i := 0
	for after.Steps[i].ID != t.ID {
		i++
	}
	now, step := after.Job.UpdatedAt, &after.Steps[i]
	from, to := statemachine.StepState(t.From), statemachine.StepState(t.To)
	if was == PhaseQueued && (t.Type == statemachine.EventStepClaimed || to == statemachine.StepInProgress) {
		c.attemptsOf(after, step, func(of *attempts) {
			of.waited.record(now, now.Sub(since))
			of.DayWaited.record(now, now.Sub(since))
		})
		c.cfg.Waited(kindOf(step), now.Sub(since))
	}
	if from != to && to == statemachine.StepInProgress {
		c.own.Started.record(now, one(false))
	}
	failed := (to == statemachine.StepFailedRetry || to == statemachine.StepFailedFinal) && t.Detail != ""
	offered := from == statemachine.StepAwaitingAck || from == statemachine.StepInProgress
	if !offered || !failed && to != statemachine.StepSucceeded {
		return
	}
	c.attemptsOf(after, step, func(of *attempts) { of.record(now, one(failed)) })
	if step.Result(t.AttemptNo) == "" || was == PhaseDispatching {
		return // A deadline ended it, or its start is unknown.
	}
	held := &before.Steps[i]
	began := held.StartedAt
	if held.State != statemachine.StepInProgress { // The RESULT came without an ACK: the attempt began with its directive.
		began = held.UpdatedAt
	}
	c.attemptsOf(after, step, func(of *attempts) {
		of.took.record(now, now.Sub(began))
		of.DayTook.record(now, now.Sub(began))
	})
	c.cfg.Took(kindOf(step), to, now.Sub(began))
}

// Unsure records that the outcome of a commit is unknown, so that the numbers are as of now
// until the next walk ends.
func (c *Counts) Unsure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own.lose(tablestore.Now())
	if c.live.whole {
		c.own.Live = c.live.gauges(tablestore.Now(), c.cfg.Paused(), c.counted)
	}
	c.live.whole, c.live.unsure, c.dirty = false, true, true
}

// Begin starts a walk over the live jobs. It reports whether the walk should be fast, because
// not all live jobs are known without it.
func (c *Counts) Begin() (fast bool) {
	c.workers.begin()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = tablestore.Now()
	if !c.cfg.Exclusive {
		c.live = newLiveJobs()
	}
	c.live.begin()
	return c.cfg.Exclusive && !c.live.whole
}

// Walked counts a live job that the walk has read.
func (c *Counts) Walked(job *statemachine.Aggregate) {
	c.workers.walk(job)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live.observe(job)
}

// End ends a walk that has read all live jobs.
func (c *Counts) End() {
	c.workers.found()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty = true
	if c.cfg.Exclusive {
		c.live.end()
	}
	if !c.live.whole {
		c.own.Live = c.live.gauges(c.began, c.cfg.Paused(), c.counted)
	}
}

// Spare reports whether a fast walk may use all its time, because a caller of [Counts.Live]
// waits for its end, or nothing has been committed since the last call.
func (c *Counts) Spare() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := !c.busy
	c.busy = false
	return idle || c.live.asked
}
