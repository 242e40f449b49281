package bench

import (
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := percentiles(test.times); got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
