package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// The body of a refused request gets no more time than any other.
func TestASlowBodyOfARefusedRequestIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"submit:t"}, func(c *httpapi.Config) { c.BodyTimeout = 20 * time.Millisecond })
	response, closes := post(t, listen(t, g.harness), "/v1/commands", "Content-Length: 10\r\n\r\n{")
	if found := problemOf(t, response); found.Code != apierror.Unauthenticated || !closes {
		t.Errorf("answered %s, and closes is %t", found.Code, closes)
	}
}

func TestTextThatReadersOfTheStoreMayRejectIsRefused(t *testing.T) {
	t.Parallel()
	nested := func(n int) string {
		return `{"reason":"why","x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	for name, test := range map[string]struct{ body, detail string }{
		"a byte that is not UTF-8": {"{\"reason\":\n\"\xff\"}", "The body is not valid JSON at line 2, column 2: not UTF-8."},
		"a replacement, then one":  {"{\"reason\":\"\ufffd\xff\"}", "The body is not valid JSON at line 1, column 15: not UTF-8."},
		"too deep":                 {nested(128), "The body is beyond a limit at line 1, column 148: it is nested deeper than 128 levels."},
		"deep enough":              {nested(127), "/x is unknown."},
		"brackets in a text":       {`{"reason":"\"` + strings.Repeat("[", 200) + `"}`, ""},
	} {
		h := newHarness(t)
		response := h.do(t, http.MethodPost, "/v1/jobs/$job:cancel", test.body)
		switch {
		case test.detail == "" && response.Status != http.StatusAccepted:
			t.Errorf("%s: answered %d %s", name, response.Status, response.Body)
		case test.detail != "" && problemOf(t, response).Detail != test.detail:
			t.Errorf("%s: answered %s", name, response.Body)
		}
	}
}

// The id of a job in a body may have 128 characters. Their escapes can be longer than a key.
func TestAJobWithATooLongIDInABodyIsMissing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	id := strings.Repeat("é", 128)
	ack := `{"stepId":"s","tenant_id":"t","attempt_no":1,"lease_id":"l","timestamp":"2026-01-27T10:02:00Z","correlation_id":"c","jobId":"` + id + `"}`
	wantProblem(t, h.do(t, http.MethodPost, "/v1/callbacks/ack", ack), apierror.JobNotFound, "There is no such job.")
	preview := decoded[api.OperationPreview](t, h.given(t, "POST /v1/admin/cancellations", `{"dry_run":true,"reason":"r","job_ids":["`+id+`"]}`))
	if preview.Matched != 0 {
		t.Errorf("an operation would change %d jobs", preview.Matched)
	}
	retry := decoded[api.OutboxRetryResult](t, h.given(t, "POST /v1/admin/outbox/retry", `{"outbox_ids":["`+id+`.0.1"]}`))
	if len(retry.Skipped) != 1 {
		t.Errorf("a row of such a job is retried: %+v", retry)
	}
}

func TestAnObjectWithATooLongIDIsMissing(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 161)
	g := newGuarded(t, []string{"submit:* read:* platform:* admin:*", "read:t"})
	for target, code := range map[string]apierror.Code{
		"GET /v1/jobs/" + long:              apierror.JobNotFound,
		"POST /v1/jobs/" + long + ":cancel": apierror.JobNotFound,
		"GET /v1/work/" + long:              apierror.WorkNotFound,
		"GET /v1/admin/operations/" + long:  apierror.NotFound,
		"POST /v1/admin/pauses/tenant:" + strings.Repeat("a", 400) + ":resume":   apierror.NotFound,
		"POST /v1/admin/pauses/tenant:" + strings.Repeat("%ff", 200) + ":resume": apierror.NotFound,
		"GET /v1/jobs?tenant_id=" + long:                                         apierror.InvalidEnvelope,
		"GET /v1/admin/failures?tenant_id=" + long:                               apierror.InvalidEnvelope,
		"GET /v1/jobs?tenant_id=t&correlation_id=" + long:                        apierror.InvalidEnvelope,
		"GET /v1/jobs?tenant_id=t&request_type=" + long[:129]:                    apierror.InvalidEnvelope,
		"GET /v1/jobs?tenant_id=t&service=" + strings.Repeat("é", 100):           apierror.InvalidEnvelope,
	} {
		if found := problemOf(t, g.as(t, "submit:* read:* platform:* admin:*", target, "")); found.Code != code {
			t.Errorf("%.40s: answered %s, want %s", target, found.Code, code)
		}
	}
	if found := problemOf(t, g.as(t, "read:t", "GET /v1/jobs/"+long, "")); found.Code != apierror.JobNotFound {
		t.Errorf("a caller of a tenant is answered %s", found.Code)
	}
	g.store.untouched(t, "too long")
}
