package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheReportAsATable(t *testing.T) {
	t.Parallel()
	report := Report{
		Submitters: 64, Pullers: 4, PayloadBytes: 256, WarmUpSeconds: 2, DurationSeconds: 10,
		Jobs: []JobResult{
			{
				Steps: 1, Jobs: 20000, PerSecond: 2000, EndToEnd: Percentiles{10, 20, 30, 40.125},
				Submit: Percentiles{1, 2, 3, 4}, CPU: &CPU{12.5, 3, 625}, Audited: 500,
			},
			{Steps: 3, Jobs: 8000, PerSecond: 800, EndToEnd: Percentiles{50, 60, 70, 80}, Audited: 300},
		},
		Ceiling: Ceiling{Requests: 200000, PerSecond: 20000, Latency: Percentiles{3, 4, 5, 6}},
	}
	report.compare()
	got := strings.TrimSuffix(report.String(), legend)
	want := `64 submitters with one job each in flight, 4 pullers, payloads of 256 bytes, 10s after 2s of warm-up

                       one step  three steps  ceiling
              counted     20000         8000   200000
             a second    2000.0        800.0  20000.0
       of the ceiling    10.0 %        4.0 %        -
    end to end p50 ms     10.00        50.00     3.00
                  p90     20.00        60.00     4.00
                  p99     30.00        70.00     5.00
                  max     40.12        80.00     6.00
        submit p50 ms      1.00         0.00        -
                  p90      2.00         0.00        -
                  p99      3.00         0.00        -
                  max      4.00         0.00        -
         server CPU s     12.50            -        -
         client CPU s      3.00            -        -
  server CPU µs a job       625            -        -
            read back       500          300        -
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// Where the ceiling could not be seen, no part of it is claimed.
func TestNoCeilingNoRatio(t *testing.T) {
	t.Parallel()
	report := Report{Jobs: []JobResult{{Steps: 1, PerSecond: 5}}}
	report.compare()
	if report.Jobs[0].OfCeiling != 0 {
		t.Errorf("%v of nothing", report.Jobs[0].OfCeiling)
	}
}
