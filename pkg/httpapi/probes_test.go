package httpapi_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// probesOnly is a server of a process that does not serve the API.
func probesOnly(c *httpapi.Config) { c.ProbesOnly = true }

func TestAProcessWithoutTheAPIAnswersProbes(t *testing.T) {
	t.Parallel()
	h := newHarness(t, probesOnly)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if response := h.do(t, "GET", path, ""); response.Status != 200 {
			t.Errorf("%s: %d %s", path, response.Status, response.Body)
		}
	}
}

// undocumented sends a request without checking it against the OpenAPI document.
func undocumented(h *harness, method, path, body string) answer {
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	return answer{Status: recorder.Code, Header: recorder.Header(), Body: recorder.Body.String()}
}

func TestAProcessWithoutTheAPIAnswersNothingElse(t *testing.T) {
	t.Parallel()
	const detail = "This process does not serve the API, only /healthz, /readyz and /metrics: send the request to one that has the role api."
	h := newHarness(t, probesOnly)
	for target, body := range map[string]string{
		"POST /v1/commands": "{}", "POST /v1/callbacks/ack": "{}", "POST /v1/work:claim": "{}", "GET /v1/jobs/j1": "",
		"GET /v1/jobs/j1/events": "", "POST /v1/admin/outbox/retry": "{}", "GET /v1/protocols": "", "GET /openapi.yaml": "", "GET /docs": "",
		"GET /v1/commands": "", "GET /v2": "", "GET /healthz/": "",
	} {
		method, path := split(target)
		wantProblem(t, undocumented(h, method, path, body), apierror.NotFound, detail)
	}
	h.store.untouched(t, "a process without the API")
	h.measures(t, `lucius_http_requests_total{code="404",method="POST",route="unmatched"} 4`)
}

// A process without the API shows its metrics only to callers that may see them.
func TestAProcessWithoutTheAPIGuardsItsMetrics(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:*", "read:t"}, probesOnly)
	for caller, status := range map[string]int{"": 401, "read:t": 403, "read:*": 200} {
		if response := g.as(t, caller, "GET /metrics", ""); response.Status != status {
			t.Errorf("%q: %d %s", caller, response.Status, response.Body)
		}
	}
}
