package httpapi_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// guarded is a harness that asks for tokens, and the tokens of its callers, by
// their grants.
type guarded struct {
	*harness

	path   string
	file   *access.File
	tokens map[string]string
}

// newGuarded returns a harness for callers who each have the grants that one text
// lists, with spaces between them.
func newGuarded(t *testing.T, callers []string, configure ...func(*httpapi.Config)) *guarded {
	t.Helper()
	path, file, tokens := newTokens(t, callers)
	ask := func(c *httpapi.Config) { c.Access = access.New(access.Config{File: file}) }
	return &guarded{newHarness(t, append([]func(*httpapi.Config){ask}, configure...)...), path, file, tokens}
}

// newTokens returns a token file of those callers, and their tokens by their grants.
func newTokens(t *testing.T, callers []string) (path string, file *access.File, tokens map[string]string) {
	t.Helper()
	path, tokens = filepath.Join(t.TempDir(), "tokens.yaml"), map[string]string{}
	for i, texts := range callers {
		token := access.NewToken()
		entry := access.Entry{Name: "caller-" + string(rune('a'+i)), TokenHash: access.HashToken(token)}
		for text := range strings.FieldsSeq(texts) {
			grant, err := access.ParseGrant(text)
			if err != nil {
				t.Fatal(err)
			}
			entry.Grants = append(entry.Grants, grant)
		}
		if err := access.AppendFile(path, entry); err != nil {
			t.Fatal(err)
		}
		tokens[texts] = token
	}
	file, err := access.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, file, tokens
}

// as sends a request of the caller with those grants, or of nobody.
func (g *guarded) as(t *testing.T, grants, target, body string, headers ...string) answer {
	t.Helper()
	if grants != "" {
		headers = append(headers, "Authorization: Bearer "+g.tokens[grants])
	}
	method, path := split(target)
	return g.do(t, method, path, body, headers...)
}

// ask is a request that is about the tenant t, as far as it is about any.
type ask struct{ target, body string }

// asks has one for each operation of the OpenAPI document.
var asks = map[string]ask{
	"submitCommand":     {"POST /v1/commands", `{"tenant_id":"t"}`},
	"orchestrate":       {"POST /v1/orchestrate", `{"tenant_id":"t"}`},
	"submitBatch":       {"POST /v1/commands:batch", `{"commands":[{"tenant_id":"t"}]}`},
	"callbackAck":       {"POST /v1/callbacks/ack", `{` + identityJSON + `}`},
	"callbackResult":    {"POST /v1/callbacks/result", `{` + identityJSON + `,"status":"SUCCEEDED"}`},
	"callbackHeartbeat": {"POST /v1/callbacks/heartbeat", `{` + identityJSON + `}`},
	"claimWork":         {"POST /v1/work:claim", `{"owner":"o","request_id":"r"}`},
	"startWork":         {"POST /v1/work/w1:start", `{"owner":"o","expected_rev":2,"request_id":"r"}`},
	"heartbeatWork":     {"POST /v1/work/w1:heartbeat", `{"owner":"o","expected_rev":2,"request_id":"r"}`},
	"completeWork":      {"POST /v1/work/w1:complete", `{"owner":"o","expected_rev":2,"request_id":"r","result_ref":{"uri":"u"}}`},
	"failWork":          {"POST /v1/work/w1:fail", `{"owner":"o","expected_rev":2,"request_id":"r"}`},
	"listWorkEvents":    {"GET /v1/work/w1/events", ""},
	"getWork":           {"GET /v1/work/w1", ""},
	"listJobs":          {"GET /v1/jobs?tenant_id=t", ""},
	"cancelJob":         {"POST /v1/jobs/j1:cancel", ""},
	"pauseJob":          {"POST /v1/jobs/j1:pause", ""},
	"resumeJob":         {"POST /v1/jobs/j1:resume", ""},
	"rerunJob":          {"POST /v1/jobs/j1:rerun", ""},
	"listJobSteps":      {"GET /v1/jobs/j1/steps", ""},
	"listJobEvents":     {"GET /v1/jobs/j1/events", ""},
	"listJobWebhooks":   {"GET /v1/jobs/j1/webhooks", ""},
	"getJob":            {"GET /v1/jobs/j1", ""},
	"retryOutbox":       {"POST /v1/admin/outbox/retry", `{"tenant_id":"t"}`},
	"listOutbox":        {"GET /v1/admin/outbox?tenant_id=t", ""},
	"listFailures":      {"GET /v1/admin/failures?tenant_id=t", ""},
	"createRetry":       {"POST /v1/admin/retries", `{"tenant_id":"t"}`},
	"cancelRetry":       {"POST /v1/admin/retries/b1:cancel", ""},
	"getRetry":          {"GET /v1/admin/retries/b1", ""},
	"listPauses":        {"GET /v1/admin/pauses", ""},
	"createPause":       {"POST /v1/admin/pauses", `{"tenant_id":"t","reason":"why"}`},
	"resumePause":       {"POST /v1/admin/pauses/tenant:t:resume", ""},
	"listWebhooks":      {"GET /v1/admin/webhooks?tenant_id=t", ""},
	"replayWebhook":     {"POST /v1/admin/webhooks/j1.0:replay", ""},
	"listStuck":         {"GET /v1/admin/stuck", ""},
	"stallWork":         {"POST /v1/admin/work/w1:stall", ""},
	"requeueWork":       {"POST /v1/admin/work/w1:requeue", ""},
	"listProtocols":     {"GET /v1/protocols", ""},
	"getHealth":         {"GET /healthz", ""},
	"getReadiness":      {"GET /readyz", ""},
	"getMetrics":        {"GET /metrics", ""},
	"getOpenAPI":        {"GET /openapi.yaml", ""},
	"getDocs":           {"GET /docs", ""},
}

// about is the request about the object with that id.
func (a ask) about(id string) ask {
	replaced := strings.NewReplacer(
		"/w1", "/"+id, "/j1.0", "/"+id, "/j1", "/"+id, "/b1", "/"+id, "tenant:t:", id+":",
	).Replace(a.target)
	return ask{replaced, a.body}
}

func TestEveryEndpointEveryRoleEveryTenant(t *testing.T) {
	t.Parallel()
	table := policy(t)
	for _, operation := range documented(t) {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			asked, known := asks[operation]
			row, listed := table[operation]
			if !known || !listed {
				t.Fatalf("who may call %s? say so in the table of docs/access.md, and how it is called in this test", operation)
			}
			for _, role := range access.Roles() {
				for _, tenants := range []string{"t", "o", "*"} {
					grant := string(role) + ":" + tenants
					g := newGuarded(t, []string{grant})
					response := g.as(t, grant, asked.target, asked.body)
					want := row.status(role, tenants)
					got := response.Status
					if operation == "submitBatch" && got == http.StatusOK {
						got = statusOfFirst(t, response)
					}
					if ok := got < 300; got != want && (!ok || want != http.StatusOK) {
						t.Errorf("%s is answered %d, want %d: %s", grant, got, want, response.Body)
					}
					if calls := g.useCases.all(); got >= 300 && len(calls) > 0 {
						t.Errorf("%s is refused, and yet there was %+v", grant, calls)
					}
				}
			}
			g := newGuarded(t, []string{"read:t"})
			for caller, header := range map[string]string{
				"nobody": "", "a token that nobody has": "Authorization: Bearer " + access.NewToken(),
			} {
				method, path := split(asked.target)
				response := g.do(t, method, path, asked.body, header)
				if public := row.scope == "public"; public != (response.Status == http.StatusOK) ||
					!public && (response.Status != http.StatusUnauthorized || response.Header.Get("WWW-Authenticate") == "") {
					t.Errorf("%s is answered %d: %s", caller, response.Status, response.Body)
				}
			}
		})
	}
	if len(asks) != len(table) {
		t.Errorf("%d operations are in the table, and %d are asked about", len(table), len(asks))
	}
}

// What is of another tenant is not there: the answers differ in the id of the
// request alone, whatever else the request is like.
func TestTheObjectOfAnotherTenantIsAnsweredAsOneThatIsNotThere(t *testing.T) {
	t.Parallel()
	for operation, row := range policy(t) {
		if row.scope != "owner" {
			continue
		}
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			for _, role := range row.roles {
				grant := string(role) + ":t"
				g := newGuarded(t, []string{grant})
				for _, body := range []string{asks[operation].body, "{", ""} {
					method, _ := split(asks[operation].target)
					if method == http.MethodGet && body != "" {
						continue
					}
					foreign, missing := asks[operation].about("other1"), asks[operation].about("none1")
					const id = "X-Request-Id: r1"
					got, want := g.as(t, grant, foreign.target, body, id), g.as(t, grant, missing.target, body, id)
					if got.Status != http.StatusNotFound || got.Status != want.Status || got.Body != want.Body {
						t.Errorf("with the body %q: %d %s, and one that is not there %d %s",
							body, got.Status, got.Body, want.Status, want.Body)
					}
				}
				if free := asks[operation].about("no-tenant1"); g.as(t, grant, free.target, "").Status != http.StatusNotFound {
					t.Errorf("%s may use what is no tenant's", grant)
				}
				if calls := g.useCases.all(); len(calls) > 0 {
					t.Errorf("there was %+v", calls)
				}
			}
		})
	}
}
