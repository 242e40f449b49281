package census

import (
	"iter"
	"strings"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Traits are what lists select live jobs by.
type Traits struct {
	statemachine.Target // of the current step

	State       statemachine.JobState
	RequestType string
	StepType    string // of the current step
	ErrorCode   string // of its last failure
	// Outbox is the state of the row of its latest attempt, empty if there is none.
	Outbox statemachine.OutboxState
	// Waits says that the directive waits to be published, or for a worker.
	Waits bool
}

// TraitsOf returns the traits of a job.
func TraitsOf(agg *statemachine.Aggregate) Traits {
	job, step := &agg.Job, &agg.Steps[agg.Job.CurrentStepIndex]
	phase := standingOf(agg).phase
	t := Traits{
		Target: statemachine.TargetOf(job, step), State: job.State, RequestType: job.RequestType, StepType: step.Type,
		ErrorCode: step.LastErrorCode, Waits: phase == phaseDispatching || phase == phaseQueued,
	}
	i, live := agg.Active()
	if !live {
		i = job.CurrentStepIndex
	}
	if row := agg.Outbox; row != nil && row.ID == agg.Steps[i].OutboxID { // Else the row is of the step before.
		t.Outbox = row.State
	}
	return t
}

// clone returns the traits with copies of the texts: those of a job are parts of rows, which
// are larger.
func (t Traits) clone() Traits {
	for _, text := range []*string{&t.TenantID, &t.ProtocolID, &t.Service, &t.RequestType, &t.StepType, &t.ErrorCode} {
		*text = strings.Clone(*text)
	}
	return t
}

// keepEnded is how many jobs that ended last are remembered, so that what the walk read of
// them before, or what is told late of an earlier commit, does not bring them back.
const keepEnded = 4096

// liveJobs finds the live jobs of an exclusive store by their traits, in memory. A job that
// more than keepEnded others followed to their end before it is told late stays in it until
// the end of the next walk.
type liveJobs struct {
	jobs   map[uuid.UUID]liveJob
	ended  map[uuid.UUID]struct{}
	order  []uuid.UUID // those of ended, as a ring from oldest on
	oldest int
	alike  map[Traits]*alike
	walk   uint32 // the number of the walk under way, or of the last one
	seen   int    // how many of jobs were seen since it began
	whole  bool   // Each live job is in jobs, with the traits that it has.
	unsure bool   // since the walk began: a commit may be missing
	asked  bool   // A caller of Live waits for the end of the walk.
}

// alike are the jobs with the same traits.
type alike struct {
	traits Traits
	ids    []uuid.UUID
}

// liveJob is a job as it was at a revision.
//
//	invariant: of.ids[at] is the job's id
type liveJob struct {
	of   *alike
	at   int
	rev  int64
	walk uint32 // the last one that began before the job was seen
}

func newLiveJobs() liveJobs {
	return liveJobs{jobs: map[uuid.UUID]liveJob{}, ended: map[uuid.UUID]struct{}{}, alike: map[Traits]*alike{}}
}

// saw notes the traits of a job, unless they are known as of a later revision.
func (l *liveJobs) saw(agg *statemachine.Aggregate) {
	id, err := uuid.Parse(agg.Job.ID)
	if err != nil {
		return // No job of the ledger has such an id.
	}
	known, ok := l.jobs[id]
	switch {
	case ok && known.rev > agg.Job.Rev:
		return
	case agg.Job.State.Terminal() || len(agg.Steps) == 0:
		if ok {
			l.forget(id, known)
		}
		l.remember(id)
		return
	}
	if _, over := l.ended[id]; over {
		return
	}
	traits := TraitsOf(agg)
	if ok && known.of.traits == traits {
		if known.walk != l.walk {
			l.seen++
		}
		known.rev, known.walk = agg.Job.Rev, l.walk
		l.jobs[id] = known
		return
	}
	if ok {
		l.forget(id, known)
	}
	l.seen++
	of := l.alike[traits]
	if of == nil {
		of = &alike{traits: traits.clone()}
		l.alike[of.traits] = of
	}
	l.jobs[id] = liveJob{of: of, at: len(of.ids), rev: agg.Job.Rev, walk: l.walk}
	of.ids = append(of.ids, id)
}

// remember notes that a job has ended.
func (l *liveJobs) remember(id uuid.UUID) {
	if _, known := l.ended[id]; known {
		return
	}
	l.ended[id] = struct{}{}
	if len(l.order) < keepEnded {
		l.order = append(l.order, id)
		return
	}
	delete(l.ended, l.order[l.oldest])
	l.order[l.oldest], l.oldest = id, (l.oldest+1)%keepEnded
}

// forget removes a job.
func (l *liveJobs) forget(id uuid.UUID, job liveJob) {
	delete(l.jobs, id)
	if job.walk == l.walk {
		l.seen--
	}
	last := len(job.of.ids) - 1
	if moved := job.of.ids[last]; moved != id {
		other := l.jobs[moved]
		other.at, job.of.ids[job.at] = job.at, moved
		l.jobs[moved] = other
	}
	if job.of.ids = job.of.ids[:last]; last == 0 {
		delete(l.alike, job.of.traits)
	}
}

// begin notes that a walk begins.
func (l *liveJobs) begin() { l.walk, l.seen, l.unsure = l.walk+1, 0, false }

// end notes that a walk has seen every live job that no change was made to.
func (l *liveJobs) end() {
	l.whole = !l.unsure
	l.asked = l.asked && l.unsure
	if l.seen == len(l.jobs) {
		return // Commits wait during the search, and a million jobs take a while to search.
	}
	for id, job := range l.jobs {
		if job.walk < l.walk {
			l.forget(id, job)
		}
	}
}

// Spare reports whether a hurried walk may use all available time: a caller of
// [Census.Live] waits for its end, or nothing has been committed since the last call.
func (c *Census) Spare() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := !c.busy
	c.busy = false
	return idle || c.live.asked
}

// livePart is how many ids a part of [Census.Live] has.
const livePart = 128

// Live yields the ids of the live jobs whose traits are wanted, in parts and in no
// particular order. Some of them may have ended. It reports false if it does not know them
// all: other processes write the store, or no walk has ended yet, in which case the next
// walk hurries.
func (c *Census) Live(wanted func(*Traits) bool) (parts iter.Seq[[]string], known bool) {
	c.mu.Lock()
	var found []uuid.UUID
	for _, of := range c.live.alike {
		if wanted(&of.traits) {
			found = append(found, of.ids...)
		}
	}
	known = c.live.whole
	c.live.asked = c.live.asked || !known
	c.mu.Unlock()
	return func(yield func([]string) bool) {
		for end := len(found); end > 0; end -= livePart { // The newest are the last, as a rule.
			part := found[max(0, end-livePart):end]
			ids := make([]string, len(part))
			for i := range part {
				ids[i] = part[i].String()
			}
			if !yield(ids) {
				return
			}
		}
	}, known
}

// Waiting returns how many live jobs have a directive in the scope that waits to be
// published, or for a worker. It reports false if it does not know all live jobs.
func (c *Census) Waiting(scope statemachine.Scope) (n int, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.live.alike {
		if of.traits.Waits && scope.Covers(of.traits.Target) {
			n += len(of.ids)
		}
	}
	return n, c.live.whole
}
