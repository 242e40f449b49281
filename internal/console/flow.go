package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// flowPage shows the flow of all jobs, or the steps of one protocol.
type flowPage struct {
	Overview *api.Overview
	Canvas   canvas
	// Protocol is the one whose steps are shown, nil for the flow of all jobs; Protocols are
	// those to choose from.
	Protocol  *api.Protocol
	Protocols []api.Protocol
	Waterfall waterfall // of Protocol, over the last hour or, if InDay, the last day
	InDay     bool
	Ended     map[string]int // jobs of Protocol that ended since DaySince, when the last day began, by state
	DaySince  api.Time
	// Notes say which figures are missing, and why.
	Notes []string
}

func flow(r *request) (view, error) {
	v, wanted, data := view{Title: "Flow", Template: "flow"}, r.FormValue("protocol"), flowPage{}
	if readable := len(r.tenants(api.GrantRoleRead)) > 0; readable && (wanted != "" || r.seesAll()) {
		list, err := call[api.ProtocolList](r.api.ListProtocols(r.Context()))
		if err != nil {
			return v, err
		}
		data.Protocols = list.Protocols
	} else if !readable && wanted != "" {
		return missingRole(v.Title, api.GrantRoleRead), nil
	}
	i := slices.IndexFunc(data.Protocols, func(p api.Protocol) bool { return p.ProtocolID == wanted })
	if wanted != "" && i < 0 {
		return v, badInput("There is no protocol " + wanted + ".")
	}
	if !r.seesAll() {
		return notForTenants(v), nil
	}
	s, err := figures(r)
	if err != nil {
		return v, err
	}
	data.Overview = s.Overview
	if i >= 0 {
		data.Protocol = &data.Protocols[i]
		if err := s.narrow(r, wanted); err != nil {
			return v, err
		}
		data.InDay = r.FormValue("over") == "day"
		data.Ended, data.DaySince = s.endedInDay, s.daySince
		data.Canvas, data.Waterfall = protocolCanvas(s, data.Protocol), s.waterfallOf(data.Protocol, data.InDay)
		data.Notes = []string{"The figures are those of this protocol's jobs alone; workers serve all protocols of their service."}
	} else {
		data.Canvas, data.Notes = flowCanvas(s), s.flowNotes()
	}
	v.Data = data
	return v, nil
}

// seesAll reports whether the user may see counts of all tenants together.
func (r *request) seesAll() bool {
	return r.May(api.GrantRoleRead, "") || r.May(api.GrantRoleAdmin, "")
}

// notForTenants returns the page for a user who may not see counts of all tenants together.
func notForTenants(v view) view { return view{Title: v.Title, Template: "notfortenants"} }

// situation is what the API says, and of whose jobs alone the services' figures are: of those
// of a protocol, or of all if it is empty. ended counts the protocol's jobs that have ended, and
// endedInDay those since daySince.
type situation struct {
	diagnosis.Situation

	protocol   string
	ended      map[string]api.Rates
	endedInDay map[string]int
	daySince   api.Time
}

// of returns what there is to say of these services alone.
func (s *situation) of(services []api.Service) diagnosis.Situation {
	return diagnosis.Situation{Now: s.Now, Overview: s.Overview, Pauses: s.Pauses, Services: services}
}

// figures reads the counts of the whole server.
func figures(r *request) (*situation, error) {
	minutes := api.Minutes(diagnosis.HistoryMinutes)
	s := &situation{Situation: diagnosis.Situation{Now: r.now}}
	overview, err := call[api.Overview](r.api.GetOverview(r.Context(), &api.GetOverviewParams{Minutes: &minutes}))
	if err != nil {
		return s, err
	}
	s.Overview, s.Pauses = &overview, overview.Pauses
	services, err := call[api.ServiceList](r.api.ListServices(r.Context(), &api.ListServicesParams{Minutes: &minutes}))
	s.Services, s.Unmatched = services.Services, services.UnmatchedWorkers
	return s, err
}

// narrow replaces the services' figures and the ends with those of one protocol's jobs.
func (s *situation) narrow(r *request, protocol string) error {
	minutes := api.Minutes(diagnosis.HistoryMinutes)
	params := &api.ListServicesParams{Minutes: &minutes, ProtocolID: &protocol}
	services, err := call[api.ServiceList](r.api.ListServices(r.Context(), params))
	s.Services, s.ended, s.protocol = services.Services, services.Ended, protocol
	s.endedInDay, s.daySince = services.EndedInDay, services.DaySince
	return err
}

// flowNotes returns which figures the diagram lacks, and why.
func (s *situation) flowNotes() []string {
	notes := []string{"Nothing waits in commands, checks, publishes and RESULTs, so these have neither a count nor an age."}
	if s.Overview.Bus == api.BusQueue {
		return append(notes, "With the pull queue, the commit that dispatches a step publishes its directive: there is no relay. "+
			"The time of a claim is not counted, so claimed directives have no age.")
	}
	return append(notes, "On Service Bus, a directive in its lane cannot be told from one that a worker has received: "+
		"each service's count, and that of AWAITING_ACK, is of both.")
}

// serviceState sums up all kinds of work of a service.
type serviceState struct {
	Service   string
	Kinds     []api.Service
	Level     string // of its worst finding, or empty
	Trouble   string // that finding in a word or two
	Paused    bool
	Backlog   int
	Running   int // claimed or running
	Waiting   int // to be published, or for the next attempt
	Held      int // by pauses
	Workers   int
	Oldest    api.Time
	LastPoll  api.Time
	InHour    int // attempts that ended in the last hour
	PerSecond float64
	Arrives   float64 // per second
}

// serviceStates sums up the services, by name.
func (s *situation) serviceStates() (states []serviceState) {
	for i := range s.Services {
		of := &s.Services[i]
		if len(states) == 0 || states[len(states)-1].Service != of.Service {
			states = append(states, serviceState{Service: of.Service})
		}
		states[len(states)-1].add(s, of)
	}
	for i := range states {
		of := &states[i]
		until := api.Time{}
		for j := range s.Pauses {
			p := &s.Pauses[j]
			if p.State != api.PauseStatePaused || p.Service != of.Service && p.PauseID != "all" {
				continue
			}
			if !of.Paused || p.Until.IsZero() || !until.IsZero() && p.Until.After(until.Time) {
				until = p.Until // The pause that ends last counts.
			}
			of.Paused = true
		}
		if of.Paused && of.Level != diagnosis.LevelBad {
			of.Level, of.Trouble = diagnosis.LevelWarn, "paused"
			if !until.IsZero() {
				of.Trouble = "paused for " + diagnosis.Duration(until.Sub(s.Now)) + " more"
			}
		}
	}
	return states
}

// add adds one kind of work.
func (state *serviceState) add(s *situation, of *api.Service) {
	state.Kinds = append(state.Kinds, *of)
	state.Backlog += of.Backlog
	state.Running += of.Claimed + of.Running
	state.Waiting += of.Dispatching + of.Backoff
	state.Held += of.Held
	state.Workers = max(state.Workers, of.WorkersTotal) // Most workers ask for all kinds of their service.
	state.InHour += of.Attempts.LastHour.Count
	state.PerSecond += of.Attempts.LastMinute.PerSecond
	state.Arrives += of.Attempts.LastMinute.PerSecond
	if n := len(of.BacklogByMinute); n > 1 {
		state.Arrives += max(float64(of.BacklogByMinute[n-1]-of.BacklogByMinute[n-2])/60, 0)
	}
	if at := of.OldestWaitingAt; !at.IsZero() && (state.Oldest.IsZero() || at.Before(state.Oldest.Time)) {
		state.Oldest = at
	}
	if polled := diagnosis.LastPoll(of); polled.After(state.LastPoll.Time) {
		state.LastPoll = polled
	}
	for _, f := range s.ServiceFindings(of) {
		if levelRank(f.Level) > levelRank(state.Level) {
			state.Level, state.Trouble = f.Level, f.Word
		}
	}
}

// describe says briefly what waits at a service, for how long, and how many workers it has.
func (state *serviceState) describe(s *situation) string {
	parts := []string{diagnosis.Number(state.Backlog) + " ready"}
	if s.Overview != nil && s.Overview.Bus == api.BusServiceBus {
		parts[0] = diagnosis.Number(state.Backlog) + " published"
	}
	if state.Held > 0 {
		parts = append(parts, diagnosis.Number(state.Held)+" held")
	}
	if state.Running > 0 {
		parts = append(parts, diagnosis.Number(state.Running)+" run")
	}
	if state.Workers > 0 && state.Trouble == "" {
		parts = append(parts, diagnosis.Counted(state.Workers, "worker", "workers"))
	}
	if state.Trouble != "" {
		parts = append(parts, state.Trouble)
	}
	if !state.Oldest.IsZero() {
		parts = append(parts, roughly(s.Now.Sub(state.Oldest.Time)))
	}
	return strings.Join(parts, " · ")
}

// roughly writes a time span by its largest unit.
func roughly(d time.Duration) string {
	words := strings.Fields(diagnosis.Duration(d))
	return words[0] + " " + words[1]
}

// flowCanvas draws how commands become results.
func flowCanvas(s *situation) canvas {
	o := s.Overview
	p := places{services: s.flowServices(), ends: s.ends(), lanes: "Pull queue, by service"}
	live, dispatching, waiting, running, claimed, backoff := 0, 0, 0, 0, 0, 0
	for _, n := range o.Jobs {
		live += n
	}
	steps, failing, ended := 0.0, 0.0, 0
	for i := range s.Services {
		of := &s.Services[i]
		dispatching, waiting, running = dispatching+of.Dispatching, waiting+of.Backlog, running+of.Running
		claimed, backoff = claimed+of.Claimed, backoff+of.Backoff
		last := &of.Attempts.LastMinute
		steps += last.PerSecond * (1 - last.ErrorRate)
		failing += last.PerSecond * last.ErrorRate
		ended += of.Attempts.LastHour.Count
	}
	accepted, refused := o.Accepted.LastMinute.PerSecond, o.Refused.LastMinute.PerSecond
	refusedShare := diagnosis.Share(o.Refused.LastMinute.Count, o.Accepted.LastMinute.Count+o.Refused.LastMinute.Count)
	published := o.Published.LastMinute.PerSecond * (1 - o.Published.LastMinute.ErrorRate)
	started := o.Started.LastMinute.PerSecond
	p.commands = flowing{flowNode: flowNode{
		Title: "Commands", Big: rate(accepted + refused),
		Text: diagnosis.Number(o.Accepted.LastHour.Count+o.Refused.LastHour.Count) + " in 1 h",
		URL:  link("jobs", "since", "1 h"), Below: rate(accepted + refused),
	}}
	p.checks = flowing{arrives: accepted + refused, flowNode: flowNode{
		Title: "Checks", Big: diagnosis.Percent(refusedShare),
		Text: "refused · " + rate(refused), More: diagnosis.Number(o.Refused.LastHour.Count) + " refused in 1 h",
		URL: link("protocols"), Below: rate(accepted),
	}}
	if n := o.Refused.LastMinute.Count; n >= diagnosis.FailuresLeast && refusedShare >= diagnosis.FailingShare {
		p.checks.Level = diagnosis.LevelBad
	}
	p.ledger = flowing{arrives: accepted, flowNode: flowNode{
		Title: "Ledger", Big: diagnosis.Number(live),
		Text: "live jobs" + s.aged(" · oldest ", o.OldestJobAt), More: rate(accepted) + " accepted",
		URL: link("jobs", "waiting", waitsAtAll), Below: rate(published),
	}}
	p.outbox = flowing{arrives: published, flowNode: s.outboxNode(dispatching)}
	p.outbox.More, p.outbox.Below = rate(published)+" published", rate(published)
	p.publish = flowing{arrives: published, flowNode: flowNode{
		Title: "Relay", Big: rate(published), Text: diagnosis.Number(o.Published.LastMinute.Failed) + " rejected in 1 min",
		More: diagnosis.Number(o.Published.LastHour.Failed) + " in 1 h", URL: link("outbox"), Below: rate(published),
	}}
	p.ack = flowing{flowNode: flowNode{
		Title: "AWAITING_ACK", Big: diagnosis.Number(claimed), Text: "claimed, not started", More: rate(started) + " start",
		URL: link("jobs", "waiting", waitsForStart), Below: rate(started),
	}}
	if o.Bus == api.BusQueue {
		p.publish.Text, p.publish.More, p.publish.Title = "by the commit itself", "so there is no relay", "Published"
	} else {
		p.lanes, p.ack.Big = "Lanes, by service", diagnosis.Number(waiting)
		p.ack.Text = "published" + s.aged(" · oldest ", o.OldestWaiting.At)
	}
	p.running = flowing{arrives: started, flowNode: flowNode{
		Title: "IN_PROGRESS", Big: diagnosis.Number(running), Text: "running" + s.aged(" · longest ", o.OldestRunningAt),
		More: rate(steps+failing) + " end", URL: link("jobs", "waiting", waitsForResult), Below: rate(steps + failing),
	}}
	p.result = flowing{arrives: steps + failing, flowNode: flowNode{
		Title: "RESULT", Big: rate(steps + failing), Text: diagnosis.Number(ended) + " in 1 h",
		More: rate(failing) + " failed", URL: link("services"), Below: rate(failing) + " failed",
	}}
	p.retries = flowing{arrives: failing, ends: failing, flowNode: flowNode{
		Title: "Waiting for a retry", Text: diagnosis.Number(backoff) + " wait · " + rate(failing),
		URL: link("jobs", "waiting", waitsForRetry),
	}}
	if at := o.NextRetryAt; !at.IsZero() && backoff > 0 {
		p.retries.Text += " · next " + dueIn(s.Now, at.Time)
	}
	p.next = math.Max(steps-o.Ended[string(api.JobStateSucceeded)].LastMinute.PerSecond, 0)
	p.onward = "next steps " + rate(p.next)
	return p.draw()
}

// aged says how long ago a time was, and nothing for the zero time.
func (s *situation) aged(what string, at api.Time) string {
	if at.IsZero() {
		return ""
	}
	return what + roughly(s.Now.Sub(at.Time))
}

func dueIn(now, at time.Time) string {
	if !at.After(now) {
		return "now"
	}
	return "in " + roughly(at.Sub(now))
}

// outboxNode returns the box of what waits to be published.
func (s *situation) outboxNode(dispatching int) flowNode {
	o := s.Overview
	node := flowNode{Title: "Outbox", Big: diagnosis.Number(dispatching), Text: "pending", URL: link("jobs", "waiting", waitsForPublish)}
	if at := o.OldestPendingSeconds; at != nil && *at > 0 {
		node.Text += " · oldest " + roughly(diagnosis.Seconds(*at))
	}
	for _, f := range s.ServerFindings() {
		if f.Word != "" && levelRank(f.Level) > levelRank(node.Level) {
			node.Level, node.Text = f.Level, f.Word
		}
	}
	held := 0 // pauses that are not of one service
	for i := range s.Pauses {
		if p := &s.Pauses[i]; p.State == api.PauseStatePaused && p.Service == "" {
			held++
		}
	}
	if node.Level == "" && held > 0 {
		node.Level, node.Text = diagnosis.LevelWarn, diagnosis.Counted(held, "pause", "pauses")
		if o.Held > 0 {
			node.Text += " · " + diagnosis.Number(o.Held) + " held"
		}
		node.URL = link("pauses")
	}
	return node
}

// flowing is a box with how much arrives and leaves per second.
type flowing struct {
	flowNode

	arrives, ends float64
}

// flowServices returns the boxes of the services. If there are more than mostServices, the
// quieter ones share the last box.
func (s *situation) flowServices() (shown []flowing) {
	states := s.serviceStates()
	if len(states) > mostServices {
		busiest := slices.Clone(states)
		slices.SortStableFunc(busiest, func(a, b serviceState) int { // Counts of an hour change slowly, so that boxes keep their places.
			return cmp.Or(-cmp.Compare(levelRank(a.Level), levelRank(b.Level)), -cmp.Compare(a.InHour, b.InHour))
		})
		busiest = busiest[:mostServices-1]
		quiet := serviceState{}
		folded := 0
		states = slices.DeleteFunc(states, func(a serviceState) bool {
			if slices.ContainsFunc(busiest, func(b serviceState) bool { return a.Service == b.Service }) {
				return false
			}
			folded++
			for i := range a.Kinds {
				quiet.add(s, &a.Kinds[i])
			}
			return true
		})
		quiet.Workers, quiet.Level, quiet.Trouble = 0, "", "" // A sum of workers would count some twice.
		rest := flowing{arrives: quiet.Arrives, ends: quiet.PerSecond, flowNode: flowNode{
			Title: diagnosis.Number(folded) + " quieter services", Text: quiet.describe(s) + " · " + rate(quiet.PerSecond),
			URL: link("services"), Below: rate(quiet.PerSecond),
		}}
		defer func() { shown = append(shown, rest) }()
	}
	for i := range states {
		of := &states[i]
		shown = append(shown, flowing{
			flowNode: flowNode{
				Title: cut(of.Service), Text: of.describe(s) + " · " + rate(of.PerSecond), Level: of.Level,
				URL: pathOf("services", of.Service), Below: rate(of.PerSecond),
			},
			arrives: of.Arrives, ends: of.PerSecond,
		})
	}
	return shown
}

func levelRank(level string) int {
	return slices.Index([]string{"", diagnosis.LevelWarn, diagnosis.LevelMinor, diagnosis.LevelBad}, level)
}

// ends returns the boxes of ended jobs and, of all protocols, of paused ones.
func (s *situation) ends() []flowing {
	ended := s.ended
	if s.protocol == "" {
		ended = s.Overview.Ended
	}
	end := func(title, text string, rates api.Rates, filter ...any) flowing {
		filter = append(filter, "protocol_id", s.protocol)
		return flowing{flowNode: flowNode{Title: title, Text: text, URL: link("jobs", filter...)}, arrives: rates.LastMinute.PerSecond}
	}
	inHour := func(state api.JobState) string {
		return diagnosis.Number(ended[string(state)].LastHour.Count) + " in 1 h"
	}
	hour := api.NewTime(s.Now.Add(-time.Hour).Truncate(time.Minute))
	well, badly := ended[string(api.JobStateSucceeded)], ended[string(api.JobStateFailedFinal)]
	cancelled := ended[string(api.JobStateCancelled)]
	ends := []flowing{
		end("Succeeded", rate(well.LastMinute.PerSecond)+" · "+inHour(api.JobStateSucceeded), well,
			"state", api.JobStateSucceeded, "ended_after", stamp(hour)),
		end("Failed for good", rate(badly.LastMinute.PerSecond)+" · "+inHour(api.JobStateFailedFinal), badly,
			"state", api.JobStateFailedFinal, "ended_after", stamp(hour)),
	}
	if badly.LastMinute.Count > 0 {
		ends[1].Level = diagnosis.LevelBad
	}
	if s.protocol != "" {
		return append(ends, end("Cancelled", inHour(api.JobStateCancelled), cancelled,
			"state", api.JobStateCancelled, "ended_after", stamp(hour)))
	}
	ends[1].URL = link("failures", "since", "1 h")
	paused := s.Overview.Jobs[string(api.JobStatePaused)] + s.Overview.Jobs[string(api.JobStatePausing)]
	return append(ends, end("Cancelled, paused", inHour(api.JobStateCancelled)+" · "+diagnosis.Number(paused)+" paused", cancelled,
		"waiting", waitsForResume))
}

// rate formats a rate per minute, the unit of all pages, so that rates can be compared.
func rate(perSecond float64) string {
	perMinute := 60 * perSecond
	if perMinute > 0 && perMinute < 0.05 {
		return "<0.1/min"
	}
	return decimal(perMinute) + "/min"
}

// decimal formats a number, below 100 with at most one decimal.
func decimal(f float64) string {
	if f < 100 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0")
	}
	return diagnosis.Number(f)
}

// cut shortens a name for a box.
func cut(name string) string { return diagnosis.Brief(name, nameLength) }

// The dimensions of a protocol's canvas.
const (
	stepsInRow  = 4
	stepWidth   = 252
	stepHeight  = 100
	stepColumns = 290
	stepRows    = 140
)

// protocolCanvas draws the steps of a protocol, with the figures of their kinds of work, and to their
// right how its jobs end.
func protocolCanvas(s *situation, p *api.Protocol) canvas {
	columns, rows, ends := min(len(p.Steps), stepsInRow), (len(p.Steps)+stepsInRow-1)/stepsInRow, s.ends()
	right := flowTop + columns*stepColumns // the left of the ends
	c := canvas{
		Width:  right + flowEndWide + flowTop,
		Height: max(rows*stepRows-(stepRows-stepHeight), len(ends)*flowEndRow-(flowEndRow-flowEnd)) + 2*flowTop,
	}
	var last *flowNode
	for i := range p.Steps {
		node, perSecond := s.stepNode(p, &p.Steps[i])
		node.X, node.Y, node.W, node.H = flowTop+i%stepsInRow*stepColumns, flowTop+i/stepsInRow*stepRows, stepWidth, stepHeight
		switch {
		case last == nil:
		case node.Y == last.Y:
			c.line(last, &node, perSecond, node.Level)
		default: // The step is the first of a row.
			middle := last.Y + last.H + (stepRows-stepHeight)/2
			c.way(fmt.Sprintf("M%d %dV%dH%dV%d", last.X+last.W/2, last.Y+last.H, middle, node.X+node.W/2, node.Y-edgeTip),
				tip(node.X+node.W/2, node.Y, 0, 1), perSecond, node.Level, "")
		}
		c.Nodes = append(c.Nodes, node)
		last = &c.Nodes[len(c.Nodes)-1]
	}
	for i := range ends {
		end := &ends[i]
		end.X, end.Y, end.W, end.H, end.Parallel = right, flowTop+i*flowEndRow, flowEndWide, flowEnd, true
		if i == 0 && last != nil { // Jobs succeed after the last step, and fail or are cancelled at any.
			turn, y := right-(stepColumns-stepWidth)/2, end.Y+end.H/2
			path := fmt.Sprintf("M%d %dH%dV%dH%d", last.X+last.W, last.Y+last.H/2, turn, y, end.X-edgeTip)
			c.way(path, tip(end.X, y, 1, 0), end.arrives, "", "")
		}
		c.Nodes = append(c.Nodes, end.flowNode)
	}
	return c
}

// stepNode returns the box of a step, and how many of its attempts end per second.
func (s *situation) stepNode(p *api.Protocol, step *api.ProtocolStep) (node flowNode, perSecond float64) {
	node = flowNode{
		Title: cut(step.StepID), Big: "–", Text: "not counted apart",
		URL: link("jobs", "protocol_id", p.ProtocolID, "service", step.Service, "step_type", step.StepType, "waiting", waitsAtStep),
	}
	j := slices.IndexFunc(s.Services, func(of api.Service) bool { return of.Service == step.Service && of.StepType == step.StepType })
	if j < 0 {
		return node, 0
	}
	one := &situation{Situation: s.of(s.Services[j : j+1]), protocol: s.protocol}
	state := &one.serviceStates()[0]
	node.Text, node.Level, perSecond = state.describe(s), state.Level, state.PerSecond
	node.Big = diagnosis.Number(state.Backlog + state.Running + state.Waiting + state.Held)
	node.Below, node.More = rate(perSecond), rate(perSecond)
	of := &s.Services[j]
	if of.DurationSeconds.Count > 0 {
		node.More += " · p95 " + diagnosis.Duration(diagnosis.Seconds(of.DurationSeconds.P95))
	}
	if n := of.Attempts.LastHour.Failed; n > 0 {
		node.More += " · " + diagnosis.Number(n) + " failed in 1 h"
	}
	if of.Backoff > 0 {
		node.Text += " · ↺ " + diagnosis.Counted(of.Backoff, "waits for a retry", "wait for a retry")
	}
	return node, perSecond
}
