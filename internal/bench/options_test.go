package bench_test

import (
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/bench"
)

func TestInvalidOptionsAreNamed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*bench.Options){
		"Start":             func(o *bench.Options) { o.Start = nil },
		"DiskBytes":         func(o *bench.Options) { o.DiskBytes = nil },
		"Dir":               func(o *bench.Options) { o.Dir = "" },
		"Loads":             func(o *bench.Options) { o.Loads = []string{bench.One, "two steps"} },
		"Submitters":        func(o *bench.Options) { o.Submitters = -1 },
		"Pullers":           func(o *bench.Options) { o.Pullers = 65 },
		"PayloadBytes":      func(o *bench.Options) { o.PayloadBytes = 10 },
		"Rate":              func(o *bench.Options) { o.Rate = -1 },
		"Finished":          func(o *bench.Options) { o.Finished = -1 },
		"Live":              func(o *bench.Options) { o.Live = -1 },
		"Waiting":           func(o *bench.Options) { o.Waiting = -1 },
		"InLine":            func(o *bench.Options) { o.InLine = 1_000_001 },
		"Bulk":              func(o *bench.Options) { o.Bulk = -1 },
		"Rounds":            func(o *bench.Options) { o.Rounds = -1 },
		"Schedules":         func(o *bench.Options) { o.Schedules = 10_001 },
		"Duration":          func(o *bench.Options) { o.Duration = -1 },
		"CeilingDuration":   func(o *bench.Options) { o.CeilingDuration = -1 },
		"RetentionDuration": func(o *bench.Options) { o.RetentionDuration = -1 },
		"WarmUp":            func(o *bench.Options) { o.WarmUp = -1 },
		"Drain":             func(o *bench.Options) { o.Drain = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := short(t, serve(t, nil))
			change(&options)
			_, err := bench.Measure(t.Context(), options)
			if err == nil || !strings.HasPrefix(err.Error(), "bench: "+name+" ") {
				t.Errorf("error %v does not name %s", err, name)
			}
		})
	}
}
