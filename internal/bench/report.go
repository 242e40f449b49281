package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the result of one measurement. In JSON, names end with the unit of their
// times.
type Report struct {
	Submitters      int     `json:"submitters"`
	Pullers         int     `json:"pullers"`
	PayloadBytes    int     `json:"payload_bytes"`
	WarmUpSeconds   float64 `json:"warm_up_seconds"`
	DurationSeconds float64 `json:"duration_seconds"`
	// Jobs has one entry for each number of steps.
	Jobs []JobResult `json:"jobs"`
	// Ceiling is the upper limit of this machine.
	Ceiling Ceiling `json:"ceiling"`
}

// JobResult is the result for jobs of one number of steps.
type JobResult struct {
	// Steps is the number of steps of each job.
	Steps int `json:"steps"`
	// Jobs is how many ended in the measured time, and PerSecond their rate.
	Jobs      int     `json:"jobs"`
	PerSecond float64 `json:"jobs_per_second"`
	// OfCeiling is PerSecond divided by the ceiling's requests per second.
	OfCeiling float64 `json:"of_ceiling"`
	// EndToEnd is from the submission of a command to its job's end, Submit from the
	// submission to the 202.
	EndToEnd Percentiles `json:"end_to_end_ms"`
	Submit   Percentiles `json:"submit_ms"`
	// CPU is nil if the server's process is unknown.
	CPU *CPU `json:"cpu,omitempty"`
	// Audited is how many jobs were read back; all of them had succeeded.
	Audited int `json:"audited"`
}

// CPU is the processor time used in the measured time.
type CPU struct {
	// ServerSeconds and ClientSeconds are those of the two processes; submitters and
	// pullers are both clients.
	ServerSeconds float64 `json:"server_seconds"`
	ClientSeconds float64 `json:"client_seconds"`
	// ServerMicrosPerJob is the server's time per job.
	ServerMicrosPerJob float64 `json:"server_us_per_job"`
}

// Ceiling is the result of the bare server.
type Ceiling struct {
	// Requests counts its answers in the measured time, and PerSecond is their rate.
	Requests  int         `json:"requests"`
	PerSecond float64     `json:"requests_per_second"`
	Latency   Percentiles `json:"latency_ms"`
}

// charge puts the CPU time into the result, if it was measured.
func (r *JobResult) charge(used cpu) {
	if used.client == 0 && used.server == 0 {
		return
	}
	r.CPU = &CPU{ServerSeconds: used.server.Seconds(), ClientSeconds: used.client.Seconds()}
	if r.Jobs > 0 {
		r.CPU.ServerMicrosPerJob = float64(used.server.Microseconds()) / float64(r.Jobs)
	}
}

// compare fills in OfCeiling.
func (r *Report) compare() {
	if r.Ceiling.PerSecond == 0 {
		return
	}
	for i := range r.Jobs {
		r.Jobs[i].OfCeiling = r.Jobs[i].PerSecond / r.Ceiling.PerSecond
	}
}

// write writes the report as JSON or as a table.
func (r *Report) write(out io.Writer, asJSON bool) error {
	var err error
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(r)
	} else {
		_, err = io.WriteString(out, r.String())
	}
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// String returns the report as a table, with a column for each number of steps and
// one for the ceiling, and a legend.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d submitters with one job each in flight, %d pullers, payloads of %d bytes, %gs after %gs of warm-up\n\n",
		r.Submitters, r.Pullers, r.PayloadBytes, r.DurationSeconds, r.WarmUpSeconds)
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, line := range r.rows() {
		// Only cells that end with a tab belong to a column.
		_, _ = fmt.Fprintf(table, "%s\t\n", strings.Join(line, "\t")) // A strings.Builder never fails.
	}
	_ = table.Flush()
	b.WriteString(legend)
	return b.String()
}

// legend explains the rows.
const legend = `
Counted are jobs that ended in the measured time, and for the ceiling requests
that a bare HTTP server answered after an fdatasync shared by all that waited.
End to end is from a command's submission to the answer that ended its job's
last step, submit until its 202. Jobs that were read back had all succeeded.
`

// rows returns the cells of the table; the first row is its head.
func (r *Report) rows() [][]string {
	head := []string{""}
	rows := [][]string{{"counted"}, {"a second"}, {"of the ceiling"}}
	latencies := [][]string{
		{"end to end p50 ms"}, {"p90"}, {"p99"}, {"max"}, {"submit p50 ms"}, {"p90"}, {"p99"}, {"max"},
	}
	cpu := [][]string{{"server CPU s"}, {"client CPU s"}, {"server CPU µs a job"}, {"read back"}}
	for i := range r.Jobs {
		j := &r.Jobs[i]
		head = append(head, title(j.Steps))
		fill(rows, fmt.Sprint(j.Jobs), fmt.Sprintf("%.1f", j.PerSecond), fmt.Sprintf("%.1f %%", 100*j.OfCeiling))
		fill(latencies, append(j.EndToEnd.cells(), j.Submit.cells()...)...)
		fill(cpu, append(j.CPU.cells(), fmt.Sprint(j.Audited))...)
	}
	head = append(head, "ceiling")
	fill(rows, fmt.Sprint(r.Ceiling.Requests), fmt.Sprintf("%.1f", r.Ceiling.PerSecond), "-")
	fill(latencies, append(r.Ceiling.Latency.cells(), "-", "-", "-", "-")...)
	fill(cpu, "-", "-", "-", "-")
	return append(append(append([][]string{head}, rows...), latencies...), cpu...)
}

// fill adds a cell to each row.
func fill(rows [][]string, cells ...string) {
	for i := range rows {
		rows[i] = append(rows[i], cells[i])
	}
}

func (p Percentiles) cells() []string {
	cells := make([]string, 0, 4)
	for _, ms := range []float64{p.P50, p.P90, p.P99, p.Max} {
		cells = append(cells, fmt.Sprintf("%.2f", ms))
	}
	return cells
}

func (c *CPU) cells() []string {
	if c == nil {
		return []string{"-", "-", "-"}
	}
	return []string{
		fmt.Sprintf("%.2f", c.ServerSeconds), fmt.Sprintf("%.2f", c.ClientSeconds), fmt.Sprintf("%.0f", c.ServerMicrosPerJob),
	}
}

// Percentiles summarizes durations, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// percentiles sorts the durations and summarizes them: each percentile is the
// smallest sample that at least that share of the samples does not exceed. All
// samples are kept, so the figures are exact, without averages or buckets.
func percentiles(times []time.Duration) Percentiles {
	if len(times) == 0 {
		return Percentiles{}
	}
	slices.Sort(times)
	at := func(percent float64) float64 {
		rank := int(math.Ceil(percent / 100 * float64(len(times))))
		return float64(times[max(rank, 1)-1]) / float64(time.Millisecond)
	}
	return Percentiles{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}
