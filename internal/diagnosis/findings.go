package diagnosis

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
)

// Situation is what the API says of all that may need an operator.
type Situation struct {
	Now      time.Time
	Overview *api.Overview // nil for a caller who may not see all tenants
	Services []api.Service
	// Unmatched are workers that poll for nothing that exists.
	Unmatched []api.UnmatchedWorker
	Pauses    []api.Pause
	Limits    []api.StartLimit // with closures
	Stuck     []api.StuckJob
	Tenants   []TenantSituation
	Warnings  []string
	Unready   string     // why the server serves no requests
	Marks     []api.Mark // what operators said of findings
	// Operations are the operations on many jobs, newest first.
	Operations []api.Operation
}

// Finding is a cause that needs an operator, with its symptoms.
type Finding struct {
	// ID identifies the cause and does not change with its figures; [Findings] returns no two with
	// the same id. Tenant is empty if the finding concerns all tenants.
	ID, Tenant string
	// Since is when it began, zero unless that is known exactly.
	Since time.Time
	// Service and ErrorCode are those of the cause. Optional.
	Service, ErrorCode string
	Quiet              bool // An operator has acknowledged or snoozed it.
	// Level is bad if jobs fail or stand still, minor if they may soon, and warn if an operator or a
	// limit holds them on purpose.
	Level string
	// Weight ranks findings of a level: about how many jobs it holds up.
	Weight int
	// Subject and Text say what is wrong, for whom, how bad.
	Subject string
	Text    Sentence
	// Word is the same in a word or two, for a diagram. Optional.
	Word     string
	Notes    []Sentence // What else helps to judge it.
	ByMinute []int      // Counts by minute, for a chart.
	Actions  []Action   // The one that helps first comes first.
	Mark     Action     // Acknowledges or reopens the finding, for all users.
}

// Action is something to look at or to do about a finding: a page of the console, and a command.
type Action struct {
	Text string
	// Page is the path of a page of the console, and Query its parameters: names and values.
	Page  string
	Query []any
	// Form reports whether the page is a form that changes something.
	Form bool
	// Command is the command line that shows or does the same. Optional.
	Command string
}

// The levels of findings. In this order, the worst comes first.
const (
	LevelBad   = "bad"
	LevelMinor = "minor"
	LevelWarn  = "warn"
)

// WordNoWorker is the word of a finding that a service has no worker.
const WordNoWorker = "no worker"

// DeadLettersWarning is in the server's warning of dead letters.
const DeadLettersWarning = "dead letters"

// The bounds of findings.
const (
	// HistoryMinutes are the minutes that the API is asked for.
	HistoryMinutes = 60
	// silentWorkers is after what time without a poll a service has no worker, as for
	// the API's waiting reason no_worker.
	silentWorkers = time.Minute
	// oldBacklog is how long a directive may wait for a worker that polls.
	oldBacklog = 5 * time.Minute
	// growthMinutes is over how long a backlog must grow, by growthLeast or more.
	growthMinutes = 10
	growthLeast   = 100
	// FailuresLeast and FailingShare are how many, and what share of all, must fail to be a
	// finding: of a service's attempts within recentMinutes, or a share of unusualShare if that
	// is failingFactor times the share before. A finding ends when the share falls below half of that.
	FailuresLeast  = 6
	FailingShare   = 0.25
	recentMinutes  = 10
	unusualShare   = 0.05
	failingFactor  = 3
	latePublish    = 30 * time.Second
	stalledPublish = 5 * time.Minute
	mostGroups     = 5
	mostHeld       = 100
	mostBlocked    = 100
	mostStuck      = 5
	// mostLost is how many schedules are read that lost occurrences, and mostLosers up to how many each is a finding.
	mostLost   = 100
	mostLosers = 5
)

// Findings returns what needs an operator, the worst first. Acknowledged and snoozed findings come last.
func Findings(s *Situation) (found []Finding) {
	if s.Unready != "" {
		found = append(found, Finding{
			ID: "unready", Level: LevelBad, Weight: 1 << 30, Subject: "The server", Text: say("is not ready: ", s.Unready),
		})
	}
	found = append(found, s.ServerFindings()...)
	for i := range s.Services {
		found = append(found, s.ServiceFindings(&s.Services[i])...)
	}
	found = append(found, s.unmatchedFindings()...)
	found = append(found, s.PauseFindings()...)
	found = append(found, s.LimitFindings()...)
	for i := range s.Tenants {
		found = append(found, s.failureFindings(&s.Tenants[i])...)
		found = append(found, webhookFindings(&s.Tenants[i])...)
		found = append(found, s.heldFindings(&s.Tenants[i])...)
		found = append(found, s.blockedFindings(&s.Tenants[i])...)
		found = append(found, lostFindings(&s.Tenants[i])...)
	}
	found = Fold(append(found, s.warningFindings()...))
	for i := range found {
		s.annotate(&found[i])
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(quiet(&a), quiet(&b)), strings.Compare(a.Level, b.Level), // The worst comes first.
			cmp.Compare(b.Weight, a.Weight))
	})
	return found
}

// showJobs shows the jobs that a parameter of the console and a flag of the command line select.
func showJobs(flag, parameter, value string) Action {
	return Action{Text: "Show the jobs", Page: "jobs", Query: []any{parameter, value}, Command: CommandWith("jobs list", flag, value)}
}

// pauseService pauses dispatch for a service.
func pauseService(service string) Action {
	return Action{
		Text: "Pause " + service + "…", Page: "do/dispatch-pause", Query: []any{"service", service}, Form: true,
		Command: CommandWith("pause", "service", service),
	}
}

// showOutbox shows the directives that were not published.
var showOutbox = Action{
	Text: "Show the outbox", Page: "outbox", Query: []any{"state", "PENDING"}, Command: CommandWith("outbox list", "state", "PENDING"),
}

// ServiceFindings returns what is wrong with the work of a service.
func (s *Situation) ServiceFindings(of *api.Service) (found []Finding) {
	queue := s.Overview == nil || s.Overview.Bus == api.BusQueue
	polled := LastPoll(of)
	silent := s.Now.Sub(polled.Time) > silentWorkers
	busy := of.Claimed+of.Running > 0
	waits := Counted(of.Backlog, "directive waits", "directives wait")
	backlog := Finding{
		ID: causeID(kindNoWorker, of.Service), Service: of.Service,
		Level: LevelMinor, Weight: of.Backlog, Subject: s.kindName(of) + ":", Word: WordNoWorker, ByMinute: of.BacklogByMinute,
		Actions: []Action{
			{
				Text: "Show the service", Page: "services/" + url.PathEscape(of.Service),
				Command: CommandWith("services", "service", of.Service),
			},
			showJobs("service", "service", of.Service), pauseService(of.Service),
		},
	}
	if !of.OldestWaitingAt.IsZero() {
		backlog.Notes = []Sentence{say("the oldest waits ", when{For, of.OldestWaitingAt.Time})}
	}
	growth, grows := growing(of.BacklogByMinute)
	growth = min(growth, of.Backlog) // The minutes also count what a pause holds back.
	old := of.OldestWaitingSeconds >= oldBacklog.Seconds()
	switch {
	case of.Backlog == 0:
	case queue && silent && !busy && polled.IsZero() && (old || of.OldestWaitingSeconds >= silentWorkers.Seconds()):
		backlog.Level, backlog.Text = LevelBad, say(waits, ", and no worker has polled within ", s.counted())
		found = append(found, backlog)
	case queue && silent && !busy && !polled.IsZero():
		backlog.Level, backlog.Text = LevelBad, say(waits, ", and no worker has polled ", when{For, polled.Time})
		backlog.Since = polled.Time
		backlog.Notes = append(backlog.Notes, say("the last one was ", of.Workers[0].Owner))
		found = append(found, backlog)
	case !queue && old && !busy && of.Attempts.LastMinute.Count == 0:
		backlog.Level, backlog.Text, backlog.Word = LevelBad, say(waits, " for an ACK, and nothing runs"), "no ACK"
		backlog.ID = causeID(kindNoACK, of.Service)
		found = append(found, backlog)
	case grows && growth > 0:
		backlog.Text = say(waits, ", up by ", Number(growth), " within ", growthMinutes, " minutes")
		backlog.ID = causeID(kindBacklog, of.Service)
		backlog.Word, backlog.Notes = "grows", append(backlog.Notes, atWork(of))
		found = append(found, backlog)
	case old || stillOld(of):
		backlog.Text = say(waits, ", the oldest ", when{For, of.OldestWaitingAt.Time})
		backlog.ID = causeID(kindBacklog, of.Service)
		backlog.Word, backlog.Notes = "slow", []Sentence{atWork(of), drains(of)}
		found = append(found, backlog)
	}
	return append(found, s.errorFindings(of)...)
}

// stillOld reports whether directives waited for too long within the hour, and the oldest still waits for
// more than half of that: a finding lasts until then.
func stillOld(of *api.Service) bool {
	return of.QueueWaitSeconds.P95 >= oldBacklog.Seconds() && of.OldestWaitingSeconds >= oldBacklog.Seconds()/2
}

// unmatchedFindings says which workers poll for nothing that exists.
func (s *Situation) unmatchedFindings() []Finding {
	if len(s.Unmatched) == 0 {
		return nil
	}
	last := &s.Unmatched[0]
	f := Finding{
		ID: "unmatched-workers", Level: LevelMinor, Weight: len(s.Unmatched), Subject: "Worker " + last.Owner,
		Text:    say("polls, but no protocol has ", cmp.Or(strings.Join(last.Services, ", "), strings.Join(last.StepTypes, ", "))),
		Notes:   []Sentence{say("its last poll ", when{Ago, last.LastPollAt.Time})},
		Actions: []Action{{Text: "Show the services", Page: "services", Command: Command("services")}},
	}
	if more := len(s.Unmatched) - 1; more > 0 {
		f.Notes = append(f.Notes, say(Counted(more, "other worker does", "other workers do"), " the like"))
	}
	return []Finding{f}
}

// LastPoll is when a worker of the service last asked for work, zero if none did within
// the hour.
func LastPoll(of *api.Service) api.Time {
	if len(of.Workers) == 0 {
		return api.Time{}
	}
	return of.Workers[0].LastPollAt
}

// atWork says how many workers do what.
func atWork(of *api.Service) Sentence {
	text := Number(of.Claimed+of.Running) + " under way"
	if of.WorkersTotal > 0 {
		text = Counted(of.WorkersTotal, "worker", "workers") + ", " + text
	}
	return say(text)
}

// drains says when the backlog is done, by the attempts that end now.
func drains(of *api.Service) Sentence {
	rate := of.Attempts.LastMinute.PerSecond
	if rate == 0 {
		return say("no attempt has ended in the last minute")
	}
	return say("done in about ", Duration(Seconds(float64(of.Backlog)/rate)), " if nothing new arrives")
}

// growing returns the growth of the backlog over the last growthMinutes, and whether the backlog grows:
// growth reached growthLeast and half of the backlog, and has not fallen below half of that since.
func growing(levels []int) (growth int, grows bool) {
	for end := growthMinutes; end < len(levels); end++ {
		growth = levels[end] - levels[end-growthMinutes]
		least := max(growthLeast, levels[end]/2)
		grows = growth >= least || grows && growth >= least/2
	}
	return growth, grows
}

// counted words the part of the last hour that the counts cover.
func (s *Situation) counted() string {
	if s.Overview != nil && s.Now.Sub(s.Overview.Since.Time) < time.Hour {
		return "the " + Duration(s.Now.Sub(s.Overview.Since.Time).Truncate(time.Minute)) + " since counting began"
	}
	return "the hour"
}

// kindName names the service, with the step type if it has several.
func (s *Situation) kindName(of *api.Service) string {
	for i := range s.Services {
		if other := &s.Services[i]; other.Service == of.Service && other.StepType != of.StepType {
			return of.Service + " " + of.StepType
		}
	}
	return of.Service
}

// errorFindings says that a service fails more often than it may, or than it does
// usually.
func (s *Situation) errorFindings(of *api.Service) []Finding {
	by := of.Attempts.ByMinute
	if by == nil || len(by.Counts) == 0 || len(by.Failed) != len(by.Counts) {
		return nil
	}
	before := max(0, len(by.Counts)-recentMinutes)
	all, failed := sum(by.Counts[before:]), sum(by.Failed[before:])
	now := Share(failed, all)
	bad, unusual := failing(by)
	if !bad && !unusual {
		return nil
	}
	code := s.failingCode(of)
	f := Finding{
		ID: causeID(kindError, of.Service, code), Service: of.Service, ErrorCode: code,
		Level: LevelMinor, Weight: failed, Subject: s.kindName(of), Word: Percent(now) + " fail", ByMinute: by.Failed,
		Text: say("has failed ", Percent(now), " of its attempts ", s.failingFor(by, now/2)),
		Actions: []Action{
			{
				Text: "See why", Page: "failures", Query: []any{"service", of.Service},
				Command: CommandWith("failures", "service", of.Service) + " --include-retrying",
			},
			pauseService(of.Service),
		},
	}
	if bad {
		f.Level = LevelBad
	}
	f.Notes = append(f.Notes, say(Number(failed), " of ", Number(all), " within ", Counted(len(by.Counts)-before, "minute", "minutes")))
	if earlier := sum(by.Counts[:before]); earlier > 0 {
		f.Notes[len(f.Notes)-1] = append(f.Notes[len(f.Notes)-1],
			say(", before that ", Percent(Share(sum(by.Failed[:before]), earlier)))...)
	}
	if e := &of.TopError; e.Count > 0 {
		steps := Counted(e.Count, "step is retried after ", "steps are retried after ")
		f.Notes = append(f.Notes, say(steps, Brief(e.ErrorCode, BriefCode)))
	}
	if p := of.DurationSeconds; p.Count > 0 {
		f.Notes = append(f.Notes, say("p95 ", Duration(Seconds(p.P95))))
	}
	last := len(by.Counts) - 1
	for last >= 0 && by.Counts[last] == by.Failed[last] {
		last--
	}
	switch ago := len(by.Counts) - 1 - last; {
	case last < 0:
		f.Notes = append(f.Notes, say("no success within ", Counted(len(by.Counts), "minute", "minutes")))
	case ago > 0:
		f.Notes = append(f.Notes, say("last success ", Counted(ago, "minute", "minutes"), " ago"))
	}
	return []Finding{f}
}

// failing reports whether the share of failures within recentMinutes reached FailingShare, or an
// unusual share, and has not fallen below half of that since.
func failing(by *api.MinuteCounts) (bad, unusual bool) {
	for end := range by.Counts {
		before := max(0, end+1-recentMinutes)
		all, failed := sum(by.Counts[before:end+1]), sum(by.Failed[before:end+1])
		over := func(was bool, least float64) bool {
			return failed >= FailuresLeast && Share(failed, all) >= least ||
				was && failed >= FailuresLeast/2 && Share(failed, all) >= least/2
		}
		bad = over(bad, FailingShare)
		if earlier := sum(by.Counts[:before]); earlier > 0 {
			unusual = over(unusual, max(unusualShare, failingFactor*Share(sum(by.Failed[:before]), earlier)))
		}
	}
	return bad, unusual
}

// failingFor words for how long at least that share of each minute's attempts has failed.
func (s *Situation) failingFor(by *api.MinuteCounts, from float64) Sentence {
	first, whole := len(by.Counts)-1, true // whole: in every minute that was counted
	for i := first; i >= 0 && whole; i-- {
		switch {
		case by.Counts[i] == 0: // It says nothing.
		case Share(by.Failed[i], by.Counts[i]) >= from:
			first = i
		default: // The present minute is too short to judge by, and so may be the one before.
			whole = i >= len(by.Counts)-2
		}
	}
	since := when{For, s.Now.Truncate(time.Minute).Add(time.Duration(first-len(by.Counts)+1) * time.Minute)}
	if whole && first == 0 {
		return say("at least ", since)
	}
	return say(since)
}

func sum(counts []int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

// Share is what part of all that is, zero of nothing.
func Share(part, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}

// ServerFindings says what is wrong with the server as a whole.
func (s *Situation) ServerFindings() (found []Finding) {
	if s.Overview == nil {
		return nil
	}
	o := s.Overview
	for i := range o.Circuits {
		c := &o.Circuits[i]
		what := "Topic " + c.Name
		if wholeBus(c.Name) {
			what = "The whole bus"
		}
		f := Finding{
			ID: causeID(kindCircuit, c.Name), Since: c.Since.Time,
			Level: LevelBad, Weight: o.Jobs[string(api.JobStateDispatching)], Subject: what, Word: "circuit " + string(c.State),
			Text:  say("is out of service, its circuit ", c.State, ", ", when{For, c.Since.Time}),
			Notes: []Sentence{say(c.Reason), say("directives wait, and spend no retry budget")}, Actions: []Action{showOutbox},
		}
		if f.Weight > 0 {
			f.Notes[1] = say(Counted(f.Weight, "job waits", "jobs wait"), " for dispatch, and none spends its retry budget")
		}
		found = append(found, f)
	}
	if n := o.Stuck.Count; n > 0 {
		f := Finding{
			ID: "stuck", Level: LevelBad, Weight: 1000 * n,
			Subject: Counted(n, "job stands still", "jobs stand still"), Text: say("and cannot continue without help"),
			Notes:   []Sentence{say("found by the reconciler among ", Counted(o.Stuck.Checked, "live job", "live jobs"))},
			Actions: []Action{{Text: "Show them", Page: "stuck", Command: Command("stuck")}},
		}
		for _, job := range s.Stuck[:min(len(s.Stuck), mostStuck)] {
			f.Actions = append(f.Actions, Action{
				Text: ShortID(job.JobID), Page: "jobs/" + url.PathEscape(job.JobID), Command: Command("why", job.JobID),
			})
			f.Notes = append(f.Notes, say(job.Reason))
		}
		found = append(found, f)
	}
	if at := o.OldestPendingSeconds; at != nil && *at >= latePublish.Seconds() && len(o.Pauses)+len(o.Circuits) == 0 {
		f := Finding{
			ID: "outbox", Level: LevelMinor, Weight: o.Jobs[string(api.JobStateDispatching)], Subject: "The outbox", Word: "late",
			Text:  say("is late: its oldest directive has been due for ", Duration(Seconds(*at))),
			Notes: []Sentence{say("check that a process with the role relay runs, and its log")}, Actions: []Action{showOutbox},
		}
		if *at >= stalledPublish.Seconds() {
			f.Level = LevelBad
		}
		found = append(found, f)
	}
	if n := o.Jobs[string(api.JobStatePaused)] + o.Jobs[string(api.JobStatePausing)]; n > 0 {
		f := Finding{
			ID: "paused-jobs", Level: LevelWarn, Weight: n, Subject: Counted(n, "job is paused", "jobs are paused"),
			Text: say("one by one, until they are resumed"),
		}
		if n == 1 {
			f.Text = say("on its own, until it is resumed")
		}
		for _, state := range []api.JobState{api.JobStatePaused, api.JobStatePausing} {
			show := showJobs("state", "state", string(state))
			if in := o.Jobs[string(state)]; in == 0 {
				continue
			} else if in < n {
				show.Text = fmt.Sprintf("Show the %s %s", Number(in), state)
			}
			f.Actions = append(f.Actions, show)
		}
		found = append(found, f)
	}
	return found
}

// PauseFindings says what dispatch is paused.
func (s *Situation) PauseFindings() (found []Finding) {
	for i := range s.Pauses {
		p := &s.Pauses[i]
		if p.State != api.PauseStatePaused {
			continue // It ends by itself.
		}
		scope, resume := p.PauseID, Command("resume", "--all")
		if of, err := api.ParsePauseID(p.PauseID); err == nil {
			scope = of.String()
			if of.Kind != "" {
				resume = CommandWith("resume", of.Kind, of.Value)
			}
		}
		f := Finding{
			ID: "pause:" + p.PauseID, Tenant: p.TenantID, Since: p.CreatedAt.Time,
			Level: LevelWarn, Subject: strings.ToUpper(scope[:1]) + scope[1:], Text: say("is paused ", when{For, p.CreatedAt.Time}),
			Notes:   []Sentence{say("by ", p.Actor, ": “", p.Reason, "”")},
			Actions: []Action{{Text: "Resume…", Page: "do/dispatch-resume", Query: []any{"pause", p.PauseID}, Form: true, Command: resume}},
		}
		if !p.Until.IsZero() {
			f.Notes = append([]Sentence{say("resumes by itself ", when{In, p.Until.Time})}, f.Notes...)
		}
		if held, known := s.HeldBy(p); known {
			f.Weight = held
			f.Notes = append([]Sentence{say(Counted(f.Weight, "directive waits", "directives wait"), s.heldAt(p))}, f.Notes...)
		}
		if p.TenantID != "" {
			f.Actions = append(f.Actions, showJobs("tenant", "tenant_id", p.TenantID))
		}
		found = append(found, f)
	}
	return found
}

// HeldBy returns how many directives a pause holds back, if that is known.
func (s *Situation) HeldBy(p *api.Pause) (held int, known bool) {
	if p.Waiting != nil {
		return *p.Waiting, true
	}
	for i := range s.Services {
		for _, by := range s.Services[i].HeldBy {
			if by.PauseID == p.PauseID {
				held += by.Count
			}
		}
	}
	return held, held > 0 // Without any the counts may be older than the pause.
}

// heldAt names the services whose directives a pause holds back, unless the pause is of one service.
func (s *Situation) heldAt(p *api.Pause) string {
	if p.Service != "" {
		return ""
	}
	var names []string
	only := ""
	for i := range s.Services {
		for _, by := range s.Services[i].HeldBy {
			if by.PauseID == p.PauseID && by.Count > 0 {
				only = s.kindName(&s.Services[i])
				names = append(names, Number(by.Count)+" at "+only)
			}
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return " at " + only
	default:
		return ": " + strings.Join(names, ", ")
	}
}

// warningFindings says of what else the server warns.
func (s *Situation) warningFindings() (found []Finding) {
	for _, warning := range s.Warnings {
		if s.Overview != nil && slices.ContainsFunc([]string{"the circuit of ", "dispatch of ", "jobs are stuck", "an outbox row has"},
			func(known string) bool { return strings.HasPrefix(warning, known) }) {
			continue // The overview says more of it.
		}
		f := Finding{ID: warningID(warning), Level: LevelMinor, Subject: "The server", Text: say("warns: ", warning)}
		if strings.Contains(warning, "no writes are taken") {
			f.Level, f.Weight = LevelBad, 1<<29
		}
		if strings.Contains(warning, DeadLettersWarning) {
			f.Actions = []Action{{Text: "Show the dead letters", Page: "outbox#dead-letters", Command: Command("azure dead-letters list")}}
		}
		if strings.Contains(warning, "of the inbox") {
			f.Actions = []Action{{Text: "Show the inbox", Page: "inbox", Command: Command("inbox list")}}
		}
		found = append(found, f)
	}
	return found
}
