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

// waterfall shows how long each step of a protocol waits and runs, by the attempts of the last hour
// or of the last day.
type waterfall struct {
	Rows []waterfallRow
	// Total is the sum of the medians, zero if no step has ended within that time.
	Total time.Duration
}

// waterfallRow is a step. Its bars begin where those of the step before end.
type waterfallRow struct {
	StepID, URL string
	// Waits and Runs are p50 and p95 as text, and Share the step's part of Total.
	Waits, Runs, Share string
	// Backlog is a forecast for the jobs that wait at the step, empty if there are none.
	Backlog   string
	Wait, Run waterfallBar
}

// waterfallBar is the bar of a duration: Width is its p50, and More what p95 adds.
type waterfallBar struct{ X, Width, More int }

// waterfallOf returns the waterfall of a protocol, of the last day or else of the last hour. The services
// count its jobs alone.
func (s *situation) waterfallOf(p *api.Protocol, inDay bool) (w waterfall) {
	kinds, total, end := make([]api.Service, len(p.Steps)), 0.0, 0.0
	for i := range p.Steps {
		step := &p.Steps[i]
		j := slices.IndexFunc(s.Services, func(of api.Service) bool { return of.Service == step.Service && of.StepType == step.StepType })
		if j < 0 {
			continue
		}
		kinds[i] = s.Services[j]
		wait, run := durationsOf(&kinds[i], inDay)
		end = max(end, total+wait.P95, total+wait.P50+run.P95)
		total += wait.P50 + run.P50
	}
	scale := func(seconds float64) int {
		return int(math.Round(seconds / max(end, math.SmallestNonzeroFloat64) * waterfallWidth))
	}
	w.Total = diagnosis.Seconds(total)
	begin := 0.0
	for i := range kinds {
		of := &kinds[i]
		wait, run := durationsOf(of, inDay)
		row := waterfallRow{StepID: p.Steps[i].StepID, URL: pathOf("services", p.Steps[i].Service), Backlog: backlogOf(of)}
		row.Waits, row.Wait = percentilesIn(wait, begin, scale)
		row.Runs, row.Run = percentilesIn(run, begin+wait.P50, scale)
		if total > 0 && run.Count > 0 {
			row.Share = diagnosis.Percent((wait.P50 + run.P50) / total)
		}
		begin += wait.P50 + run.P50
		w.Rows = append(w.Rows, row)
	}
	return w
}

// durationsOf returns how long attempts of the service waited and ran, in the last day or else in the last hour.
func durationsOf(of *api.Service, inDay bool) (waited, ran *api.Percentiles) {
	if inDay {
		return &of.QueueWaitSecondsInDay, &of.DurationSecondsInDay
	}
	return &of.QueueWaitSeconds, &of.DurationSeconds
}

// percentilesIn returns p50 and p95 as text and as a bar.
func percentilesIn(p *api.Percentiles, begin float64, scale func(float64) int) (string, waterfallBar) {
	if p.Count == 0 {
		return "–", waterfallBar{X: scale(begin)}
	}
	text := diagnosis.Duration(diagnosis.Seconds(p.P50)) + ", p95 " + diagnosis.Duration(diagnosis.Seconds(p.P95))
	return text, waterfallBar{scale(begin), scale(p.P50), scale(p.P95 - p.P50)}
}

// backlogOf forecasts when the backlog of a service is done and, if that takes more than an hour, how
// many more concurrent attempts would finish it within the hour.
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
	// Each concurrent attempt takes about the median, so the hour needs backlog·p50/1h of them.
	more := int(math.Ceil(float64(of.Backlog)*of.DurationSeconds.P50/time.Hour.Seconds())) - of.Claimed - of.Running
	if takes > time.Hour && more > 0 {
		text += "; about " + diagnosis.Number(more) + " more concurrent attempts would finish it within the hour"
	}
	return text
}
