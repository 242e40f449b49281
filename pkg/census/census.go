package census

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// Config configures a [Census].
type Config struct {
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
	// Random returns numbers in [0, 1), for the delays after write conflicts. Optional.
	// Defaults to math/rand/v2. It must be safe for concurrent use.
	Random func() float64
	// Waited is called with the time that an attempt waited for its worker, and Took with
	// the time that one ran until its RESULT and the state to which that moved the step.
	// Optional. They must not block or call the census.
	Waited func(of ledger.WorkKind, waited time.Duration)
	Took   func(of ledger.WorkKind, to statemachine.StepState, took time.Duration)
	// Logger logs stored counts that cannot be read. Optional.
	Logger *slog.Logger
}

// Queue is the part of the pull queue that a [Census] needs.
type Queue interface {
	Pollers() []workqueue.Poller
	LastPolls() []workqueue.Poller
	PolledElsewhere(polls []workqueue.Poller)
}

// Census counts the jobs of a store, as the package comment describes. It is safe for
// concurrent use.
type Census struct {
	cfg Config

	storing chan struct{} // holds one token while the own sheet is stored

	mu    sync.Mutex
	own   *sheet
	dirty bool // own has changed since it was stored
	busy  bool // a change was committed since the last call of Spare
	// stored is the row of own as last stored, nil before that.
	stored *tablestore.Row
	// exact says that own counts every live job. It is set only if the store is exclusive.
	exact bool
	asOf  time.Time // unless exact: when the count was last exact, or the last process stored it
	count *recount  // of the current walk, or of the last one
	live  liveJobs  // empty unless the store is exclusive
	// The last exchange read these. invariant: no sheet among them changes, so a reader
	// that holds mu may read them while another exchange runs.
	others []*sheet
	base   *sheet
	known  map[tablestore.Key]readSheet
}

// sheet is what one process has counted.
type sheet struct {
	AsOf     time.Time                         `json:"as_of"` // when it was stored
	Since    time.Time                         `json:"since"` // when counting began
	Complete bool                              `json:"complete,omitempty"`
	Whole    bool                              `json:"whole,omitempty"` // its process ended in good order, and counted every event
	Lost     time.Time                         `json:"lost,omitzero"`   // when an event may last have been missed
	Live     tally                             `json:"live"`
	Accepted window                            `json:"accepted"`
	Refused  window                            `json:"refused"`   // commands
	Publish  window                            `json:"published"` // directives; a rejected publish is a failure
	Started  window                            `json:"started"`   // attempts
	Ended    map[statemachine.JobState]*window `json:"ended,omitempty"`
	Attempts map[kind]*attempts                `json:"attempts,omitempty"`
	Pollers  []workqueue.Poller                `json:"pollers,omitempty"` // the most recent
	Polls    []workqueue.Poller                `json:"polls,omitempty"`   // the most recent of each filter
}

// attempts counts the ended attempts of one kind.
type attempts struct {
	window

	Took   durations `json:"took,omitempty"`   // from the start to the RESULT
	Waited durations `json:"waited,omitempty"` // from the publish to the claim, or to the ACK
	Queued changes   `json:"queued,omitempty"` // of the number of queued steps
}

func newSheet(since time.Time) *sheet {
	return &sheet{
		Since: since, Live: newTally(), Ended: map[statemachine.JobState]*window{}, Attempts: map[kind]*attempts{},
	}
}

// windows returns the windows of the whole process, as opposed to those by state or kind.
func (s *sheet) windows() []*window {
	return []*window{&s.Accepted, &s.Refused, &s.Publish, &s.Started}
}

// add adds the counts of other, but not its pollers.
func (s *sheet) add(other *sheet) {
	if other.Since.Before(s.Since) {
		s.Since = other.Since
	}
	s.lose(other.Lost)
	s.Live.add(&other.Live, 1, 1)
	for i, w := range s.windows() {
		w.add(other.windows()[i])
	}
	for state, w := range other.Ended {
		if s.Ended[state] == nil {
			s.Ended[state] = new(window)
		}
		s.Ended[state].add(w)
	}
	for kind, a := range other.Attempts {
		sum := entry(s.Attempts, kind)
		sum.window.add(&a.window)
		sum.Took.add(a.Took)
		sum.Waited.add(a.Waited)
		sum.Queued.add(a.Queued)
	}
}

// lose records that an event may have been missed at that time.
func (s *sheet) lose(at time.Time) {
	if at.After(s.Lost) {
		s.Lost = at
	}
}

// crashed returns when the sheet's process crashed, at the latest, and the zero time if it
// has not. A process that lives stores its sheet in time.
func (s *sheet) crashed(now time.Time) time.Time {
	if s.Whole || now.Sub(s.AsOf) < silence/4+freshSheet {
		return time.Time{}
	}
	return s.AsOf.Add(freshSheet)
}

// subtract subtracts the counts of other, whose events are older than the windows.
func (s *sheet) subtract(other *sheet) {
	subtract := func(of, by *window) {
		of.Total.add(count{All: -by.Total.All, Failed: -by.Total.Failed})
	}
	s.Since = other.AsOf
	s.Live.add(&other.Live, -1, 1)
	for i, w := range s.windows() {
		subtract(w, other.windows()[i])
	}
	for state, w := range other.Ended {
		subtract(s.Ended[state], w)
	}
	for kind, a := range other.Attempts {
		subtract(&s.Attempts[kind].window, &a.window)
	}
	s.prune(tablestore.Now())
}

// prune drops what is older than the windows.
func (s *sheet) prune(now time.Time) {
	for _, w := range s.windows() {
		w.prune(now)
	}
	for _, w := range s.Ended {
		w.prune(now)
	}
	for _, a := range s.Attempts {
		a.window.prune(now)
		a.Took.prune(now)
		a.Waited.prune(now)
		a.Queued.prune(now)
	}
}

// recount counts the live jobs that a walk reads, and the changes since it began.
type recount struct {
	live    tally
	seen    map[[16]byte]seen // by the digest of the job's id
	kinds   []kind
	before  *tally // the other processes' counts when the walk began
	adopted bool   // the own sheet uses live
	unsure  bool   // a commit may be missing
}

// seen is the standing of a job at a revision. There is one for each live job, so it is
// small and keeps no row in memory.
type seen struct {
	rev            int64
	since, created uint32 // Unix times
	state, phase   uint8
	kind           uint16 // index in recount.kinds
}

// clone copies the strings, which would otherwise keep whole rows in memory.
func (k kind) clone() kind {
	return kind{strings.Clone(k.Protocol), strings.Clone(k.Service), strings.Clone(k.StepType)}
}

// unix returns a Unix time in four bytes, which last until 2106, and 0 for the zero time.
func unix(at time.Time) uint32 { return uint32(max(at.Unix(), 0)) }

// observe counts a job at its revision, unless a later revision has been counted.
func (r *recount) observe(agg *statemachine.Aggregate, is standing) {
	digest := sha256.Sum256([]byte(agg.Job.ID))
	key := [16]byte(digest[:])
	last, known := r.seen[key]
	if last.rev >= agg.Job.Rev {
		return
	}
	if known && last.state < uint8(len(statemachine.JobStates)) {
		r.live.move(standing{
			state: statemachine.JobStates[last.state], phase: phase(last.phase), kind: r.kinds[last.kind],
			since: time.Unix(int64(last.since), 0), created: time.Unix(int64(last.created), 0),
		}, -1, true)
	}
	r.live.move(is, 1, true)
	at := slices.Index(r.kinds, is.kind)
	if at < 0 {
		at, r.kinds = len(r.kinds), append(r.kinds, is.kind.clone())
	}
	r.seen[key] = seen{
		rev: agg.Job.Rev, since: unix(is.since), created: unix(is.created), phase: uint8(is.phase), kind: uint16(at),
		state: uint8(slices.Index(statemachine.JobStates, is.state)), // 255 if the job has ended
	}
}

// New returns a census that has counted nothing. Call [Census.Open] next. The error names the
// fields that are required.
func New(cfg Config) (*Census, error) {
	if cfg.Store == nil || cfg.Table == "" || cfg.Replica == "" && !cfg.Exclusive {
		return nil, errors.New("census: Store, Table and Replica are required")
	}
	if cfg.Exclusive {
		cfg.Replica = "local"
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Waited == nil {
		cfg.Waited = func(ledger.WorkKind, time.Duration) {}
	}
	if cfg.Took == nil {
		cfg.Took = func(ledger.WorkKind, statemachine.StepState, time.Duration) {}
	}
	return &Census{
		storing: make(chan struct{}, 1), cfg: cfg, own: newSheet(tablestore.Now()), base: newSheet(tablestore.Now()), live: newLiveJobs(),
	}, nil
}

// Observe counts a change that this process has committed. It is [ledger.Config]'s Observe.
func (c *Census) Observe(before, after *statemachine.Aggregate, history []statemachine.Transition) {
	if len(history) == 0 {
		return // A heartbeat changes no count.
	}
	was, is := standingOf(before), standingOf(after)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty, c.busy = true, true
	if c.cfg.Exclusive {
		c.live.observe(after)
	}
	if c.count != nil {
		c.count.observe(after, is)
	}
	if was != is && (c.count == nil || !c.count.adopted) {
		c.own.Live.move(was, -1, c.cfg.Exclusive)
		c.own.Live.move(is, 1, c.cfg.Exclusive)
	}
	c.recordQueued(was, -1, after.Job.UpdatedAt)
	c.recordQueued(is, 1, after.Job.UpdatedAt)
	for i := range history {
		c.recordTransition(before, after, &history[i], was)
	}
}

// recordQueued adds by, which is 1 or -1, to the number of queued steps if the step is queued.
// The caller holds mu.
func (c *Census) recordQueued(s standing, by int, at time.Time) {
	if s.phase != phaseQueued {
		return
	}
	for _, k := range s.kind.each() {
		entry(c.own.Attempts, k).Queued.record(at, by)
	}
}

// recordTransition counts one transition. The caller holds mu.
func (c *Census) recordTransition(before, after *statemachine.Aggregate, t *statemachine.Transition, was standing) {
	now := after.Job.UpdatedAt
	switch {
	case t.Object == statemachine.ObjectJob && t.From == "":
		c.own.Accepted.record(now, false)
	case t.Object == statemachine.ObjectJob && statemachine.JobState(t.To).Terminal():
		state := statemachine.JobState(t.To)
		if c.own.Ended[state] == nil {
			c.own.Ended[state] = new(window)
		}
		c.own.Ended[state].record(now, state == statemachine.JobFailedFinal)
	case t.Object == statemachine.ObjectStep:
		c.recordStep(before, after, t, was)
	case t.Object == statemachine.ObjectOutbox:
		rejected := rejections(after, t.ID) > rejections(before, t.ID)
		if rejected || t.From != t.To && t.To == string(statemachine.OutboxSent) {
			c.own.Publish.record(now, rejected)
		}
	}
}

// rejections returns how often the bus rejected the outbox row.
func rejections(agg *statemachine.Aggregate, id string) int {
	if agg.Outbox == nil || agg.Outbox.ID != id {
		return 0
	}
	return agg.Outbox.Failures
}

// Refused counts a command that was refused.
func (c *Census) Refused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own.Refused.record(tablestore.Now(), true)
	c.dirty = true
}

// recordStep counts the transition of a step. A failed attempt has an error code; one without
// was withdrawn or cancelled. An attempt that ended by its deadline does not count again when
// its late RESULT arrives. The caller holds mu.
func (c *Census) recordStep(before, after *statemachine.Aggregate, t *statemachine.Transition, was standing) {
	i := 0
	for after.Steps[i].ID != t.ID {
		i++
	}
	now, step := after.Job.UpdatedAt, &after.Steps[i]
	from, to := statemachine.StepState(t.From), statemachine.StepState(t.To)
	kind := kindOf(after, step)
	if was.phase == phaseQueued && (t.Type == statemachine.EventStepClaimed || to == statemachine.StepInProgress) {
		for _, k := range kind.each() {
			entry(c.own.Attempts, k).Waited.record(now, now.Sub(was.since))
		}
		c.cfg.Waited(kind.work(), now.Sub(was.since))
	}
	if from != to && to == statemachine.StepInProgress {
		c.own.Started.record(now, false)
	}
	failed := (to == statemachine.StepFailedRetry || to == statemachine.StepFailedFinal) && t.Detail != ""
	offered := from == statemachine.StepAwaitingAck || from == statemachine.StepInProgress
	if !offered || !failed && to != statemachine.StepSucceeded {
		return
	}
	for _, k := range kind.each() {
		entry(c.own.Attempts, k).record(now, failed)
	}
	if step.Result(t.AttemptNo) == "" || was.phase == phaseDispatching {
		return // A deadline ended it, or its start is unknown.
	}
	held := &before.Steps[i]
	began := held.StartedAt
	if held.State != statemachine.StepInProgress { // The RESULT came without an ACK: the attempt began with its directive.
		began = held.UpdatedAt
	}
	for _, k := range kind.each() {
		entry(c.own.Attempts, k).Took.record(now, now.Sub(began))
	}
	c.cfg.Took(kind.work(), to, now.Sub(began))
}

// Unsure records that the outcome of a commit is unknown, so that the counts may be wrong
// until the next walk.
func (c *Census) Unsure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live.whole, c.live.unsure = false, true
	c.own.lose(tablestore.Now())
	c.dirty = true
	if c.exact {
		c.exact, c.asOf = false, tablestore.Now()
	}
	if c.count != nil {
		c.count.unsure = true
	}
}

// Begin starts a walk over the live jobs. The walk counts them again if the counts are not
// exact, or if ages can now be known more precisely. Begin reports whether the walk should be
// fast, because the counts are not exact or not all live jobs are known without it.
func (c *Census) Begin() (fast bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live.begin()
	if c.exact && !c.own.Live.blurred() {
		c.count = nil // Every commit that the last walk counted has been observed by now.
	} else {
		c.count = &recount{live: newTally(), seen: map[[16]byte]seen{}, before: c.elsewhere()}
	}
	return c.cfg.Exclusive && !(c.exact && c.live.whole)
}

// Walked counts a live job that the walk has read.
func (c *Census) Walked(job *statemachine.Aggregate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Exclusive {
		c.live.observe(job)
	}
	if c.count != nil {
		c.count.observe(job, standingOf(job))
	}
}

// elsewhere sums up the live jobs on the other processes' sheets. The caller holds mu.
func (c *Census) elsewhere() *tally {
	sum := newTally()
	for _, other := range c.others {
		sum.add(&other.Live, 1, 1)
	}
	return &sum
}
