package lucius_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// A handler whose service is rate limited says for whom, and until when: the server refuses a
// throttle without a time, and one that is final.
func TestWorkerReportsForWhomItsServiceIsThrottled(t *testing.T) {
	t.Parallel()
	const service, tenant = lucius.ThrottleScopeService, lucius.ThrottleScopeTenant
	for name, test := range map[string]struct {
		err   error
		scope lucius.ThrottleScope
		after float64
	}{
		"the service":            {lucius.Throttled(30*time.Second, "HTTP_429", "slow down"), service, 30},
		"the tenant":             {lucius.ThrottledTenant(30*time.Second, "HTTP_429", "slow down"), tenant, 30},
		"wrapped":                {fmt.Errorf("page 3: %w", lucius.Throttled(time.Second, "HTTP_429", "slow down")), service, 1},
		"no delay":               {lucius.Throttled(0, "HTTP_429", "slow down"), service, 0.001},
		"a delay that is long":   {lucius.Throttled(1e6*time.Hour, "HTTP_429", "slow down"), service, 604800},
		"a final one":            {&lucius.StepError{Code: "HTTP_429", Scope: service}, "", 0},
		"one that is to retry":   {lucius.RetryAfter(30*time.Second, "BUSY", "try again"), "", 30},
		"a struct of all fields": {&lucius.StepError{Code: "HTTP_429", Retryable: true, After: time.Minute, Scope: tenant}, tenant, 60},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(t)
				stop := start(t, q.worker(func(context.Context, *lucius.Task) (any, error) { return nil, test.err }))
				q.enqueue("w1")
				synctest.Wait()
				if got := q.only("fail").Body; got.Scope != test.scope || got.RetryAfter != test.after {
					t.Errorf("scope %q after %v, want %q after %v", got.Scope, got.RetryAfter, test.scope, test.after)
				}
				stop()
			})
		})
	}
}
