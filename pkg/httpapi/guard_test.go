package httpapi_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/problem"
)

// ack is an ACK of a step.
func ack(tenant, jobID, stepID string) string {
	return `{"jobId":"` + jobID + `","stepId":"` + stepID + `","tenant_id":"` + tenant +
		`","attempt_no":1,"lease_id":"l1","timestamp":"2026-01-27T11:02:00Z"}`
}

func TestAPlatformCallerIsForItsServices(t *testing.T) {
	t.Parallel()
	const bound, all = "platform:t:ocr", "platform:*:ocr"
	g := newGuarded(t, []string{bound, all})
	const verb = `{"owner":"o","expected_rev":2,"request_id":"r"}`
	for _, test := range []struct {
		target, body string
		code         problem.Code
		detail       string
	}{
		{"POST /v1/work/w1:start", verb, "", ""},
		{"GET /v1/work/w1", "", "", ""},
		{"POST /v1/work/w1-embed:start", verb, problem.WorkNotFound, "There is no such work item."},
		{"GET /v1/work/w1-embed", "", problem.WorkNotFound, "There is no such work item."},
		{"POST /v1/callbacks/ack", ack("t", "j1", "ocr"), "", ""},
		{"POST /v1/callbacks/ack", ack("t", "j1", "embed"), problem.StepNotFound, `the job has no step "embed"`},
		{"POST /v1/callbacks/ack", ack("t", "j1", "none"), problem.StepNotFound, `the job has no step "none"`},
		{"POST /v1/callbacks/ack", ack("t", "other1", "ocr"), problem.JobNotFound, "There is no such job."},
		{"POST /v1/callbacks/ack", ack("t", "none1", "ocr"), problem.JobNotFound, "There is no such job."},
		{"POST /v1/callbacks/ack", ack("t", "down1", "ocr"), problem.StoreUnavailable, ""},
	} {
		for _, grant := range []string{bound, all} {
			response := g.as(t, grant, test.target, test.body)
			if test.code == "" {
				if response.Status != http.StatusOK {
					t.Errorf("%s %s as %s: %d %s", test.target, test.body, grant, response.Status, response.Body)
				}
				continue
			}
			found := problemOf(t, response)
			if found.Code != test.code || test.detail != "" && found.Detail != test.detail {
				t.Errorf("%s %s as %s: %s %q", test.target, test.body, grant, found.Code, found.Detail)
			}
		}
	}
	wantProblem(t, g.as(t, bound, "POST /v1/callbacks/ack", ack("o", "other1", "ocr")), problem.Forbidden,
		"This takes the role platform for the tenant.")
}

// What is looked up and what is then done must be of one id.
func TestTheObjectThatIsCheckedIsTheOneThatIsUsed(t *testing.T) {
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
		var checked []string
		g := newGuarded(t, []string{reader}, func(c *httpapi.Config) { c.Owners = &witness{&checked} })
		if response := g.as(t, reader, "GET "+path, ""); response.Status != http.StatusOK {
			t.Errorf("%s: %d %s", path, response.Status, response.Body)
			continue
		}
		if used := g.useCases.all()[0].ID; used != want || !slices.Equal(checked, []string{want}) {
			t.Errorf("%s: %q is checked and %q used, want %q", path, checked, used, want)
		}
	}
}

func TestCallersForAllTenantsCostNoLook(t *testing.T) {
	t.Parallel()
	var checked []string
	g := newGuarded(t, []string{"read:*", "platform:*"}, func(c *httpapi.Config) { c.Owners = &witness{&checked} })
	g.as(t, "read:*", "GET /v1/jobs/j1", "")
	g.as(t, "platform:*", "POST /v1/callbacks/ack", ack("t", "j1", "ocr"))
	if len(checked) > 0 {
		t.Errorf("somebody looked at %q", checked)
	}
}

func TestAListIsOfOneTenantUnlessTheCallerIsForAll(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:t admin:t", "read:* admin:*"})
	for _, target := range []string{"/v1/jobs", "/v1/admin/outbox", "/v1/admin/failures", "/v1/admin/webhooks"} {
		role := "read"
		if strings.HasSuffix(target, "outbox") {
			role = "admin"
		}
		wantProblem(t, g.as(t, "read:t admin:t", "GET "+target, ""), problem.Forbidden,
			"This takes the role "+role+" for all tenants; name a tenant_id of yours.")
		if response := g.as(t, "read:* admin:*", "GET "+target, ""); response.Status != http.StatusOK {
			t.Errorf("%s: %d %s", target, response.Status, response.Body)
		}
	}
}

func TestPausesOfOthersAreNotListed(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"admin:t", "admin:o", "admin:*"})
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

func TestTheCommandsOfABatchAreLetInOneByOne(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"submit:t"})
	response := g.as(t, "submit:t", "POST /v1/commands:batch", `{"commands":[{"tenant_id":"t"},{"tenant_id":"o"},{}]}`)
	for _, want := range []string{`{"results":[{"correlation_id":"c1"`, `"status":202},{"error":{"code":"forbidden"`, `name a tenant_id of yours.`} {
		if !strings.Contains(response.Body, want) {
			t.Errorf("%s is missing in %s", want, response.Body)
		}
	}
	if calls := g.useCases.all(); len(calls) != 1 {
		t.Errorf("%d commands were accepted", len(calls))
	}
}

func TestOutboxRowsOfAJobOfAnotherTenantAreNotThere(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"admin:t", "admin:*"})
	for _, grant := range []string{"admin:t", "admin:*"} {
		for _, id := range []string{"other1", "none1"} {
			response := g.as(t, grant, "POST /v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"`+id+`"}`)
			wantProblem(t, response, problem.JobNotFound, "There is no such job.")
		}
	}
	if response := g.as(t, "admin:t", "POST /v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"j1"}`); response.Status != http.StatusOK {
		t.Errorf("its own job: %d %s", response.Status, response.Body)
	}
	if response := g.as(t, "admin:t", "POST /v1/admin/outbox/retry", `{"outbox_ids":["x"]}`); response.Status != http.StatusForbidden {
		t.Errorf("rows of whoever: %d %s", response.Status, response.Body)
	}
}

// One tenant's key must neither meet nor show another's.
func TestKeysOfRetriesAreTheTenants(t *testing.T) {
	t.Parallel()
	callers := []string{"admin:t", "admin:o", "admin:*"}
	g := newGuarded(t, callers)
	keys := map[string]bool{}
	for i, tenant := range []string{"t", "o", "t"} {
		g.as(t, callers[i], "POST /v1/admin/retries", `{"tenant_id":"`+tenant+`"}`, "Idempotency-Key: k")
		keys[g.useCases.all()[i].ID] = true
	}
	if len(keys) != 3 || !keys["k"] {
		t.Errorf("the keys are %v", keys)
	}
	g.as(t, "admin:t", "POST /v1/admin/retries", `{"tenant_id":"t"}`)
	if key := g.useCases.all()[3].ID; key != "" {
		t.Errorf("no key became %q", key)
	}
}

func TestALookThatFailsLetsNobodyIn(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:t", "submit:*"})
	if found := problemOf(t, g.as(t, "read:t", "GET /v1/jobs/down1", "")); found.Code != problem.StoreUnavailable {
		t.Errorf("answered %+v", found)
	}
	if calls := g.useCases.all(); len(calls) > 0 {
		t.Errorf("there was %+v", calls)
	}
	if response := g.as(t, "submit:*", "POST /v1/jobs/down1:cancel", ""); response.Status != http.StatusOK {
		t.Errorf("a look for the record alone is in the way: %d %s", response.Status, response.Body)
	}
}

func TestAnIssuerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	issuer, err := access.NewIssuer(access.IssuerConfig{URL: "https://issuer.example", Audience: "lucius", Transport: broken{}})
	if err != nil {
		t.Fatal(err)
	}
	h := newHarness(t, func(c *httpapi.Config) { c.Access = access.New(access.Config{Issuer: issuer}) })
	// {"alg":"EdDSA","kid":"k"} and {}.
	const jwt = "eyJhbGciOiJFZERTQSIsImtpZCI6ImsifQ.e30.AAAA"
	response := h.do(t, http.MethodGet, "/v1/jobs/j1", "", "Authorization: Bearer "+jwt)
	found := problemOf(t, response)
	if found.Code != problem.IssuerUnavailable || response.Header.Get("Retry-After") != "5" || response.Header.Get("WWW-Authenticate") != "" {
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

func TestReadinessTellsOperatorsAlone(t *testing.T) {
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

// A server that asks for no token answers no page of somebody else's.
func TestPagesOfOthersAreKeptOut(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		target  string
		headers []string
		status  int
	}{
		"a program":                      {"POST /v1/jobs/j1:cancel", nil, http.StatusOK},
		"a page of this server":          {"POST /v1/jobs/j1:cancel", []string{"Origin: http://example.com", "Sec-Fetch-Site: same-origin"}, http.StatusOK},
		"a page of another":              {"POST /v1/jobs/j1:cancel", []string{"Origin: https://evil.example"}, http.StatusForbidden},
		"a form of another":              {"POST /v1/jobs/j1:cancel", []string{"Sec-Fetch-Site: cross-site"}, http.StatusForbidden},
		"a link of another":              {"GET /v1/jobs/j1", []string{"Sec-Fetch-Site: cross-site"}, http.StatusOK},
		"a name that was made to point":  {"GET http://evil.example/v1/jobs/j1", nil, http.StatusForbidden},
		"the same, to change something":  {"POST http://evil.example/v1/jobs/j1:cancel", nil, http.StatusForbidden},
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
	if err == nil || !strings.Contains(err.Error(), "Owners does not know") {
		t.Errorf("an object that nobody looks up: %v", err)
	}
}

// A stream outlives neither its caller's token nor its role.
func TestAStreamEndsWithItsCallersRights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, []string{"read:t"})
		g.useCases.empty = true
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.as(t, "read:t", "GET /v1/jobs/j1/events", "", "Accept: text/event-stream")
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case <-ended:
			t.Fatal("the stream ended with its caller's rights untouched")
		default:
		}
		text, err := os.ReadFile(g.path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(g.path, []byte(strings.Replace(string(text), `"t"`, `"o"`, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := g.file.Reload(); err != nil {
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

func TestTheNotFoundOfAUseCaseStaysItsOwnForCallersForAll(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:*"})
	g.useCases.err = &problem.Error{Code: problem.JobNotFound, Detail: "As the use case says."}
	wantProblem(t, g.as(t, "read:*", "GET /v1/jobs/none1", ""), problem.JobNotFound, "As the use case says.")
	if diff := cmp.Diff([]call{{Operation: "Job", ID: "none1"}}, g.useCases.all()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
