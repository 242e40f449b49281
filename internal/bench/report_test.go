package bench

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// example returns a report with a row of each kind.
func example() *Report {
	report := &Report{
		Submitters: 64, Pullers: 4, PayloadBytes: 256, Rate: 50, Finished: 2000, Live: 200, Waiting: 3000, InLine: 400,
		WarmUpSeconds: 1, DurationSeconds: 5,
		Ceilings: []Ceiling{
			{Name: "bare HTTP", PerSecond: 40000, Latency: Percentiles{1, 2, 3, 4}},
			{Name: GroupedSync, PerSecond: 20000, Latency: Percentiles{3, 4, 5, 6}},
		},
		Rows: []Row{
			{
				Load: One, Store: Empty, Jobs: 20000, PerSecond: 4000, EndToEnd: Percentiles{10, 20, 30, 40.125},
				Submit: Percentiles{1, 2, 3, 4}, Cost: Cost{625.4, 100, 2048, 1024, 2.25, 1.5}, DiskBytes: 5000, Audited: 500,
			},
			{Load: Callbacks, Store: Empty, PerSecond: 800, EndToEnd: Percentiles{50, 60, 70, 80}, Audited: 300},
			{Load: Open, Store: Empty, PerSecond: 50, EndToEnd: Percentiles{2.5, 3, 7, 8}, Submit: Percentiles{1, 1, 2, 2}},
			{Load: Lines, Store: Empty, PerSecond: 3400, EndToEnd: Percentiles{10, 20, 30, 40}, Submit: Percentiles{1, 2, 3, 4}},
			{Load: Batch, Store: Empty, PerSecond: 9000, Submit: Percentiles{1, 1, 2, 2}},
			{Load: One, Store: Prefilled, PerSecond: 3800},
			{Load: Open, Store: Prefilled, PerSecond: 50, EndToEnd: Percentiles{5, 6, 7, 8}},
		},
	}
	report.compare()
	return report
}

func TestTheReportAsTables(t *testing.T) {
	t.Parallel()
	got := example().String()
	want := `64 submitters, 4 pullers, payloads of 256 bytes, open loop at 50 a second
prefilled: 2000 finished, 200 live, 3000 waiting, 400 in a line; rows of 5s after 1s of warm-up

                        a second  of ceiling  of empty    p50    p90    p99    max  202: p50   p99
             bare HTTP     40000           -         -      -      -      -      -      1.00  3.00
    HTTP + shared sync     20000           -         -      -      -      -      -      3.00  5.00
              one step    4000.0      20.0 %         -  10.00  20.00  30.00  40.12      1.00  3.00
`
	if diff := cmp.Diff(want, got[:min(len(want), len(got))]); diff != "" {
		t.Errorf("tables (-want +got):\n%s\n%s", diff, got)
	}
	for line := range strings.Lines(got) {
		if utf8.RuneCountInString(line) > 101 {
			t.Errorf("longer than 100 columns: %s", line)
		}
	}
	for _, want := range []string{
		"one step        625     100         2.0     1.0     2.25   1.50        5000        500\n",
		"one step      of the ceiling  at least 0.15   0.2     met\n",
		"one step    disk bytes a job   at most 4096  5000  missed\n",
		"lines         of one step   at least 0.8  0.85     met\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no line %sin\n%s", want, got)
		}
	}
}

func TestEachRowHasItsGoals(t *testing.T) {
	t.Parallel()
	type verdict struct {
		What string
		Got  float64
		Met  bool
	}
	want := [][]verdict{
		{{"of the ceiling", 0.2, true}, {"disk bytes a job", 5000, false}},
		{{"of the ceiling", 0.04, false}},
		{{"p50 ms", 2.5, true}, {"p99 ms", 7, false}},
		{{"of one step", 0.85, true}},
		nil,
		{{"of the empty store", 0.95, true}},
		{{"of the empty store", 0.5, false}},
	}
	var got [][]verdict
	for _, row := range example().Rows {
		var verdicts []verdict
		for _, goal := range row.Goals {
			verdicts = append(verdicts, verdict{goal.What, goal.Got, goal.Met})
		}
		got = append(got, verdicts)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("goals (-want +got):\n%s", diff)
	}
}

// TestRetentionHasThreeGoals holds a store that grows, one that grows no more, and one that slows
// the completion of jobs.
func TestRetentionHasThreeGoals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		row Row
		met []bool
	}{
		"grows":      {Row{Kept: &Kept{Purged: 0.5, Growth: 1.2}}, []bool{false, false}},
		"keeps up":   {Row{Kept: &Kept{Purged: 0.98, Growth: 1.05}, OfOne: 0.95}, []bool{true, true, true}},
		"slows work": {Row{Kept: &Kept{Purged: 1.5, Growth: 1}, OfOne: 0.8}, []bool{true, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.row.Load = Retention
			var met []bool
			for _, goal := range test.row.goals() {
				met = append(met, goal.Met)
			}
			if diff := cmp.Diff(test.met, met); diff != "" {
				t.Errorf("goals (-want +got):\n%s", diff)
			}
		})
	}
}

// If the ceiling was not measured, there is no ratio to it.
func TestTheRatioNeedsACeiling(t *testing.T) {
	t.Parallel()
	report := Report{Ceilings: []Ceiling{{Name: GroupedSync}}, Rows: []Row{{Load: One, Store: Empty, PerSecond: 5}, {Load: Three, Store: Prefilled}}}
	report.compare()
	if row := report.Rows[0]; row.OfCeiling != 0 || report.Rows[1].OfEmpty != 0 {
		t.Errorf("%v of nothing", report.Rows)
	}
}
