package search

import (
	"cmp"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// CountsReport holds what [Counts] has counted. The caller owns it.
type CountsReport struct {
	// Exact says that the numbers of jobs and of active steps are current and exact.
	// Otherwise they are those of a walk, as of AsOf.
	Exact bool
	AsOf  time.Time
	// Since is when counting began, and Complete since when no event is missing: a crash
	// loses what its process had not stored, and totals lack the events of a process that
	// ended two hours ago. Other processes learn of a crash within 31 minutes.
	Since, Complete time.Time
	// DaySince is when the last day began, of which durations and ends are counted: 24 to 28 hours ago, or
	// when that counting began, if that was later.
	DaySince time.Time

	Jobs     map[statemachine.JobState]int // live jobs
	Parked   int                           // of them, those that wait for their date
	InLine   int                           // and those that wait for their line alone
	Accepted Rates                         // jobs
	Refused  Rates                         // commands; all count as failures
	// Published counts the publishes of directives. Those that the bus rejected are
	// failures; those that failed during an outage do not count.
	Published Rates
	Started   Rates                           // attempts
	Ended     map[statemachine.JobState]Rates // of the report's protocol, or of all
	InDay     map[statemachine.JobState]int   // of Ended, those since DaySince
	// OldestJob is when the oldest live job that does not wait for its date was accepted, OldestRunning when the
	// longest-running step was started, and NextRetry when the next step in backoff is due;
	// zero if there is none.
	OldestJob, OldestRunning, NextRetry time.Time
	Services                            []ServiceCounts // sorted by service and step type
	// Tenants are the 100 with the most steps, the busiest first. A report of one protocol has none.
	Tenants []TenantCounts
	// Unmatched are the workers whose last poll, within the hour, was for work of none of the
	// Services, the most recent first. A report of one protocol has none.
	Unmatched []workqueue.Poller
}

// Rates says how often something happened.
type Rates struct {
	Minute Rate // over the current minute and the one before
	Hour   Rate // over the current minute and the 60 before
	Total  int64

	window     *window
	now, since time.Time
}

// ByMinute returns how often it happened in each of the last n minutes, at most 60, and how
// often it was a failure. The last entry is the current minute so far. There are fewer entries if
// counting began later.
func (r Rates) ByMinute(n int) (all, failed []int) {
	return r.window.minutes(r.now, counted(n, r.since, r.now))
}

// counted returns how many of the last n minutes were counted, the current one included.
func counted(n int, since, now time.Time) int {
	return max(min(n, int(now.UnixNano()/int64(minute)-since.UnixNano()/int64(minute))+1), 1)
}

// ServiceCounts holds the counts of one kind of work.
type ServiceCounts struct {
	ledger.WorkKind

	// The active steps, by what they wait for: their publish, a worker, the start by the
	// worker that claimed them, the RESULT, the time of their next attempt, the end of a pause.
	Dispatching, Queued, Claimed, Running, Backoff, Held int
	// HeldBy are those of Held by the id of the pause, the oldest one that covers them.
	HeldBy map[string]int
	// Oldest is when the oldest queued step was published.
	Oldest time.Time
	// Error is the most frequent error code of the active steps that failed and are retried, empty
	// if there are none, and Errors the number of those steps.
	Error  string
	Errors int
	// Attempts counts the attempts that ended with a RESULT or a deadline.
	Attempts Rates
	// Took is the time from the start to the RESULT, and Waited the time from the publish to
	// the claim or, without a claim, to the ACK, of the attempts of the last hour that this
	// process saw end or begin. TookInDay and WaitedInDay are of all processes, since DaySince.
	Took, Waited, TookInDay, WaitedInDay Percentiles
	// Workers are the workers that polled for such work in the last hour, the most recent
	// first.
	Workers []workqueue.Poller

	heldQueued int
	queued     window
}

// QueuedByMinute returns how many steps were queued, held by a pause or not, at the end of each
// of the last n minutes, at most 60. The last entry is the current minute. There are fewer entries
// if counting began later.
func (s *ServiceCounts) QueuedByMinute(n int) []int {
	n = counted(n, s.Attempts.since, s.Attempts.now)
	levels, present := make([]int, n), s.Queued+s.heldQueued
	changes, _ := s.queued.minutes(s.Attempts.now, n)
	for i := n - 1; i >= 0; i-- {
		levels[i] = max(present, 0)
		present -= changes[i]
	}
	return levels
}

// Report returns the counts without reading the store. Its services include these kinds of
// work even if nothing was counted for them.
func (c *Counts) Report(kinds ...ledger.WorkKind) *CountsReport { return c.ReportOf("", kinds...) }

// ReportOf is [Counts.Report], but if the protocol is not empty, its services and Ended count only
// that protocol's jobs. It then leaves out kinds that are counted as [Other].
func (c *Counts) ReportOf(protocol string, kinds ...ledger.WorkKind) *CountsReport {
	now, pollers := tablestore.Now(), c.pollers()
	c.mu.Lock()
	defer c.mu.Unlock()
	sum, live := newFigures(now), c.own.Live
	sum.add(c.own)
	for _, other := range c.others {
		sum.add(other)
		sum.lose(other.crashed(now))
		for _, poller := range other.Pollers {
			poller.Waiting = poller.Waiting && now.Sub(other.AsOf) <= fresh
			pollers = append(pollers, poller)
		}
		if other.Live != nil && (live == nil || other.Live.AsOf.After(live.AsOf)) {
			live = other.Live
		}
	}
	switch {
	case c.live.whole:
		live = c.live.gauges(now, c.cfg.Paused(), c.counted)
	case live == nil:
		live = &gauges{AsOf: c.own.Since}
	}
	out := &CountsReport{
		Exact: c.live.whole, AsOf: live.AsOf, Since: sum.Since, Complete: sum.Since,
		Ended: map[statemachine.JobState]Rates{}, InDay: map[statemachine.JobState]int{}, DaySince: beginOfDay(now, sum.DaySince),
		Jobs:   map[statemachine.JobState]int{},
		Parked: live.Parked, InLine: live.InLine,
		OldestJob: live.OldestJob, OldestRunning: live.OldestRunning, NextRetry: live.NextRetry,
		Accepted: sum.Accepted.rates(now, sum.Since), Refused: sum.Refused.rates(now, sum.Since),
		Published: sum.Publish.rates(now, sum.Since), Started: sum.Started.rates(now, sum.Since),
	}
	if sum.Lost.After(sum.Since) {
		out.Complete = sum.Lost
	}
	for _, state := range statemachine.JobStates {
		if state.Terminal() {
			of := ending{protocol, state}
			out.Ended[state] = entry(sum.Ended, of).rates(now, sum.Since)
			out.InDay[state] = c.endedInDay(of, now)
		} else {
			out.Jobs[state] = live.Jobs[state]
		}
	}
	for _, asked := range kinds {
		if of := c.bounded(kind{protocol, asked.Service, asked.StepType}); of.Protocol == protocol {
			entry(sum.Attempts, of)
		}
	}
	for of := range live.Steps {
		entry(sum.Attempts, of)
	}
	pollers = slices.DeleteFunc(pollers, func(p workqueue.Poller) bool { return now.Sub(p.LastPoll) > hour })
	slices.SortStableFunc(pollers, func(a, b workqueue.Poller) int { return b.LastPoll.Compare(a.LastPoll) })
	for of, ended := range sum.Attempts {
		if of.Protocol == protocol {
			out.Services = append(out.Services, c.service(of, ended, live.Steps[of], now, sum.Since, pollers))
		}
	}
	slices.SortFunc(out.Services, func(a, b ServiceCounts) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.StepType, b.StepType))
	})
	if protocol == "" {
		out.Unmatched, out.Tenants = unmatched(pollers, out.Services), slices.Clone(live.Tenants)
	}
	return out
}

// processes returns the figures of this process and of the others. The caller holds mu.
func (c *Counts) processes() []*figures { return append([]*figures{c.own}, c.others...) }

// endedInDay returns how many jobs ended in this way in the last day. The caller holds mu.
func (c *Counts) endedInDay(of ending, now time.Time) int {
	var all spread
	for _, f := range c.processes() {
		if ended := f.Ended[of]; ended != nil {
			all.add(ended.Day)
		}
	}
	return all.percentiles(now).Count
}

// unmatched returns the pollers, the latest first, whose last poll is for none of the services.
func unmatched(pollers []workqueue.Poller, services []ServiceCounts) (some []workqueue.Poller) {
	known := map[string]bool{}
	for _, poller := range pollers {
		matched := known[poller.Owner] || len(poller.Services)+len(poller.StepTypes) == 0
		known[poller.Owner] = true
		for i := 0; i < len(services) && !matched; i++ {
			matched = poller.CoversKind(services[i].WorkKind)
		}
		if !matched {
			some = append(some, poller)
		}
	}
	return some
}

// service returns the counts of one kind of work. The caller holds mu.
func (c *Counts) service(of kind, ended *attempts, steps *stepGauges, now, since time.Time, pollers []workqueue.Poller) ServiceCounts {
	s := ServiceCounts{WorkKind: of.work(), Attempts: ended.rates(now, since), queued: ended.Queued}
	if steps != nil {
		s.Dispatching, s.Queued, s.Claimed = steps.Phases[PhaseDispatching], steps.Phases[PhaseQueued], steps.Phases[PhaseClaimed]
		s.Running, s.Backoff, s.Oldest = steps.Phases[PhaseRunning], steps.Phases[PhaseBackoff], steps.Oldest
		s.Error, s.Errors = steps.Error, steps.Errors
		s.Held, s.HeldBy, s.heldQueued = steps.Phases[PhaseHeld], steps.HeldBy, steps.HeldQueued
	}
	if own := c.own.Attempts[of]; own != nil {
		s.Took, s.Waited = own.took.percentiles(now), own.waited.percentiles(now)
	}
	var took, waited spread
	for _, f := range c.processes() {
		if one := f.Attempts[of]; one != nil {
			took.add(one.DayTook)
			waited.add(one.DayWaited)
		}
	}
	s.TookInDay, s.WaitedInDay = took.percentiles(now), waited.percentiles(now)
	for i := range pollers {
		if pollers[i].CoversKind(s.WorkKind) {
			s.Workers = append(s.Workers, pollers[i])
		}
	}
	return s
}

func (w *window) rates(now, since time.Time) Rates {
	return Rates{
		Minute: w.rate(now, since, 1), Hour: w.rate(now, since, keepMinutes), Total: w.Total.All, window: w, now: now, since: since,
	}
}

// EndRate returns how many attempts of the kind ended per second, over the current minute and
// the one before.
func (c *Counts) EndRate(of ledger.WorkKind) float64 {
	now := tablestore.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	ended, since := new(window), now
	for _, f := range c.processes() {
		if f.Since.Before(since) {
			since = f.Since
		}
		if a := f.Attempts[everywhere(of)]; a != nil {
			ended.add(&a.window)
		}
	}
	return ended.rate(now, since, 1).PerSecond()
}
