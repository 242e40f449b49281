//go:build !race

package main

import (
	"net/http"
	"strings"
	"testing"
)

// TestHostile_Paths requests objects with long ids and ids that are not text. They are
// answered like any other missing object.
func TestHostile_Paths(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	long := strings.Repeat("a", 5000)
	f.while(func() {
		for _, id := range []string{long, long[:600], long[:160], strings.Repeat("%ff", 200), "%ff%fe", "%00", "a%0d%0aX-Evil:1", "%2e%2e"} {
			for _, test := range []struct{ method, path, code, body string }{
				{"GET", "/v1/jobs/" + id, "job_not_found", ""},
				{"GET", "/v1/jobs/" + id + "?wait=30s", "job_not_found", ""},
				{"GET", "/v1/jobs/" + id + "/steps", "job_not_found", ""},
				{"GET", "/v1/jobs/" + id + "/events", "job_not_found", ""},
				{"GET", "/v1/jobs/" + id + "/webhooks", "job_not_found", ""},
				{"POST", "/v1/jobs/" + id + ":cancel", "job_not_found", ""},
				{"POST", "/v1/jobs/" + id + ":rerun", "job_not_found", ""},
				{"GET", "/v1/work/" + id, "work_not_found", ""},
				{"GET", "/v1/work/" + id + "/events", "work_not_found", ""},
				{"GET", "/v1/admin/operations/" + id, "not_found", ""},
				{"POST", "/v1/admin/operations/" + id + ":cancel", "not_found", ""},
				{"POST", "/v1/admin/pauses/tenant:" + id + ":resume", "not_found", ""},
				{"POST", "/v1/admin/webhooks/" + id + ".0:replay", "not_found", ""},
				{"POST", "/v1/admin/work/" + id + ":stall", "work_not_found", `{"expected_rev":1,"request_id":"r"}`},
			} {
				f.expectProblem(test.method, test.path, f.do(t, test.method, test.path, test.body), test.code)
			}
		}
	})
}

// TestHostile_Parameters sends invalid parameters.
func TestHostile_Parameters(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	long := strings.Repeat("a", 5000)
	f.while(func() {
		for _, path := range []string{
			"/v1/jobs?tenant_id=" + long, "/v1/jobs?request_type=" + long, "/v1/jobs?tenant_id=a&correlation_id=" + long,
			"/v1/jobs?page_token=" + long, "/v1/jobs?page_token=%ff%00", "/v1/jobs?limit=99999999999999999999",
			"/v1/jobs?limit=-1", "/v1/jobs?created_after=" + long, "/v1/jobs?state=" + long,
			"/v1/admin/outbox?tenant_id=" + long, "/v1/admin/failures?tenant_id=" + long, "/v1/admin/webhooks?tenant_id=" + long,
			"/v1/jobs/x?wait=" + long, "/v1/jobs/x?wait=-1s",
		} {
			f.expectProblem(http.MethodGet, path, f.do(t, http.MethodGet, path, ""), "invalid_envelope")
		}
	})
}
