package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// servicesPage shows the work of each service, and how fast it is done.
type servicesPage struct {
	Overview  *api.Overview
	Services  []*serviceRow
	Unmatched []api.UnmatchedWorker
	Charts    []chart
}

// serviceRow is one kind of work of a service.
type serviceRow struct {
	api.Service

	Level, Trouble string
	LastPoll       api.Time
	Spark          sparkline // its backlog
	Limits         []*limitRow
	Queue          bool // Workers poll the pull queue, so that they are known.
}

// servicePage shows one service.
type servicePage struct {
	Service  string
	State    serviceState
	Overview *api.Overview
	Findings []diagnosis.Finding
	Rows     []*serviceRow
	Workers  []api.ServiceWorker
	Charts   []chart
	Pause    *api.Pause
	Limits   []*limitRow
	Queue    bool
}

func services(r *request) (view, error) {
	v := view{Title: "Services", Template: "services"}
	if !r.seesAll() {
		return notForTenants(v), nil
	}
	s, err := figures(r)
	if err == nil {
		err = s.listOperations(r)
	}
	if err == nil {
		s.Limits, err = r.startLimits()
	}
	if err != nil {
		return v, err
	}
	data := servicesPage{Overview: s.Overview, Unmatched: s.Unmatched}
	for i := range s.Services {
		data.Services = append(data.Services, s.serviceRow(&s.Services[i]))
	}
	slices.SortStableFunc(data.Services, func(a, b *serviceRow) int { return levelRank(b.Level) - levelRank(a.Level) })
	ended := func(state api.JobState) *api.MinuteCounts { return s.Overview.Ended[string(state)].ByMinute }
	data.Charts = s.charts("Jobs each minute", series{Label: "accepted", Colour: "run", Values: counts(s.Overview.Accepted.ByMinute)},
		series{Label: "succeeded", Colour: "ok", Values: counts(ended(api.JobStateSucceeded))},
		series{Label: "failed for good", Colour: "bad", Values: counts(ended(api.JobStateFailedFinal))})
	v.Data = data
	return v, nil
}

// serviceRow returns the row of a kind of work.
func (s *situation) serviceRow(of *api.Service) *serviceRow {
	row := &serviceRow{
		Service: *of, LastPoll: diagnosis.LastPoll(of), Spark: sparklineOf(of.BacklogByMinute),
		Queue: s.Overview.Bus == api.BusQueue,
	}
	alone := &situation{Situation: s.of([]api.Service{*of})}
	state := &alone.serviceStates()[0]
	row.Level, row.Trouble = state.Level, state.Trouble
	for _, limit := range limitRows(s.Limits) {
		if limit.Service == of.Service && (limit.StepType == "" || limit.StepType == of.StepType) {
			row.Limits = append(row.Limits, limit)
		}
	}
	return row
}

// Jobs returns the URL of the row's jobs that wait for these reasons.
func (row *serviceRow) Jobs(reasons string) string {
	return link("jobs", "service", row.Service.Service, "step_type", row.StepType, "waiting", reasons)
}

// Ready returns the reasons that the jobs of its backlog wait for. On Service Bus a published
// directive cannot be told from one that a worker has received.
func (row *serviceRow) Ready() string {
	if row.Queue {
		return waitsForWorker
	}
	return waitsForStart
}

func service(r *request) (view, error) {
	name := r.PathValue("service")
	v := view{Title: "Service " + name, Template: "service", Nav: "Services"}
	if !r.seesAll() {
		return notForTenants(v), nil
	}
	s, err := figures(r)
	if err == nil {
		err = s.listOperations(r)
	}
	if err == nil {
		s.Limits, err = r.startLimits()
	}
	if err != nil {
		return v, err
	}
	s.Limits = slices.DeleteFunc(slices.Clone(s.Limits), func(l api.StartLimit) bool { return l.Service != name })
	s.Services = slices.DeleteFunc(s.Services, func(of api.Service) bool { return of.Service != name })
	if len(s.Services) == 0 {
		return v, refuseMissing("No protocol has a step for the service " + name + ", and no directive was ever sent to it.")
	}
	s.Pauses = slices.DeleteFunc(s.Pauses, func(p api.Pause) bool { return p.Service != name && p.PauseID != "all" })
	data := servicePage{
		Service: name, State: s.serviceStates()[0], Overview: s.Overview,
		Queue: s.Overview.Bus == api.BusQueue, Limits: limitRows(s.Limits),
		Findings: append(s.PauseFindings(), s.LimitFindings()...),
	}
	known := map[string]bool{}
	var ended, failed, backlog []int
	for i := range s.Services {
		of := &s.Services[i]
		data.Rows = append(data.Rows, s.serviceRow(of))
		data.Findings = append(data.Findings, s.ServiceFindings(of)...)
		for _, worker := range of.Workers {
			if !known[worker.Owner] {
				known[worker.Owner], data.Workers = true, append(data.Workers, worker)
			}
		}
		backlog = added(backlog, of.BacklogByMinute)
		if by := of.Attempts.ByMinute; by != nil {
			ended = added(ended, by.Counts)
			failed = added(failed, by.Failed)
		}
	}
	data.Findings = diagnosis.Fold(data.Findings)
	for i := range data.Findings {
		data.Findings[i].Actions = nil // They lead to this page, or to what it shows below.
	}
	if len(s.Pauses) > 0 {
		data.Pause = &s.Pauses[0]
	}
	data.Charts = append(
		s.charts("Attempts each minute",
			series{Label: "ended", Colour: "run", Values: ended}, series{Label: "failed", Colour: "bad", Values: failed}),
		s.levels("Directives that wait", series{Label: "waiting", Colour: "idle", Values: backlog})...)
	v.Data = data
	return v, nil
}

// refuseMissing is the error for a thing that does not exist.
func refuseMissing(sentence string) *refusal {
	return &refusal{Status: http.StatusNotFound, Problem: api.Problem{Detail: sentence}}
}

// added returns the sum of counts, minute by minute. The last of each is the present minute.
func added(a, b []int) []int {
	if len(a) < len(b) {
		a, b = b, a
	}
	sum := slices.Clone(a)
	for i := range b {
		sum[len(sum)-len(b)+i] += b[i]
	}
	return sum
}

func counts(by *api.MinuteCounts) []int {
	if by == nil {
		return nil
	}
	return by.Counts
}

// chart shows the last hour, minute by minute. Script draws it; without script there is a
// sparkline of its first series.
type chart struct {
	Title string
	Spark sparkline
	// Text says what the chart shows.
	Text string
	// Marks are pauses, operations and server starts within the time of the chart.
	Marks []chartMark
	// Spec is the chart's data for the script, as JSON.
	Spec string
}

// chartMark is an event in a chart.
type chartMark struct {
	At   int64  `json:"at"` // Unix time
	Text string `json:"text"`
}

// Clock is the time of the mark, in UTC.
func (m chartMark) Clock() string { return time.Unix(m.At, 0).UTC().Format("15:04") }

// marksSince returns the marks of charts since that time, the earliest first.
func (s *situation) marksSince(from time.Time) (marks []chartMark) {
	add := func(at api.Time, text ...string) {
		if !at.Before(from) {
			marks = append(marks, chartMark{at.Unix(), strings.TrimSuffix(strings.Join(text, " "), " by ")})
		}
	}
	for i := range s.Pauses {
		p := &s.Pauses[i]
		add(p.CreatedAt, "pause "+p.PauseID, "by", p.Actor)
	}
	for i := range s.Operations {
		op := &s.Operations[i]
		add(op.CreatedAt, string(op.Kind), "of", diagnosis.Counted(op.Matched, "job", "jobs"), "by", op.Caller)
	}
	add(s.Overview.Since, "counting began")
	if s.Overview.CompleteSince.After(s.Overview.Since.Time) {
		add(s.Overview.CompleteSince, "a server started after a crash")
	}
	slices.SortStableFunc(marks, func(a, b chartMark) int { return cmp.Compare(a.At, b.At) })
	return marks
}

// series is one line of a chart. Its colour is the name of one in the style sheet.
type series struct {
	Label  string `json:"label"`
	Colour string `json:"colour"`
	Values []int  `json:"values"`
}

// charts returns a chart of counts by minute, or none if the server sent none. The last minute of
// counts is not over.
func (s *situation) charts(title string, lines ...series) []chart {
	return s.chartOf(title, true, lines...)
}

// levels is [situation.charts] for values at the end of each minute. The last one is the present value.
func (s *situation) levels(title string, lines ...series) []chart {
	return s.chartOf(title, false, lines...)
}

func (s *situation) chartOf(title string, open bool, lines ...series) []chart {
	n := len(lines[0].Values)
	if n == 0 {
		return nil
	}
	c, present := chart{Title: title, Spark: sparklineOf(lines[0].Values)}, "now %s"
	if open {
		present = "%s so far in this minute"
	}
	for i := range lines {
		values := lines[i].Values
		if i > 0 {
			c.Text += "; "
		}
		last := 0
		if len(values) > 0 {
			last = values[len(values)-1]
		}
		c.Text += fmt.Sprintf("%s: at most %s, "+present, lines[i].Label,
			diagnosis.Number(slices.Max(append([]int{0}, values...))), diagnosis.Number(last))
	}
	from := s.Now.Truncate(time.Minute).Add(time.Duration(1-n) * time.Minute)
	c.Marks = s.marksSince(from)
	// The script's x axis is in seconds.
	spec, err := json.Marshal(map[string]any{"from": from.Unix(), "series": lines, "marks": c.Marks, "open": open})
	if err != nil {
		panic(err) // They are numbers and strings.
	}
	c.Spec = string(spec)
	return []chart{c}
}
