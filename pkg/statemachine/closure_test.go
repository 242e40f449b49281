package statemachine_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// A throttled RESULT closes the service for as long as the worker said, and for other tenants
// than the job's only if its caller may answer for all of them.
func TestClosure_IsAsWideAsTheRightsOfTheCaller(t *testing.T) {
	t.Parallel()
	all := func(service string) bool { return service == "ocr" }
	few := func(service string) bool { return service != "ocr" }
	for name, test := range map[string]struct {
		scope  statemachine.Throttle
		rights func(string) bool
		tenant string // empty for all
	}{
		"the service, by a caller for all tenants": {statemachine.ThrottleService, all, ""},
		"the service, by a caller for some":        {statemachine.ThrottleService, few, "tenant_a"},
		"the service, by a caller without rights":  {statemachine.ThrottleService, nil, "tenant_a"},
		"the tenant, by a caller for all":          {statemachine.ThrottleTenant, all, "tenant_a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.agg.Steps[0].Service, s.agg.Steps[1].Service = "ocr", "embed"
			s.does(s.ack())
			s.later(time.Minute)
			result := s.throttled(1500 * time.Microsecond)
			result.Throttled, result.ErrorCode, result.ErrorMessage = test.scope, "HTTP_429", "Slow down."
			s.does(result)
			got, closes := result.Closure(&s.agg, "worker", test.rights)
			want := statemachine.Closure{
				Service: "ocr", TenantID: test.tenant, ResultAt: s.now, Until: s.now.Add(2 * time.Millisecond),
				Actor: "worker", Reason: "HTTP_429: Slow down.",
			}
			if diff := cmp.Diff(want, got); diff != "" || !closes {
				t.Errorf("closes %t (-want +got):\n%s", closes, diff)
			}
			if !got.Until.Equal(s.step().NextAttemptAt) {
				t.Errorf("the service is closed until %s, and the step waits until %s", got.Until, s.step().NextAttemptAt)
			}
		})
	}
}

func TestClosure_IsOfThrottledFailuresOnly(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	for name, result := range map[string]statemachine.Result{
		"a failure":        {StepID: "one", Status: statemachine.ResultFailedRetry, RetryAfter: time.Hour},
		"a final failure":  {StepID: "one", Status: statemachine.ResultFailedFinal, Throttled: statemachine.ThrottleService},
		"an unknown step":  {StepID: "x", Status: statemachine.ResultFailedRetry, Throttled: statemachine.ThrottleService},
		"without anything": {},
	} {
		if got, closes := result.Closure(&s.agg, "", nil); closes {
			t.Errorf("%s closes %+v", name, got)
		}
	}
}
