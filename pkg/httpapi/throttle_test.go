package httpapi_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// closures records what throttled RESULTs close.
type closures struct {
	mu     sync.Mutex
	closed []statemachine.Closure
}

func (c *closures) add(_ context.Context, one statemachine.Closure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = append(c.closed, one)
}

// take returns what was closed since it was called last.
func (c *closures) take() []statemachine.Closure {
	c.mu.Lock()
	defer c.mu.Unlock()
	closed := c.closed
	c.closed = nil
	return closed
}

// A throttled RESULT, by the pull queue or as a callback, closes the service for all tenants only
// if its caller may do the service's work for all of them. Its job says that it is rate limited.
func TestAThrottledResultClosesWhatItsCallerMay(t *testing.T) {
	t.Parallel()
	const throttled = `,"scope":"service","retry_after_seconds":30,"error":{"code":"HTTP_429"}`
	for grants, tenant := range map[string]string{
		"platform:*":                      "",
		"platform:*:ocr":                  "",
		"platform:t":                      "t",
		"platform:t:ocr platform:*:embed": "t",
	} {
		g := newGuarded(t, []string{grants, everyRole})
		check := func(how string, job string) {
			t.Helper()
			closed := g.closures.take()
			if len(closed) != 1 || closed[0].Service != "ocr" || closed[0].TenantID != tenant || closed[0].Actor != "caller-a" ||
				closed[0].Until.Sub(closed[0].ResultAt) != 30*time.Second {
				t.Errorf("%s by %s closes %+v, want tenant %q", how, grants, closed, tenant)
			}
			waiting := decoded[api.Job](t, g.given(t, "GET /v1/jobs/"+job, "")).Waiting
			if waiting == nil || waiting.Reason != api.WaitingReasonRateLimited {
				t.Errorf("after %s the job waits for %+v", how, waiting)
			}
		}
		item, directive := g.claimed(t, true)
		fail := fmt.Sprintf(`{"owner":"o","expected_rev":%d,"request_id":"f","retryable":true%s}`, item.Rev, throttled)
		g.as(t, grants, "POST /v1/work/"+item.WorkID+":fail", fail)
		check(":fail", directive.JobID)
		g.as(t, grants, "POST /v1/work/"+item.WorkID+":fail", fail)
		if repeated := g.closures.take(); repeated != nil {
			t.Errorf("the repeat closes %+v", repeated)
		}
		_, directive = g.claimed(t, true)
		g.as(t, grants, "POST /v1/callbacks/result", fmt.Sprintf(
			`{"jobId":%q,"stepId":"ocr","tenant_id":"t","attempt_no":1,"lease_id":%q,"timestamp":"2026-01-27T11:02:00Z","status":"FAILED_RETRY"%s}`,
			directive.JobID, directive.LeaseID, throttled))
		check("a callback", directive.JobID)
	}
}
