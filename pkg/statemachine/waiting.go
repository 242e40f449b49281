package statemachine

import (
	"cmp"
	"fmt"
	"time"
)

// Reason says why a live job waits, or who works on it. Exactly one applies at any moment.
type Reason string

// The reasons. A directive passes several gates on its way to a worker; the reason is the
// first closed gate.
const (
	ReasonJobPaused   Reason = "job_paused"   // until a client resumes the job
	ReasonScheduled   Reason = "scheduled"    // until the job's not_before
	ReasonLineBlocked Reason = "line_blocked" // until the failed job before it in its line is rerun or released
	ReasonBehind      Reason = "behind"       // until the jobs before it in its line have ended
	ReasonStarting    Reason = "starting"     // it is its turn in its line, or it is not known what is before it
	ReasonScopePaused Reason = "scope_paused" // a pause covers the directive
	ReasonCircuitOpen Reason = "circuit_open" // the topic, or the bus, is out of service
	ReasonPublishing  Reason = "publishing"   // a relay is to publish the directive
	ReasonNoWorker    Reason = "no_worker"    // queued, and no worker asks for such work
	ReasonQueued      Reason = "queued"       // until a worker claims the directive
	ReasonDelivered   Reason = "delivered"    // a worker claimed the directive, or a relay sent it; no ACK yet
	ReasonRunning     Reason = "running"      // a worker runs the attempt
	ReasonSilent      Reason = "silent"       // … and has not reported for half of its lease
	ReasonBackoff     Reason = "backoff"      // until the delay before the next attempt is over
	ReasonRateLimited Reason = "rate_limited" // until a limit or a closure of the service lets the attempt start
	ReasonAtCapacity  Reason = "at_capacity"  // until one of the attempts that run under a limit ends
	ReasonCancelling  Reason = "cancelling"   // until the worker's attempt ends, then CANCELLED
	ReasonPausing     Reason = "pausing"      // until the worker's attempt ends, then PAUSED
)

// Blocker names what a job waits for, if that has an id. The zero value names nothing.
type Blocker struct {
	Type BlockerType
	ID   string
}

// BlockerType is the type of a [Blocker].
type BlockerType string

// The types.
const (
	BlockerPause   BlockerType = "pause"     // the pause's id
	BlockerCircuit BlockerType = "circuit"   // the topic, or "*" for the whole bus
	BlockerWork    BlockerType = "work_item" // the work item that a worker holds
	BlockerJob     BlockerType = "job"       // the first job of the line
	BlockerLimit   BlockerType = "limit"     // the id of the limit, or of the scope that is closed
)

// Waiting says what a job waits for. The zero value is that of an ended job.
type Waiting struct {
	Reason Reason
	// Since is when the reason began to apply.
	Since time.Time
	// Until is the deadline at which Lucius acts on its own, or the zero time.
	Until time.Time
	// Detail is a sentence for people.
	Detail    string
	BlockedBy Blocker
}

// Surroundings holds what a job's wait depends on outside its rows.
type Surroundings struct {
	// Pause covers the directive of the active step, and Circuit is the open circuit of
	// its topic or of the bus. Nil if there is none.
	Pause   *ScopePause
	Circuit *OpenCircuit
	// Limit holds back starts of the step's service; nil if nothing does.
	Limit *StartLimit
	// Polled is when a worker last asked for work of the step's service and type. If none
	// has, it is the time since which that is known; the zero time if nothing is known.
	Polled time.Time
	// First is the first place of the job's line that is not gone, nil if it is not known.
	First *FirstPlace
	// Slow is since when calls of the store time out, or the zero time.
	Slow time.Time
}

// OpenCircuit is an open circuit of the bus; at Until a relay tries again. The reason is
// empty if it must not be shown.
type OpenCircuit struct {
	Name, Reason string
	Since, Until time.Time
}

// StartLimit is a limit without a free token or run slot, or a closure of a service. Until is when it may let
// a start through. Reason and Actor are empty if they must not be shown.
type StartLimit struct {
	ID, Actor, Reason string
	Closed            bool
	OfTenant          bool // of the job's tenant alone
	// MaxRunning is how many attempts the limit lets run at once, if that holds the job back, else 0.
	// Then Until is not known.
	MaxRunning int
	Until      time.Time
}

// FirstPlace is the first place of a line that is not gone.
type FirstPlace struct {
	Epoch string
	Seq   int64
	Job   *Job // the job that has it; of a lost rerun, the job whose place it took
}

// PollPatience is how long a service and step type may be without a poll before its
// queued directives wait for no_worker. A worker that polls asks more often, and a claim
// that waits is a poll for as long as it waits.
const PollPatience = time.Minute

// stage is what a job waits for according to its rows alone, and for which attempt unless
// the whole job is held. [Job.StageAt] is when it last changed.
type stage struct {
	reason        Reason
	step, attempt int
}

// stage returns the job's stage; that of an ended job has no reason.
func (a *Aggregate) stage() stage {
	i, ok := a.Active()
	if !ok || a.Job.State.Terminal() {
		return stage{}
	}
	if a.Job.Parked {
		return stage{reason: ReasonScheduled}
	}
	switch a.Job.State {
	case JobQueued:
		return stage{reason: ReasonStarting}
	case JobPaused:
		return stage{reason: ReasonJobPaused}
	case JobPausing:
		return stage{reason: ReasonPausing}
	case JobCancelling:
		return stage{reason: ReasonCancelling}
	default:
	}
	step := &a.Steps[i]
	s := stage{step: i, attempt: step.AttemptNo}
	_, queued := a.Queued()
	switch {
	case step.State == StepFailedRetry && step.Throttled:
		s.reason = ReasonRateLimited
	case step.State == StepFailedRetry:
		s.reason = ReasonBackoff
	case step.State == StepInProgress:
		s.reason = ReasonRunning
	case queued:
		s.reason = ReasonQueued
	case step.State == StepAwaitingAck:
		s.reason = ReasonDelivered
	default:
		s.reason = ReasonPublishing
	}
	return s
}

// Waiting says what a job waits for at that time: a pure function of its arguments.
// An ended job waits for nothing.
func (a *Aggregate) Waiting(now time.Time, around *Surroundings) Waiting {
	s := a.stage()
	w := Waiting{Reason: s.reason, Since: a.Job.StageAt}
	if s.reason == "" {
		return Waiting{}
	}
	i, _ := a.Active()
	step := &a.Steps[i]
	switch s.reason {
	case ReasonJobPaused:
		w.Detail = "the job is paused, and goes on when it is resumed"
	case ReasonScheduled:
		w.Until = a.Job.NotBefore
		w.Detail = "the job begins at " + stamp(w.Until)
	case ReasonStarting:
		w.inLine(a, around.First)
	case ReasonBackoff:
		w.backoff(step, step.NextAttemptAt)
	case ReasonRateLimited:
		w.throttled(step)
	case ReasonPublishing:
		w.publishing(a, step, now, around)
	case ReasonQueued:
		w.queued(step, now, around)
		if w.Reason == ReasonQueued && a.Job.Class == ClassBulk {
			w.Detail += ", as bulk work"
		}
	default:
		w.held(step, now)
		if s.reason == ReasonDelivered && step.Owner == "" && a.Outbox != nil && a.Outbox.Bus == BusServiceBus {
			w.Detail = fmt.Sprintf("attempt %d was sent to topic %s; whether a worker has it is not known; its ACK is due by %s",
				step.AttemptNo, step.Routing.Topic, stamp(w.Until))
		}
	}
	if expiry := a.Expiry(); !expiry.IsZero() {
		w.Detail += "; it expires at " + stamp(expiry) + " unless a worker has started it"
	}
	// Lucius is to act, and would have, if the store had answered.
	overdue := w.Reason == ReasonPublishing || !w.Until.IsZero() && now.After(w.Until)
	if !around.Slow.IsZero() && overdue {
		w.Detail += "; the store is slow: calls of it take too long since " + stamp(around.Slow)
	}
	return w
}

// inLine refines the wait of a job for its turn.
func (w *Waiting) inLine(a *Aggregate, first *FirstPlace) {
	if first == nil || first.Epoch != a.Job.Place.Epoch || first.Seq >= a.Job.Place.Seq {
		w.Detail = "the job begins as soon as Lucius has looked at its line"
		return
	}
	before := fmt.Sprintf("at most %d jobs are before it in its line, the first is job %s, which ",
		a.Job.Place.Seq-first.Seq, first.Job.ID)
	w.BlockedBy = Blocker{BlockerJob, first.Job.ID}
	if first.Job.Standing() == PlaceBlocks {
		w.Reason = ReasonLineBlocked
		w.Detail = before + "has failed: rerun or release that job, and the line goes on"
		return
	}
	w.Reason = ReasonBehind
	w.Detail = before + "is " + string(first.Job.State)
}

// publishing refines the wait of a directive that is not published.
func (w *Waiting) publishing(a *Aggregate, step *Step, now time.Time, around *Surroundings) {
	row := a.Outbox
	switch {
	case row != nil && row.Rejected && row.DueAt.After(now):
		w.Reason, w.Since = ReasonBackoff, row.UpdatedAt
		w.backoff(step, row.DueAt)
	case around.Pause != nil:
		w.paused(around.Pause)
	case around.Circuit != nil && row != nil && row.Bus == BusServiceBus:
		c := around.Circuit
		w.Reason, w.Since, w.Until = ReasonCircuitOpen, latest(w.Since, c.Since), c.Until
		w.BlockedBy = Blocker{BlockerCircuit, c.Name}
		w.Detail = fmt.Sprintf("circuit %s is open%s; a relay tries again at %s", c.Name, prefixed(": ", c.Reason), stamp(c.Until))
	case around.Limit != nil && around.Limit.Closed && row != nil && row.Bus == BusServiceBus:
		w.limited(around.Limit)
	default:
		w.Detail = fmt.Sprintf("attempt %d is to be published", step.AttemptNo)
	}
}

// limited sets a limit or a closure as the reason.
func (w *Waiting) limited(l *StartLimit) {
	if l.MaxRunning > 0 {
		w.Reason, w.BlockedBy = ReasonAtCapacity, Blocker{BlockerLimit, l.ID}
		w.Detail = fmt.Sprintf("as many attempts run as limit %s allows, %d%s", l.ID, l.MaxRunning, prefixed(": ", l.Reason))
		return
	}
	w.Reason, w.Until, w.BlockedBy = ReasonRateLimited, l.Until, Blocker{BlockerLimit, l.ID}
	if l.Closed {
		w.Detail = l.ID + " is closed" + prefixed(" by ", l.Actor) + ", and opens at " + stamp(l.Until) + prefixed(": ", l.Reason)
		return
	}
	w.Detail = "limit " + l.ID + " has no start left; the next comes at " + stamp(l.Until) + prefixed(": ", l.Reason)
}

// queued refines the wait of a directive that no worker has claimed.
func (w *Waiting) queued(step *Step, now time.Time, around *Surroundings) {
	kind := fmt.Sprintf("service %s, step type %s", step.Service, step.Type)
	switch polled := around.Polled; {
	case around.Pause != nil && around.Pause.State == ScopePaused:
		w.paused(around.Pause)
	case around.Limit != nil:
		w.limited(around.Limit)
	case !polled.IsZero() && now.Sub(polled) > PollPatience:
		w.Reason, w.Since = ReasonNoWorker, latest(w.Since, polled)
		w.Detail = fmt.Sprintf("no worker has polled for %s since %s", kind, stamp(polled))
	default:
		w.Detail = fmt.Sprintf("attempt %d waits for a worker of %s", step.AttemptNo, kind)
	}
}

// held refines the wait for a worker that has the directive.
func (w *Waiting) held(step *Step, now time.Time) {
	end, heard, worker := step.attemptEnd(), step.UpdatedAt, cmp.Or(step.Owner, "a worker")
	w.Until = end
	if step.Owner != "" {
		w.BlockedBy = Blocker{BlockerWork, step.WorkID}
	}
	silent := heard.Add(step.lease() / 2)
	switch {
	case w.Reason == ReasonDelivered:
		w.Detail = fmt.Sprintf("attempt %d was delivered to %s, and its ACK is due by %s", step.AttemptNo, worker, stamp(end))
	case w.Reason == ReasonCancelling:
		w.Detail = fmt.Sprintf("the job is cancelled once %s ends attempt %d; the lease ends at %s", worker, step.AttemptNo, stamp(end))
	case w.Reason == ReasonPausing:
		w.Detail = fmt.Sprintf("the job is paused once %s ends attempt %d; the lease ends at %s", worker, step.AttemptNo, stamp(end))
	case now.After(silent):
		w.Reason, w.Since = ReasonSilent, silent
		w.Detail = fmt.Sprintf("%s runs attempt %d and has sent no heartbeat since %s; the lease ends at %s",
			worker, step.AttemptNo, stamp(heard), stamp(end))
	default:
		w.Detail = fmt.Sprintf("%s runs attempt %d and was last heard of at %s", worker, step.AttemptNo, stamp(heard))
	}
}

// paused sets a pause as the reason.
func (w *Waiting) paused(p *ScopePause) {
	w.Reason, w.Since, w.Until = ReasonScopePaused, latest(w.Since, p.CreatedAt), p.Until
	w.BlockedBy = Blocker{BlockerPause, p.ID()}
	by := prefixed(" by ", p.Actor)
	w.Detail = "paused" + by
	if !p.Until.IsZero() {
		w.Detail += ", resumes at " + stamp(p.Until)
	}
	w.Detail += prefixed(": ", p.Reason)
	if p.State == ScopeRamping {
		w.Until = p.ResumedAt.Add(p.Ramp)
		w.Detail = fmt.Sprintf("the pause%s ramps up until %s", by, stamp(w.Until))
	}
}

// prefixed returns the text after the prefix, or nothing if there is no text.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// backoff completes the wait for the delay before an attempt.
func (w *Waiting) backoff(step *Step, until time.Time) {
	w.Until = until
	switch step.RetryCause {
	case "":
		w.Detail = fmt.Sprintf("an operator ended attempt %d; the next is at %s and spends no retry", step.AttemptNo, stamp(until))
		return
	case CauseStop:
		w.Detail = fmt.Sprintf("the worker of attempt %d stopped; the next is at %s and spends no retry", step.AttemptNo, stamp(until))
		return
	default:
	}
	retry, allowed := step.retries()
	w.Detail = fmt.Sprintf("%s retry %d of %d at %s after %s", step.RetryCause, retry, allowed, stamp(until), step.LastErrorCode)
}

// throttled completes the wait for the service that throttled an attempt.
func (w *Waiting) throttled(step *Step) {
	w.Until = step.NextAttemptAt
	w.Detail = fmt.Sprintf("service %s throttled attempt %d; the next is at %s", step.Service, step.AttemptNo, stamp(w.Until))
	if step.RetryCause == "" {
		w.Detail += " and spends no retry"
		return
	}
	retry, allowed := step.retries()
	w.Detail += fmt.Sprintf(", as %s retry %d of %d", step.RetryCause, retry, allowed)
}

// retries numbers the retry that a step waits for among those of its cause, and returns how
// many the cause's delays and the cap over all causes allow if no other cause spends more.
func (s *Step) retries() (retry, allowed int) {
	spent, delays := s.budget(s.RetryCause)
	allowed = len(delays)
	if most := s.Policy.MaxAttempts; most > 0 {
		allowed = min(allowed, most-1-(s.Spent.total()-*spent))
	}
	return *spent, allowed
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
