package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestUnknownPathsAreNotFound(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"GET //", "GET /v1", "GET /v2/jobs/j1", "GET /v1/jobs/", "GET /v1/jobs/j1/", "GET /v1/jobs/j1/step",
		"GET /v1//jobs/j1", "GET /v1/../v1/jobs/j1", "POST /v1/jobs/a%2Fb:cancel", "PUT /v1/schedules/acme%2Feu/nightly", "GET /ui",
	} {
		method, path := split(target)
		response := newHarness(t).do(t, method, path, "")
		wantProblem(t, response, apierror.NotFound, "There is nothing at this path.")
	}
}

func TestOtherMethodsAreNotAllowed(t *testing.T) {
	t.Parallel()
	for target, allow := range map[string]string{
		"GET /v1/commands":             "POST",
		"PUT /v1/commands":             "POST",
		"DELETE /v1/jobs/j1":           "GET, HEAD",
		"POST /v1/jobs/j1:stop":        "GET, HEAD", // A job id may hold a colon: this names a job.
		"POST /v1/jobs/:cancel":        "GET, HEAD", // It needs an id.
		"DELETE /v1/jobs/j1:cancel":    "GET, POST, HEAD",
		"POST /v1/jobs/j1/steps":       "GET, HEAD",
		"GET /v1/work:claim":           "POST",
		"HEAD /v1/work:claim":          "POST",
		"PATCH /v1/admin/outbox/retry": "POST",
		"POST /healthz":                "GET, HEAD",
		"OPTIONS /v1/commands":         "POST",
		"BREW /v1/commands":            "POST",
		"POST /v1/schedules/t/nightly": "GET, PUT, DELETE, HEAD",
	} {
		method, path := split(target)
		response := newHarness(t).do(t, method, path, "")
		wantProblem(t, response, apierror.MethodNotAllowed, "This path takes "+allow+".")
		if got := response.Header.Get("Allow"); got != allow {
			t.Errorf("%s: Allow is %q, want %q", target, got, allow)
		}
	}
}

func TestHeadIsServedAsGet(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	server := listen(t, h)
	response, err := server.Client().Head(server.URL + "/v1/jobs/" + h.submitted(t))
	musttest.NoError(t, err)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || response.ContentLength <= 0 {
		t.Errorf("%s with %d bytes", response.Status, response.ContentLength)
	}
	h.measures(t, `lucius_http_requests_total{code="200",method="HEAD",route="/v1/jobs/{jobId}"} 1`)
}

func TestParametersAreChecked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		target  string
		headers []string
		message string
	}{
		{"GET /v1/jobs/$job?wait=soon", nil, "parameter wait must be a duration such as 30s"},
		{"GET /v1/jobs/$job?wait=30", nil, "parameter wait must be a duration such as 30s"},
		{"GET /v1/jobs/$job?wait=-1s", nil, "parameter wait must be a duration such as 30s"},
		{"GET /v1/jobs/$job?wait=", nil, "parameter wait must not be empty: leave it out"},
		{"GET /v1/jobs/$job/events?limit=ten", nil, "parameter limit must be a whole number from 1 to 1000"},
		{"GET /v1/jobs/$job/events?limit=99999999999", nil, "parameter limit must be a whole number from 1 to 1000"},
		{"GET /v1/jobs/$job/events?limit=0", nil, "parameter limit must be a whole number from 1 to 1000"},
		{"GET /v1/work/$claimed/events?limit=1001", nil, "parameter limit must be a whole number from 1 to 1000"},
		{"GET /v1/work/$claimed/events?page_token=" + longToken(), nil, "parameter page_token is invalid"},
		{"GET /v1/admin/overview?minutes=0", nil, "parameter minutes must be a whole number from 1 to 60"},
		{"GET /v1/admin/overview?minutes=-1", nil, "parameter minutes must be a whole number from 1 to 60"},
		{"GET /v1/admin/overview?minutes=61", nil, "parameter minutes must be a whole number from 1 to 60"},
		{"GET /v1/admin/services?minutes=-1", nil, "parameter minutes must be a whole number from 1 to 60"},
		{"GET /v1/admin/services?minutes=2147483647", nil, "parameter minutes must be a whole number from 1 to 60"},
		{"GET /v1/admin/services?minutes=all", nil, "parameter minutes must be a whole number from 1 to 60"},
		{"GET /v1/admin/failures?ended_after=noon", nil, "parameter ended_after must be a time as in RFC 3339, such as 2026-01-27T12:00:00Z"},
		{
			"POST /v1/commands", []string{"Idempotency-Key: a", "Idempotency-Key: b"},
			"header Idempotency-Key occurs more than once",
		},
	} {
		t.Run(test.message, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			method, path := split(test.target)
			response := h.do(t, method, path, map[bool]string{true: command}[method == http.MethodPost], test.headers...)
			wantProblem(t, response, apierror.InvalidEnvelope, test.message+".")
			if diff := cmp.Diff([]apierror.Violation{{Message: test.message}}, problemOf(t, response).Errors); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			h.store.untouched(t, test.target)
		})
	}
}

// longToken is one character too long.
func longToken() string {
	token := make([]byte, 1025)
	for i := range token {
		token[i] = 'a'
	}
	return string(token)
}
