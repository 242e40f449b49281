package census

import (
	"strings"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Traits are what lists select live jobs by.
type Traits struct {
	TenantID    string
	State       statemachine.JobState
	RequestType string
	// Of the current step, ErrorCode that of its last failure:
	Service, StepType, ErrorCode string
}

// TraitsOf returns the traits of a live job.
func TraitsOf(agg *statemachine.Aggregate) Traits {
	job, step := &agg.Job, &agg.Steps[agg.Job.CurrentStepIndex]
	return Traits{job.TenantID, job.State, job.RequestType, step.Service, step.Type, step.LastErrorCode}
}

// liveJobs finds the live jobs of an exclusive store by their traits, in memory. A job that
// ends while the walk reads it may stay in it until the end of the next walk.
type liveJobs struct {
	jobs   map[uuid.UUID]liveJob
	alike  map[Traits]*alike
	walk   uint32 // the number of the walk under way, or of the last one
	whole  bool   // Each live job is in jobs, with the traits that it has.
	unsure bool   // since the walk began: a commit may be missing
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
	return liveJobs{jobs: map[uuid.UUID]liveJob{}, alike: map[Traits]*alike{}}
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
		return
	}
	traits := TraitsOf(agg)
	if ok && known.of.traits == traits {
		known.rev, known.walk = agg.Job.Rev, l.walk
		l.jobs[id] = known
		return
	}
	if ok {
		l.forget(id, known)
	}
	of := l.alike[traits]
	if of == nil {
		of = &alike{traits: Traits{ // The texts are parts of rows, which are larger.
			strings.Clone(traits.TenantID), traits.State, strings.Clone(traits.RequestType), strings.Clone(traits.Service),
			strings.Clone(traits.StepType), strings.Clone(traits.ErrorCode),
		}}
		l.alike[of.traits] = of
	}
	l.jobs[id] = liveJob{of: of, at: len(of.ids), rev: agg.Job.Rev, walk: l.walk}
	of.ids = append(of.ids, id)
}

// forget removes a job.
func (l *liveJobs) forget(id uuid.UUID, job liveJob) {
	delete(l.jobs, id)
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
func (l *liveJobs) begin() { l.walk, l.unsure = l.walk+1, false }

// end notes that a walk has seen every live job that no change was made to.
func (l *liveJobs) end() {
	l.whole = !l.unsure
	for id, job := range l.jobs {
		if job.walk < l.walk {
			l.forget(id, job)
		}
	}
}

// Live returns the ids of the live jobs whose traits are wanted, in no particular order.
// Some of them may have ended. It reports false if it does not know them all: other
// processes write the store, or no walk has ended yet.
func (c *Census) Live(wanted func(*Traits) bool) (ids []string, known bool) {
	c.mu.Lock()
	if known = c.live.whole; !known {
		c.mu.Unlock()
		return nil, false
	}
	var found []uuid.UUID
	for _, of := range c.live.alike {
		if wanted(&of.traits) {
			found = append(found, of.ids...)
		}
	}
	c.mu.Unlock()
	ids = make([]string, len(found))
	for i := range found {
		ids[i] = found[i].String()
	}
	return ids, true
}
