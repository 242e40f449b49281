package console

import (
	"math"
	"slices"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// waterfallWidth is the width of the bars of a [waterfall].
const waterfallWidth = 600

// waterfall shows where a job of a protocol spends its time: for each step, how long it waits and
// how long it runs, by the last hour's attempts.
type waterfall struct {
	Rows []waterfallRow
	// Total is the sum of the medians, zero if no step has ended within the hour.
	Total time.Duration
}

// waterfallRow is a step. Its bars begin where those of the step before end.
type waterfallRow struct {
	StepID, URL string
	// Waits and Runs say how long, at p50 and p95, and Share how much of Total that is.
	Waits, Runs, Share string
	// Backlog says what waits, when that is done, and how many more attempts at a time would do it
	// within the hour; empty if nothing waits.
	Backlog   string
	Wait, Run waterfallBar
}

// waterfallBar is a time span at p50, and how much longer it is at p95.
type waterfallBar struct{ X, Width, More int }

// waterfallOf returns where the time goes in a protocol of whose jobs the services' figures are.
func (s *situation) waterfallOf(p *api.Protocol) (w waterfall) {
	type span struct{ begin, wait, run, longest float64 }
	spans, begin, end := make([]span, len(p.Steps)), 0.0, 0.0
	kinds := make([]*api.Service, len(p.Steps))
	for i := range p.Steps {
		step := &p.Steps[i]
		j := slices.IndexFunc(s.Services, func(of api.Service) bool { return of.Service == step.Service && of.StepType == step.StepType })
		if j < 0 {
			kinds[i] = &api.Service{Service: step.Service}
			continue
		}
		of := &s.Services[j]
		kinds[i] = of
		spans[i] = span{begin, of.QueueWaitSeconds.P50, of.DurationSeconds.P50, 0}
		spans[i].longest = max(of.QueueWaitSeconds.P95, of.QueueWaitSeconds.P50+of.DurationSeconds.P95)
		end = max(end, begin+spans[i].longest)
		begin += of.QueueWaitSeconds.P50 + of.DurationSeconds.P50
	}
	w.Total = diagnosis.Seconds(begin)
	scale := func(seconds float64) int {
		return int(math.Round(seconds / max(end, math.SmallestNonzeroFloat64) * waterfallWidth))
	}
	for i := range p.Steps {
		of, at := kinds[i], &spans[i]
		row := waterfallRow{StepID: p.Steps[i].StepID, URL: pathOf("services", p.Steps[i].Service), Backlog: backlogOf(of)}
		row.Waits, row.Wait = percentilesIn(&of.QueueWaitSeconds, at.begin, scale)
		row.Runs, row.Run = percentilesIn(&of.DurationSeconds, at.begin+at.wait, scale)
		if begin > 0 && of.DurationSeconds.Count > 0 {
			row.Share = diagnosis.Percent((at.wait + at.run) / begin)
		}
		w.Rows = append(w.Rows, row)
	}
	return w
}

// percentilesIn returns percentiles in words, and as a bar.
func percentilesIn(p *api.Percentiles, begin float64, scale func(float64) int) (string, waterfallBar) {
	if p.Count == 0 {
		return "–", waterfallBar{X: scale(begin)}
	}
	text := diagnosis.Duration(diagnosis.Seconds(p.P50)) + ", p95 " + diagnosis.Duration(diagnosis.Seconds(p.P95))
	return text, waterfallBar{scale(begin), scale(p.P50), scale(p.P95 - p.P50)}
}

// backlogOf says when what waits for a service is done.
func backlogOf(of *api.Service) string {
	if of.Backlog == 0 {
		return ""
	}
	text := diagnosis.Counted(of.Backlog, "waits", "wait")
	rate := of.Attempts.LastMinute.PerSecond
	if rate == 0 {
		return text + ", and no attempt has ended in the last minute"
	}
	takes := diagnosis.Seconds(float64(of.Backlog) / rate)
	text += ", done in about " + diagnosis.Duration(takes) + " if nothing new arrives"
	// Those that end an attempt each median would do it within the hour, of which some are there.
	more := int(math.Ceil(float64(of.Backlog)*of.DurationSeconds.P50/time.Hour.Seconds())) - of.Claimed - of.Running
	if takes > time.Hour && more > 0 {
		text += "; about " + diagnosis.Number(more) + " more at a time would do it within the hour"
	}
	return text
}
