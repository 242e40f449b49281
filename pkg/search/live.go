package search

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Phase is what the active step of a live job waits for.
type Phase uint8

// The phases.
const (
	PhaseNone        Phase = iota // nothing: its job is paused without a live attempt
	PhaseDispatching              // its publish
	PhaseQueued                   // a worker
	PhaseClaimed                  // the start, by the worker that claimed it
	PhaseRunning                  // the RESULT, or another end of an attempt that a pause or cancel waits for
	PhaseBackoff                  // the time of its next attempt, or of the next publish of a rejected row
	PhaseHeld                     // the end of a pause, instead of its publish or of a worker; only a report has it
	phases
)

// phaseOf returns the phase of a job and, unless that is zero, when its queued step was
// published, or its running one started, or when its step in backoff is due.
func phaseOf(agg *statemachine.Aggregate) (phase Phase, since time.Time) {
	if len(agg.Steps) == 0 || agg.Job.State.Terminal() {
		return PhaseNone, since
	}
	i, ok := agg.Active()
	if !ok {
		return PhaseNone, since
	}
	switch step := &agg.Steps[i]; step.State {
	case statemachine.StepDispatching:
		if agg.Outbox != nil && agg.Outbox.Rejected {
			return PhaseBackoff, agg.Outbox.DueAt
		}
		return PhaseDispatching, since
	case statemachine.StepAwaitingAck: // Claims on Service Bus are not known.
		if state := agg.Job.State; state == statemachine.JobPausing || state == statemachine.JobCancelling {
			return PhaseRunning, since
		}
		if agg.Outbox != nil {
			if _, queued := agg.Queued(); queued || agg.Outbox.Bus != statemachine.BusQueue {
				return PhaseQueued, agg.Outbox.SentAt
			}
		}
		return PhaseClaimed, since
	case statemachine.StepInProgress:
		return PhaseRunning, step.StartedAt
	case statemachine.StepFailedRetry:
		if agg.Job.State != statemachine.JobPaused {
			return PhaseBackoff, step.NextAttemptAt
		}
	case statemachine.StepPending, statemachine.StepSucceeded, statemachine.StepFailedFinal, statemachine.StepCancelled:
	}
	return PhaseNone, since
}

// Traits are the properties by which a [Filter] selects jobs, except their times.
type Traits struct {
	statemachine.Target // of the current step

	State       statemachine.JobState
	RequestType string
	StepType    string // of the current step
	ErrorCode   string // of the current step's last failure
	// Outbox is the state of the outbox row of the latest attempt, empty if there is none.
	Outbox statemachine.OutboxState
	Bus    statemachine.Bus // of that row
	// Parked says that the job waits for its date; a job in QUEUED that does not waits for its line.
	Parked bool
	Phase  Phase
	// Retryable says that an operator can make the next dispatch due: the directive waits to
	// be published, or the step in FAILED_RETRY.
	Retryable bool
}

// TraitsOf returns the traits of a job.
func TraitsOf(agg *statemachine.Aggregate) Traits {
	job, step := &agg.Job, &agg.Steps[agg.Job.CurrentStepIndex]
	t := Traits{
		Target: statemachine.TargetOf(job, step), State: job.State, RequestType: job.RequestType, StepType: step.Type,
		ErrorCode: step.LastErrorCode, Parked: job.Parked,
	}
	t.Phase, _ = phaseOf(agg)
	i, live := agg.Active()
	if !live {
		i = job.CurrentStepIndex
	}
	if row := agg.Outbox; row != nil && row.ID == agg.Steps[i].OutboxID { // Else the row is of the step before.
		t.Outbox, t.Bus = row.State, row.Bus
	}
	state := agg.Steps[i].State
	t.Retryable = state == statemachine.StepDispatching || state == statemachine.StepFailedRetry
	return t
}

// holdable reports whether a pause can hold the directive back: it is not published, or waits in
// the pull queue.
func (t *Traits) holdable() bool {
	return t.Phase == PhaseDispatching || t.Phase == PhaseQueued && t.Bus == statemachine.BusQueue
}

// clone copies the strings, which would otherwise keep whole rows in memory.
func (t *Traits) clone() Traits {
	own := *t
	for _, text := range []*string{&own.RequestType, &own.StepType, &own.ErrorCode} {
		*text = strings.Clone(*text)
	}
	for _, kind := range statemachine.ScopeKinds {
		if kind.Text != nil {
			text := kind.Text(&own.Target)
			*text = strings.Clone(*text)
		}
	}
	return own
}

// keepEnded is how many recently ended jobs are remembered, so that a walk or a commit that is
// observed late does not add them again.
const keepEnded = 4096

// liveJobs indexes live jobs by their traits, in memory. If an earlier change of an ended job
// is observed after keepEnded other jobs have ended, the job stays in the index until the end
// of the next walk.
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
	jobs   []member
}

// member is a job with its Unix times, 0 if unknown: since when it is in its phase, and when
// it was accepted.
type member struct {
	id             uuid.UUID
	since, created uint32
}

// liveJob is a job as it was at a revision.
//
//	invariant: of.jobs[at].id is the job's id
type liveJob struct {
	of   *alike
	at   int
	rev  int64
	walk uint32 // the walk in which the job was last observed
}

func newLiveJobs() liveJobs {
	return liveJobs{jobs: map[uuid.UUID]liveJob{}, ended: map[uuid.UUID]struct{}{}, alike: map[Traits]*alike{}}
}

// unix returns a Unix time in four bytes, which last until 2106, and 0 for the zero time.
func unix(at time.Time) uint32 { return uint32(max(at.Unix(), 0)) }

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
	_, since := phaseOf(agg)
	if ok && known.of.traits == traits {
		if known.walk != l.walk {
			l.seen++
		}
		known.of.jobs[known.at].since = unix(since)
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
	l.jobs[id] = liveJob{of: of, at: len(of.jobs), rev: agg.Job.Rev, walk: l.walk}
	of.jobs = append(of.jobs, member{id, unix(since), unix(agg.Job.CreatedAt)})
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
	last := len(job.of.jobs) - 1
	if moved := job.of.jobs[last]; moved.id != id {
		other := l.jobs[moved.id]
		other.at, job.of.jobs[job.at] = job.at, moved
		l.jobs[moved.id] = other
	}
	if job.of.jobs = job.of.jobs[:last]; last == 0 {
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

// gauges are the numbers of live jobs and of their active steps.
type gauges struct {
	AsOf time.Time                     `json:"as_of"`
	Jobs map[statemachine.JobState]int `json:"jobs,omitempty"`
	// Parked are the jobs that wait for their date, and InLine those that wait for their line alone.
	Parked int                  `json:"parked,omitempty"`
	InLine int                  `json:"in_line,omitempty"`
	Steps  map[kind]*stepGauges `json:"steps,omitempty"`
	// Tenants are those with the most active steps, the busiest first.
	Tenants []TenantCounts `json:"tenants,omitempty"`
	// When the oldest job was accepted, the oldest running step started, and when the next
	// step in backoff is due; zero if there is none.
	OldestJob     time.Time `json:"oldest_job,omitzero"`
	OldestRunning time.Time `json:"oldest_running,omitzero"`
	NextRetry     time.Time `json:"next_retry,omitzero"`
}

// maxTenantCounts bounds the tenants whose steps are counted separately.
const maxTenantCounts = 100

// TenantCounts holds the numbers of a tenant's active steps, by what they wait for, as in
// [ServiceCounts].
type TenantCounts struct {
	TenantID string    `json:"id"`
	Queued   int       `json:"queued,omitempty"`
	Held     int       `json:"held,omitempty"`
	Claimed  int       `json:"claimed,omitempty"`
	Running  int       `json:"running,omitempty"`
	Oldest   time.Time `json:"oldest,omitzero"` // when the oldest queued one was published
}

func (t *TenantCounts) total() int { return t.Queued + t.Held + t.Claimed + t.Running }

// busiest returns the tenants with the most steps, the busiest first.
func busiest(tenants map[string]*TenantCounts) []TenantCounts {
	all := make([]TenantCounts, 0, len(tenants))
	for id, one := range tenants {
		one.TenantID = id
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b TenantCounts) int {
		return cmp.Or(b.total()-a.total(), strings.Compare(a.TenantID, b.TenantID))
	})
	return slices.Clone(all[:min(len(all), maxTenantCounts)])
}

// stepGauges are the numbers of the active steps of one kind.
type stepGauges struct {
	Phases [phases]int    `json:"phases"`
	Oldest time.Time      `json:"oldest,omitzero"` // when the oldest queued one was published
	HeldBy map[string]int `json:"held_by,omitempty"`
	// Error is the most frequent error code of the steps that failed and are retried, and Errors
	// the number of those steps.
	Error  string `json:"error,omitempty"`
	Errors int    `json:"errors,omitempty"`
	// HeldQueued are those of PhaseHeld whose directive is published.
	HeldQueued int `json:"held_queued,omitempty"`
}

// gauges counts the jobs, and their steps by the kinds under which counted counts them. What
// several scopes hold counts for the first of them. A group is an array, so a million jobs take a
// few milliseconds.
func (l *liveJobs) gauges(asOf time.Time, paused []statemachine.Scope, counted func(kind, func(kind))) *gauges {
	g := &gauges{AsOf: asOf, Jobs: map[statemachine.JobState]int{}, Steps: map[kind]*stepGauges{}}
	type failing struct {
		kind
		code string
	}
	retried, tenants := map[failing]int{}, map[string]*TenantCounts{}
	for t, of := range l.alike {
		var since, created uint32
		for i := range of.jobs {
			earliest(&since, of.jobs[i].since)
			earliest(&created, of.jobs[i].created)
		}
		g.Jobs[t.State] += len(of.jobs)
		switch {
		case t.Parked:
			g.Parked += len(of.jobs)
		case t.State == statemachine.JobQueued:
			g.InLine += len(of.jobs)
		}
		if t.State != statemachine.JobQueued { // A job that waits for its date may be as old as it likes.
			earlier(&g.OldestJob, created)
		}
		switch t.Phase {
		case PhaseNone:
			continue
		case PhaseRunning:
			earlier(&g.OldestRunning, since)
		case PhaseBackoff:
			earlier(&g.NextRetry, since)
		default:
		}
		by := -1
		if t.holdable() {
			by = slices.IndexFunc(paused, func(s statemachine.Scope) bool { return s.Covers(t.Target) })
		}
		countTenant(tenants, &t, by >= 0, len(of.jobs), since)
		counted(kind{t.ProtocolID, t.Service, t.StepType}, func(k kind) {
			steps := entry(g.Steps, k)
			if t.ErrorCode != "" {
				retried[failing{k, t.ErrorCode}] += len(of.jobs)
			}
			if by >= 0 {
				steps.hold(paused[by], t.Phase, len(of.jobs))
				return
			}
			steps.Phases[t.Phase] += len(of.jobs)
			if t.Phase == PhaseQueued {
				earlier(&steps.Oldest, since)
			}
		})
	}
	for of, n := range retried {
		if steps := g.Steps[of.kind]; n > steps.Errors || n == steps.Errors && of.code < steps.Error {
			steps.Error, steps.Errors = of.code, n
		}
	}
	g.Tenants = busiest(tenants)
	return g
}

// countTenant counts the steps of jobs with these traits for their tenant. since is when the
// oldest of the queued ones was published.
func countTenant(tenants map[string]*TenantCounts, traits *Traits, held bool, steps int, since uint32) {
	switch {
	case held:
		entry(tenants, traits.TenantID).Held += steps
	case traits.Phase == PhaseClaimed:
		entry(tenants, traits.TenantID).Claimed += steps
	case traits.Phase == PhaseRunning:
		entry(tenants, traits.TenantID).Running += steps
	case traits.Phase == PhaseQueued:
		one := entry(tenants, traits.TenantID)
		one.Queued += steps
		earlier(&one.Oldest, since)
	}
}

// hold counts steps that a pause holds back, instead of their phase.
func (s *stepGauges) hold(by statemachine.Scope, phase Phase, steps int) {
	if s.HeldBy == nil {
		s.HeldBy = map[string]int{}
	}
	s.HeldBy[by.ID()] += steps
	s.Phases[PhaseHeld] += steps
	if phase == PhaseQueued {
		s.HeldQueued += steps
	}
}

// earliest sets the Unix time to another that is known and earlier.
func earliest(unix *uint32, other uint32) {
	if other != 0 && (*unix == 0 || other < *unix) {
		*unix = other
	}
}

// earlier sets the time to a Unix time that is known and earlier.
func earlier(at *time.Time, unix uint32) {
	if other := time.Unix(int64(unix), 0).UTC(); unix != 0 && (at.IsZero() || other.Before(*at)) {
		*at = other
	}
}

// livePart is the most ids in a part of [Counts.Live].
const livePart = 128

// Live yields the ids of the live jobs whose traits are wanted, in parts and in no
// particular order. Some of them may have ended. known is false if other processes write the
// store, or no walk has ended yet; the next walk is then fast. wanted must not block or call
// the counts.
func (c *Counts) Live(wanted func(*Traits) bool) (parts iter.Seq[[]string], known bool) {
	c.mu.Lock()
	var found []uuid.UUID
	for _, of := range c.live.alike {
		if c.cfg.Exclusive && wanted(&of.traits) {
			for i := range of.jobs {
				found = append(found, of.jobs[i].id)
			}
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

// Waiting returns how many live jobs have a directive in the scope that waits to be
// published, or for a worker. known is false if the process does not know all live jobs.
func (c *Counts) Waiting(scope statemachine.Scope) (n int, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.live.alike {
		if of.traits.holdable() && scope.Covers(of.traits.Target) {
			n += len(of.jobs)
		}
	}
	return n, c.live.whole
}
