package httpapi_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	succeeded = `,"status":"SUCCEEDED","result_ref":{"uri":"s3://out"}`
	noJob     = "0197f0c2-0000-7000-8000-000000000000"
)

// accepting has, for each operation, a situation in which its request is
// accepted. The refusals that all operations share are made of these.
var accepting = map[string]situation{
	"submitCommand":     sending("/v1/commands", rigCommand),
	"orchestrate":       sending("/v1/orchestrate", rigCommand),
	"submitBatch":       sending("/v1/commands:batch", `{"commands":[`+rigCommand+`]}`),
	"callbackAck":       reported("/v1/callbacks/ack", 0, ""),
	"callbackResult":    reported("/v1/callbacks/result", 0, succeeded),
	"callbackHeartbeat": reported("/v1/callbacks/heartbeat", 0, ""),
	"claimWork": func(t *testing.T, r *rig) question {
		t.Helper()
		r.dispatch(t)
		r.submitted(t)
		return question{target: "POST /v1/work:claim", body: `{"owner":"o","request_id":"r1","wait_seconds":30}`}
	},
	"startWork":       byWorker("start", false, 0, ""),
	"heartbeatWork":   byWorker("heartbeat", true, 0, ""),
	"completeWork":    byWorker("complete", true, 0, `,"result_ref":{"uri":"s3://out"}`),
	"failWork":        byWorker("fail", true, 0, `,"error":{"code":"c"}`),
	"getWork":         onWork("GET /v1/work/%s"),
	"listWorkEvents":  onWork("GET /v1/work/%s/events"),
	"listJobs":        filled("/v1/jobs?tenant_id=t"),
	"cancelJob":       onJob("POST", ":cancel"),
	"pauseJob":        onJob("POST", ":pause"),
	"resumeJob":       onJobAfter(":pause", ":resume"),
	"rerunJob":        onFailed(":rerun"),
	"listJobSteps":    onJob("GET", "/steps"),
	"listJobEvents":   onJob("GET", "/events"),
	"listJobWebhooks": onJob("GET", "/webhooks"),
	"getJob":          onJob("GET", ""),
	"retryOutbox": func(t *testing.T, r *rig) question {
		t.Helper()
		return question{target: "POST /v1/admin/outbox/retry", body: `{"tenant_id":"t","jobId":"` + r.submitted(t) + `"}`}
	},
	"listOutbox": func(t *testing.T, r *rig) question {
		t.Helper()
		r.submitted(t)
		return question{target: "GET /v1/admin/outbox?tenant_id=t"}
	},
	"listFailures":  filled("/v1/admin/failures?tenant_id=t"),
	"createRetry":   sending("/v1/admin/retries", `{"tenant_id":"t"}`),
	"cancelRetry":   retrying("POST", ":cancel"),
	"getRetry":      retrying("GET", ""),
	"listPauses":    reading("/v1/admin/pauses"),
	"createPause":   sending("/v1/admin/pauses", `{"tenant_id":"t","reason":"why"}`),
	"resumePause":   pausing,
	"listWebhooks":  filled("/v1/admin/webhooks?tenant_id=t"),
	"replayWebhook": announced(true),
	"listStuck":     reading("/v1/admin/stuck"),
	"stallWork":     onWork("POST /v1/admin/work/%s:stall"),
	"requeueWork":   onStalled("requeue"),
	"listProtocols": reading("/v1/protocols"),
	"getHealth":     reading("/healthz"),
	"getReadiness":  reading("/readyz"),
	"getMetrics":    reading("/metrics"),
	"getOpenAPI":    reading("/openapi.yaml"),
	"getDocs":       reading("/docs"),
}

// special has the situations that are an operation's own.
var special = map[contracttest.Pair]situation{
	{Operation: "cancelJob", Status: 200}: onJobAfter(":cancel", ":cancel"),
	{Operation: "pauseJob", Status: 200}:  onJobAfter(":pause", ":pause"),
	{Operation: "resumeJob", Status: 200}: onJob("POST", ":resume"),

	{Operation: "getJob", Status: 400}:       onJob("GET", "?wait=soon"),
	{Operation: "listFailures", Status: 400}: reading("/v1/admin/failures?tenant_id=t&created_after=yesterday"),

	// What no path names.
	{Operation: "callbackAck", Status: 404}:       sending("/v1/callbacks/ack", ack("t", noJob, "ocr")),
	{Operation: "callbackHeartbeat", Status: 404}: sending("/v1/callbacks/heartbeat", ack("t", noJob, "ocr")),
	{Operation: "callbackResult", Status: 404}: sending("/v1/callbacks/result",
		strings.TrimSuffix(ack("t", noJob, "ocr"), "}")+succeeded+"}"),
	{Operation: "retryOutbox", Status: 404}: sending("/v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"`+noJob+`"}`),
	{Operation: "claimWork", Status: 404}: func(t *testing.T, r *rig) question {
		t.Helper()
		r.replace(t, func(c *httpapi.Config) { c.Work = nil })
		return sending("/v1/work:claim", `{"owner":"o","request_id":"r1"}`)(t, r)
	},

	{Operation: "callbackAck", Status: 409}:       reported("/v1/callbacks/ack", 1, ""),
	{Operation: "callbackResult", Status: 409}:    reported("/v1/callbacks/result", 1, succeeded),
	{Operation: "callbackHeartbeat", Status: 409}: reported("/v1/callbacks/heartbeat", 1, ""),
	{Operation: "startWork", Status: 409}:         byWorker("start", false, 1, ""),
	{Operation: "heartbeatWork", Status: 409}:     byWorker("heartbeat", true, 1, ""),
	{Operation: "completeWork", Status: 409}:      byWorker("complete", false, 0, ""),
	{Operation: "failWork", Status: 409}:          byWorker("fail", true, 1, ""),
	{Operation: "cancelJob", Status: 409}:         onFailed(":cancel"),
	{Operation: "pauseJob", Status: 409}:          onFailed(":pause"),
	{Operation: "resumeJob", Status: 409}:         onFailed(":resume"),
	{Operation: "rerunJob", Status: 409}:          onJob("POST", ":rerun"),
	{Operation: "replayWebhook", Status: 409}:     announced(false),
	{Operation: "stallWork", Status: 409}:         onStalled("stall"),
	{Operation: "requeueWork", Status: 409}:       onWork("POST /v1/admin/work/%s:requeue"),

	{Operation: "submitCommand", Status: 422}:  sending("/v1/commands", strings.Replace(rigCommand, "language", "tongue", 1)),
	{Operation: "orchestrate", Status: 422}:    sending("/v1/orchestrate", strings.Replace(rigCommand, "doc.ingest", "doc.eat", 1)),
	{Operation: "callbackResult", Status: 422}: reported("/v1/callbacks/result", 0, `,"status":"SUCCEEDED","result_ref":{"url":"s3://out"}`),
	{Operation: "completeWork", Status: 422}:   byWorker("complete", true, 0, `,"result_ref":{"url":"s3://out"}`),
	{Operation: "createRetry", Status: 422}: func(t *testing.T, r *rig) question {
		t.Helper()
		first := question{target: "POST /v1/admin/retries", body: `{"tenant_id":"t"}`, key: "k", caller: nobody}
		if got := r.ask(t, r.prepare, first); got.Status != http.StatusAccepted {
			t.Fatalf("%d %s", got.Status, got.Body)
		}
		return question{target: first.target, body: `{"tenant_id":"t","reason":"another"}`, key: "k"}
	},

	// The commands of a batch fail one by one. The batch itself does with a defect
	// of the server.
	{Operation: "submitBatch", Status: 500}: func(*testing.T, *rig) question {
		return question{target: "POST /v1/commands:batch", body: `{"commands":[` + rigCommand + `]}`, unreadable: true}
	},
	// What is read from memory fails with its use case alone.
	{Operation: "listProtocols", Status: 500}: func(t *testing.T, r *rig) question {
		t.Helper()
		r.replace(t, func(c *httpapi.Config) { c.Protocols = protocols{&useCases{err: errRig}} })
		return question{target: "GET /v1/protocols"}
	},
	{Operation: "listStuck", Status: 500}: func(t *testing.T, r *rig) question {
		t.Helper()
		r.replace(t, func(c *httpapi.Config) { c.Admin = admin{&useCases{err: errRig}} })
		return question{target: "GET /v1/admin/stuck"}
	},

	{Operation: "submitBatch", Status: 503}:   draining("submitBatch"),
	{Operation: "listProtocols", Status: 503}: draining("listProtocols"),
	{Operation: "listStuck", Status: 503}:     draining("listStuck"),
	{Operation: "getMetrics", Status: 503}:    withoutIssuer,
}

// errRig is a failure that nobody has foreseen.
var errRig = errors.New("dial 10.0.0.7: secret")

// replace puts another server in place, with the same callers.
func (r *rig) replace(t *testing.T, change func(*httpapi.Config)) {
	t.Helper()
	r.Server = r.serve(t, func(c *httpapi.Config) { c.Access, c.MaxBodyBytes = r.access, maxRigBody }, change)
}

// draining is the situation in which the server shuts down.
func draining(operation string) situation {
	return func(t *testing.T, r *rig) question {
		t.Helper()
		asked := accepting[operation](t, r)
		r.Drain()
		return asked
	}
}

// unreachable is an issuer of tokens that does not answer.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) { return nil, errRig }

// withoutIssuer is the situation in which a JWT can not be checked.
func withoutIssuer(t *testing.T, r *rig) question {
	t.Helper()
	issuer, err := access.NewIssuer(access.IssuerConfig{
		URL: "https://issuer.example", Audience: "lucius", Transport: unreachable{},
	})
	must(t, err)
	r.replace(t, func(c *httpapi.Config) { c.Access = access.New(access.Config{Issuer: issuer}) })
	part := base64.RawURLEncoding.EncodeToString
	r.tokens = map[string]string{
		"jwt": part([]byte(`{"alg":"RS256","kid":"k"}`)) + "." + part([]byte(`{"iss":"https://issuer.example"}`)) + "." + part(make([]byte, 256)),
	}
	return question{target: "GET /metrics", caller: "jwt"}
}

// spoil makes of a request that would be accepted one that is refused.
type spoil func(t *testing.T, r *rig, operation contracttest.Operation, accepted question) question

// shared has the refusals that are the same for all operations, by status code.
var shared = map[int]spoil{
	http.StatusBadRequest: func(_ *testing.T, _ *rig, _ contracttest.Operation, q question) question {
		if strings.HasPrefix(q.target, "GET ") {
			path, _, _ := strings.Cut(q.target, "?")
			q.target = path + "?tenant_id=%zz"
			return q
		}
		q.body = "{"
		return q
	},
	http.StatusUnauthorized: func(_ *testing.T, _ *rig, _ contracttest.Operation, q question) question {
		q.caller = nobody
		return q
	},
	http.StatusForbidden: func(t *testing.T, _ *rig, operation contracttest.Operation, q question) question {
		t.Helper()
		q.caller = outsider(t, operation.ID)
		return q
	},
	http.StatusNotFound: func(_ *testing.T, _ *rig, operation contracttest.Operation, q question) question {
		q.target = operation.Method + " " + placeholder.ReplaceAllString(operation.Path, noJob)
		return q
	},
	http.StatusRequestEntityTooLarge: func(_ *testing.T, _ *rig, _ contracttest.Operation, q question) question {
		q.body = strings.Repeat(" ", maxRigBody) + orEmpty(q.body)
		return q
	},
	http.StatusUnsupportedMediaType: func(_ *testing.T, _ *rig, _ contracttest.Operation, q question) question {
		q.body, q.contentType = orEmpty(q.body), "text/plain"
		return q
	},
	http.StatusTooManyRequests: func(t *testing.T, r *rig, _ contracttest.Operation, q question) question {
		t.Helper()
		r.ask(t, r.Server, question{target: "GET /v1/protocols", caller: everyRole})
		return q
	},
	http.StatusInternalServerError: func(_ *testing.T, r *rig, _ contracttest.Operation, q question) question {
		r.store.fail(errRig)
		return q
	},
	http.StatusServiceUnavailable: func(_ *testing.T, r *rig, _ contracttest.Operation, q question) question {
		r.store.fail(tablestore.ErrUnavailable)
		return q
	},
}

// The callers of a rig, by their grants.
const (
	everyRole = "submit:* read:* platform:* admin:*"
	nobody    = "nobody"
)

// rigCallers are all of them.
var rigCallers = []string{everyRole, "submit:*", "read:*", "platform:*", "admin:*"}

// outsider is a caller without a role for the operation.
func outsider(t *testing.T, operation string) string {
	t.Helper()
	rule, known := access.RuleOf(operation)
	for _, role := range access.Roles() {
		if known && !slices.Contains(rule.Roles, role) {
			return string(role) + ":*"
		}
	}
	t.Fatalf("who may not call %s?", operation)
	return ""
}

// placeholder stands for an object in the path of an operation.
var placeholder = regexp.MustCompile(`\{\w+\}`)

// orEmpty is a body that is there.
func orEmpty(body string) string {
	if body == "" {
		return "{}"
	}
	return body
}
