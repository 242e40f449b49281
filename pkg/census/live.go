package census

import (
	"context"
	"iter"
	"strings"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Traits are the properties by which lists select live jobs.
type Traits struct {
	statemachine.Target // of the current step

	State       statemachine.JobState
	RequestType string
	StepType    string // of the current step
	ErrorCode   string // of the current step's last failure
	// Outbox is the state of the outbox row of the latest attempt, empty if there is none.
	Outbox statemachine.OutboxState
	// Waits says that the directive waits to be published, or for a worker.
	Waits bool
	// Retryable says that an operator can make the next dispatch due: the directive waits to
	// be published, or the step in FAILED_RETRY.
	Retryable bool
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
	state := agg.Steps[i].State
	t.Retryable = state == statemachine.StepDispatching || state == statemachine.StepFailedRetry
	return t
}

// clone copies the strings, which would otherwise keep whole rows in memory.
func (t Traits) clone() Traits {
	for _, text := range []*string{&t.TenantID, &t.ProtocolID, &t.Service, &t.RequestType, &t.StepType, &t.ErrorCode} {
		*text = strings.Clone(*text)
	}
	return t
}

// keepEnded is how many recently ended jobs are remembered, so that a walk or a commit that is
// observed late does not add them again.
const keepEnded = 4096

// liveJobs indexes the live jobs of an exclusive store by their traits, in memory. If an
// earlier change of an ended job is observed after keepEnded other jobs have ended, the job
// stays in the index until the end of the next walk.
type liveJobs struct {
	jobs   map[uuid.UUID]liveJob
	ended  map[uuid.UUID]struct{}
	order  []uuid.UUID // the keys of ended, as a ring that starts at oldest
	oldest int
	alike  map[Traits]*alike
	walk   uint32 // number of the current walk, or of the last one
	seen   int    // how many of jobs were observed since that walk began
	whole  bool   // jobs holds each live job, with its current traits
	unsure bool   // since the walk began, a commit may have been missed
	asked  bool   // a caller of Live waits for the end of the walk
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
	walk uint32 // the walk in which the job was last observed
}

func newLiveJobs() liveJobs {
	return liveJobs{jobs: map[uuid.UUID]liveJob{}, ended: map[uuid.UUID]struct{}{}, alike: map[Traits]*alike{}}
}

// observe records the traits of a job, unless those of a later revision are known.
func (l *liveJobs) observe(agg *statemachine.Aggregate) {
	id, err := uuid.Parse(agg.Job.ID)
	if err != nil {
		return // The ledger makes no such ids.
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

// remember records that a job has ended.
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

// begin starts a walk.
func (l *liveJobs) begin() { l.walk, l.seen, l.unsure = l.walk+1, 0, false }

// end ends a walk that has read all live jobs, and removes those that it did not find.
func (l *liveJobs) end() {
	l.whole = !l.unsure
	l.asked = l.asked && l.unsure
	if l.seen == len(l.jobs) {
		return // Do not search a million jobs for nothing: commits wait for the lock.
	}
	for id, job := range l.jobs {
		if job.walk < l.walk {
			l.forget(id, job)
		}
	}
}

// Spare reports whether a fast walk may use all its time, because a caller of [Census.Live]
// waits for its end, or nothing has been committed since the last call.
func (c *Census) Spare() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle := !c.busy
	c.busy = false
	return idle || c.live.asked
}

// livePart is the most ids in a part of [Census.Live].
const livePart = 128

// Live yields the ids of the live jobs whose traits are wanted, in parts and in no
// particular order. Some of them may have ended. known is false if other processes write the
// store, or no walk has ended yet; the next walk is then fast. wanted must not block or call
// the census.
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
		for end := len(found); end > 0; end -= livePart { // The last ones are usually the newest.
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

// Index is [Census.Live] of one process, or nil if there is none.
type Index func(wanted func(*Traits) bool) (parts iter.Seq[[]string], known bool)

// Lister lists all live jobs, as [ledger.Ledger] does.
type Lister interface {
	Live(ctx context.Context, tenantID string, shard, limit int, from string) (jobIDs []string, next string, err error)
	Shards() int
}

// Candidates yields the ids of live jobs in parts: of those whose traits are wanted, if the
// index knows all live jobs, otherwise of all live jobs of the tenant, or of all tenants. It
// may yield an id twice, and ids of jobs that have ended. It ends after an error, which is the
// lister's.
func (index Index) Candidates(
	ctx context.Context, all Lister, tenantID string, wanted func(*Traits) bool,
) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		if index != nil {
			if parts, known := index(wanted); known {
				for ids := range parts {
					if !yield(ids, nil) {
						return
					}
				}
				return
			}
		}
		for shard := range all.Shards() {
			for from, more := "", true; more; more = from != "" {
				ids, next, err := all.Live(ctx, tenantID, shard, livePart, from)
				if from = next; !yield(ids, err) || err != nil {
					return
				}
			}
		}
	}
}

// Waiting returns how many live jobs have a directive in the scope that waits to be
// published, or for a worker. known is false if the census does not know all live jobs.
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
