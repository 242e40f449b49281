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
	// Queue reports which workers poll this process, and is told which poll the others.
	// Optional.
	Queue Queue
	// Random returns numbers in [0, 1), for the delays after lost races; nil means
	// math/rand/v2. It must be safe for concurrent use. Optional.
	Random func() float64
	// Waited is told how long an attempt waited for its worker, and Took how long one ran
	// until its RESULT, and the state to which that moved the step. They must not block,
	// and not call the census. Optional.
	Waited func(of ledger.WorkKind, waited time.Duration)
	Took   func(of ledger.WorkKind, to statemachine.StepState, took time.Duration)
	// Logger logs stored counts that cannot be read. Optional.
	Logger *slog.Logger
}

// Queue is what a census needs of the pull queue.
type Queue interface {
	Pollers() []workqueue.Poller
	LastPolls() []workqueue.Poller
	PolledElsewhere(polls []workqueue.Poller)
}

// Census counts. It is safe for concurrent use.
type Census struct {
	cfg Config

	storing chan struct{} // holds one token while the own sheet is stored

	mu    sync.Mutex
	own   *sheet
	dirty bool // own has changed since it was stored
	busy  bool // A change was committed since Spare was called.
	// stored is own's row as it is known to be stored, nil before the first time.
	stored *tablestore.Row
	// exact says that own has counted every live job; only if the store is exclusive.
	exact bool
	asOf  time.Time // if it is not: when it last was, or was stored by the last process
	count *recount  // the walk under way, or the last one
	live  liveJobs  // empty unless the store is exclusive
	// Of the last exchange:
	others []*sheet
	base   *sheet
	known  map[tablestore.Key]readSheet // replaced as a whole
}

// sheet is what one process has counted.
type sheet struct {
	AsOf     time.Time                         `json:"as_of"` // when it was stored
	Since    time.Time                         `json:"since"` // earlier events are not in it
	Complete bool                              `json:"complete,omitempty"`
	Live     tally                             `json:"live"`
	Accepted window                            `json:"accepted"`
	Refused  window                            `json:"refused"`   // commands
	Publish  window                            `json:"published"` // of directives; rejected ones failed
	Started  window                            `json:"started"`   // attempts
	Ended    map[statemachine.JobState]*window `json:"ended,omitempty"`
	Attempts map[kind]*attempts                `json:"attempts,omitempty"`
	Pollers  []workqueue.Poller                `json:"pollers,omitempty"` // the latest
	Polls    []workqueue.Poller                `json:"polls,omitempty"`   // by filter
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

// windows returns the windows that are not divided by state or by kind.
func (s *sheet) windows() []*window {
	return []*window{&s.Accepted, &s.Refused, &s.Publish, &s.Started}
}

// add adds what the other has counted, but for those who polled it.
func (s *sheet) add(other *sheet) {
	if other.Since.Before(s.Since) {
		s.Since = other.Since
	}
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

// less takes away what the other has counted, whose events are out of the windows.
func (s *sheet) less(other *sheet) {
	less := func(of, by *window) {
		of.Total.add(count{All: -by.Total.All, Failed: -by.Total.Failed})
	}
	s.Since = other.AsOf
	s.Live.add(&other.Live, -1, 1)
	for i, w := range s.windows() {
		less(w, other.windows()[i])
	}
	for state, w := range other.Ended {
		less(s.Ended[state], w)
	}
	for kind, a := range other.Attempts {
		less(&s.Attempts[kind].window, &a.window)
	}
	s.prune(tablestore.Now())
}

// prune forgets what is out of the windows.
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

// recount is a count of the live jobs by a walk.
type recount struct {
	live    tally
	seen    map[[16]byte]seen // by the digest of the job's id
	kinds   []kind
	before  *tally // the other processes' counts as the walk began
	adopted bool   // live is that of the own sheet
	unsure  bool   // a commit may be missing
}

// seen is the standing of a job at that revision. There is one for each live job, so it
// is small, and refers to no row.
type seen struct {
	rev            int64
	since, created uint32 // Unix times
	state, phase   uint8
	kind           uint16 // its index in kinds
}

// clone returns the kind with copies of the texts, which are parts of rows.
func (k kind) clone() kind {
	return kind{strings.Clone(k.Protocol), strings.Clone(k.Service), strings.Clone(k.StepType)}
}

// unix returns a Unix time in few bytes, until 2106, and 0 for the zero time.
func unix(at time.Time) uint32 { return uint32(max(at.Unix(), 0)) }

// saw counts a job as it is at its revision, unless a later one was counted.
func (r *recount) saw(agg *statemachine.Aggregate, is standing) {
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
		state: uint8(slices.Index(statemachine.JobStates, is.state)), // 255 for one that has ended.
	}
}

// New returns a census that has counted nothing: [Census.Open] it. The error names the
// field that is required.
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

// Observe counts a change that this process committed. See [ledger.Config].
func (c *Census) Observe(before, after *statemachine.Aggregate, history []statemachine.Transition) {
	if len(history) == 0 {
		return // A heartbeat moves nothing.
	}
	was, is := standingOf(before), standingOf(after)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty, c.busy = true, true
	if c.cfg.Exclusive {
		c.live.saw(after)
	}
	if c.count != nil {
		c.count.saw(after, is)
	}
	if was != is && (c.count == nil || !c.count.adopted) {
		c.own.Live.move(was, -1, c.cfg.Exclusive)
		c.own.Live.move(is, 1, c.cfg.Exclusive)
	}
	c.queued(was, -1, after.Job.UpdatedAt)
	c.queued(is, 1, after.Job.UpdatedAt)
	for i := range history {
		c.happened(before, after, &history[i], was)
	}
}

// queued counts that a step is queued, or with by = -1 no longer. The lock is held.
func (c *Census) queued(s standing, by int, at time.Time) {
	if s.phase != phaseQueued {
		return
	}
	for _, k := range s.kind.each() {
		entry(c.own.Attempts, k).Queued.by(at, by)
	}
}

// happened counts one transition. The lock is held.
func (c *Census) happened(before, after *statemachine.Aggregate, t *statemachine.Transition, was standing) {
	now := after.Job.UpdatedAt
	switch {
	case t.Object == statemachine.ObjectJob && t.From == "":
		c.own.Accepted.happened(now, false)
	case t.Object == statemachine.ObjectJob && statemachine.JobState(t.To).Terminal():
		state := statemachine.JobState(t.To)
		if c.own.Ended[state] == nil {
			c.own.Ended[state] = new(window)
		}
		c.own.Ended[state].happened(now, state == statemachine.JobFailedFinal)
	case t.Object == statemachine.ObjectStep:
		c.stepped(before, after, t, was)
	case t.Object == statemachine.ObjectOutbox:
		rejected := rejections(after, t.ID) > rejections(before, t.ID)
		if rejected || t.From != t.To && t.To == string(statemachine.OutboxSent) {
			c.own.Publish.happened(now, rejected)
		}
	}
}

// rejections returns how often the publish of the outbox row was rejected.
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
	c.own.Refused.happened(tablestore.Now(), true)
	c.dirty = true
}

// stepped counts the transition of a step. A failure has an error code; an attempt
// without one was withdrawn, or cancelled. A late RESULT, after the deadline, counts no
// second time. The lock is held.
func (c *Census) stepped(before, after *statemachine.Aggregate, t *statemachine.Transition, was standing) {
	i := 0
	for after.Steps[i].ID != t.ID {
		i++
	}
	now, step := after.Job.UpdatedAt, &after.Steps[i]
	from, to := statemachine.StepState(t.From), statemachine.StepState(t.To)
	kind := kindOf(after, step)
	if was.phase == phaseQueued && (t.Type == statemachine.EventStepClaimed || to == statemachine.StepInProgress) {
		for _, k := range kind.each() {
			entry(c.own.Attempts, k).Waited.took(now, now.Sub(was.since))
		}
		c.cfg.Waited(kind.work(), now.Sub(was.since))
	}
	if from != to && to == statemachine.StepInProgress {
		c.own.Started.happened(now, false)
	}
	failed := (to == statemachine.StepFailedRetry || to == statemachine.StepFailedFinal) && t.Detail != ""
	offered := from == statemachine.StepAwaitingAck || from == statemachine.StepInProgress
	if !offered || !failed && to != statemachine.StepSucceeded {
		return
	}
	for _, k := range kind.each() {
		entry(c.own.Attempts, k).happened(now, failed)
	}
	if step.Result(t.AttemptNo) == "" || was.phase == phaseDispatching {
		return // A deadline ended it, or its start is not known.
	}
	held := &before.Steps[i]
	began := held.StartedAt
	if held.State != statemachine.StepInProgress { // It reported its RESULT without an ACK: it began when it got the directive.
		began = held.UpdatedAt
	}
	for _, k := range kind.each() {
		entry(c.own.Attempts, k).Took.took(now, now.Sub(began))
	}
	c.cfg.Took(kind.work(), to, now.Sub(began))
}

// Unsure says that a commit's outcome is unknown: the count may be off by one job until
// the next walk.
func (c *Census) Unsure() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live.whole, c.live.unsure = false, true
	if c.exact {
		c.exact, c.asOf = false, tablestore.Now()
	}
	if c.count != nil {
		c.count.unsure = true
	}
}

// Begin says that a walk over the live jobs begins. The walk recounts if the count is not
// exact, or if ages are known less precisely than is possible by now. It reports whether
// the walk should hurry, because it is needed to make the count exact or to know all live
// jobs.
func (c *Census) Begin() (haste bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live.begin()
	if c.exact && !c.own.Live.blurred() { // What the last walk has seen may be forgotten: no commit is as old.
		c.count = nil
	} else {
		c.count = &recount{live: newTally(), seen: map[[16]byte]seen{}, before: c.elsewhere()}
	}
	return c.cfg.Exclusive && !(c.exact && c.live.whole)
}

// Walked says that the walk has read a live job.
func (c *Census) Walked(job *statemachine.Aggregate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Exclusive {
		c.live.saw(job)
	}
	if c.count != nil {
		c.count.saw(job, standingOf(job))
	}
}

// elsewhere sums up what the other processes' sheets say of live jobs. The lock is held.
func (c *Census) elsewhere() *tally {
	sum := newTally()
	for _, other := range c.others {
		sum.add(&other.Live, 1, 1)
	}
	return &sum
}
