package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ack is an ACK of a step.
func ack(tenant, jobID, stepID string) string {
	return `{"jobId":"` + jobID + `","stepId":"` + stepID + `","tenant_id":"` + tenant +
		`","attempt_no":1,"lease_id":"l1","timestamp":"2026-01-27T11:02:00Z"}`
}

func TestAPlatformCallerMayReportOnlyForItsServices(t *testing.T) {
	t.Parallel()
	const ocr, embed, all = "platform:t:ocr", "platform:t:embed", "platform:*:ocr"
	const noItem, noJobDetail = "There is no such work item.", "There is no such job."
	for _, test := range []struct {
		grant        string
		target, body string
		code         apierror.Code
		detail       string
	}{
		{ocr, "POST /v1/work/$claimed:start", atRev(""), "", ""},
		{ocr, "GET /v1/work/$claimed", "", "", ""},
		{embed, "POST /v1/work/$claimed:start", atRev(""), apierror.WorkNotFound, noItem},
		{embed, "GET /v1/work/$claimed", "", apierror.WorkNotFound, noItem},
		{ocr, "POST /v1/callbacks/ack", callbackBody("$of", 1, ""), "", ""},
		{ocr, "POST /v1/callbacks/ack", ack("t", "$job", "embed"), apierror.StepNotFound, `the job has no step "embed"`},
		{ocr, "POST /v1/callbacks/ack", ack("t", "$job", "none"), apierror.StepNotFound, `the job has no step "none"`},
		{embed, "POST /v1/callbacks/ack", callbackBody("$of", 1, ""), apierror.StepNotFound, `the job has no step "ocr"`},
		{ocr, "POST /v1/callbacks/ack", ack("t", noJob, "ocr"), apierror.JobNotFound, noJobDetail},
	} {
		for _, grant := range []string{test.grant, strings.Replace(test.grant, ":t:", ":*:", 1)} {
			g := newGuarded(t, []string{ocr, embed, all, "platform:*:embed"})
			response := g.as(t, grant, test.target, test.body)
			if test.code == "" {
				if response.Status != http.StatusOK {
					t.Errorf("%s %s as %s: %d %s", test.target, test.body, grant, response.Status, response.Body)
				}
				continue
			}
			wantProblem(t, response, test.code, test.detail)
			g.store.unchanged(t, test.target)
		}
	}
	g := newGuarded(t, []string{ocr, all})
	g.tenant = "o"
	foreign := g.submitted(t)
	for _, grant := range []string{ocr, all} {
		wantProblem(t, g.as(t, grant, "POST /v1/callbacks/ack", ack("t", foreign, "ocr")), apierror.JobNotFound, noJobDetail)
	}
	wantProblem(t, g.as(t, ocr, "POST /v1/callbacks/ack", ack("o", foreign, "ocr")), apierror.Forbidden,
		"This requires the role platform for the tenant.")
	g.store.fail(tablestore.ErrUnavailable)
	if found := problemOf(t, g.as(t, ocr, "POST /v1/callbacks/ack", ack("t", noJob, "ocr"))); found.Code != apierror.StoreUnavailable {
		t.Errorf("while the store is away: %+v", found)
	}
}

// The owner lookup and the use case must get the same id.
func TestTheCheckedObjectIsTheUsedObject(t *testing.T) {
	t.Parallel()
	const reader = "read:t"
	for path, want := range map[string]string{
		"/v1/jobs/a:b":       "a:b",
		"/v1/jobs/a%20b":     "a b",
		"/v1/jobs/a%2562":    "a%62",
		"/v1/jobs/a%2Bb+c":   "a+b+c",
		"/v1/jobs/a,b":       "a,b",
		"/v1/jobs/a%252Fb":   "a%2Fb",
		"/v1/jobs/a;b=c":     "a;b=c",
		"/v1/jobs/.a..":      ".a..",
		"/v1/jobs/%C3%A4%00": "ä\x00",
	} {
		g := newGuarded(t, []string{reader})
		job := g.submitted(t)
		g.store.alias = tablestore.Escape(job) // Every id is that of this job.
		if response := g.as(t, reader, "GET "+path, ""); response.Status != http.StatusOK {
			t.Errorf("%s: %d %s", path, response.Status, response.Body)
			continue
		}
		// The guard's lookup, the use case, the place in the queue, and the payload of the job
		// that was found.
		read := []string{tablestore.Escape(want), tablestore.Escape(want), "ready:ocr:OCR:000", job}
		if diff := cmp.Diff(read, g.store.read()); diff != "" {
			t.Errorf("%s: what is read (-want +got):\n%s", path, diff)
		}
	}
}

func TestCallersForAllTenantsNeedNoOwnerLookup(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:*", "platform:*", "read:t", "platform:*:ocr"})
	reads := func(grants, target, body string) int {
		if got := g.as(t, grants, target, body); got.Status != http.StatusOK {
			t.Errorf("%s: %d %s", target, got.Status, got.Body)
		}
		return len(g.store.read())
	}
	job, callback := "GET /v1/jobs/$job", callbackBody("$of", 1, "")
	if all, one := reads("read:*", job, ""), reads("read:t", job, ""); all >= one {
		t.Errorf("a job costs a reader of all tenants %d reads, and one of a tenant %d", all, one)
	}
	all, one := reads("platform:*", "POST /v1/callbacks/ack", callback), reads("platform:*:ocr", "POST /v1/callbacks/ack", callback)
	if all >= one {
		t.Errorf("a callback costs a platform for every service %d reads, and one for a service %d", all, one)
	}
}

func TestAListNeedsATenantUnlessTheCallerMayReadAll(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:t admin:t", "read:* admin:*"})
	for _, target := range []string{"/v1/jobs", "/v1/admin/outbox", "/v1/admin/failures", "/v1/admin/webhooks"} {
		role := "read"
		if strings.HasSuffix(target, "outbox") {
			role = "admin"
		}
		wantProblem(t, g.as(t, "read:t admin:t", "GET "+target, ""), apierror.Forbidden,
			"This requires the role "+role+" for all tenants; name a tenant_id of yours.")
		if response := g.as(t, "read:* admin:*", "GET "+target, ""); response.Status != http.StatusOK {
			t.Errorf("%s: %d %s", target, response.Status, response.Body)
		}
	}
}

func TestPausesOfOtherTenantsAreNotListed(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"admin:t", "admin:o", "admin:*"})
	g.pausing(t)
	for grant, want := range map[string]int{"admin:t": 1, "admin:o": 0, "admin:*": 1} {
		response := g.as(t, grant, "GET /v1/admin/pauses", "")
		if got := strings.Count(response.Body, "pause_id"); got != want || response.Status != http.StatusOK {
			t.Errorf("%s sees %d pauses: %s", grant, got, response.Body)
		}
	}
	if got := g.as(t, "admin:t", "POST /v1/admin/pauses", `{"all":true,"reason":"why"}`).Status; got != http.StatusForbidden {
		t.Errorf("a pause of everything is answered %d", got)
	}
}

func TestMarksOfOtherTenantsAreNotListed(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"admin:t", "read:t", "read:o", "admin:*"})
	const body = `{"finding_id":"stuck","state":"acknowledged","note":"seen"}`
	g.given(t, "POST /v1/admin/marks", body)
	made := decoded[api.Mark](t, g.as(t, "admin:t", "POST /v1/admin/marks", strings.Replace(body, "{", `{"tenant_id":"t",`, 1)))
	if made.Actor != "caller-a" || made.TenantID != "t" || made.Note != "seen" {
		t.Errorf("the mark is %+v", made)
	}
	for grant, want := range map[string]int{"admin:t": 1, "read:t": 1, "read:o": 0, "admin:*": 2} {
		if got := g.as(t, grant, "GET /v1/admin/marks", ""); strings.Count(got.Body, "finding_id") != want || got.Status != http.StatusOK {
			t.Errorf("%s sees %s", grant, got.Body)
		}
	}
	if got := g.as(t, "admin:t", "POST /v1/admin/marks", body).Status; got != http.StatusForbidden {
		t.Errorf("a mark of all tenants is answered %d", got)
	}
}

// Who may not see a tenant learns of nothing else that is wrong with the request.
func TestListsOfAnotherTenantAreForbiddenFirst(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"admin:t", "read:t"})
	for list, grant := range map[string]string{
		"/v1/jobs": "read:t", "/v1/admin/outbox": "admin:t", "/v1/admin/webhooks": "read:t", "/v1/admin/operations": "admin:t",
	} {
		for tenant, want := range map[string]int{"o": http.StatusForbidden, "t": http.StatusBadRequest} {
			if got := g.as(t, grant, "GET "+list+"?limit=0&tenant_id="+tenant, "").Status; got != want {
				t.Errorf("%s of tenant %s with a wrong limit is answered %d, want %d", list, tenant, got, want)
			}
		}
	}
}

func TestTheCommandsOfABatchAreAuthorizedOneByOne(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"submit:t"})
	body := `{"commands":[` + command + `,` + strings.Replace(command, `"t"`, `"o"`, 1) + `,{}]}`
	result := decoded[api.BatchResult](t, g.as(t, "submit:t", "POST /v1/commands:batch", body))
	var codes []string
	for _, item := range result.Results {
		code := "accepted"
		if item.Error != nil {
			code = string(item.Error.Code)
		}
		codes = append(codes, code)
	}
	if diff := cmp.Diff([]string{"accepted", "forbidden", "invalid_envelope"}, codes); diff != "" {
		t.Errorf("the commands of a batch (-want +got):\n%s", diff)
	}
	listed := decoded[api.JobPage](t, g.given(t, "GET /v1/jobs", ""))
	if len(listed.Jobs) != 1 || listed.Jobs[0].TenantID != "t" {
		t.Errorf("accepted are %+v", listed.Jobs)
	}
}

func TestOutboxRowsOfAForeignJobAreMissing(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"admin:t", "admin:*"})
	own := g.submitted(t)
	g.tenant = "o"
	foreign := g.submitted(t)
	for _, grant := range []string{"admin:t", "admin:*"} {
		for _, id := range []string{foreign, noJob} {
			response := g.as(t, grant, "POST /v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"`+id+`"}`)
			wantProblem(t, response, apierror.JobNotFound, "There is no such job.")
		}
	}
	if response := g.as(t, "admin:t", "POST /v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"`+own+`"}`); response.Status != http.StatusOK {
		t.Errorf("its own job: %d %s", response.Status, response.Body)
	}
	if response := g.as(t, "admin:t", "POST /v1/admin/outbox/retry", `{"outbox_ids":["x"]}`); response.Status != http.StatusForbidden {
		t.Errorf("rows of any tenant: %d %s", response.Status, response.Body)
	}
}

// One tenant's key must neither collide with another's nor reveal it.
func TestRetryKeysBelongToTheTenant(t *testing.T) {
	t.Parallel()
	callers := []string{"admin:t", "admin:o", "admin:*"}
	g := newGuarded(t, callers)
	const key = "Idempotency-Key: k"
	create := func(caller int, tenant string, headers ...string) string {
		response := g.as(t, callers[caller], "POST /v1/admin/retries", `{"tenant_id":"`+tenant+`"}`, headers...)
		return decoded[api.Operation](t, response).OperationID
	}
	ids := map[string]bool{}
	for i, tenant := range []string{"t", "o", "t"} {
		id := create(i, tenant, key)
		if again := create(i, tenant, key); again != id {
			t.Errorf("the key of %s is of %s, and then of %s", callers[i], id, again)
		}
		ids[id] = true
	}
	if len(ids) != 3 {
		t.Errorf("the operations are %v", ids)
	}
	if one, other := create(0, "t"), create(0, "t"); one == other {
		t.Errorf("without a key, both are %s", one)
	}
}

func TestAFailedOwnerLookupAdmitsNoRequest(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:t", "submit:*"})
	away := func(times int) {
		var calls atomic.Int64 // A stage's batches are written in parallel.
		g.store.on(func(context.Context) error {
			if calls.Add(1) <= int64(times) {
				return tablestore.ErrUnavailable
			}
			return nil
		})
	}
	away(1)
	if found := problemOf(t, g.as(t, "read:t", "GET /v1/jobs/$job", "")); found.Code != apierror.StoreUnavailable {
		t.Errorf("answered %+v", found)
	}
	if read := g.store.read(); len(read) != 1 {
		t.Errorf("after the look, %q were read", read)
	}
	job := g.submitted(t)
	away(1)
	if response := g.as(t, "submit:*", "POST /v1/jobs/"+job+":cancel", ""); response.Status != http.StatusAccepted {
		t.Errorf("a look for the record alone is in the way: %d %s", response.Status, response.Body)
	}
}

func TestAnIssuerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	issuer := musttest.Make(t, auth.NewIssuer, auth.IssuerConfig{URL: "https://issuer.example", Audience: "lucius", Transport: broken{}})
	h := newHarness(t, func(c *httpapi.Config) { c.Auth = auth.New(auth.Config{Issuer: issuer}) })
	// {"alg":"EdDSA","kid":"k"} and {}.
	const jwt = "eyJhbGciOiJFZERTQSIsImtpZCI6ImsifQ.e30.AAAA"
	response := h.do(t, http.MethodGet, "/v1/jobs/$job", "", "Authorization: Bearer "+jwt)
	found := problemOf(t, response)
	if found.Code != apierror.IssuerUnavailable || response.Header.Get("Retry-After") != "5" || response.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("answered %+v with %v", found, response.Header)
	}
	if log := h.log.String(); strings.Contains(log, jwt) || !strings.Contains(log, "out of order") {
		t.Errorf("the log says\n%s", log)
	}
}

// broken carries no request.
type broken struct{}

func (broken) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("out of order")
}

func TestReadinessWarnsOnlyOperators(t *testing.T) {
	t.Parallel()
	callers := []string{"read:*", "admin:*", "read:t", "platform:*"}
	g := newGuarded(t, callers)
	for _, grant := range append(callers, "") {
		told := strings.Contains(g.as(t, grant, "GET /readyz", "").Body, "circuit")
		if want := grant == "read:*" || grant == "admin:*"; told != want {
			t.Errorf("%q is told: %t", grant, told)
		}
	}
	h := newHarness(t)
	for host, want := range map[string]bool{"example.com": true, "evil.example": false} {
		request := httptest.NewRequest(http.MethodGet, "http://"+host+"/readyz", nil)
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, request)
		if told := strings.Contains(recorder.Body.String(), "circuit"); told != want || recorder.Code != http.StatusOK {
			t.Errorf("%s is told: %t", host, told)
		}
	}
}

// A server that needs no token refuses web pages of another origin.
func TestWebPagesOfOtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		target  string
		headers []string
		status  int
	}{
		"a program":                      {"POST /v1/jobs/$job:cancel", nil, http.StatusAccepted},
		"a page of this server":          {"POST /v1/jobs/$job:cancel", []string{"Origin: http://example.com", "Sec-Fetch-Site: same-origin"}, http.StatusAccepted},
		"a page of another":              {"POST /v1/jobs/$job:cancel", []string{"Origin: https://evil.example"}, http.StatusForbidden},
		"a form of another":              {"POST /v1/jobs/$job:cancel", []string{"Sec-Fetch-Site: cross-site"}, http.StatusForbidden},
		"a link of another":              {"GET /v1/jobs/$job", []string{"Sec-Fetch-Site: cross-site"}, http.StatusOK},
		"a name that was made to point":  {"GET http://evil.example/v1/jobs/$job", nil, http.StatusForbidden},
		"the same, to change something":  {"POST http://evil.example/v1/jobs/$job:cancel", nil, http.StatusForbidden},
		"the same, to look at the probe": {"GET http://evil.example/healthz", nil, http.StatusOK},
	} {
		h := newHarness(t)
		method, path := split(test.target)
		if got := h.do(t, method, path, "", test.headers...); got.Status != test.status {
			t.Errorf("%s is answered %d: %s", name, got.Status, got.Body)
		}
	}
}

func TestEveryRouteNeedsARule(t *testing.T) {
	t.Parallel()
	var config httpapi.Config
	newHarness(t, func(c *httpapi.Config) { config = *c })
	for want, route := range map[string][2]string{
		"has no rule": {http.MethodGet, "/v1/secrets"},
		"takes any":   {"", "/v1/jobs"},
	} {
		err := httpapi.LearnRoute(config, route[0], route[1])
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", route, err)
		}
	}
	if err := httpapi.LearnRoute(config, http.MethodGet, "/v1/jobs/{jobId}"); err != nil {
		t.Error(err)
	}
	err := httpapi.LearnRouteOfUnknownObjects(config, http.MethodGet, "/v1/jobs/{jobId}")
	if err == nil || !strings.Contains(err.Error(), "of a kind without an owner lookup") {
		t.Errorf("an object without an owner lookup: %v", err)
	}
}

// A stream outlives neither its caller's token nor its role.
func TestAStreamEndsWithItsCallersRights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, []string{"read:t"})
		path := "GET /v1/jobs/" + g.submitted(t) + "/events"
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.as(t, "read:t", path, "", "Accept: text/event-stream")
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the stream ended with its caller's rights untouched")
		default:
		}
		text := musttest.ReadFile(t, g.path)
		musttest.WriteFile(t, g.path, strings.Replace(string(text), `"t"`, `"o"`, 1))
		_, load := g.file.Look()
		if _, err := load(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("the stream goes on")
			g.Drain()
		}
		<-ended
	})
}

func TestCallersForAllTenantsGetTheUseCasesNotFound(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:*"})
	g.store.fail(&apierror.Error{Code: apierror.JobNotFound, Detail: "As the use case says."})
	wantProblem(t, g.as(t, "read:*", "GET /v1/jobs/"+noJob, ""), apierror.JobNotFound, "As the use case says.")
	if read := g.store.read(); len(read) != 1 {
		t.Errorf("%q were read", read)
	}
}

// A claim is warned of work that it cannot get, and told of no service that its token does not cover.
func TestAClaimIsWarnedOfWorkThatItCannotGet(t *testing.T) {
	t.Parallel()
	const every, ocr = "platform:*", "platform:*:ocr"
	g := newGuarded(t, []string{every, ocr})
	for _, test := range []struct{ caller, asks, want string }{
		{every, ``, ""},
		{every, `,"services":["ocr","embed"],"step_types":["OCR"]`, ""},
		{every, `,"services":["ocr","extrakt"]`, "service_unknown: no protocol has service extrakt (services: embed, ocr)"},
		{
			every, `,"services":["ocr"],"step_types":["EMBED"]`,
			"step_type_unknown: no protocol has step type EMBED for ocr (step types: OCR)",
		},
		{every, `,"step_types":["OCRR"]`, "step_type_unknown: no protocol has step type OCRR for embed, ocr (step types: EMBED, OCR)"},
		{
			every, `,"services":["extrakt"],"step_types":["EXTRAKT"]`,
			"service_unknown: no protocol has service extrakt (services: embed, ocr)",
		},
		{ocr, `,"services":["embed"]`, "service_not_allowed: the token does not cover service embed (services: ocr)"},
		{ocr, `,"services":["extrakt"]`, "service_not_allowed: the token does not cover service extrakt (services: ocr)"},
	} {
		claim := g.as(t, test.caller, "POST /v1/work:claim", `{"owner":"w","request_id":"r"`+test.asks+`}`)
		if claim.Status != http.StatusOK {
			t.Fatalf("%s claims with %s: %s", test.caller, test.asks, claim.Body)
		}
		var got []string
		for _, warning := range decoded[api.ClaimedWork](t, claim).Warnings {
			got = append(got, string(warning.Code)+": "+warning.Message)
		}
		if strings.Join(got, "\n") != test.want {
			t.Errorf("%s claims with %s, and is told:\n%s\nwant:\n%s", test.caller, test.asks, strings.Join(got, "\n"), test.want)
		}
	}
}
