package background

import (
	"testing"
	"time"
)

// TestWatch_NoticesASuspension: more than a second between two looks is a suspension, whether the
// watch or the pass looks first after it. Each suspension is reported once.
func TestWatch_NoticesASuspension(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		looks  []time.Duration // by the watch itself, before the pass
		passes []time.Duration
		want   []bool
	}{
		"looks in time":            {[]time.Duration{250 * time.Millisecond, 500 * time.Millisecond}, []time.Duration{time.Second}, []bool{false}},
		"a look a bit late":        {[]time.Duration{time.Second}, []time.Duration{2 * time.Second}, []bool{false}},
		"the watch looks first":    {[]time.Duration{time.Minute}, []time.Duration{time.Minute, time.Minute}, []bool{true, false}},
		"the pass looks first":     {nil, []time.Duration{time.Minute, time.Minute}, []bool{true, false}},
		"twice":                    {nil, []time.Duration{time.Minute, 2 * time.Minute}, []bool{true, true}},
		"a clock that is set back": {[]time.Duration{-time.Hour}, []time.Duration{time.Second - time.Hour}, []bool{false}},
	} {
		w := watch{last: start}
		for _, at := range test.looks {
			w.look(start.Add(at))
		}
		for i, at := range test.passes {
			if got := w.resumed(start.Add(at)); got != test.want[i] {
				t.Errorf("%s: at pass %d: %t", name, i, got)
			}
		}
	}
}
