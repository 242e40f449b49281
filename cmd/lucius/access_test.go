package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/auth"
)

// caller is a client with a token.
type caller struct {
	url   string
	token string
	http  *http.Client
}

// answer is a server's response.
type answer struct {
	status int
	body   string
	header http.Header
}

// do is like call, and fails the test if there is no response.
func (c *caller) do(t *testing.T, method, path, body string) answer {
	t.Helper()
	got, err := c.call(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// call sends a request. All requests have the same id, so that responses can be compared.
func (c *caller) call(ctx context.Context, method, path, body string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("X-Request-Id", "r1")
	// The header is not sent: it lets the client retry the request if the server has just
	// closed an idle connection.
	request.Header["X-Idempotency-Key"] = nil
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.send(request)
}

// send sends a request as it is.
func (c *caller) send(request *http.Request) (answer, error) {
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(text), response.Header}, err
}

// want is like do, and fails the test if the response has another status.
func (c *caller) want(t *testing.T, status int, method, path, body string) answer {
	t.Helper()
	got := c.do(t, method, path, body)
	if got.status != status {
		t.Fatalf("%s %s: %d, want %d: %s", method, path, got.status, status, got.body)
	}
	return got
}

// field returns a string in the response.
func (a answer) field(t *testing.T, names ...string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(a.body), &value); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		switch at := value.(type) {
		case []any:
			if len(at) == 0 {
				return ""
			}
			value = at[0].(map[string]any)[name]
		case map[string]any:
			value = at[name]
		}
	}
	return fmt.Sprint(value)
}

// addCaller adds a caller to a token file, and returns the token.
func addCaller(t *testing.T, file, name string, grants ...string) string {
	t.Helper()
	token := auth.NewToken()
	entry := auth.Entry{Name: name, TokenHash: auth.HashToken(token)}
	for _, text := range grants {
		grant, err := auth.ParseGrant(text)
		if err != nil {
			t.Fatal(err)
		}
		entry.Grants = append(entry.Grants, grant)
	}
	if err := auth.AppendFile(file, entry); err != nil {
		t.Fatal(err)
	}
	return token
}

// accessServer is a server with callers, on a protocol of the services read and write.
type accessServer struct {
	server *testServer
	file   string
	audit  string
	call   map[string]*caller
}

// newAccessServer starts a server with the callers, who have the grants that are listed for
// them.
func newAccessServer(t *testing.T, callers map[string]string, more ...string) *accessServer {
	t.Helper()
	dir, protocols := t.TempDir(), t.TempDir()
	put(t, protocols, ingest("1", "read", "write"))
	e := &accessServer{file: filepath.Join(dir, "tokens.yaml"), audit: filepath.Join(dir, "audit.log"), call: map[string]*caller{}}
	client := &http.Client{Transport: contracted(&http.Transport{DisableKeepAlives: true})}
	for name, grants := range callers {
		e.call[name] = &caller{token: addCaller(t, e.file, name, strings.Fields(grants)...), http: client}
	}
	e.call[""] = &caller{http: client}
	flags := append([]string{
		"--storage-backend", "memory", "--protocols-dir", protocols, "--auth-file", e.file, "--audit-log", e.audit, "--protocols-interval", "5ms",
	}, longTimeouts...)
	e.server = serveOn(t, dir, append(flags, more...)...)
	for _, caller := range e.call {
		caller.url = e.server.url
	}
	return e
}

// ingestFor returns a command of the tenant.
func ingestFor(tenant, key string) string {
	return `{"tenant_id":"` + tenant + `","request_type":"doc.ingest","schema_version":"1","idempotency_key":"` + key + `",` +
		`"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"},"payload":{}}`
}

// claimBody returns the body of a claim of one item, which waits that many seconds for it.
func claimBody(requestID string, wait int, services ...string) string {
	named, _ := json.Marshal(services) // Strings cannot fail.
	return fmt.Sprintf(`{"owner":"w","request_id":"%s","wait_seconds":%d,"start":true,"services":%s}`, requestID, wait, named)
}

func TestAccess_ObjectsOfAnotherTenantAreNotFound(t *testing.T) {
	t.Parallel()
	const everything = "submit:%[1]s read:%[1]s platform:%[1]s admin:%[1]s"
	e := newAccessServer(t, map[string]string{
		"a": fmt.Sprintf(everything, "tenant_a"), "b": fmt.Sprintf(everything, "tenant_b"), "all": fmt.Sprintf(everything, "*"),
	})
	a, b, all := e.call["a"], e.call["b"], e.call["all"]
	jobID := a.want(t, http.StatusAccepted, "POST", "/v1/commands", ingestFor("tenant_a", "k")).field(t, "jobId")
	item := a.want(t, http.StatusOK, "POST", "/v1/work:claim", claimBody("c", 10))
	workID, rev := item.field(t, "items", "work_id"), item.field(t, "items", "rev")
	operationID := all.want(t, http.StatusAccepted, "POST", "/v1/admin/retries", `{"tenant_id":"tenant_a"}`).field(t, "operation_id")
	all.want(t, http.StatusOK, "POST", "/v1/admin/pauses", `{"tenant_id":"tenant_a","reason":"r"}`)

	const noJob = "0197f0c2-0000-7000-8000-000000000000"
	verb := `{"owner":"w","expected_rev":` + rev + `,"request_id":"x"}`
	callback := func(jobID string) string {
		return `{"jobId":"` + jobID + `","stepId":"read","tenant_id":"tenant_b","attempt_no":1,"lease_id":"l","timestamp":"2026-01-27T11:02:00Z"}`
	}
	for _, test := range []struct{ method, path, body, there, missing string }{
		{"GET", "/v1/jobs/%s", "", jobID, noJob},
		{"GET", "/v1/jobs/%s?wait=1s", "", jobID, noJob},
		{"GET", "/v1/jobs/%s/steps", "", jobID, noJob},
		{"GET", "/v1/jobs/%s/events", "", jobID, noJob},
		{"GET", "/v1/jobs/%s/webhooks", "", jobID, noJob},
		{"POST", "/v1/jobs/%s:cancel", "", jobID, noJob},
		{"POST", "/v1/jobs/%s:pause", "", jobID, noJob},
		{"POST", "/v1/jobs/%s:resume", "", jobID, noJob},
		{"POST", "/v1/jobs/%s:rerun", "", jobID, noJob},
		{"GET", "/v1/work/%s", "", workID, noJob + ".0.1"},
		{"GET", "/v1/work/%s/events", "", workID, noJob + ".0.1"},
		{"POST", "/v1/work/%s:start", verb, workID, noJob + ".0.1"},
		{"POST", "/v1/work/%s:heartbeat", verb, workID, noJob + ".0.1"},
		{"POST", "/v1/work/%s:complete", verb, workID, noJob + ".0.1"},
		{"POST", "/v1/work/%s:fail", verb, workID, noJob + ".0.1"},
		{"POST", "/v1/admin/work/%s:stall", "", workID, noJob + ".0.1"},
		{"POST", "/v1/admin/work/%s:requeue", "", workID, noJob + ".0.1"},
		{"GET", "/v1/admin/operations/%s", "", operationID, noJob},
		{"POST", "/v1/admin/operations/%s:cancel", "", operationID, noJob},
		{"POST", "/v1/admin/pauses/%s:resume", "", "tenant:tenant_a", "tenant:tenant_c"},
		{"POST", "/v1/admin/webhooks/%s:replay", "", jobID + ".0", noJob + ".0"},
	} {
		got := b.do(t, test.method, fmt.Sprintf(test.path, test.there), test.body)
		want := b.do(t, test.method, fmt.Sprintf(test.path, test.missing), test.body)
		if got.status != http.StatusNotFound || got.body != want.body || got.status != want.status {
			t.Errorf("%s %s: %d %s\nand where there is nothing %d %s", test.method, test.path, got.status, got.body, want.status, want.body)
		}
	}
	if got, want := b.do(t, "POST", "/v1/callbacks/ack", callback(jobID)), b.do(t, "POST", "/v1/callbacks/ack", callback(noJob)); got.status != http.StatusNotFound || got.body != want.body {
		t.Errorf("a callback: %d %s\nand where there is nothing %d %s", got.status, got.body, want.status, want.body)
	}
	if state := a.want(t, http.StatusOK, "GET", "/v1/jobs/"+jobID, "").field(t, "state"); state != "IN_PROGRESS" {
		t.Errorf("after all that the job is %s", state)
	}
	if pauses := b.want(t, http.StatusOK, "GET", "/v1/admin/pauses", "").body; strings.Contains(pauses, "tenant_a") {
		t.Errorf("the pauses are %s", pauses)
	}
	a.want(t, http.StatusOK, "GET", "/v1/admin/operations/"+operationID, "")
	b.want(t, http.StatusForbidden, "GET", "/v1/jobs?tenant_id=tenant_a", "")
	b.want(t, http.StatusForbidden, "GET", "/v1/jobs", "")
	if jobs := b.want(t, http.StatusOK, "GET", "/v1/jobs?tenant_id=tenant_b", "").body; strings.Contains(jobs, jobID) {
		t.Errorf("the jobs are %s", jobs)
	}
}

func TestAccess_CommandsAreForTheCallersTenants(t *testing.T) {
	t.Parallel()
	e := newAccessServer(t, map[string]string{"a": "submit:tenant_a", "reader": "read:*"})
	a, reader := e.call["a"], e.call["reader"]
	a.want(t, http.StatusForbidden, "POST", "/v1/commands", ingestFor("tenant_b", "k"))
	// The tenant of the job counts, however the body spells it.
	for _, body := range []string{
		strings.Replace(ingestFor("tenant_b", "k"), `{"tenant_id"`, `{"Tenant_ID":"tenant_a","tenant_id"`, 1),
		strings.Replace(ingestFor("tenant_b", "k"), `{"tenant_id"`, `{"tenant_id":"tenant_a","tenant_id"`, 1),
		strings.Replace(ingestFor("tenant_b", "k"), `"payload":{}`, `"payload":{},"tenant_id":"tenant_a"`, 1),
		strings.Replace(ingestFor("tenant_b", "k"), `"tenant_b"`, `"\u0074enant_b"`, 1),
		strings.Replace(ingestFor("tenant_b", "k"), `doc.ingest`, `no.such.type`, 1),
	} {
		if got := a.do(t, "POST", "/v1/commands", body); got.status < 400 {
			t.Errorf("%s\nis answered %d %s", body, got.status, got.body)
		}
	}
	batch := a.want(t, http.StatusOK, "POST", "/v1/commands:batch",
		`{"commands":[`+ingestFor("tenant_b", "k")+`,`+ingestFor("tenant_a", "k")+`]}`)
	if strings.Count(batch.body, `"status":202`) != 1 || !strings.Contains(batch.body, "forbidden") {
		t.Errorf("the batch is answered %s", batch.body)
	}
	jobs := reader.want(t, http.StatusOK, "GET", "/v1/jobs", "").body
	if strings.Contains(jobs, `"tenant_b"`) || strings.Count(jobs, `"jobId"`) != 1 {
		t.Errorf("the jobs are %s", jobs)
	}
	e.call[""].want(t, http.StatusUnauthorized, "POST", "/v1/commands", ingestFor("tenant_a", "k2"))
	reader.want(t, http.StatusForbidden, "POST", "/v1/commands", ingestFor("tenant_a", "k2"))
}

func TestAccess_ClaimsTakeTheCallersWorkAlone(t *testing.T) {
	t.Parallel()
	e := newAccessServer(t, map[string]string{
		"client": "submit:*", "read-a": "platform:tenant_a:read", "write": "platform:*:write",
		"uneven": "platform:tenant_a:read platform:tenant_b:write", "b": "platform:tenant_b",
	})
	for _, tenant := range []string{"tenant_a", "tenant_b"} {
		e.call["client"].want(t, http.StatusAccepted, "POST", "/v1/commands", ingestFor(tenant, "k"))
	}
	tenantOf := func(name, requestID string, wait int, services ...string) string {
		t.Helper()
		claimed := e.call[name].want(t, http.StatusOK, "POST", "/v1/work:claim", claimBody(requestID, wait, services...))
		if !strings.Contains(claimed.body, "work_id") {
			return "none"
		}
		return claimed.field(t, "items", "directive", "tenant_id") + " " + claimed.field(t, "items", "work_id")
	}
	if got := tenantOf("b", "b1", 10, "read"); !strings.HasPrefix(got, "tenant_b ") {
		t.Errorf("b got %s", got)
	}
	if got := tenantOf("write", "w1", 0); got != "none" {
		t.Errorf("the writer got %s, and nothing is to be written", got)
	}
	if got := tenantOf("write", "w2", 0, "read"); got != "none" {
		t.Errorf("the writer got %s, which is to be read", got)
	}
	e.call["uneven"].want(t, http.StatusForbidden, "POST", "/v1/work:claim", claimBody("u1", 0))
	if got := tenantOf("uneven", "u2", 0, "write"); got != "none" {
		t.Errorf("uneven got %s, and nothing is to be written", got)
	}
	if got := tenantOf("read-a", "a1", 10); !strings.HasPrefix(got, "tenant_a ") {
		t.Errorf("the reader got %s", got)
	}
	// The same claim by a caller with other rights counts as a different claim.
	again := e.call["b"].want(t, http.StatusBadRequest, "POST", "/v1/work:claim", claimBody("a1", 0))
	if strings.Contains(again.body, "work_id") || strings.Contains(again.body, "tenant_a") {
		t.Errorf("b got %s with the claim of the reader", again.body)
	}
}

func TestAccess_TokensAreTakenUpAndWithdrawnWhileTheServerRuns(t *testing.T) {
	t.Parallel()
	e := newAccessServer(t, map[string]string{"operator": "read:* admin:*", "leaver": "read:*"})
	leaver, operator := e.call["leaver"], e.call["operator"]
	leaver.want(t, http.StatusOK, "GET", "/v1/protocols", "")
	joiner := &caller{url: e.server.url, http: leaver.http, token: addCaller(t, e.file, "joiner", "read:tenant_a")}
	waittest.Until(t, "a new caller is let in", func() bool { return joiner.do(t, "GET", "/v1/protocols", "").status == http.StatusOK })

	text, err := os.ReadFile(e.file)
	if err != nil {
		t.Fatal(err)
	}
	gone := strings.Replace(string(text), auth.HashToken(leaver.token), auth.HashToken(auth.NewToken()), 1)
	replace := func(text string) { // atomically: a part of the file would be refused
		t.Helper()
		next := e.file + ".next"
		if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, e.file)); err != nil {
			t.Fatal(err)
		}
	}
	replace(gone)
	waittest.Until(t, "a withdrawn token is refused", func() bool {
		return leaver.do(t, "GET", "/v1/protocols", "").status == http.StatusUnauthorized
	})
	replace(gone + "nonsense: 1\n")
	waittest.Until(t, "a bad file shows", func() bool {
		return strings.Contains(operator.want(t, http.StatusOK, "GET", "/readyz", "").body, "the tokens are refused")
	})
	metrics := operator.want(t, http.StatusOK, "GET", "/metrics", "").body
	for _, line := range []string{
		`lucius_access_refused{files="token_file"} 1`, `lucius_access_reloads_total{files="token_file",outcome="refused"} 1`,
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("/metrics does not show %s", line)
		}
	}
	if told := joiner.want(t, http.StatusOK, "GET", "/readyz", "").body; strings.Contains(told, "refused") {
		t.Errorf("another caller is told %s", told)
	}
	replace(gone)
	waittest.Until(t, "the file is mended", func() bool {
		return !strings.Contains(operator.want(t, http.StatusOK, "GET", "/readyz", "").body, "refused")
	})
}

func TestAccess_LimitsAndAudit(t *testing.T) {
	t.Parallel()
	e := newAccessServer(t, map[string]string{"a": "submit:tenant_a", "operator": "admin:*"}, "--rate-limit-tenant", "0.01:1")
	a := e.call["a"]
	jobID := a.want(t, http.StatusAccepted, "POST", "/v1/commands", ingestFor("tenant_a", "k")).field(t, "jobId")
	limited := a.want(t, http.StatusTooManyRequests, "POST", "/v1/commands", ingestFor("tenant_a", "k2"))
	if limited.field(t, "code") != "rate_limited" || limited.header.Get("Retry-After") == "" {
		t.Errorf("answered %s with %v", limited.body, limited.header)
	}
	e.call["operator"].want(t, http.StatusForbidden, "POST", "/v1/jobs/"+jobID+":cancel", "")
	e.call["operator"].want(t, http.StatusOK, "POST", "/v1/admin/pauses", `{"all":true,"reason":"r"}`)
	log, err := os.ReadFile(e.audit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"caller":"operator","origin":"token","from":"127.0.0.1","action":"cancelJob","object":"` + jobID + `","tenant":"","outcome":"denied"`,
		`"caller":"operator","origin":"token","from":"127.0.0.1","action":"createPause","object":"all","tenant":"","outcome":"done"`,
	} {
		if !strings.Contains(string(log), want) {
			t.Errorf("%s is missing in\n%s", want, log)
		}
	}
	if strings.Contains(string(log), a.token) || strings.Contains(string(log), "submitCommand") {
		t.Errorf("the audit log has\n%s", log)
	}
}
