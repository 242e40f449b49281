package search

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Surroundings reads what jobs depend on outside their rows. Each function is optional:
// without it, a job depends on nothing of its kind. Only Circuit may block.
type Surroundings struct {
	// Pause returns the pause that covers the target, or nil.
	Pause func(statemachine.Target) *statemachine.ScopePause
	// Circuit returns the open circuit of the topic or of the whole bus, or nil.
	Circuit func(ctx context.Context, topic string) (*statemachine.OpenCircuit, error)
	// Limit returns the limit or the closure that holds back starts of such work, or nil.
	Limit func(kind ledger.WorkKind, tenantID string) *statemachine.StartLimit
	// LastPoll returns when a worker last polled for such work. If none has, polled is
	// false, and at is the time since which that is known.
	LastPoll func(kind ledger.WorkKind, tenantID string) (at time.Time, polled bool)
	// Live finds live jobs by their traits. Without it, lists find them by reading them.
	Live LiveIndex
	// Slow returns since when calls of the store time out, the zero time if none does.
	Slow func() time.Time
	// EndRate returns how many attempts of such work ended per second recently.
	EndRate func(kind ledger.WorkKind) float64
	// Logger logs jobs that a list leaves out because they cannot be read.
	Logger *slog.Logger
}

// maxBefore bounds how many directives ahead of a queued one are counted.
const maxBefore = 1000

// ForOneTenant returns the service for a caller who may see only one tenant. It hides who
// made a pause of all tenants and why, what failed on the bus, and how fast attempts end.
func (s *Service) ForOneTenant() *Service {
	own := *s
	own.around.EndRate = nil
	if pause := s.around.Pause; pause != nil {
		own.around.Pause = func(target statemachine.Target) *statemachine.ScopePause {
			found := pause(target)
			if found != nil && found.TenantID() == "" {
				shown := *found
				shown.Actor, shown.Reason = "", ""
				found = &shown
			}
			return found
		}
	}
	if limit := s.around.Limit; limit != nil {
		own.around.Limit = func(kind ledger.WorkKind, tenantID string) *statemachine.StartLimit {
			found := limit(kind, tenantID)
			if found != nil && !found.OfTenant {
				found.Actor, found.Reason = "", ""
			}
			return found
		}
	}
	if circuit := s.around.Circuit; circuit != nil {
		own.around.Circuit = func(ctx context.Context, topic string) (*statemachine.OpenCircuit, error) {
			found, err := circuit(ctx, topic)
			if found != nil {
				shown := *found
				shown.Reason = ""
				found = &shown
			}
			return found, err
		}
	}
	return &own
}

// Shown is a job with what depends on more than its rows.
type Shown struct {
	*statemachine.Aggregate

	Waiting statemachine.Waiting
	// SupersededBy is the newest rerun of the job that was not cancelled, empty if there
	// is none.
	SupersededBy string
}

// Show finds out what a job waits for, and its rerun. If its directive waits in the pull
// queue, Show counts those ahead of it, up to 1,000. The errors are [*apierror.Error]s.
func (s *Service) Show(ctx context.Context, agg *statemachine.Aggregate) (*Shown, error) {
	shown, err := s.listed(ctx, agg)
	if err != nil || shown.Waiting.Reason != statemachine.ReasonQueued {
		return &shown, err
	}
	before, err := s.ledger.ReadyBefore(ctx, agg, maxBefore)
	if err != nil {
		return nil, ledger.Problem(err)
	}
	detail := &shown.Waiting.Detail
	switch {
	case before == 0:
		*detail += ", the first of its tenant"
	case before < maxBefore:
		*detail += fmt.Sprintf(", with %d of its tenant before it", before)
	default:
		*detail += fmt.Sprintf(", with %d or more of its tenant before it", before)
	}
	if s.around.EndRate != nil {
		step := &agg.Steps[agg.Outbox.StepIndex]
		if rate := 60 * s.around.EndRate(kindOf(step)); rate > 0 {
			*detail += fmt.Sprintf("; over all tenants %.1f such attempts end a minute", rate)
		} else {
			*detail += "; no such attempt has ended lately"
		}
	}
	return &shown, nil
}

// Changed is [Service.Show] for a job that a request has just changed. The answer lacks the
// place in the queue; it also lacks what the job waits for if that cannot be read.
func (s *Service) Changed(ctx context.Context, agg *statemachine.Aggregate) *Shown {
	shown, err := s.listed(ctx, agg)
	if err != nil {
		return &Shown{Aggregate: agg}
	}
	return &shown
}

// lineFirsts are the first places of lines that were read for one page, by line.
type lineFirsts map[string]*statemachine.FirstPlace

// waiting returns the job with what it waits for, without its place in the queue. It reads nothing
// but the circuit, and the first place of the job's line unless that is in firsts.
func (s *Service) waiting(ctx context.Context, agg *statemachine.Aggregate, firsts lineFirsts) (Shown, error) {
	around, err := s.surroundings(ctx, agg)
	if err != nil {
		return Shown{}, err
	}
	if line := agg.Job.Place.Line; line != "" && agg.Job.AwaitsTurn() {
		first, known := firsts[line]
		if !known {
			if first, err = s.ledger.FirstInLine(ctx, line); err != nil {
				return Shown{}, ledger.Problem(err)
			}
			firsts[line] = first
		}
		around.First = first
	}
	return Shown{Aggregate: agg, Waiting: agg.Waiting(time.Now().UTC(), &around)}, nil
}

// listed is [Service.Show] without the place in the queue.
func (s *Service) listed(ctx context.Context, agg *statemachine.Aggregate) (Shown, error) {
	shown, err := s.waiting(ctx, agg, lineFirsts{})
	if err != nil {
		return Shown{}, err
	}
	shown.SupersededBy, err = s.ledger.SupersededBy(ctx, &agg.Job)
	return shown, ledger.Problem(err)
}

// surroundings returns what the job's wait depends on outside its rows.
func (s *Service) surroundings(ctx context.Context, agg *statemachine.Aggregate) (statemachine.Surroundings, error) {
	var around statemachine.Surroundings
	i, live := agg.Active()
	if !live || agg.Job.State.Terminal() {
		return around, nil
	}
	step := &agg.Steps[i]
	if s.around.Slow != nil {
		around.Slow = s.around.Slow()
	}
	if s.around.Pause != nil {
		around.Pause = s.around.Pause(statemachine.TargetOf(&agg.Job, step))
	}
	if s.around.Limit != nil {
		around.Limit = s.around.Limit(kindOf(step), agg.Job.TenantID)
	}
	if _, queued := agg.Queued(); queued && s.around.LastPoll != nil {
		around.Polled, _ = s.around.LastPoll(kindOf(step), agg.Job.TenantID)
	}
	if s.around.Circuit != nil && step.State == statemachine.StepDispatching {
		var err error
		if around.Circuit, err = s.around.Circuit(ctx, step.Routing.Topic); err != nil {
			return around, ledger.Problem(err)
		}
	}
	return around, nil
}

// fits returns [Filter.fits], which also leaves out jobs that cannot wait for a selected reason.
func (s *Service) fits(f *Filter) func(*Traits) bool {
	now := time.Now()
	return func(t *Traits) bool { return f.fits(t) && (len(f.Waiting) == 0 || s.mayWait(f, t, now)) }
}

// mayWait reports whether a live job with these traits may wait for a selected reason. The rows of
// the job decide; the traits save reading it.
func (s *Service) mayWait(f *Filter, t *Traits, now time.Time) bool {
	switch t.State {
	case statemachine.JobQueued:
		if t.Parked {
			return f.waits(statemachine.ReasonScheduled)
		}
		return f.waits(statemachine.ReasonLineBlocked, statemachine.ReasonBehind, statemachine.ReasonStarting)
	case statemachine.JobPaused:
		return f.waits(statemachine.ReasonJobPaused)
	case statemachine.JobPausing:
		return f.waits(statemachine.ReasonPausing)
	case statemachine.JobCancelling:
		return f.waits(statemachine.ReasonCancelling)
	default:
	}
	if t.holdable() && s.paused(t.Target) {
		return f.waits(statemachine.ReasonScopePaused)
	}
	switch t.Phase {
	case PhaseDispatching: // A pause that ramps up still holds some.
		return f.waits(statemachine.ReasonPublishing, statemachine.ReasonCircuitOpen, statemachine.ReasonScopePaused,
			statemachine.ReasonRateLimited)
	case PhaseQueued:
		if t.Bus != statemachine.BusQueue {
			return f.waits(statemachine.ReasonDelivered)
		}
		if s.around.Limit != nil && s.around.Limit(ledger.WorkKind{Service: t.Service, StepType: t.StepType}, t.TenantID) != nil {
			return f.waits(statemachine.ReasonRateLimited, statemachine.ReasonAtCapacity)
		}
		queued, noWorker := f.waits(statemachine.ReasonQueued), f.waits(statemachine.ReasonNoWorker)
		if queued == noWorker { // The last poll, which is expensive to find, makes no difference.
			return queued
		}
		return noWorker == s.unpolled(t, now)
	case PhaseClaimed:
		return f.waits(statemachine.ReasonDelivered)
	case PhaseRunning:
		return f.waits(statemachine.ReasonRunning, statemachine.ReasonSilent)
	case PhaseBackoff: // A rejected row waits for its publish once it is due.
		return f.waits(statemachine.ReasonBackoff, statemachine.ReasonRateLimited) || t.Outbox == statemachine.OutboxPending
	default:
		return false
	}
}

// paused reports whether a pause that does not ramp up covers the target.
func (s *Service) paused(target statemachine.Target) bool {
	if s.around.Pause == nil {
		return false
	}
	pause := s.around.Pause(target)
	return pause != nil && pause.State == statemachine.ScopePaused
}

// unpolled reports whether no worker has polled for such work within [statemachine.PollPatience].
func (s *Service) unpolled(t *Traits, now time.Time) bool {
	if s.around.LastPoll == nil {
		return false
	}
	at, _ := s.around.LastPoll(ledger.WorkKind{Service: t.Service, StepType: t.StepType}, t.TenantID)
	return !at.IsZero() && now.Sub(at) > statemachine.PollPatience
}

// kindOf returns the kind of work by which workers claim the step.
func kindOf(step *statemachine.Step) ledger.WorkKind {
	return ledger.WorkKind{Service: step.Service, StepType: step.Type}
}
