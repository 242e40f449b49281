package bench

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// The stores on which loads are measured.
const (
	Empty     = "empty"
	Prefilled = "prefilled"
)

// Report is the result of one measurement. In JSON, the names of times end with their unit.
type Report struct {
	Submitters      int     `json:"submitters"`
	Pullers         int     `json:"pullers"`
	PayloadBytes    int     `json:"payload_bytes"`
	Rate            int     `json:"open_loop_rate"`
	Finished        int     `json:"prefilled_finished"`
	Live            int     `json:"prefilled_live"`
	Waiting         int     `json:"prefilled_waiting"`
	InLine          int     `json:"prefilled_in_line"`
	WarmUpSeconds   float64 `json:"warm_up_seconds"`
	DurationSeconds float64 `json:"duration_seconds"`
	// Ceilings are the upper limits of this machine.
	Ceilings []Ceiling `json:"ceilings"`
	// Rows has one entry for each load and store.
	Rows []Row `json:"rows"`
}

// Ceiling is the result of a minimal server, an upper limit of what a service can reach on
// the machine. The first only reads a request, the second also syncs it to disk, in one sync
// with others, and the third commits it to Pebble.
type Ceiling struct {
	Name string `json:"name"`
	// Requests counts the responses in the window, and PerSecond is their rate.
	Requests  int64       `json:"requests"`
	PerSecond float64     `json:"requests_per_second"`
	Latency   Percentiles `json:"latency_ms"`
}

// Row is the result of one load on one store.
type Row struct {
	Load  string `json:"load"`
	Store string `json:"store"`
	// Jobs counts the jobs of the window, and PerSecond is their rate. For batches, it
	// counts the accepted commands.
	Jobs      int64   `json:"jobs"`
	PerSecond float64 `json:"jobs_per_second"`
	// OfCeiling is PerSecond divided by that of [GroupedSync].
	OfCeiling float64 `json:"of_ceiling"`
	// OfEmpty compares a prefilled store with an empty one: it is the ratio of the rates or,
	// for the open loop, whose rate is fixed, the inverse ratio of the median latencies.
	OfEmpty float64 `json:"of_empty,omitempty"`
	// EndToEnd is the time from the submission of a command to the end of its job, and
	// Submit the time to the response. In the open loop, both begin when the command was
	// due. For [Schedules], EndToEnd is the time from when an occurrence was due until its job
	// was accepted, and PerSecond the rate until the last one.
	EndToEnd Percentiles `json:"end_to_end_ms,omitzero"`
	Submit   Percentiles `json:"submit_ms"`
	// Cost is the cost of one job.
	Cost Cost `json:"per_job"`
	// DiskBytes is the size of the compacted data directory per job, or 0 if it was not
	// measured.
	DiskBytes float64 `json:"disk_bytes_per_job,omitempty"`
	// Kept says whether the server kept up with purging; nil except for [Retention].
	Kept *Kept `json:"retention,omitempty"`
	// Shared compares normal work with and without bulk work; nil except for [Bulk].
	Shared *Shared `json:"bulk,omitempty"`
	// OfOne compares [Retention], [Lines] and [Limits] with [One] on an empty store: it is the ratio of the
	// rates, or 0 if the other load was not measured.
	OfOne float64 `json:"of_one_step,omitempty"`
	// Audited is how many jobs were read back; all had succeeded.
	Audited int    `json:"audited"`
	Goals   []Goal `json:"goals,omitempty"`
}

// Goal is a limit for one figure of a row.
type Goal struct {
	// What names the figure.
	What string `json:"what"`
	// Limit is the greatest good value if AtMost is set, otherwise the least.
	Limit  float64 `json:"limit"`
	AtMost bool    `json:"at_most"`
	Got    float64 `json:"got"`
	Met    bool    `json:"met"`
}

func atLeast(limit float64, what string, got float64) Goal {
	return Goal{What: what, Limit: limit, Got: got, Met: got >= limit}
}

func atMost(limit float64, what string, got float64) Goal {
	return Goal{What: what, Limit: limit, AtMost: true, Got: got, Met: got <= limit}
}

// goals returns the goals of a row. The latency goals assume an otherwise idle machine.
func (r *Row) goals() []Goal {
	if r.Store == Prefilled {
		return []Goal{atLeast(0.9, "of the empty store", r.OfEmpty)}
	}
	const ceiling, disk, diskLimit = "of the ceiling", "disk bytes a job", 4096
	switch r.Load {
	case One:
		return []Goal{atLeast(0.15, ceiling, r.OfCeiling), atMost(diskLimit, disk, r.DiskBytes)}
	case Three:
		return []Goal{atLeast(0.07, ceiling, r.OfCeiling), atMost(diskLimit, disk, r.DiskBytes)}
	case Callbacks:
		return []Goal{atLeast(0.05, ceiling, r.OfCeiling)}
	case Retention:
		goals := []Goal{atLeast(0.97, "purged of ended", r.Kept.Purged), atMost(1.1, "growth of the store", r.Kept.Growth)}
		if r.OfOne > 0 {
			goals = append(goals, atLeast(0.9, "of one step", r.OfOne))
		}
		return goals
	case Bulk:
		return []Goal{
			atMost(1.2, fmt.Sprintf("p50 to the claim, with %d bulk items to without", r.Shared.Items), r.Shared.OfAlone),
			atLeast(0.12, "share of bulk", r.Shared.Share),
		}
	case Schedules:
		return []Goal{atMost(60_000, "max ms late", r.EndToEnd.Max)}
	case Lines:
		if r.OfOne > 0 {
			return []Goal{atLeast(0.8, "of one step", r.OfOne)}
		}
	case Limits:
		if r.OfOne > 0 {
			return []Goal{atLeast(0.97, "of one step", r.OfOne)}
		}
	case Open:
		return []Goal{atMost(2.5, "p50 ms", r.EndToEnd.P50), atMost(6, "p99 ms", r.EndToEnd.P99)}
	}
	return nil
}

// newReport returns a report without results.
func newReport(o *Options) *Report {
	return &Report{
		Submitters: o.Submitters, Pullers: o.Pullers, PayloadBytes: o.PayloadBytes, Rate: o.Rate,
		Finished: o.Finished, Live: o.Live, Waiting: o.Waiting, InLine: o.InLine,
		WarmUpSeconds: o.WarmUp.Seconds(), DurationSeconds: o.Duration.Seconds(),
	}
}

// compare fills in the ratios and goals.
func (r *Report) compare() {
	empty := map[string]*Row{}
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, ceiling := range r.Ceilings {
			if ceiling.Name == GroupedSync && ceiling.PerSecond > 0 {
				row.OfCeiling = row.PerSecond / ceiling.PerSecond
			}
		}
		if row.Store == Empty {
			empty[row.Load] = row
		} else if before := empty[row.Load]; before != nil {
			row.OfEmpty = ratio(row.PerSecond, before.PerSecond)
			if row.Load == Open {
				row.OfEmpty = ratio(before.EndToEnd.P50, row.EndToEnd.P50)
			}
		}
		if one := empty[One]; one != nil && row.Store == Empty && slices.Contains([]string{Retention, Lines, Limits}, row.Load) {
			row.OfOne = ratio(row.PerSecond, one.PerSecond)
		}
		row.Goals = row.goals()
	}
}

// ratio returns a/b, or 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// String returns the report as tables: the rates and latencies, what a job costs, and the
// goals.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d submitters, %d pullers, payloads of %d bytes, open loop at %d a second\n"+
		"prefilled: %d finished, %d live, %d waiting, %d in a line; rows of %gs after %gs of warm-up\n\n",
		r.Submitters, r.Pullers, r.PayloadBytes, r.Rate, r.Finished, r.Live, r.Waiting, r.InLine, r.DurationSeconds, r.WarmUpSeconds)
	writeTable(&b, r.rates())
	b.WriteString("\nA job costs\n")
	writeTable(&b, r.costs())
	b.WriteString("\nGoals\n")
	writeTable(&b, r.goalLines())
	b.WriteString(legend)
	return b.String()
}

// legend explains the tables.
const legend = `
Ceilings are of a bare server on this machine; "of ceiling" is the rate's share of
that with an fdatasync shared by all requests that wait. Latencies are in ms: of a
job from its command's submission (open loop: from when it was due) to the answer
that ended its last step, and of its 202; of a schedule from when it was due until
its job was accepted. "Of empty" compares the rates, for the open
loop the medians. In costs, µs are processor time and KiB are allocations; disk is the
tables after a compaction. Jobs that were read back had all succeeded.
`

// writeTable writes aligned columns. Only cells that end with a tab belong to a column.
func writeTable(b *strings.Builder, rows [][]string) {
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		_, _ = fmt.Fprintf(table, "%s\t\n", strings.Join(row, "\t")) // Writes to a strings.Builder do not fail.
	}
	_ = table.Flush()
}

// rates returns the table of rates and latencies.
func (r *Report) rates() [][]string {
	rows := [][]string{{"", "a second", "of ceiling", "of empty", "p50", "p90", "p99", "max", "202: p50", "p99"}}
	for _, c := range r.Ceilings {
		rows = append(rows, []string{
			c.Name, fmt.Sprintf("%.0f", c.PerSecond), "-", "-", "-", "-", "-", "-", ms(c.Latency.P50), ms(c.Latency.P99),
		})
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		rows = append(rows, []string{
			row.title(), fmt.Sprintf("%.1f", row.PerSecond), share(row.OfCeiling), share(row.OfEmpty),
			ms(row.EndToEnd.P50), ms(row.EndToEnd.P90), ms(row.EndToEnd.P99), ms(row.EndToEnd.Max),
			ms(row.Submit.P50), ms(row.Submit.P99),
		})
	}
	return rows
}

// costs returns the table of what a job costs.
func (r *Report) costs() [][]string {
	rows := [][]string{{"", "server µs", "client", "server KiB", "client", "commits", "reads", "disk bytes", "read back"}}
	for i := range r.Rows {
		row := &r.Rows[i]
		c := &row.Cost
		rows = append(rows, []string{
			row.title(), number("%.0f", c.ServerCPU), number("%.0f", c.ClientCPU),
			number("%.1f", c.ServerBytes/1024), number("%.1f", c.ClientBytes/1024),
			number("%.2f", c.Commits), number("%.2f", c.Reads), number("%.0f", row.DiskBytes), fmt.Sprint(row.Audited),
		})
	}
	return rows
}

// goalLines returns the table of goals.
func (r *Report) goalLines() [][]string {
	rows := [][]string{{"", "", "goal", "got", ""}}
	for i := range r.Rows {
		for _, goal := range r.Rows[i].Goals {
			limit, verdict := "at least ", "missed"
			if goal.AtMost {
				limit = "at most "
			}
			if goal.Met {
				verdict = "met"
			}
			rows = append(rows, []string{
				r.Rows[i].title(), goal.What, fmt.Sprintf("%s%g", limit, goal.Limit), figure(goal.Got), verdict,
			})
		}
	}
	return rows
}

// title returns the name of the row.
func (r *Row) title() string {
	if r.Store == Prefilled {
		return r.Load + ", prefilled"
	}
	return r.Load
}

// number formats a figure. 0 means that it was not measured.
func number(format string, value float64) string {
	if value == 0 {
		return "-"
	}
	return fmt.Sprintf(format, value)
}

// figure formats a value with at least three significant digits, without cutting its integer
// part.
func figure(value float64) string {
	if value >= 1000 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}

func ms(value float64) string { return number("%.2f", value) }

func share(value float64) string { return number("%.1f %%", 100*value) }
