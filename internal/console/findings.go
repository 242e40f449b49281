package console

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
)

// situation is what the API says of all that may need an operator.
type situation struct {
	now      time.Time
	overview *api.Overview // nil for a user who may not see all tenants
	services []api.Service
	pauses   []api.Pause
	stuck    []api.StuckJob
	tenants  []tenantSituation
	warnings []string
	unready  string // why the server serves no requests
	protocol string // of whose jobs alone the services' figures are, empty for all

	unmatched []api.UnmatchedWorker // that poll for nothing that exists
}

// tenantSituation is what failed for a tenant, empty for all of them.
type tenantSituation struct {
	Tenant   string
	Failures api.FailureList
	Webhooks api.WebhookPage
}

// finding is something that needs an operator, as a sentence.
type finding struct {
	// ID names what it is about, whatever the figures. Optional: without it a live page may
	// turn it into another one. It is unique on its page.
	ID string
	// Level is bad if jobs fail or stand still, and warn if they will.
	Level string
	// Weight ranks findings of a level: about how many jobs it holds up.
	Weight int
	// Subject: Text and, if Since is set, how long ago that is, say what is wrong, for
	// whom, how bad.
	Subject, Text string
	Word          string // The same in a word or two, for the flow.
	Since         api.Time
	Notes         []note // What else helps to judge it.
	Spark         sparkline
	Links         []helpful
}

// note is a text, followed by the time since At, if it is set.
type note struct {
	Text string
	At   api.Time
	Ago  bool
	In   bool
}

// helpful is a link of a finding: the action that helps first.
type helpful struct {
	Text, URL string
	Action    bool // It opens a form.
}

const (
	levelBad  = "bad"
	levelWarn = "warn"
	levelHere = "here" // of a place in the flow: a job is there

	wordNoWorker = "no worker"
)

const (
	// historyMinutes are the minutes that the API is asked for.
	historyMinutes = 60
	// silentWorkers is after what time without a poll a service has no worker, as for
	// the API's waiting reason no_worker.
	silentWorkers = time.Minute
	// oldBacklog is how long a directive may wait for a worker that polls.
	oldBacklog = 5 * time.Minute
	// growthMinutes is over how long a backlog must grow, by growthLeast or more.
	growthMinutes = 10
	growthLeast   = 100
	// Of the attempts of recentMinutes, failuresLeast and failingShare of all have to
	// fail, or fewer if that is failingFactor times the share of the rest of the hour.
	recentMinutes  = 10
	failuresLeast  = 6
	failingShare   = 0.25
	unusualShare   = 0.05
	failingFactor  = 3
	latePublish    = 30 * time.Second
	stalledPublish = 5 * time.Minute
	mostGroups     = 5
	mostStuck      = 5
)

// findings returns what needs an operator, the worst first.
func findings(s *situation) (found []finding) {
	if s.unready != "" {
		found = append(found, finding{Level: levelBad, Weight: 1 << 30, Subject: "The server", Text: "is not ready: " + s.unready})
	}
	for i := range s.services {
		found = append(found, s.serviceFindings(&s.services[i])...)
	}
	found = append(found, s.unmatchedFindings()...)
	found = append(found, s.serverFindings()...)
	found = append(found, s.pauseFindings()...)
	for i := range s.tenants {
		found = append(found, s.failureFindings(&s.tenants[i])...)
		found = append(found, webhookFindings(&s.tenants[i])...)
	}
	found = append(found, s.warningFindings()...)
	slices.SortStableFunc(found, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.Level, b.Level), cmp.Compare(b.Weight, a.Weight)) // bad comes before warn.
	})
	known := map[string]int{}
	for i := range found {
		f := &found[i]
		about := f.Text
		if len(f.Links) > 0 {
			about = f.Word + " " + f.Links[0].URL
		}
		known[about]++
		f.ID = fmt.Sprintf("finding-%x-%d", sha256.Sum224([]byte(about)), known[about])
	}
	return found
}

// serviceFindings returns what is wrong with the work of a service.
func (s *situation) serviceFindings(of *api.Service) (found []finding) {
	queue := s.overview == nil || s.overview.Bus == api.BusQueue
	polled := lastPoll(of)
	silent := s.now.Sub(polled.Time) > silentWorkers
	busy := of.Claimed+of.Running > 0
	waits := counted(of.Backlog, "directive waits", "directives wait")
	backlog := finding{
		Level: levelWarn, Weight: of.Backlog, Subject: s.kindName(of) + ":", Word: wordNoWorker, Spark: sparklineOf(of.BacklogByMinute),
		Links: []helpful{
			{Text: "Show the service", URL: pathOf("services", of.Service)},
			{Text: "Show the jobs", URL: link("jobs", "service", of.Service)},
			{Text: "Pause " + of.Service + "…", URL: link("do/dispatch-pause", "service", of.Service), Action: true},
		},
	}
	if !of.OldestWaitingAt.IsZero() {
		backlog.Notes = []note{{Text: "the oldest waits for", At: of.OldestWaitingAt}}
	}
	growth := growthOf(of.BacklogByMinute)
	old := of.OldestWaitingSeconds >= oldBacklog.Seconds()
	switch {
	case of.Backlog == 0:
	case queue && silent && !busy && polled.IsZero() && (old || of.OldestWaitingSeconds >= silentWorkers.Seconds()):
		backlog.Level, backlog.Text = levelBad, waits+", and no worker has polled within the hour"
		found = append(found, backlog)
	case queue && silent && !busy && !polled.IsZero():
		backlog.Level, backlog.Text, backlog.Since = levelBad, waits+", and no worker has polled for", polled
		backlog.Notes = append(backlog.Notes, note{Text: "the last one was " + of.Workers[0].Owner})
		found = append(found, backlog)
	case !queue && old && !busy && of.Attempts.LastMinute.Count == 0:
		backlog.Level, backlog.Text, backlog.Word = levelBad, waits+" for an ACK, and nothing runs", "no ACK"
		found = append(found, backlog)
	case growth >= max(growthLeast, of.Backlog/2):
		backlog.Text = fmt.Sprintf("%s, up by %s within %d minutes", waits, number(growth), growthMinutes)
		backlog.Word, backlog.Notes = "grows", append(backlog.Notes, s.atWork(of))
		found = append(found, backlog)
	case old:
		backlog.Text, backlog.Since = waits+", the oldest for", of.OldestWaitingAt
		backlog.Word, backlog.Notes = "slow", []note{s.atWork(of), drains(of)}
		found = append(found, backlog)
	}
	return append(found, s.errorFindings(of)...)
}

// unmatchedFindings says which workers poll for nothing that exists.
func (s *situation) unmatchedFindings() []finding {
	if len(s.unmatched) == 0 {
		return nil
	}
	last := &s.unmatched[0]
	f := finding{
		Level: levelWarn, Weight: len(s.unmatched), Subject: "Worker " + last.Owner,
		Text:  "polls, but no protocol has " + cmp.Or(strings.Join(last.Services, ", "), strings.Join(last.StepTypes, ", ")),
		Notes: []note{{Text: "its last poll", At: last.LastPollAt, Ago: true}},
		Links: []helpful{{Text: "Show the services", URL: link("services")}},
	}
	if more := len(s.unmatched) - 1; more > 0 {
		f.Notes = append(f.Notes, note{Text: counted(more, "other worker does", "other workers do") + " the like"})
	}
	return []finding{f}
}

// lastPoll is when a worker of the service last asked for work, zero if none did within
// the hour.
func lastPoll(of *api.Service) api.Time {
	if len(of.Workers) == 0 {
		return api.Time{}
	}
	return of.Workers[0].LastPollAt
}

// atWork says how many workers do what.
func (s *situation) atWork(of *api.Service) note {
	text := number(of.Claimed+of.Running) + " under way"
	if of.WorkersTotal > 0 {
		text = counted(of.WorkersTotal, "worker", "workers") + ", " + text
	}
	return note{Text: text}
}

// drains says when the backlog is done, by the attempts that end now.
func drains(of *api.Service) note {
	rate := of.Attempts.LastMinute.PerSecond
	if rate == 0 {
		return note{Text: "no attempt has ended in the last minute"}
	}
	return note{Text: "done in about " + duration(seconds(float64(of.Backlog)/rate)) + " if nothing new arrives"}
}

// growthOf is by how much the backlog has grown over the last minutes.
func growthOf(levels []int) int {
	if len(levels) <= growthMinutes {
		return 0
	}
	return levels[len(levels)-1] - levels[len(levels)-1-growthMinutes]
}

// kindName names the service, with the step type if it has several.
func (s *situation) kindName(of *api.Service) string {
	for i := range s.services {
		if other := &s.services[i]; other.Service == of.Service && other.StepType != of.StepType {
			return of.Service + " " + of.StepType
		}
	}
	return of.Service
}

// errorFindings says that a service fails more often than it may, or than it does
// usually.
func (s *situation) errorFindings(of *api.Service) []finding {
	by := of.Attempts.ByMinute
	if by == nil || len(by.Counts) <= recentMinutes || len(by.Failed) != len(by.Counts) {
		return nil
	}
	before := len(by.Counts) - recentMinutes
	all, failed := sum(by.Counts[before:]), sum(by.Failed[before:])
	usually := share(sum(by.Failed[:before]), sum(by.Counts[:before]))
	now := share(failed, all)
	bad := now >= failingShare
	if failed < failuresLeast || !bad && (now < unusualShare || now < failingFactor*usually) {
		return nil
	}
	f := finding{
		Level: levelWarn, Weight: failed, Subject: s.kindName(of), Word: percent(now) + " fail", Spark: sparklineOf(by.Failed),
		Text: fmt.Sprintf("has failed %s of its attempts for", percent(now)), Since: s.failingSince(by, now/2),
		Links: []helpful{
			{Text: "See why", URL: link("failures", "service", of.Service)},
			{Text: "Pause " + of.Service + "…", URL: link("do/dispatch-pause", "service", of.Service), Action: true},
		},
	}
	if bad {
		f.Level = levelBad
	}
	f.Notes = append(f.Notes, note{Text: fmt.Sprintf("%s of %s within %d minutes, usually %s",
		number(failed), number(all), recentMinutes, percent(usually))})
	if p := of.DurationSeconds; p.Count > 0 {
		f.Notes = append(f.Notes, note{Text: "p95 " + duration(seconds(p.P95))})
	}
	last := len(by.Counts) - 1
	for last >= 0 && by.Counts[last] == by.Failed[last] {
		last--
	}
	switch ago := len(by.Counts) - 1 - last; {
	case last < 0:
		f.Notes = append(f.Notes, note{Text: "no success within the hour"})
	case ago > 0:
		f.Notes = append(f.Notes, note{Text: "last success " + counted(ago, "minute", "minutes") + " ago"})
	}
	return []finding{f}
}

// failingSince is when the minutes began in each of which that share or more failed.
func (s *situation) failingSince(by *api.MinuteCounts, from float64) api.Time {
	first := len(by.Counts) - 1
	for i := first; i >= 0; i-- {
		switch {
		case by.Counts[i] == 0: // It says nothing.
		case share(by.Failed[i], by.Counts[i]) >= from:
			first = i
		case i < len(by.Counts)-2: // The present minute is too short to judge by, and so may be the one before.
			i = 0
		}
	}
	return api.NewTime(s.now.Truncate(time.Minute).Add(time.Duration(first-len(by.Counts)+1) * time.Minute))
}

func sum(counts []int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

func share(part, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}

// serverFindings says what is wrong with the server as a whole.
func (s *situation) serverFindings() (found []finding) {
	if s.overview == nil {
		return nil
	}
	o := s.overview
	for i := range o.Circuits {
		c := &o.Circuits[i]
		what := "Topic " + c.Name
		if c.Name == "*" || c.Name == "bus" {
			what = "The whole bus"
		}
		found = append(found, finding{
			Level: levelBad, Weight: o.Jobs[string(api.JobStateDispatching)], Subject: what, Word: "circuit " + string(c.State),
			Text: "is out of service, its circuit " + string(c.State) + ", for", Since: c.Since,
			Notes: []note{{Text: c.Reason}, {Text: "directives wait, and spend no retry budget"}},
			Links: []helpful{{Text: "Show the outbox", URL: link("outbox", "state", "PENDING")}},
		})
	}
	if n := o.Stuck.Count; n > 0 {
		f := finding{
			Level: levelBad, Weight: 1000 * n,
			Subject: counted(n, "job stands still", "jobs stand still"), Text: "and cannot continue without help",
			Notes: []note{{Text: "found by the reconciler among " + counted(o.Stuck.Checked, "live job", "live jobs")}},
			Links: []helpful{{Text: "Show them", URL: link("stuck")}},
		}
		for _, job := range s.stuck[:min(len(s.stuck), mostStuck)] {
			f.Links = append(f.Links, helpful{Text: shortID(job.JobID), URL: pathOf("jobs", job.JobID)})
			f.Notes = append(f.Notes, note{Text: job.Reason})
		}
		found = append(found, f)
	}
	if at := o.OldestPendingSeconds; at != nil && *at >= latePublish.Seconds() && len(o.Pauses)+len(o.Circuits) == 0 {
		f := finding{
			Level: levelWarn, Weight: o.Jobs[string(api.JobStateDispatching)], Subject: "The outbox", Word: "late",
			Text:  "is late: its oldest directive has been due for " + duration(seconds(*at)),
			Notes: []note{{Text: "check that a process with the role relay runs, and its log"}},
			Links: []helpful{{Text: "Show the outbox", URL: link("outbox", "state", "PENDING")}},
		}
		if *at >= stalledPublish.Seconds() {
			f.Level = levelBad
		}
		found = append(found, f)
	}
	if n := o.Jobs[string(api.JobStatePaused)] + o.Jobs[string(api.JobStatePausing)]; n > 0 {
		f := finding{
			Level: levelWarn, Weight: n, Subject: counted(n, "job is paused", "jobs are paused"),
			Text: "one by one, until they are resumed",
		}
		if n == 1 {
			f.Text = "on its own, until it is resumed"
		}
		for _, state := range []api.JobState{api.JobStatePaused, api.JobStatePausing} {
			show := helpful{Text: "Show the jobs", URL: link("jobs", "state", state)}
			if in := o.Jobs[string(state)]; in == 0 {
				continue
			} else if in < n {
				show.Text = fmt.Sprintf("Show the %s %s", number(in), state)
			}
			f.Links = append(f.Links, show)
		}
		found = append(found, f)
	}
	return found
}

// pauseFindings says what dispatch is paused.
func (s *situation) pauseFindings() (found []finding) {
	for i := range s.pauses {
		p := &s.pauses[i]
		if p.State != api.PauseStatePaused {
			continue // It ends by itself.
		}
		f := finding{
			Level: levelWarn, Subject: titled(pausedScope(p)), Text: "is paused for", Since: p.CreatedAt,
			Notes: []note{{Text: "by " + p.Actor + ": “" + p.Reason + "”"}},
			Links: []helpful{{Text: "Resume…", URL: link("do/dispatch-resume", "pause", p.PauseID), Action: true}},
		}
		if !p.Until.IsZero() {
			f.Notes = append([]note{{Text: "resumes by itself", At: p.Until, In: true}}, f.Notes...)
		}
		known := p.Waiting != nil
		if known {
			f.Weight = *p.Waiting
		} else if p.Service != "" || p.PauseID == "all" { // Of the others the counts are not divided so.
			known = true
			for j := range s.services {
				if of := &s.services[j]; p.Service == "" || p.Service == of.Service {
					f.Weight += of.Backlog + of.Dispatching
				}
			}
		}
		if known {
			f.Notes = append([]note{{Text: counted(f.Weight, "directive waits", "directives wait")}}, f.Notes...)
		}
		if p.TenantID != "" {
			f.Links = append(f.Links, helpful{Text: "Show the jobs", URL: link("jobs", "tenant_id", p.TenantID)})
		}
		found = append(found, f)
	}
	return found
}

// failureFindings says which jobs failed for good, and were not rerun.
func (s *situation) failureFindings(of *tenantSituation) (found []finding) {
	more, rest := 0, 0
	for i := range of.Failures.Groups {
		g := &of.Failures.Groups[i]
		if g.Resolved {
			continue
		}
		if len(found) == mostGroups {
			more, rest = more+1, rest+g.Count
			continue
		}
		links := failureGroupOf(&selection{OperationFilter: api.OperationFilter{TenantID: of.Tenant}}, g)
		text := "failed for good at " + cmp.Or(g.Service, "no service") + ": " + cmp.Or(brief(g.ErrorCode, briefCode), "no error code")
		if of.Tenant != "" {
			text += ", of tenant " + of.Tenant
		}
		f := finding{
			Level: levelWarn, Weight: g.Count, Subject: counted(g.Count, "job", "jobs"), Text: text,
			Notes: []note{{Text: "first", At: g.FirstAt, Ago: true}, {Text: "last", At: g.LastAt, Ago: true}},
			Links: []helpful{
				{Text: "Retry " + number(g.Count) + "…", URL: links.Retry, Action: true}, {Text: "Show the jobs", URL: links.Jobs},
			},
			Spark: sparklineOf(g.Histogram),
		}
		if s.now.Sub(g.LastAt.Time) < time.Hour {
			f.Level = levelBad
		}
		found = append(found, f)
	}
	if more > 0 {
		found = append(found, finding{
			Level: levelWarn, Weight: 0, Subject: counted(rest, "job", "jobs"),
			Text:  "failed for good for " + counted(more, "other reason", "other reasons"),
			Links: []helpful{{Text: "Show all failures", URL: link("failures", "tenant_id", of.Tenant)}},
		})
	}
	return found
}

// webhookFindings says how many webhooks were not delivered.
func webhookFindings(of *tenantSituation) []finding {
	hooks := of.Webhooks.Webhooks
	if len(hooks) == 0 {
		return nil
	}
	subject := counted(len(hooks), "webhook was", "webhooks were")
	if of.Webhooks.NextPageToken != "" {
		subject = "More than " + subject
	}
	last := &hooks[0]
	f := finding{
		Level: levelWarn, Weight: len(hooks), Subject: subject, Text: "given up without being delivered",
		Notes: []note{
			{Text: "the last", At: last.UpdatedAt, Ago: true},
			{Text: "to " + brief(last.URL, briefMessage) + ": " + cmp.Or(brief(last.LastError, briefMessage), string(last.State))},
		},
		Links: []helpful{{Text: "Show the webhooks", URL: link("webhooks", "tenant_id", of.Tenant)}},
	}
	if of.Tenant != "" {
		f.Text += ", of tenant " + of.Tenant
	}
	return []finding{f}
}

// warningFindings says of what else the server warns.
func (s *situation) warningFindings() (found []finding) {
	for _, warning := range s.warnings {
		if s.overview != nil && slices.ContainsFunc([]string{"the circuit of ", "dispatch of ", "jobs are stuck", "an outbox row has"},
			func(known string) bool { return strings.HasPrefix(warning, known) }) {
			continue // The overview says more of it.
		}
		f := finding{Level: levelWarn, Subject: "The server", Text: "warns: " + warning}
		if strings.Contains(warning, "no writes are taken") {
			f.Level, f.Weight = levelBad, 1<<29
		}
		if strings.Contains(warning, deadLettersWarning) {
			f.Links = []helpful{{Text: "Show the dead letters", URL: link("outbox") + "#dead-letters"}}
		}
		if strings.Contains(warning, "of the inbox") {
			f.Links = []helpful{{Text: "Show the inbox", URL: link("inbox")}}
		}
		found = append(found, f)
	}
	return found
}
