package bench

import (
	"math"
	"testing"
	"time"
)

func TestPercentiles(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100-i) * time.Millisecond
	}
	for name, test := range map[string]struct {
		times []time.Duration
		want  Percentiles
	}{
		"none":          {nil, Percentiles{}},
		"one":           {[]time.Duration{1500 * time.Microsecond}, Percentiles{1.5, 1.5, 1.5, 1.5}},
		"two":           {[]time.Duration{4e6, 2e6}, Percentiles{2, 4, 4, 4}},
		"100, unsorted": {hundred, Percentiles{50, 90, 99, 100}},
		"very long":     {[]time.Duration{30 * time.Hour}, Percentiles{3.6e6, 3.6e6, 3.6e6, 3.6e6}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			times := newLatencies()
			for _, took := range test.times {
				times.record(took)
			}
			got := times.percentiles()
			for _, pair := range [][2]float64{
				{got.P50, test.want.P50}, {got.P90, test.want.P90}, {got.P99, test.want.P99}, {got.Max, test.want.Max},
			} {
				if math.Abs(pair[0]-pair[1]) > pair[1]/1000 {
					t.Errorf("%+v, want %+v", got, test.want)
				}
			}
			if times.count() != int64(len(test.times)) {
				t.Errorf("%d were counted", times.count())
			}
		})
	}
}
