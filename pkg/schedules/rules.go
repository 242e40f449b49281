package schedules

import (
	"time"

	"github.com/lucius-project/lucius/pkg/schedules/calendar"
)

const (
	// onTime is how old an occurrence may be to be fired whatever the policy. Ages begin when its jitter is over.
	onTime = 60 * time.Second
	// startWindow is how long an occurrence is tried that is refused for a passing reason, unless the next one comes
	// earlier.
	startWindow = 10 * time.Minute
	// perPass is how many occurrences a pass decides one by one.
	perPass = 32
)

// step is one occurrence of a pass: it is fired, or recorded as missed.
type step struct {
	at     time.Time
	fire   bool
	detail string // why it is missed
}

// pass is what is to be done with the occurrences that are due, in order.
type pass struct {
	// many stands for the missed occurrences from many.From to many.ScheduledFor, in one row; nil if there are none.
	many  *Fire
	steps []step
}

// due returns what is to be done at that time. Occurrences are due once their jitter is over, or at their time if all is to be
// settled before a change.
//
//	invariant: the occurrences of a pass are consecutive, and the first is head.Next
func (sc *stored) due(cal *calendar.Calendar, now time.Time, settle bool) (p pass) {
	def, next := &sc.def, sc.Next
	horizon := now.Add(-max(def.CatchUp.Window, startWindow) - def.Jitter).Truncate(time.Second)
	if !next.IsZero() && !next.After(horizon) && !next.Equal(sc.Trying) {
		p.many = &Fire{From: next, ScheduledFor: horizon}
		next, _ = cal.Next(horizon)
	}
	var times []time.Time
	for !next.IsZero() && !next.After(now) {
		if !settle && next.Add(calendar.Jitter(sc.id, next, def.Jitter)).After(now) {
			break
		}
		times = append(times, next)
		if next.Equal(sc.Trying) && !next.After(horizon) { // Those after it are for the next pass.
			break
		}
		next, _ = cal.Next(next)
	}
	for i, at := range times {
		one := step{at: at, detail: "was not fired in time"}
		age := now.Sub(at) - calendar.Jitter(sc.id, at, def.Jitter) // Negative if a change settles it before its jitter is over.
		switch {
		case at.Equal(sc.Trying) && !now.Before(sc.tryUntil(cal)):
			one.detail = "was refused until its start window was over: " + sc.TryDetail
		case age <= onTime, at.Equal(sc.Trying):
			one.fire = true
		case age > def.CatchUp.Window: // It may have been within the window at an earlier try.
		case def.CatchUp.Policy == CatchUpAll, def.CatchUp.Policy == CatchUpLast && i == len(times)-1:
			one.fire = true
		}
		p.add(one, !one.fire && age > startWindow && !at.Equal(sc.Trying))
	}
	if many := p.many; many != nil && many.From.Equal(many.ScheduledFor) {
		p.many, p.steps = nil, append([]step{{at: many.From, detail: "was not fired in time"}}, p.steps...)
	}
	p.steps = p.steps[:min(len(p.steps), perPass)]
	return p
}

// add adds an occurrence. Missed ones before all others share a row if they are so old that no process fires them any more.
func (p *pass) add(one step, old bool) {
	switch {
	case !old || len(p.steps) > 0:
		p.steps = append(p.steps, one)
	case p.many == nil:
		p.many = &Fire{From: one.at, ScheduledFor: one.at}
	default:
		p.many.ScheduledFor = one.at
	}
}

// tryUntil returns when the occurrence that is being tried is missed.
func (sc *stored) tryUntil(cal *calendar.Calendar) time.Time {
	window := startWindow
	if next, ok := cal.Next(sc.Trying); ok {
		window = min(window, next.Sub(sc.Trying))
	}
	return sc.TryingSince.Add(window)
}

// tryDelay returns the delay of a further try.
func tryDelay(tries int) time.Duration {
	return min(time.Second<<min(tries, 6), time.Minute)
}
