package lucius_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

func TestPrioritize(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 202, body: `{"state":"QUEUED","priority":"bulk"}`}, {status: 409, body: `{"status":409,"code":"illegal_transition"}`},
	}}
	c := client(t, s)
	job, err := c.Prioritize(t.Context(), "j/1", lucius.PriorityBulk, "it can wait")
	if err != nil || job.Priority != lucius.PriorityBulk {
		t.Errorf("%+v, %v", job, err)
	}
	if diff := cmp.Diff([]seen{{"POST /v1/jobs/j%2F1:prioritize", `{"priority":"bulk","reason":"it can wait"}`}}, s.seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if _, err := c.Prioritize(t.Context(), "j1", lucius.PriorityNormal, ""); !lucius.HasCode(err, lucius.ProblemCodeIllegalTransition) ||
		err.Error() != "prioritize job j1: the server answered 409 illegal_transition" {
		t.Errorf("error %v", err)
	}
}
