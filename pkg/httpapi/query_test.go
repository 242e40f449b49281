package httpapi_test

import (
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestAQueryThatDoesNotParseIsRefused(t *testing.T) {
	t.Parallel()
	const detail = "the query must be percent-encoded name=value pairs, joined by ampersands."
	many := "/v1/jobs?tenant_id=t" + strings.Repeat("&a", 10_000) // one more than net/url reads
	for _, target := range []string{
		"GET /v1/jobs?tenant_id=%zz", "GET /v1/jobs?a=b;tenant_id=x", "GET /v1/jobs?tenant_id=t&%=1", "GET /v1/jobs?limit=1&tenant_id=t%2",
		"GET " + many, "GET /v1/admin/outbox?tenant_id=%zz", "GET /v1/admin/webhooks?limit=1;tenant_id=t", "GET /v1/admin/failures?tenant_id=%zz",
		"GET /v1/jobs/$job?wait=%zz", "GET /v1/jobs/$job/steps?%zz", "GET /v1/admin/pauses?;", "POST /v1/jobs/$job:cancel?%zz",
	} {
		method, path := split(target)
		h := newHarness(t)
		wantProblem(t, h.do(t, method, path, ""), apierror.InvalidEnvelope, detail)
		h.store.uncalled(t, target)
	}
}

// Probes take no parameter, and their callers may send any query to avoid caches.
func TestAQueryThatDoesNotParseFailsNoProbe(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/docs"} {
		if response := undocumented(newHarness(t), "GET", path+"?%zz;", ""); response.Status != 200 {
			t.Errorf("%s: %d %s", path, response.Status, response.Body)
		}
	}
}

// A caller that may not call the operation is refused whatever the query is.
func TestAQueryIsParsedAfterTheCallerIsAuthorized(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:t"})
	for caller, code := range map[string]apierror.Code{"": apierror.Unauthenticated, "read:t": apierror.Forbidden} {
		if found := problemOf(t, g.as(t, caller, "GET /v1/admin/outbox?tenant_id=%zz", "")); found.Code != code {
			t.Errorf("%q is answered %s, want %s", caller, found.Code, code)
		}
	}
}
