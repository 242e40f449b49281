package sim_test

import (
	"testing"

	"github.com/lucius-project/lucius/internal/sim"
)

func TestLogFault(t *testing.T) {
	t.Parallel()
	const job = "0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77"
	for _, test := range []struct {
		name   string
		fields map[string]any
		want   string
	}{
		{"no job", map[string]any{"topic": "t", "outage": "o"}, ""},
		{"a job", map[string]any{"jobId": job, "tenant_id": "t", "correlation_id": "c", "trace_id": "t"}, ""},
		{"a step", map[string]any{"jobId": job, "tenant_id": "t", "stepId": "s", "attempt_no": 1}, ""},
		{"no tenant", map[string]any{"jobId": job}, "has jobId, and no tenant_id"},
		{"no attempt", map[string]any{"jobId": job, "tenant_id": "t", "stepId": "s"}, "has stepId, and no attempt_no"},
		{"another name", map[string]any{"job": job}, "names a job as job, and has no jobId"},
		{"another id", map[string]any{"request_id": "67f2e2de-e46b-4358-9c8f-c32ce753357c"}, ""},
		{"an operation", map[string]any{"operation_id": job}, ""},
		{"a lease", map[string]any{"lease_id": "l"}, "has a lease id"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := sim.LogFault(test.fields); got != test.want {
				t.Errorf("fault %q, want %q", got, test.want)
			}
		})
	}
}
