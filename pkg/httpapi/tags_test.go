package httpapi_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// tagged submits a command of the tenant with a document and tags, and returns its job's id.
func (h *harness) tagged(t *testing.T, tenant, docID, tags string) string {
	t.Helper()
	h.commands++
	with := fmt.Sprintf(`{"idempotency_key":"k%d","tenant_id":%q,"doc_id":%q,"tags":%s`, h.commands, tenant, docID, tags)
	body := strings.Replace(command, `{"tenant_id":"t"`, with, 1)
	return decoded[api.CommandAccepted](t, h.given(t, "POST /v1/commands", body)).JobID
}

// found returns the ids of a list of jobs.
func found(t *testing.T, response answer) []string {
	t.Helper()
	ids := []string{}
	for _, job := range decoded[api.JobPage](t, response).Jobs {
		ids = append(ids, job.JobID)
	}
	return ids
}

func TestAJobShowsItsTags(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	id := h.tagged(t, "t", "doc 1", `{"env":"prod","a.b":"x = y & z"}`)
	bare := h.submitted(t)
	want := api.Tags{"env": "prod", "a.b": "x = y & z"}
	for jobID, want := range map[string]api.Tags{id: want, bare: nil} {
		if diff := cmp.Diff(want, decoded[api.Job](t, h.do(t, http.MethodGet, "/v1/jobs/"+jobID, "")).Tags); diff != "" {
			t.Errorf("the job (-want +got):\n%s", diff)
		}
	}
	for _, job := range decoded[api.JobPage](t, h.do(t, http.MethodGet, "/v1/jobs?tenant_id=t", "")).Jobs {
		if job.JobID == id && (job.DocID != "doc 1" || !maps.Equal(job.Tags, want)) {
			t.Errorf("the list shows %+v", job)
		}
	}
}

// A command with the tags of another is a repeat of it: the job keeps its first tags.
func TestTagsAreNoPartOfTheCommandsIdentity(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	first := strings.Replace(command, "{", `{"tags":{"env":"prod"},`, 1)
	id := decoded[api.CommandAccepted](t, h.given(t, "POST /v1/commands", first)).JobID
	again := decoded[api.CommandAccepted](t, h.given(t, "POST /v1/commands", strings.Replace(first, "prod", "test", 1)))
	if !again.Replayed || again.JobID != id {
		t.Errorf("the repeat is answered %+v", again)
	}
	if got := decoded[api.Job](t, h.do(t, http.MethodGet, "/v1/jobs/"+id, "")).Tags; got["env"] != "prod" {
		t.Errorf("the job has the tags %v", got)
	}
}

func TestJobsAreFoundByTheirDocumentAndTags(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	first := h.tagged(t, "t", "d1", `{"env":"prod","customer":"4=2"}`)
	second := h.tagged(t, "t", "d1", `{"env":"prod"}`)
	third := h.tagged(t, "t", "d2", `{"env":"test","customer":"4=2"}`)
	h.tagged(t, "o", "d1", `{"env":"prod","customer":"4=2"}`)
	for query, want := range map[string][]string{
		"doc_id=d1":                     {second, first},
		"tag=env%3Dprod":                {second, first},
		"tag=customer%3D4%3D2":          {third, first},
		"tag=env=prod&tag=customer=4=2": {first},
		"tag=customer=4=2&tag=env=prod": {first},
		"doc_id=d1&tag=customer=4=2":    {first},
		"doc_id=d2&tag=env=prod":        {},
		"doc_id=d3":                     {},
		"tag=env=pro":                   {},
		"doc_id=d1&state=SUCCEEDED":     {},
		"tag=env=prod&service=ocr":      {second, first},
	} {
		if diff := cmp.Diff(want, found(t, h.do(t, http.MethodGet, "/v1/jobs?tenant_id=t&"+query, ""))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	page := decoded[api.JobPage](t, h.do(t, http.MethodGet, "/v1/jobs?tenant_id=t&doc_id=d1&limit=1", ""))
	next := "/v1/jobs?tenant_id=t&doc_id=d1&limit=1&page_token=" + url.QueryEscape(page.NextPageToken)
	if got := found(t, h.do(t, http.MethodGet, next, "")); !slices.Equal(got, []string{first}) {
		t.Errorf("the second page has %s, want %s", got, first)
	}
	wantProblem(t, h.do(t, http.MethodGet, strings.Replace(next, "d1", "d2", 1), ""), apierror.InvalidEnvelope,
		"parameter page_token is invalid, or of another list: only limit may differ from the request that gave it.")
}

// An operation applies to the jobs of a document or of tags alone, and shows its filter.
func TestAnOperationSelectsByDocumentAndTags(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.tagged(t, "t", "d2", `{"env":"prod"}`)
	id := h.tagged(t, "t", "d1", `{"env":"prod","customer":"42"}`)
	for _, filter := range []string{`"doc_id":"d1"`, `"tags":{"env":"prod","customer":"42"}`, `"doc_id":"d1","tags":{"env":"prod"}`} {
		got := decoded[api.OperationPreview](t, h.do(t, http.MethodPost, "/v1/admin/cancellations", `{"tenant_id":"t","dry_run":true,"reason":"why",`+filter+`}`))
		if got.Matched != 1 || got.Sample[0].JobID != id {
			t.Errorf("a cancellation of %s would change %+v", filter, got)
		}
	}
	operation := decoded[api.Operation](t, h.do(t, http.MethodPost, "/v1/admin/cancellations", `{"tenant_id":"t","doc_id":"d1","tags":{"env":"prod"},"reason":"why"}`))
	want := api.OperationFilter{TenantID: "t", DocID: "d1", Tags: api.Tags{"env": "prod"}}
	if diff := cmp.Diff(want, operation.Filter); diff != "" || operation.Matched != 1 {
		t.Errorf("the operation selects %d jobs (-want +got):\n%s", operation.Matched, diff)
	}
}

func TestFailuresAreFoundByDocumentAndTags(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for n, docID := range []string{"d1", "d2"} {
		h.tagged(t, "t", docID, `{"env":"prod"}`)
		_, err := h.relay.RunOnce(t.Context())
		musttest.NoError(t, err)
		body := fmt.Sprintf(`{"owner":"o","request_id":"c%d","start":true}`, n)
		item := decoded[api.ClaimedWork](t, h.given(t, "POST /v1/work:claim", body)).Items[0]
		h.given(t, "POST /v1/work/"+item.WorkID+":fail", verbBody(item.Rev))
	}
	for _, test := range []struct {
		query, filter string
		want          int
	}{
		{"doc_id=d1", `"doc_id":"d1"`, 1},
		{"tag=env=prod", `"tags":{"env":"prod"}`, 2},
		{"doc_id=d2&tag=env=prod", `"doc_id":"d2","tags":{"env":"prod"}`, 1},
		{"doc_id=d1&tag=env=test", `"doc_id":"d1","tags":{"env":"test"}`, 0},
	} {
		count := 0
		for _, group := range decoded[api.FailureList](t, h.do(t, http.MethodGet, "/v1/admin/failures?tenant_id=t&"+test.query, "")).Groups {
			count += group.Count
		}
		if count != test.want {
			t.Errorf("%s finds %d failures, want %d", test.query, count, test.want)
		}
		got := decoded[api.OperationPreview](t, h.do(t, http.MethodPost, "/v1/admin/retries", `{"tenant_id":"t","dry_run":true,`+test.filter+`}`))
		if got.Matched != test.want {
			t.Errorf("a retry of %s would change %d jobs, want %d", test.filter, got.Matched, test.want)
		}
	}
}

// A search by document or tags is of one tenant, and what cannot match is refused: in the query of
// a list and in the body of an operation.
func TestADocumentOrTagThatCannotBeFoundIsRefused(t *testing.T) {
	t.Parallel()
	many, list := []string{}, "tenant_id=t"
	for i := range 9 {
		many = append(many, fmt.Sprintf(`"k%d":"v"`, i))
		list += fmt.Sprintf("&tag=k%d=v", i)
	}
	long := strings.Repeat("é", 129) // 258 bytes
	for query, want := range map[string]string{
		"doc_id=d1":                       "parameter tenant_id is required to find jobs by document or tag",
		"tag=env=prod":                    "parameter tenant_id is required to find jobs by document or tag",
		"tenant_id=t&tag=env":             `parameter tag "env" must be key=value`,
		"tenant_id=t&tag=env=prod&tag=":   `parameter tag "" must be key=value`,
		"tenant_id=t&tag=":                "parameter tag must not be empty: leave it out",
		"tenant_id=t&tag=Env=prod":        `parameter tag "Env=prod" must have a key of 1 to 32 lower-case letters, digits, '_', '.' and '-' that begins with a letter`,
		"tenant_id=t&tag=env=":            `parameter tag "env=" must have a value of 1 to 128 bytes`,
		"tenant_id=t&tag=env=a%0Ab":       `parameter tag "env=a\nb" must have a value in UTF-8 without control characters`,
		"tenant_id=t&tag=env=a&tag=env=b": `parameter tag "env=b" must have another key: it is named twice`,
		"tenant_id=t&doc_id=":             "parameter doc_id must not be empty: leave it out",
		"tenant_id=t&doc_id=a&doc_id=b":   "parameter doc_id occurs more than once",
		"tenant_id=t&doc_id=" + long:      "parameter doc_id must be at most 256 bytes",
		list:                              "parameter tag must be given at most 8 times, not 9",
		"tenant_id=t&tags=env=prod":       "",
	} {
		for _, path := range []string{"/v1/jobs", "/v1/admin/failures"} {
			h := newHarness(t)
			got := problemOf(t, h.do(t, http.MethodGet, path+"?"+query, ""))
			if want == "" && strings.HasPrefix(got.Errors[0].Message, `parameter "tags" is unknown`) {
				continue
			}
			if got.Code != apierror.InvalidEnvelope || got.Errors[0].Message != want {
				t.Errorf("%s?%s: %+v, want %s", path, query, got, want)
			}
			h.store.uncalled(t, query)
		}
	}
	for body, want := range map[string]string{
		`"doc_id":"d1"`:                                            "/tenant_id is required to find jobs by document or tag.",
		`"tags":{"env":"prod"}`:                                    "/tenant_id is required to find jobs by document or tag.",
		`"tenant_id":"t","doc_id":""`:                              "/doc_id must not be empty: leave it out to select all.",
		`"tenant_id":"t","doc_id":"` + long + `"`:                  "/doc_id must be at most 256 bytes.",
		`"tenant_id":"t","tags":{}`:                                "/tags must not be empty: leave it out.",
		`"tenant_id":"t","tags":{"Env":"prod"}`:                    "/tags/Env must have a key of 1 to 32 lower-case letters, digits, '_', '.' and '-' that begins with a letter.",
		`"tenant_id":"t","tags":{"env":""}`:                        "/tags/env must have a value of 1 to 128 bytes.",
		`"tenant_id":"t","tags":["env=prod"]`:                      "/tags must be an object of strings.",
		`"tenant_id":"t","tags":{"env":1}`:                         "/tags must be an object of strings.",
		`"tenant_id":"t","tags":{` + strings.Join(many, ",") + `}`: "/tags must not hold more than 8 tags.",
		`"tenant_id":"t","job_ids":["a"],"doc_id":"d1"`:            "/job_ids must not be combined with filters.",
		`"job_ids":["a"],"tags":{"env":"prod"}`:                    "/job_ids must not be combined with filters.",
	} {
		for _, kind := range []string{"retries", "cancellations", "pausings", "resumptions"} {
			h := newHarness(t)
			got := problemOf(t, h.do(t, http.MethodPost, "/v1/admin/"+kind, `{"reason":"why",`+body+`}`))
			if got.Detail != want {
				t.Errorf("%s of %s: %+v, want %s", kind, body, got, want)
			}
			h.store.untouched(t, body)
		}
	}
}

func TestTagsThatACommandMayNotHaveAreRefused(t *testing.T) {
	t.Parallel()
	for tags, want := range map[string]apierror.Violation{
		`["env=prod"]`:               {Pointer: "/tags", Message: "must be an object, not an array"},
		`{"env":1}`:                  {Pointer: "/tags/env", Message: "must be a string, not a number"},
		`{"Env":"prod"}`:             {Pointer: "/tags/Env", Message: "must have a key of 1 to 32 lower-case letters, digits, '_', '.' and '-' that begins with a letter"},
		`{"env":""}`:                 {Pointer: "/tags/env", Message: "must have a value of 1 to 128 bytes"},
		`{"env":"a\u0000b"}`:         {Pointer: "/tags/env", Message: "must have a value in UTF-8 without control characters"},
		`{"lucius.operation":"op1"}`: {Pointer: "/tags/lucius.operation", Message: `is a tag of the system: a command has none that begins with "lucius."`},
		`{"a":"1","b":"1","c":"1","d":"1","e":"1","f":"1","g":"1","h":"1","i":"1"}`: {Pointer: "/tags", Message: "has 9 tags; at most 8 are allowed"},
	} {
		h := newHarness(t)
		got := problemOf(t, h.do(t, http.MethodPost, "/v1/commands", strings.Replace(command, "{", `{"tags":`+tags+`,`, 1)))
		if diff := cmp.Diff([]apierror.Violation{want}, got.Errors); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tags, diff)
		}
		h.store.untouched(t, tags)
	}
}

// A caller of one tenant finds nothing of another's by the same document and tags.
func TestDocumentsAndTagsOfOtherTenantsAreNotFound(t *testing.T) {
	t.Parallel()
	const caller = "read:t admin:t"
	g := newGuarded(t, []string{caller})
	g.tagged(t, "o", "d1", `{"env":"prod"}`)
	for _, query := range []string{"doc_id=d1", "tag=env=prod"} {
		if got := found(t, g.as(t, caller, "GET /v1/jobs?tenant_id=t&"+query, "")); len(got) > 0 {
			t.Errorf("%s finds %s", query, got)
		}
		for _, tenant := range []string{"", "&tenant_id=o"} {
			for _, path := range []string{"/v1/jobs", "/v1/admin/failures"} {
				if got := g.as(t, caller, "GET "+path+"?"+query+tenant, ""); got.Status != http.StatusForbidden {
					t.Errorf("%s?%s%s is answered %d %s", path, query, tenant, got.Status, got.Body)
				}
			}
		}
	}
	for tenant, want := range map[string]int{"t": http.StatusOK, "o": http.StatusForbidden} {
		body := fmt.Sprintf(`{"tenant_id":%q,"doc_id":"d1","tags":{"env":"prod"},"dry_run":true,"reason":"why"}`, tenant)
		got := g.as(t, caller, "POST /v1/admin/cancellations", body)
		if got.Status != want || want == http.StatusOK && decoded[api.OperationPreview](t, got).Matched != 0 {
			t.Errorf("a cancellation in tenant %s is answered %d %s", tenant, got.Status, got.Body)
		}
	}
}

// To give the output of a step that was done by hand needs more than to rerun the job.
func TestARerunResolvesStepsForOperatorsOnly(t *testing.T) {
	t.Parallel()
	const body = `{"resolve":[{"step_id":"ocr","output_ref":{"uri":"s3://b/by-hand"}}],"from":"failed"}`
	for grant, want := range map[string]int{
		"submit:t": http.StatusForbidden, "submit:t admin:o": http.StatusForbidden, "submit:t admin:t": http.StatusAccepted, "submit:* admin:*": http.StatusAccepted,
	} {
		g := newGuarded(t, []string{grant})
		if got := g.as(t, grant, "POST /v1/jobs/$failed:rerun", body); got.Status != want {
			t.Errorf("%s is answered %d, want %d: %s", grant, got.Status, want, got.Body)
		}
		if want == http.StatusForbidden {
			g.store.unchanged(t, grant+" is refused, and yet")
		}
	}
}
