package bench

import (
	"errors"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " S 1 42 42 0 -1 4194560 900 0 3 0 150 25 0 0 20 0 8 0 5000 1 2"
	for name, test := range map[string]struct {
		stat string
		want time.Duration
		err  error
	}{
		"a plain name":             {"42 (lucius)" + rest, 1750 * time.Millisecond, nil},
		"a name with spaces":       {"42 (my server)" + rest, 1750 * time.Millisecond, nil},
		"a name with parentheses":  {"42 (a) S 9 9 (b)" + rest, 1750 * time.Millisecond, nil},
		"nothing":                  {"", 0, errProcStat},
		"no name":                  {"42 lucius" + rest, 0, errProcStat},
		"too few fields":           {"42 (lucius) S 1 42", 0, errProcStat},
		"a time that is no number": {"42 (lucius) S 1 42 42 0 -1 4194560 900 0 3 0 x 25 0 0 20", 0, errProcStat},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseStat([]byte(test.stat))
			if got != test.want || !errors.Is(err, test.err) {
				t.Errorf("%s, %v, want %s, %v", got, err, test.want, test.err)
			}
		})
	}
}

func TestCPUIsNotMeasuredWithoutAProcess(t *testing.T) {
	t.Parallel()
	used, err := usedCPU(0)
	if used != (cpu{}) || err != nil {
		t.Errorf("%+v, %v", used, err)
	}
	var result JobResult
	result.charge(used)
	if result.CPU != nil {
		t.Errorf("the result has %+v", result.CPU)
	}
}

func TestChargeSharesTheServersTimeAmongItsJobs(t *testing.T) {
	t.Parallel()
	result := JobResult{Jobs: 4000}
	result.charge(cpu{server: 2 * time.Second, client: time.Second})
	if want := (CPU{ServerSeconds: 2, ClientSeconds: 1, ServerMicrosPerJob: 500}); *result.CPU != want {
		t.Errorf("%+v, want %+v", *result.CPU, want)
	}
}
