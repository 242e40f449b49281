package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
)

// flowPage is the picture of all that flows, or of the steps of one protocol.
type flowPage struct {
	Overview *api.Overview
	Canvas   canvas
	// Protocol is the one that is shown, nil for all; Protocols are those to choose from.
	Protocol  *api.Protocol
	Protocols []api.Protocol
}

func flow(r *request) (view, error) {
	v := view{Title: "Flow", Template: "flow"}
	if !r.seesAll() {
		return notForTenants(v), nil
	}
	s, err := figures(r)
	if err != nil {
		return v, err
	}
	data := flowPage{Overview: s.overview}
	if r.May(api.GrantRoleRead, "") {
		list, err := call[api.ProtocolList](r.api.ListProtocols(r.Context()))
		if err != nil {
			return v, err
		}
		data.Protocols = list.Protocols
	}
	wanted := r.FormValue("protocol")
	if i := slices.IndexFunc(data.Protocols, func(p api.Protocol) bool { return p.ProtocolID == wanted }); i >= 0 {
		data.Protocol = &data.Protocols[i]
		data.Canvas = protocolCanvas(s, data.Protocol)
	} else if wanted != "" {
		return v, badInput("There is no protocol " + wanted + ".")
	} else {
		data.Canvas = flowCanvas(s)
	}
	v.Data = data
	return v, nil
}

// seesAll reports whether the user may see what is counted for all tenants together.
func (r *request) seesAll() bool {
	return r.May(api.GrantRoleRead, "") || r.May(api.GrantRoleAdmin, "")
}

// notForTenants is the page for a user who may not see what is counted for all tenants
// together.
func notForTenants(v view) view { return view{Title: v.Title, Template: "notfortenants"} }

// figures asks for the counts of the whole server.
func figures(r *request) (*situation, error) {
	minutes := api.Minutes(historyMinutes)
	s := &situation{now: r.now}
	overview, err := call[api.Overview](r.api.GetOverview(r.Context(), &api.GetOverviewParams{Minutes: &minutes}))
	if err != nil {
		return s, err
	}
	s.overview, s.pauses = &overview, overview.Pauses
	services, err := call[api.ServiceList](r.api.ListServices(r.Context(), &api.ListServicesParams{Minutes: &minutes}))
	s.services = services.Services
	return s, err
}

// canvas is a picture of boxes and the ways between them.
type canvas struct {
	Width, Height int
	Edges         []flowEdge
	Nodes         []flowNode
	Labels        []flowLabel
}

// flowNode is a box with its figures, and where a click on it leads.
type flowNode struct {
	X, Y, W, H       int
	Title, Big, Text string
	Level            string // that of its trouble, or empty
	URL              string
	Below            string // the figure of the way to the next box of a column
}

// flowEdge is a way between boxes: as wide as much goes over it.
type flowEdge struct {
	Path  string
	Width float64
	Class string // hot if something moves, bad or warn if it should, retry for the way back
}

// flowLabel is a text beside a way.
type flowLabel struct {
	X, Y int
	Text string
}

// serviceState is what all kinds of work of a service do together.
type serviceState struct {
	Service   string
	Kinds     []api.Service
	Level     string // that of its worst finding, or empty
	Trouble   string // one word or two about it
	Paused    bool
	Backlog   int
	Running   int // or claimed
	Waiting   int // for a publish or the next attempt
	Workers   int
	Oldest    api.Time
	LastPoll  api.Time
	PerSecond float64
	Arrives   float64 // each second
}

// serviceStates sums up the services, by name.
func (s *situation) serviceStates() (states []serviceState) {
	for i := range s.services {
		of := &s.services[i]
		if len(states) == 0 || states[len(states)-1].Service != of.Service {
			states = append(states, serviceState{Service: of.Service})
		}
		states[len(states)-1].add(s, of)
	}
	for i := range states {
		of := &states[i]
		until := api.Time{}
		for j := range s.pauses {
			p := &s.pauses[j]
			if p.State != api.PauseStatePaused || p.Service != of.Service && p.PauseID != "all" {
				continue
			}
			if !of.Paused || p.Until.IsZero() || !until.IsZero() && p.Until.After(until.Time) {
				until = p.Until // The one that holds it the longest.
			}
			of.Paused = true
		}
		if of.Paused && of.Level != levelBad {
			of.Level, of.Trouble = levelWarn, "paused"
			if !until.IsZero() {
				of.Trouble = "paused for " + duration(until.Sub(s.now)) + " more"
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
	state.Workers = max(state.Workers, of.WorkersTotal) // Most ask for all kinds of their service.
	state.PerSecond += of.Attempts.LastMinute.PerSecond
	state.Arrives += of.Attempts.LastMinute.PerSecond
	if n := len(of.BacklogByMinute); n > 1 {
		state.Arrives += max(float64(of.BacklogByMinute[n-1]-of.BacklogByMinute[n-2])/60, 0)
	}
	if at := of.OldestWaitingAt; !at.IsZero() && (state.Oldest.IsZero() || at.Before(state.Oldest.Time)) {
		state.Oldest = at
	}
	if polled := lastPoll(of); polled.After(state.LastPoll.Time) {
		state.LastPoll = polled
	}
	for _, f := range s.serviceFindings(of) {
		if state.Level == "" || f.Level == levelBad && state.Level != levelBad {
			state.Level, state.Trouble = f.Level, f.Word
		}
	}
}

// describe says in short what waits at a service and who works.
func (state *serviceState) describe(s *situation) string {
	parts := []string{number(state.Backlog) + " ready"}
	if state.Running > 0 {
		parts = append(parts, number(state.Running)+" run")
	}
	if state.Workers > 0 && state.Trouble == "" {
		parts = append(parts, counted(state.Workers, "worker", "workers"))
	}
	if state.Trouble != "" {
		parts = append(parts, state.Trouble)
	}
	if !state.Oldest.IsZero() {
		parts = append(parts, roughly(s.now.Sub(state.Oldest.Time)))
	}
	return strings.Join(parts, " · ")
}

// roughly writes a time span by its largest unit.
func roughly(d time.Duration) string {
	words := strings.Fields(duration(d))
	return words[0] + " " + words[1]
}

// The measures of the canvas.
const (
	flowTop      = 20
	flowRow      = 72  // from one service to the next
	flowService  = 60  // the height of one
	flowBox      = 84  // that of the others
	flowEnd      = 54  // that of an end
	flowReturn   = 44  // what the way back needs below
	mostServices = 8   // More are folded.
	nameLength   = 26  // Longer names are cut.
	thinEdge     = 1.2 // the width of a way on which nothing moves
	thickEdge    = 7
)

// flowCanvas draws how commands become results.
func flowCanvas(s *situation) canvas {
	o := s.overview
	services := s.flowServices()
	height := max(3*flowRow+24, len(services)*flowRow-(flowRow-flowService))
	middle := flowTop + height/2
	c := canvas{Width: 1195, Height: flowTop + height + flowReturn}
	live, dispatching, running, claimed, backoff := 0, 0, 0, 0, 0
	for _, n := range o.Jobs {
		live += n
	}
	steps, failing := 0.0, 0.0
	for i := range s.services {
		of := &s.services[i]
		dispatching, running, claimed, backoff = dispatching+of.Dispatching, running+of.Running, claimed+of.Claimed, backoff+of.Backoff
		rate := &of.Attempts.LastMinute
		steps += rate.PerSecond * (1 - rate.ErrorRate)
		failing += rate.PerSecond * rate.ErrorRate
	}
	accepted := &o.Accepted
	box := func(x int, node flowNode) flowNode {
		node.X, node.Y, node.W, node.H = x, middle-flowBox/2, 130, flowBox
		return node
	}
	commands := box(10, flowNode{
		Title: "Commands", Big: rate(accepted.LastMinute.PerSecond), Text: number(accepted.LastHour.Count) + " in 1 h",
		URL: link("jobs"), Below: rate(accepted.LastMinute.PerSecond),
	})
	held := box(172, flowNode{
		Title: "Ledger", Big: number(live), Text: "live jobs", URL: link("jobs"), Below: rate(steps+failing) + " directives",
	})
	out := box(334, s.outboxNode(dispatching))
	c.Nodes = append(c.Nodes, commands, held, out)
	c.line(&commands, &held, accepted.LastMinute.PerSecond, "")
	c.line(&held, &out, steps+failing, out.Level)
	busy := box(816, flowNode{
		Title: "In progress", Big: number(running), Text: number(claimed) + " claimed", URL: link("jobs", "state", api.JobStateInProgress),
		Below: rate(steps+failing) + " attempts end",
	})
	for i := range services {
		node := &services[i].flowNode
		node.X, node.W, node.H = 500, 280, flowService
		node.Y = middle - (len(services)*flowRow-(flowRow-flowService))/2 + i*flowRow
		c.Nodes = append(c.Nodes, *node)
		c.line(&out, node, services[i].arrives, node.Level)
		c.line(node, &busy, services[i].ends, "")
	}
	c.Nodes = append(c.Nodes, busy)
	for i, end := range s.ends() {
		end.X, end.Y, end.W, end.H = 985, middle-flowEnd/2+(i-1)*85, 200, flowEnd
		c.Nodes = append(c.Nodes, end.flowNode)
		c.line(&busy, &end.flowNode, end.ends, end.Level)
	}
	c.back(&busy, &out, math.Max(steps-o.Ended[string(api.JobStateSucceeded)].LastMinute.PerSecond, 0), failing, backoff)
	return c
}

// outboxNode is what waits to be published.
func (s *situation) outboxNode(dispatching int) flowNode {
	o := s.overview
	node := flowNode{Title: "Outbox", Big: number(dispatching), Text: "pending", URL: link("outbox", "state", "PENDING")}
	if at := o.OldestPendingSeconds; at != nil && *at > 0 {
		node.Text += " · " + duration(seconds(*at))
	}
	for _, f := range s.serverFindings() {
		if f.Word != "" && (node.Level == "" || f.Level == levelBad) {
			node.Level, node.Text = f.Level, f.Word
		}
	}
	held := 0 // by pauses that are not shown at a service
	for i := range s.pauses {
		if p := &s.pauses[i]; p.State == api.PauseStatePaused && p.Service == "" {
			held++
		}
	}
	if node.Level == "" && held > 0 {
		node.Level, node.Text = levelWarn, counted(held, "pause", "pauses")
		node.URL = link("pauses")
	}
	return node
}

// flowing is a box, and how much comes to it and leaves it each second.
type flowing struct {
	flowNode

	arrives, ends float64
}

// flowServices are the boxes of the services; the quiet ones of many are one box.
func (s *situation) flowServices() (shown []flowing) {
	states := s.serviceStates()
	if len(states) > mostServices {
		busiest := slices.Clone(states)
		slices.SortStableFunc(busiest, func(a, b serviceState) int {
			return cmp.Or(-cmp.Compare(levelRank(a.Level), levelRank(b.Level)), -cmp.Compare(a.PerSecond, b.PerSecond),
				-cmp.Compare(a.Backlog+a.Running, b.Backlog+b.Running))
		})
		busiest = busiest[:mostServices-1]
		rest := flowing{flowNode: flowNode{URL: link("services")}}
		idle, folded := true, 0
		states = slices.DeleteFunc(states, func(a serviceState) bool {
			if slices.ContainsFunc(busiest, func(b serviceState) bool { return a.Service == b.Service }) {
				return false
			}
			folded++
			rest.arrives, rest.ends = rest.arrives+a.Arrives, rest.ends+a.PerSecond
			idle = idle && a.PerSecond == 0 && a.Backlog+a.Running == 0
			return true
		})
		rest.Title, rest.Text = number(folded)+" more", "quieter than these"
		if idle {
			rest.Text = "idle"
		}
		defer func() { shown = append(shown, rest) }()
	}
	for i := range states {
		of := &states[i]
		shown = append(shown, flowing{
			flowNode: flowNode{
				Title: cut(of.Service), Text: of.describe(s), Level: of.Level, URL: pathOf("services", of.Service),
				Below: rate(of.PerSecond),
			},
			arrives: of.Arrives, ends: of.PerSecond,
		})
	}
	return shown
}

func levelRank(level string) int { return slices.Index([]string{"", levelWarn, levelBad}, level) }

// ends are how jobs end, or stand still.
func (s *situation) ends() []flowing {
	o := s.overview
	ended := func(state api.JobState) (api.Rates, string) {
		r := o.Ended[string(state)]
		return r, rate(r.LastMinute.PerSecond) + " · " + number(r.LastHour.Count) + " in 1 h"
	}
	succeeded, well := ended(api.JobStateSucceeded)
	failed, badly := ended(api.JobStateFailedFinal)
	cancelled := o.Ended[string(api.JobStateCancelled)]
	paused := o.Jobs[string(api.JobStatePaused)] + o.Jobs[string(api.JobStatePausing)]
	ends := []flowing{
		{
			flowNode: flowNode{Title: "Succeeded", Text: well, URL: link("jobs", "state", api.JobStateSucceeded)},
			ends:     succeeded.LastMinute.PerSecond,
		},
		{flowNode: flowNode{Title: "Failed for good", Text: badly, URL: link("failures")}, ends: failed.LastMinute.PerSecond},
		{flowNode: flowNode{
			Title: "Cancelled, paused", Text: number(cancelled.LastHour.Count) + " in 1 h · " + number(paused) + " paused",
			URL: link("jobs", "state", api.JobStatePaused),
		}, ends: cancelled.LastMinute.PerSecond},
	}
	if failed.LastMinute.Count > 0 {
		ends[1].Level = levelWarn
	}
	return ends
}

// line draws the way from one box to another.
func (c *canvas) line(from, to *flowNode, perSecond float64, level string) {
	x, y := from.X+from.W, from.Y+from.H/2
	toX, toY := to.X, to.Y+to.H/2
	edge := flowEdge{Path: fmt.Sprintf("M%d %dH%d", x, y, toX), Width: edgeWidth(perSecond), Class: level}
	if y != toY {
		middle := (x + toX) / 2
		edge.Path = fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x, y, middle, y, middle, toY, toX, toY)
	}
	if level == "" && perSecond > 0 {
		edge.Class = "hot"
	}
	c.Edges = append(c.Edges, edge)
}

// back draws the way of next steps and retries, from the bottom of one box to that of
// another.
func (c *canvas) back(from, to *flowNode, next, failing float64, backoff int) {
	bottom, class := c.Height-24, "retry"
	if share := failing / (next + failing); failing > 0 && share >= failingShare {
		class = "retry warn"
	}
	c.Edges = append(c.Edges, flowEdge{
		Path:  fmt.Sprintf("M%d %dV%dH%dV%d", from.X+from.W/2, from.Y+from.H, bottom, to.X+to.W/2, to.Y+to.H),
		Width: edgeWidth(next + failing), Class: class,
	})
	c.Labels = append(c.Labels, flowLabel{
		X: to.X + to.W/2 + 14, Y: bottom + 17,
		Text: "next steps " + rate(next) + " · attempts that failed " + rate(failing) + " · " + number(backoff) + " wait for their retry",
	})
}

// edgeWidth grows with the rate, more slowly.
func edgeWidth(perSecond float64) float64 {
	return math.Round(10*min(thinEdge+1.6*math.Log10(1+10*max(perSecond, 0)), thickEdge)) / 10
}

// rate writes how often something happens each second, or minute or hour if that is
// seldom.
func rate(perSecond float64) string {
	switch {
	case perSecond == 0:
		return "0/s"
	case perSecond >= 0.95:
		return decimal(perSecond) + "/s"
	case perSecond >= 0.95/60:
		return decimal(60*perSecond) + "/min"
	default:
		return decimal(3600*perSecond) + "/h"
	}
}

// decimal writes a number below 100 with one decimal.
func decimal(f float64) string {
	if f < 100 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0")
	}
	return number(f)
}

// cut shortens a name for a box.
func cut(name string) string {
	if runes := []rune(name); len(runes) > nameLength {
		return string(runes[:nameLength-1]) + "…"
	}
	return name
}

// The measures of the canvas of a protocol.
const (
	stepsInRow  = 4
	stepWidth   = 230
	stepHeight  = 84
	stepColumns = 290
	stepRows    = 124
)

// protocolCanvas draws the steps of a protocol, with the figures of their kinds of work.
func protocolCanvas(s *situation, p *api.Protocol) canvas {
	rows := (len(p.Steps) + stepsInRow - 1) / stepsInRow
	c := canvas{
		Width:  stepsInRow*stepColumns - (stepColumns - stepWidth) + 2*flowTop,
		Height: rows*stepRows - (stepRows - stepHeight) + 2*flowTop,
	}
	var last *flowNode
	for i := range p.Steps {
		step := &p.Steps[i]
		node := flowNode{
			X: flowTop + i%stepsInRow*stepColumns, Y: flowTop + i/stepsInRow*stepRows, W: stepWidth, H: stepHeight,
			Title: cut(step.StepID), Big: "–", Text: "nothing yet", URL: pathOf("services", step.Service),
		}
		perSecond := 0.0
		j := slices.IndexFunc(s.services, func(of api.Service) bool { return of.Service == step.Service && of.StepType == step.StepType })
		if j >= 0 {
			one := &situation{now: s.now, overview: s.overview, pauses: s.pauses, services: s.services[j : j+1]}
			state := &one.serviceStates()[0]
			node.Text, node.Level, perSecond = state.describe(s), state.Level, state.PerSecond
			node.Big, node.Below = rate(perSecond), rate(perSecond)
		}
		switch {
		case last == nil:
		case node.Y == last.Y:
			c.line(last, &node, perSecond, node.Level)
		default: // On to the next row.
			middle := last.Y + last.H + (stepRows-stepHeight)/2
			class := cmp.Or(node.Level, map[bool]string{true: "hot"}[perSecond > 0])
			c.Edges = append(c.Edges, flowEdge{
				Path:  fmt.Sprintf("M%d %dV%dH%dV%d", last.X+last.W/2, last.Y+last.H, middle, node.X+node.W/2, node.Y),
				Width: edgeWidth(perSecond), Class: class,
			})
		}
		c.Nodes = append(c.Nodes, node)
		last = &c.Nodes[len(c.Nodes)-1]
	}
	return c
}
