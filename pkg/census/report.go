package census

import (
	"cmp"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// Report holds the counts of a census. The caller owns it.
type Report struct {
	// Exact says that the numbers of jobs and of active steps are current and exact.
	// Otherwise they are approximate, as of AsOf.
	Exact bool
	AsOf  time.Time
	// Since is when counting began, and Complete since when no event is missing: the last
	// crash loses what its process had not stored. Several processes learn of the crash of
	// one of them within 31 minutes.
	Since, Complete time.Time

	Jobs     map[statemachine.JobState]int // live jobs
	Accepted Rates                         // jobs
	Refused  Rates                         // commands; all count as failures
	// Published counts the publishes of directives. Those that the bus rejected are
	// failures; those that failed during an outage do not count.
	Published Rates
	Started   Rates // attempts
	Ended     map[statemachine.JobState]Rates
	// OldestJob is when the oldest live job was accepted, OldestRunning when the
	// longest-running step was started, and NextRetry when the next step in backoff is due;
	// zero if there is none.
	OldestJob, OldestRunning, NextRetry time.Time
	Services                            []Service // sorted by service and step type
}

// Rates says how often something happened.
type Rates struct {
	Minute Rate // over the current minute and the one before
	Hour   Rate // over the current minute and the 60 before
	Total  int64

	window *window
	now    time.Time
}

// ByMinute returns how often it happened in each of the last n minutes, at most 60, and how
// often it was a failure. The last entry is the current minute so far.
func (r Rates) ByMinute(n int) (all, failed []int) { return r.window.minutes(r.now, n) }

// Service holds the counts of one kind of work.
type Service struct {
	ledger.WorkKind

	// The active steps, by what they wait for: their publish, a worker, the start by the
	// worker that claimed them, the RESULT, the time of their next attempt.
	Dispatching, Queued, Claimed, Running, Backoff int
	// Oldest is when the oldest queued step was published.
	Oldest time.Time
	// Attempts counts the attempts that ended with a RESULT or a deadline.
	Attempts Rates
	// Took is the time from the start to the RESULT, and Waited the time from the publish to
	// the claim or, without a claim, to the ACK.
	Took, Waited Percentiles
	// Workers are the workers that polled for such work in the last hour, the most recent
	// first.
	Workers []workqueue.Poller

	queued changes
	now    time.Time
}

// QueuedByMinute returns how many steps were queued at the end of each of the last n
// minutes, at most 60. The last entry is the current minute.
func (s *Service) QueuedByMinute(n int) []int { return s.queued.levels(s.now, n, s.Queued) }

// Report returns the counts without reading the store. Its services include these kinds of
// work even if nothing was counted for them.
func (c *Census) Report(kinds ...ledger.WorkKind) *Report { return c.ReportOf("", kinds...) }

// ReportOf is [Census.Report], but if the protocol is not empty, its services count only the
// steps of that protocol's jobs. It then leaves out kinds that may be counted as [Other].
func (c *Census) ReportOf(protocol string, kinds ...ledger.WorkKind) *Report {
	now, pollers := tablestore.Now(), c.pollers()
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := newSheet(now)
	sum.add(c.own)
	out := &Report{Exact: c.exact, AsOf: now, Ended: map[statemachine.JobState]Rates{}, Jobs: map[statemachine.JobState]int{}}
	switch {
	case !c.cfg.Exclusive:
		sum.add(c.base)
		out.AsOf = cmp.Or(c.base.AsOf, c.own.Since)
		for _, other := range c.others {
			sum.add(other)
			sum.lose(other.crashed(now))
			recent := now.Sub(other.AsOf) <= freshSheet
			for _, poller := range other.Pollers {
				poller.Waiting = poller.Waiting && recent
				pollers = append(pollers, poller)
			}
			if recent && other.AsOf.Before(out.AsOf) { // An older sheet has not changed since, or its process has ended.
				out.AsOf = other.AsOf
			}
		}
	case !c.exact:
		out.AsOf = cmp.Or(c.asOf, c.own.Since)
	}
	out.Complete = sum.Since
	if sum.Lost.After(sum.Since) {
		out.Complete = sum.Lost
	}
	out.Since, out.Accepted, out.Refused = sum.Since, sum.Accepted.rates(now, sum.Since), sum.Refused.rates(now, sum.Since)
	out.Published, out.Started = sum.Publish.rates(now, sum.Since), sum.Started.rates(now, sum.Since)
	out.OldestJob, out.OldestRunning, out.NextRetry = sum.Live.Created.oldest(), sum.Live.Running.oldest(), sum.Live.Retries.oldest()
	for _, state := range statemachine.JobStates {
		if !state.Terminal() {
			out.Jobs[state] = max(sum.Live.Jobs[state], 0)
		} else if w := sum.Ended[state]; w != nil {
			out.Ended[state] = w.rates(now, sum.Since)
		} else {
			out.Ended[state] = new(window).rates(now, sum.Since)
		}
	}
	pollers = slices.DeleteFunc(pollers, func(p workqueue.Poller) bool { return now.Sub(p.LastPoll) > hour })
	for _, known := range kinds {
		of := kind{protocol, known.Service, known.StepType}
		if protocol == "" || sum.Live.Steps[of.other()] == nil && sum.Attempts[of.other()] == nil {
			entry(sum.Live.Steps, of)
		}
	}
	out.Services = sum.services(protocol, now, pollers)
	return out
}

func (w *window) rates(now, since time.Time) Rates {
	return Rates{Minute: w.rate(now, since, 1), Hour: w.rate(now, since, keepMinutes), Total: w.Total.All, window: w, now: now}
}

// EndRate returns how many attempts of the kind ended per second, over the current minute and
// the one before.
func (c *Census) EndRate(of ledger.WorkKind) float64 {
	now := tablestore.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	ended, since := new(window), now
	for _, s := range append([]*sheet{c.own, c.base}, c.others...) {
		if s.Since.Before(since) {
			since = s.Since
		}
		if a := s.Attempts[everywhere(of)]; a != nil {
			ended.add(&a.window)
		}
	}
	return ended.rate(now, since, 1).PerSecond()
}

// services returns the sheet's counts of each kind of work of the protocol.
func (s *sheet) services(protocol string, now time.Time, pollers []workqueue.Poller) []Service {
	for kind := range s.Attempts {
		entry(s.Live.Steps, kind)
	}
	found := make([]Service, 0, len(s.Live.Steps))
	for kind, steps := range s.Live.Steps {
		if kind.Protocol != protocol {
			continue
		}
		of := Service{WorkKind: kind.work(), Attempts: new(window).rates(now, s.Since), now: now}
		for phase, into := range map[phase]*int{
			phaseDispatching: &of.Dispatching, phaseQueued: &of.Queued, phaseClaimed: &of.Claimed,
			phaseRunning: &of.Running, phaseBackoff: &of.Backoff,
		} {
			*into = max(steps.Phases[phase], 0)
		}
		if of.Queued > 0 {
			of.Oldest = steps.Queued.oldest()
		}
		if a := s.Attempts[kind]; a != nil {
			of.Attempts, of.queued = a.rates(now, s.Since), a.Queued
			of.Took, of.Waited = a.Took.percentiles(now), a.Waited.percentiles(now)
		}
		found = append(found, of)
	}
	slices.SortFunc(found, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.StepType, b.StepType))
	})
	slices.SortStableFunc(pollers, func(a, b workqueue.Poller) int { return b.LastPoll.Compare(a.LastPoll) })
	for i := range found {
		for j := range pollers {
			if pollers[j].CoversKind(found[i].WorkKind) {
				found[i].Workers = append(found[i].Workers, pollers[j])
			}
		}
	}
	return found
}
