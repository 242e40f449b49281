package main

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// results are the figures of each system by round.
type results map[string][]figures

// rows are the rows of the table.
var rows = []struct {
	title  string
	format string
	figure func(figures) float64
}{
	{"one step, jobs a second", "%.0f", func(f figures) float64 { return f.oneStep }},
	{"three steps, jobs a second", "%.0f", func(f figures) float64 { return f.threeSteps }},
	{"three steps, machine CPU a job, ms", "%.2f", func(f figures) float64 { return f.cpu }},
	{"three steps at 50 a second, p50 ms", "%.1f", func(f figures) float64 { return f.p50 }},
	{"three steps at 50 a second, p99 ms", "%.1f", func(f figures) float64 { return f.p99 }},
	{"batches of 100, jobs accepted a second", "%.0f", func(f figures) float64 { return f.batched }},
}

// table returns a table in Markdown with a column for each system.
func (r results) table() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	head, rule := []string{""}, []string{"---"}
	for _, contender := range contenders {
		head, rule = append(head, contender.name), append(rule, "---")
	}
	line(head)
	line(rule)
	for _, row := range rows {
		cells := []string{row.title}
		for _, contender := range contenders {
			var values []float64
			for _, figures := range r[contender.name] {
				values = append(values, row.figure(figures))
			}
			cells = append(cells, summary(row.format, values))
		}
		line(cells)
	}
	return b.String()
}

// summary returns the median, and the minimum and the maximum in parentheses. A figure
// that was not measured is NaN.
func summary(format string, values []float64) string {
	if slices.ContainsFunc(values, math.IsNaN) {
		return "not measured"
	}
	slices.Sort(values)
	n := len(values)
	median := (values[(n-1)/2] + values[n/2]) / 2
	return fmt.Sprintf(format+" ("+format+"–"+format+")", median, values[0], values[n-1])
}

// describe returns the conditions of the measurement.
func (c *comparison) describe() string {
	versions := map[string]string{}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, module := range build.Deps {
			versions[module.Path] = module.Version
		}
	}
	postgres := "PostgreSQL " + c.postgres.Version
	if c.postgres.Owned() == nil {
		postgres += " that this program did not start"
	}
	return fmt.Sprintf("River %s, DBOS %s, %s, Go %s, %d processors, %d jobs in flight,\n"+
		"%d rounds, each load %s after %s of warm-up; median (minimum–maximum)\n\n",
		versions["github.com/riverqueue/river"], versions["github.com/dbos-inc/dbos-transact-golang"],
		postgres, strings.TrimPrefix(runtime.Version(), "go"), runtime.NumCPU(), c.load.inFlight,
		c.rounds, c.load.duration, c.load.warmUp)
}
