package search

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// Bounds of the worker records of a process. A record is kept for a day.
const (
	maxWorkers  = 5000
	maxAttempts = 50   // ended ones of each worker
	maxHeld     = 1000 // of each worker
	maxNames    = 64   // services, and step types, of a worker that polls with several filters
	day         = 24 * hour
)

// AttemptOutcome is how a worker's attempt ended.
type AttemptOutcome string

// The outcomes. Only the first three are counted.
const (
	AttemptSucceeded AttemptOutcome = "succeeded"
	AttemptFailed    AttemptOutcome = "failed" // by its RESULT, or by the step's timeout
	AttemptLost      AttemptOutcome = "lost"   // the worker did not start, or report, in time
	AttemptTaken     AttemptOutcome = "taken"  // by an operator, or because its job was cancelled
)

// Work names the step of an attempt. Attempts share it.
type Work struct {
	TenantID string `json:"t"`
	StepID   string `json:"s"`
	Service  string `json:"v"`
	StepType string `json:"y"`
}

// Attempt is a worker's attempt at a step, claimed from the pull queue.
type Attempt struct {
	*Work

	JobID   uuid.UUID      `json:"j"`
	No      int            `json:"n"`
	Claimed time.Time      `json:"c"`
	Ended   time.Time      `json:"e,omitzero"` // zero while the worker holds it
	Outcome AttemptOutcome `json:"o,omitempty"`
	Code    string         `json:"x,omitempty"` // error code
}

// find returns the attempt's index in the list, -1 if it is not there. A function as an argument
// would allocate with each commit.
func (a *Attempt) find(list []Attempt) int {
	for i := range list {
		if list[i].No == a.No && list[i].JobID == a.JobID && list[i].StepID == a.StepID {
			return i
		}
	}
	return -1
}

// AttemptCounts count the attempts that ended.
type AttemptCounts struct {
	Ended  int `json:"a"`
	Failed int `json:"f,omitempty"` // without the lost ones
	Lost   int `json:"l,omitempty"`
}

// Add adds the counts of other.
func (c *AttemptCounts) Add(other AttemptCounts) {
	c.Ended += other.Ended
	c.Failed += other.Failed
	c.Lost += other.Lost
}

// Worker is a worker of the pull queue that was active in the last day.
type Worker struct {
	Owner string `json:"owner"`
	workqueue.Client
	// Services and StepTypes are those that it asks for; all if empty.
	Services  []string `json:"services,omitempty"`
	StepTypes []string `json:"step_types,omitempty"`
	// Tenants are those whose work it asks for; all if empty. Workers of several tenants may have
	// chosen the same name, which makes them one.
	Tenants []string `json:"tenants,omitempty"`
	// LastPoll is when its last claim ended; now, if one waits.
	LastPoll  time.Time `json:"poll,omitzero"`
	Waiting   bool      `json:"-"`
	Heartbeat time.Time `json:"beat,omitzero"` // of any attempt
	// Held are the attempts that it holds, and Attempts the last that ended, oldest first.
	Held     []Attempt `json:"held,omitempty"`
	Attempts []Attempt `json:"attempts,omitempty"`
	// Hours counts the ended attempts of the last day by Unix time in hours.
	Hours map[int64]AttemptCounts `json:"hours,omitempty"`
	// Last is when the worker last polled, reported, or lost an attempt.
	Last time.Time `json:"last"`
}

// Day returns the counts of the last day.
func (w *Worker) Day(now time.Time) (sum AttemptCounts) {
	for at, counts := range w.Hours {
		if at > hourOf(now)-int64(day/hour) {
			sum.Add(counts)
		}
	}
	return sum
}

func hourOf(at time.Time) int64 { return at.UnixNano() / int64(hour) }

// workers records the workers of the pull queue by the polls and commits of this process. It is safe
// for concurrent use.
type workers struct {
	mu     sync.Mutex // Guards all below. Commits wait for it, so no call under it blocks.
	known  map[string]*Worker
	work   map[Work]*Work
	began  time.Time              // when the current walk began
	walked time.Time              // when the last walk that ended began
	seen   map[uuid.UUID]struct{} // the jobs at which the current walk found a held attempt
	dirty  bool                   // known has changed since it was stored
	stored time.Time              // when it was last stored
	rows   int                    // as it was last stored
	others []*workerTable         // of other processes, as last read
	read   time.Time              // when they were last read
}

func newWorkers() *workers {
	return &workers{known: map[string]*Worker{}, work: map[Work]*Work{}, seen: map[uuid.UUID]struct{}{}}
}

// worker returns the record of the worker, which was active at that time. It makes one if there is
// none; beyond maxWorkers it evicts the tenth that has been idle longest. The caller holds mu.
func (w *workers) worker(owner string, at time.Time) *Worker {
	one := w.known[owner]
	if one == nil {
		if len(w.known) >= maxWorkers {
			all := w.latest()
			for _, idle := range all[len(all)-maxWorkers/10:] {
				delete(w.known, idle.Owner)
			}
		}
		one = &Worker{Owner: strings.Clone(owner)}
		w.known[one.Owner] = one
	}
	if at.After(one.Last) {
		one.Last = at
	}
	return one
}

// latest returns the workers, the latest active first. The caller holds mu.
func (w *workers) latest() []*Worker {
	all := make([]*Worker, 0, len(w.known))
	for _, one := range w.known {
		all = append(all, one)
	}
	slices.SortFunc(all, latestFirst)
	return all
}

// latestFirst orders workers by their last activity.
func latestFirst(a, b *Worker) int {
	return cmp.Or(b.Last.Compare(a.Last), strings.Compare(a.Owner, b.Owner))
}

// shared interns the work, so that attempts share its strings. The caller holds mu.
func (w *workers) shared(of Work) *Work {
	if known := w.work[of]; known != nil {
		return known
	}
	if len(w.work) >= maxWorkers {
		clear(w.work) // Attempts keep what they have.
	}
	one := &Work{strings.Clone(of.TenantID), strings.Clone(of.StepID), strings.Clone(of.Service), strings.Clone(of.StepType)}
	w.work[*one] = one
	return one
}

// holder returns the worker that holds an attempt of the job, empty if none does, and the step.
func holder(agg *statemachine.Aggregate) (owner string, step *statemachine.Step) {
	if i, ok := agg.Active(); ok {
		step = &agg.Steps[i]
		owner = step.Holder()
	}
	return owner, step
}

// observe records that a worker claimed, reported on or lost an attempt of the job.
func (w *workers) observe(before, after *statemachine.Aggregate, history []statemachine.Transition) {
	was, held := holder(before)
	is, holds := holder(after)
	if was == "" && is == "" {
		return
	}
	same := was == is && held.ID == holds.ID && held.AttemptNo == holds.AttemptNo
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dirty = true
	if was != "" && !same {
		w.end(was, w.attempt(before, held), &after.Steps[held.Index], history)
	}
	if is == "" {
		return
	}
	one := w.worker(is, holds.UpdatedAt)
	if same || holds.State == statemachine.StepInProgress {
		one.Heartbeat = holds.UpdatedAt
	}
	if !same {
		one.hold(w.attempt(after, holds))
	}
}

// attempt returns the step's current attempt, which a worker holds. The time of its claim is the last
// one that the step's row has. The caller holds mu.
func (w *workers) attempt(agg *statemachine.Aggregate, step *statemachine.Step) Attempt {
	of := Work{TenantID: agg.Job.TenantID, StepID: step.ID, Service: step.Service, StepType: step.Type}
	claimed := step.UpdatedAt
	if step.State == statemachine.StepInProgress {
		claimed = step.StartedAt
	}
	id, err := uuid.Parse(agg.Job.ID)
	if err != nil {
		id = uuid.Nil // The ledger makes no such ids.
	}
	return Attempt{Work: w.shared(of), JobID: id, No: step.AttemptNo, Claimed: claimed}
}

// hold adds an attempt to those that the worker holds, up to [maxHeld].
func (w *Worker) hold(claimed Attempt) {
	if len(w.Held) < maxHeld && claimed.find(w.Held) < 0 {
		w.Held = append(w.Held, claimed)
	}
}

// end moves a held attempt to the ended ones and counts it. step is the step after the change. The
// caller holds mu.
func (w *workers) end(owner string, ended Attempt, step *statemachine.Step, history []statemachine.Transition) {
	ended.Ended, ended.Outcome = step.UpdatedAt, AttemptTaken
	for i := range history {
		if t := &history[i]; t.Object == statemachine.ObjectStep && t.ID == ended.StepID && t.Owner == owner {
			ended.Code = strings.Clone(t.Detail)
		}
	}
	switch result := step.Result(ended.No); {
	case result == statemachine.ResultSucceeded:
		ended.Outcome, ended.Code = AttemptSucceeded, ""
	case ended.Code == statemachine.ErrorLeaseExpired || ended.Code == statemachine.ErrorAckTimeout:
		ended.Outcome = AttemptLost
	case result != "" || ended.Code != "":
		ended.Outcome = AttemptFailed
	}
	one := w.worker(owner, ended.Ended)
	if i := ended.find(one.Held); i >= 0 {
		ended.Claimed = one.Held[i].Claimed
		one.Held = slices.Delete(one.Held, i, i+1)
	}
	if len(one.Attempts) >= maxAttempts {
		one.Attempts = slices.Delete(one.Attempts, 0, len(one.Attempts)-maxAttempts+1)
	}
	one.Attempts = append(one.Attempts, ended)
	if ended.Outcome == AttemptTaken {
		return
	}
	if ended.Outcome != AttemptLost {
		one.Heartbeat = ended.Ended
	}
	at := hourOf(ended.Ended)
	counts, known := one.Hours[at]
	if !known {
		for old := range one.Hours {
			if old <= at-int64(day/hour) {
				delete(one.Hours, old)
			}
		}
	}
	counts.Ended++
	switch ended.Outcome {
	case AttemptFailed:
		counts.Failed++
	case AttemptLost:
		counts.Lost++
	case AttemptSucceeded, AttemptTaken:
	}
	if one.Hours == nil {
		one.Hours = map[int64]AttemptCounts{}
	}
	one.Hours[at] = counts
}

// begin starts a walk over the live jobs.
func (w *workers) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = tablestore.Now()
	clear(w.seen)
}

// walk records which worker holds an attempt of a live job: the claim may have been made through
// another process, or before this one started.
func (w *workers) walk(job *statemachine.Aggregate) {
	owner, step := holder(job)
	if owner == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	held := w.attempt(job, step)
	one := w.worker(owner, step.UpdatedAt)
	if step.UpdatedAt.After(one.Heartbeat) {
		one.Heartbeat = step.UpdatedAt
	}
	w.seen[held.JobID] = struct{}{}
	if held.find(one.Attempts) < 0 { // Else the attempt has ended since the walk read the job.
		one.hold(held)
	}
}

// found ends a walk that has read all live jobs. It drops held attempts that the walk did not find.
func (w *workers) found() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.walked = w.began
	for _, one := range w.known {
		one.Held = slices.DeleteFunc(one.Held, func(a Attempt) bool {
			_, found := w.seen[a.JobID]
			return !found && a.Claimed.Before(w.began)
		})
	}
	clear(w.seen)
}

// polled records the last polls of workers, sorted by time, latest first, and drops workers that were
// not active in the last day. A worker may poll with several filters in turn. fresh says that a poll
// that waited may still wait.
func (w *workers) polled(pollers []workqueue.Poller, fresh bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	latest := map[string]time.Time{} // of this call
	for i := range pollers {
		p := &pollers[i]
		one, at := w.worker(p.Owner, p.LastPoll), latest[p.Owner]
		switch {
		case at.IsZero() && !p.LastPoll.Before(one.LastPoll):
			latest[p.Owner] = p.LastPoll
			one.LastPoll, one.Client, one.Services, one.StepTypes = p.LastPoll, p.Client, p.Services, p.StepTypes
			one.Tenants, one.Waiting = p.Tenants, p.Waiting && fresh
		case !at.IsZero() && at.Sub(p.LastPoll) < 2*minute:
			one.Services, one.StepTypes = union(one.Services, p.Services), union(one.StepTypes, p.StepTypes)
			one.Tenants, one.Waiting = union(one.Tenants, p.Tenants), one.Waiting || p.Waiting && fresh
		}
	}
	for owner, one := range w.known {
		one.Waiting = one.Waiting && !latest[owner].IsZero()
		if time.Since(one.Last) > day {
			delete(w.known, owner)
		}
	}
}

// union returns the union of two lists, at most maxNames of it. An empty list stands for all values.
func union(a, b []string) []string {
	if len(a) == 0 || len(b) == 0 {
		return nil
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxNames)]
}
