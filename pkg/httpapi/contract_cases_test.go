package httpapi_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// noJob is an id that no object has.
const noJob = "0197f0c2-0000-7000-8000-000000000000"

// situation brings a server into the state in which a request gets its answer,
// and returns the request. The caller fills in the sender and the media type.
type situation func(t *testing.T, g *guarded) question

// asking is the situation in which a request is sent unchanged.
func asking(target, body string) situation {
	return func(*testing.T, *guarded) question { return question{target: target, body: body} }
}

// accepting is a situation in which an operation's request for the tenant t is
// accepted. The refusals that all operations share are derived from these.
func accepting(t *testing.T, g *guarded, operation string) question {
	t.Helper()
	asked, known := asks[operation]
	if !known {
		t.Fatalf("how is %s called? say so in the test of every endpoint", operation)
	}
	switch operation {
	case "listJobs", "listFailures", "listWebhooks": // so that lists are not empty
		g.failed(t)
		g.exhausted(t)
	case "listRetries", "listOperations":
		for _, kind := range []string{"retries", "cancellations", "pausings", "resumptions"} {
			g.given(t, "POST /v1/admin/"+kind, `{"tenant_id":"t","reason":"why"}`)
		}
	case "listLines":
		g.line(t)
	case "listLimits":
		g.limited(t)
	case "listSchedules":
		g.scheduled(t)
	case "listBackfills":
		g.backfilled(t)
	case "listOutbox":
		g.submitted(t)
	case "claimWork", "listServices", "getOverview":
		g.submitted(t)
		_, err := g.relay.RunOnce(t.Context())
		musttest.NoError(t, err)
	}
	return question{target: asked.target, body: asked.body}
}

// special has the situations of single operations.
var special = map[contracttest.Pair]situation{
	{Operation: "cancelJob", Status: 200}:     asking("POST /v1/jobs/$cancelled:cancel", ""),
	{Operation: "pauseJob", Status: 200}:      asking("POST /v1/jobs/$paused:pause", ""),
	{Operation: "resumeJob", Status: 200}:     asking("POST /v1/jobs/$job:resume", ""),
	{Operation: "prioritizeJob", Status: 200}: asking("POST /v1/jobs/$parked:prioritize", `{"priority":"normal"}`),
	{Operation: "rescheduleJob", Status: 200}: asking("POST /v1/jobs/$parked:reschedule", `{"never_expires":true}`),
	{Operation: "rerunJob", Status: 200}:      asking("POST /v1/jobs/$failed:rerun", `{"payload_patch":{"language":"de"},"dry_run":true}`),

	{Operation: "getRoot", Status: 302}: func(*testing.T, *guarded) question { return question{target: "GET /", accept: "text/html"} },

	{Operation: "getJob", Status: 400}:       asking("GET /v1/jobs/$job?wait=soon", ""),
	{Operation: "listFailures", Status: 400}: asking("GET /v1/admin/failures?tenant_id=t&created_after=yesterday", ""),

	// Objects that are not named by a path.
	{Operation: "callbackAck", Status: 404}:       asking("POST /v1/callbacks/ack", callbackBody(noJob, 1, "")),
	{Operation: "callbackHeartbeat", Status: 404}: asking("POST /v1/callbacks/heartbeat", callbackBody(noJob, 1, "")),
	{Operation: "callbackResult", Status: 404}:    asking("POST /v1/callbacks/result", callbackBody(noJob, 1, succeeded)),
	{Operation: "retryOutbox", Status: 404}:       asking("POST /v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"`+noJob+`"}`),

	{Operation: "callbackAck", Status: 409}:       asking("POST /v1/callbacks/ack", callbackBody("$of", 2, "")),
	{Operation: "callbackResult", Status: 409}:    asking("POST /v1/callbacks/result", callbackBody("$of", 2, succeeded)),
	{Operation: "callbackHeartbeat", Status: 409}: asking("POST /v1/callbacks/heartbeat", callbackBody("$of", 2, "")),
	{Operation: "startWork", Status: 409}:         asking("POST /v1/work/$claimed:start", verbBody(99)),
	{Operation: "heartbeatWork", Status: 409}:     asking("POST /v1/work/$running:heartbeat", verbBody(99)),
	{Operation: "completeWork", Status: 409}:      asking("POST /v1/work/$claimed:complete", atRev("")),
	{Operation: "failWork", Status: 409}:          asking("POST /v1/work/$running:fail", verbBody(99)),
	{Operation: "cancelJob", Status: 409}:         asking("POST /v1/jobs/$failed:cancel", ""),
	{Operation: "pauseJob", Status: 409}:          asking("POST /v1/jobs/$failed:pause", ""),
	{Operation: "resumeJob", Status: 409}:         asking("POST /v1/jobs/$failed:resume", ""),
	{Operation: "prioritizeJob", Status: 409}:     asking("POST /v1/jobs/$failed:prioritize", `{"priority":"bulk"}`),
	{Operation: "rescheduleJob", Status: 409}:     asking("POST /v1/jobs/$job:reschedule", `{"delay_seconds":60}`),
	{Operation: "releaseLine", Status: 409}:       asking("POST /v1/lines/$line:release", `{"jobId":"$job"}`),
	{Operation: "submitCommand", Status: 409}:     busyLine("submitCommand"),
	{Operation: "orchestrate", Status: 409}:       busyLine("orchestrate"),
	{Operation: "rerunJob", Status: 409}:          asking("POST /v1/jobs/$job:rerun", ""),
	{Operation: "replayWebhook", Status: 409}:     asking("POST /v1/admin/webhooks/$waiting:replay", ""),
	{Operation: "stallWork", Status: 409}:         asking("POST /v1/admin/work/$stalled:stall", operatorsBody("3", "x2")),
	{Operation: "requeueWork", Status: 409}:       asking("POST /v1/admin/work/$claimed:requeue", operatorsBody("$rev", "x2")),

	{Operation: "submitCommand", Status: 422}:      asking("POST /v1/commands", strings.Replace(command, "language", "tongue", 1)),
	{Operation: "orchestrate", Status: 422}:        asking("POST /v1/orchestrate", strings.Replace(command, "doc.ingest", "doc.eat", 1)),
	{Operation: "callbackResult", Status: 422}:     asking("POST /v1/callbacks/result", callbackBody("$of", 1, `,"status":"SUCCEEDED","result_ref":{"url":"s3://out"}`)),
	{Operation: "rescheduleJob", Status: 422}:      asking("POST /v1/jobs/$parked:reschedule", `{"not_after":"2026-01-01T00:00:00Z"}`),
	{Operation: "rerunJob", Status: 422}:           asking("POST /v1/jobs/$failed:rerun", `{"payload":{}}`),
	{Operation: "completeWork", Status: 422}:       asking("POST /v1/work/$running:complete", atRev(`,"result_ref":{"url":"s3://out"}`)),
	{Operation: "createRetry", Status: 422}:        anotherOperation("retries"),
	{Operation: "createCancellation", Status: 422}: anotherOperation("cancellations"),
	{Operation: "createPausing", Status: 422}:      anotherOperation("pausings"),
	{Operation: "createResumption", Status: 422}:   anotherOperation("resumptions"),
	{Operation: "setLimit", Status: 422}:           onServiceBus("PUT /v1/admin/limits/service:ocr", `{"starts":{"count":1,"window":"1s"},"reason":"r"}`),
	{Operation: "closeLimit", Status: 422}:         onServiceBus("POST /v1/admin/limits/service:ocr,step_type:OCR:close", `{"for_seconds":1,"reason":"r"}`),
	{Operation: "putSchedule", Status: 201}:        asking("PUT /v1/schedules/t/new", nightly("")),
	{Operation: "putSchedule", Status: 404}:        asking("PUT /v1/schedules/t/none", nightly(`,"expected_rev":3`)),
	{Operation: "putSchedule", Status: 409}:        asking("PUT /v1/schedules/$tenant/nightly", nightly(`,"expected_rev":99`)),
	{Operation: "putSchedule", Status: 422}:        asking("PUT /v1/schedules/t/new", strings.Replace(nightly(""), "30 2", "60 2", 1)),
	{Operation: "pauseSchedule", Status: 409}:      asking("POST /v1/schedules/$tenant/nightly:pause", `{"expected_rev":99}`),
	{Operation: "resumeSchedule", Status: 409}:     asking("POST /v1/schedules/$tenant/nightly:resume", `{"expected_rev":99}`),
	{Operation: "runSchedule", Status: 200}:        ranBefore,
	{Operation: "runSchedule", Status: 409}:        refusedRun(apierror.LineBusy),
	{Operation: "runSchedule", Status: 422}:        refusedRun(apierror.PayloadInvalid),
	{Operation: "backfillSchedule", Status: 200}:   backfilledBefore(`{"from":"2026-01-20T00:00:00Z"}`),
	{Operation: "backfillSchedule", Status: 409}:   asking("POST /v1/schedules/$tenant/nightly:backfill", `{"from":"2026-01-20T00:00:00Z","expected_rev":99}`),
	{Operation: "backfillSchedule", Status: 422}:   backfilledBefore(`{"from":"2026-01-21T00:00:00Z"}`),
	{Operation: "previewSchedule", Status: 422}:    asking("POST /v1/schedules:preview", `{"cron":"61 * * * *"}`),
	{Operation: "previewSchedule", Status: 500}:    defective("previewSchedule"),
	{Operation: "previewSchedule", Status: 503}:    draining("previewSchedule"),
	{Operation: "createRetry", Status: 200}:        dryRun("retries"),
	{Operation: "createCancellation", Status: 200}: dryRun("cancellations"),
	{Operation: "createPausing", Status: 200}:      dryRun("pausings"),
	{Operation: "createResumption", Status: 200}:   dryRun("resumptions"),

	// The commands of a batch fail one by one, and some answers come from memory: these
	// operations fail only through a defect of the server.
	{Operation: "submitBatch", Status: 500}:       defective("submitBatch"),
	{Operation: "completeWorkBatch", Status: 500}: defective("completeWorkBatch"),
	{Operation: "listProtocols", Status: 500}:     defective("listProtocols"),
	{Operation: "getIdentity", Status: 500}:       defective("getIdentity"),
	{Operation: "listServices", Status: 500}:      defective("listServices"),
	{Operation: "listWorkers", Status: 500}:       defective("listWorkers"),
	{Operation: "getOverview", Status: 500}:       defective("getOverview"),
	{Operation: "listStuck", Status: 500}:         defective("listStuck"),
	{Operation: "listAuditTrail", Status: 500}:    defective("listAuditTrail"),

	// A caller with any role may ask, but not a web page whose host name resolves to loopback.
	{Operation: "getIdentity", Status: 403}: func(t *testing.T, g *guarded) question {
		t.Helper()
		g.Server = g.serve(t, func(c *httpapi.Config) { c.Auth = auth.New(auth.Config{}) })
		return question{target: "GET /v1/whoami", caller: anonymous}
	},
	{Operation: "createBackup", Status: 404}: func(t *testing.T, g *guarded) question {
		t.Helper()
		g.Server = g.serve(t, func(c *httpapi.Config) { c.Backup = nil })
		return question{target: "POST /v1/admin/backup"}
	},

	{Operation: "listInbox", Status: 404}:    withoutInbox("listInbox"),
	{Operation: "listInbox", Status: 500}:    lostInbox("listInbox", errUnforeseen),
	{Operation: "listInbox", Status: 503}:    lostInbox("listInbox", errNoDatabase),
	{Operation: "retryInbox", Status: 404}:   withoutInbox("retryInbox"),
	{Operation: "retryInbox", Status: 500}:   lostInbox("retryInbox", errUnforeseen),
	{Operation: "retryInbox", Status: 503}:   lostInbox("retryInbox", errNoDatabase),
	{Operation: "discardInbox", Status: 404}: withoutInbox("discardInbox"),
	{Operation: "discardInbox", Status: 500}: lostInbox("discardInbox", errUnforeseen),
	{Operation: "discardInbox", Status: 503}: lostInbox("discardInbox", errNoDatabase),

	{Operation: "submitBatch", Status: 503}:       draining("submitBatch"),
	{Operation: "completeWorkBatch", Status: 503}: draining("completeWorkBatch"),
	{Operation: "listProtocols", Status: 503}:     draining("listProtocols"),
	{Operation: "getIdentity", Status: 503}:       draining("getIdentity"),
	{Operation: "listServices", Status: 503}:      draining("listServices"),
	{Operation: "listWorkers", Status: 503}:       draining("listWorkers"),
	{Operation: "getOverview", Status: 503}:       draining("getOverview"),
	{Operation: "listStuck", Status: 503}:         draining("listStuck"),
	{Operation: "listAuditTrail", Status: 503}:    draining("listAuditTrail"),
	{Operation: "getMetrics", Status: 503}:        withoutIssuer,
}

// anotherOperation is the situation in which the idempotency key names another operation.
func anotherOperation(kind string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		target := "POST /v1/admin/" + kind
		g.given(t, target, `{"tenant_id":"t","reason":"one"}`, "Idempotency-Key: k")
		return question{target: target, body: `{"tenant_id":"t","reason":"another"}`, key: "k"}
	}
}

// dryRun is the situation in which an operation is requested as a dry run, with a job of
// each kind.
func dryRun(kind string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		g.failed(t)
		g.submitted(t)
		g.controlled(t, ":pause")
		return question{target: "POST /v1/admin/" + kind, body: `{"tenant_id":"t","reason":"why","dry_run":true}`}
	}
}

// callbackBody is the body of a callback about the first step of a job.
func callbackBody(jobID string, attempt int, more string) string {
	return fmt.Sprintf(`{"jobId":%q,"stepId":"ocr","tenant_id":"t","attempt_no":%d,"lease_id":"$lease","timestamp":"2026-01-27T11:02:00Z"%s}`,
		jobID, attempt, more)
}

// atRev is the body of a worker's verb at the rev of the item that the path names.
func atRev(more string) string {
	return `{"owner":"o","expected_rev":$rev,"request_id":"r2"` + more + `}`
}

// question is a request of a caller. The caller is named by its grants; empty is everyRole.
type question struct {
	target, body string
	caller       string
	// contentType is the body's declared media type; empty is JSON.
	contentType string
	// key is the idempotency key, if there is one.
	key string
	// accept is the requested media type, if any.
	accept string
}

// request returns the question's request, with the objects that it names.
func (g *guarded) request(t *testing.T, q question) (request *http.Request, body string) {
	t.Helper()
	target, body := g.fill(t, q.target, q.body)
	var headers []string
	if q.contentType != "" {
		headers = append(headers, "Content-Type: "+q.contentType)
	}
	if q.key != "" {
		headers = append(headers, "Idempotency-Key: "+q.key)
	}
	if q.accept != "" {
		headers = append(headers, "Accept: "+q.accept)
	}
	if token := g.tokens[cmp.Or(q.caller, everyRole)]; token != "" {
		headers = append(headers, "Authorization: Bearer "+token)
	}
	method, path := split(target)
	return newRequest(t, method, path, body, headers...), body
}

// errUnforeseen is a failure without a problem code.
var errUnforeseen = errors.New("dial 10.0.0.7: secret")

// defective is the situation in which the limiter of callers panics.
func defective(operation string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		asked := accepting(t, g, operation)
		g.Server = g.serve(t, func(c *httpapi.Config) { c.CallerLimit = new(auth.Limiter) })
		return asked
	}
}

// busyLine is the situation in which the ledger refuses a command for its line.
func busyLine(operation string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		asked := accepting(t, g, operation)
		g.store.fail(apierror.Newf(apierror.LineBusy, "Job %s is in the line.", noJob))
		return asked
	}
}

// ranBefore is the situation in which the schedule was run with the key of the request.
func ranBefore(t *testing.T, g *guarded) question {
	t.Helper()
	target := "POST /v1/schedules/" + g.scheduled(t) + "/nightly:run"
	g.given(t, target, "", "Idempotency-Key: k")
	return question{target: target, key: "k"}
}

// backfilledBefore is the situation in which a backfill was requested with the key of the request.
func backfilledBefore(body string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		target := "POST /v1/schedules/" + g.scheduled(t) + "/nightly:backfill"
		g.given(t, target, `{"from":"2026-01-20T00:00:00Z"}`, "Idempotency-Key: k")
		return question{target: target, body: body, key: "k"}
	}
}

// refusedRun is the situation in which the command of a schedule is refused.
func refusedRun(code apierror.Code) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		target := "POST /v1/schedules/" + g.scheduled(t) + "/nightly:run"
		g.store.fail(apierror.Newf(code, "It is so."))
		return question{target: target}
	}
}

// onServiceBus is the situation in which the server publishes to Service Bus.
func onServiceBus(target, body string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		g.Server = g.serve(t, func(c *httpapi.Config) {
			c.Auth = auth.New(auth.Config{File: g.file})
			c.Circuits = func(context.Context) ([]breaker.Circuit, error) { return nil, nil }
		})
		return question{target: target, body: body}
	}
}

// draining is the situation in which the server shuts down.
func draining(operation string) situation {
	return func(t *testing.T, g *guarded) question {
		t.Helper()
		asked := accepting(t, g, operation)
		g.Drain()
		return asked
	}
}

// unreachable is an issuer of tokens that does not answer.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) { return nil, errUnforeseen }

// withoutIssuer is the situation in which a JWT cannot be checked.
func withoutIssuer(t *testing.T, g *guarded) question {
	t.Helper()
	issuer, err := auth.NewIssuer(auth.IssuerConfig{
		URL: "https://issuer.example", Audience: "lucius", Transport: unreachable{},
	})
	musttest.NoError(t, err)
	g.Server = g.serve(t, func(c *httpapi.Config) { c.Auth = auth.New(auth.Config{Issuer: issuer}) })
	part := base64.RawURLEncoding.EncodeToString
	g.tokens = map[string]string{
		"jwt": part([]byte(`{"alg":"RS256","kid":"k"}`)) + "." + part([]byte(`{"iss":"https://issuer.example"}`)) + "." + part(make([]byte, 256)),
	}
	return question{target: "GET /metrics", caller: "jwt"}
}

// spoil changes an acceptable request so that it is refused.
type spoil func(t *testing.T, g *guarded, operation contracttest.Operation, accepted question) question

// shared has the refusals that are the same for all operations, by status code.
var shared = map[int]spoil{
	http.StatusBadRequest: func(_ *testing.T, _ *guarded, _ contracttest.Operation, q question) question {
		if strings.HasPrefix(q.target, "GET ") || strings.HasPrefix(q.target, "DELETE ") {
			path, _, _ := strings.Cut(q.target, "?")
			q.target = path + "?tenant_id=%zz"
			return q
		}
		q.body = "{"
		return q
	},
	http.StatusUnauthorized: func(_ *testing.T, _ *guarded, _ contracttest.Operation, q question) question {
		q.caller = anonymous
		return q
	},
	http.StatusForbidden: func(t *testing.T, _ *guarded, operation contracttest.Operation, q question) question {
		t.Helper()
		q.caller = outsider(t, operation.ID)
		return q
	},
	http.StatusNotFound: func(_ *testing.T, _ *guarded, operation contracttest.Operation, q question) question {
		q.target = operation.Method + " " + placeholder.ReplaceAllString(operation.Path, noJob)
		return q
	},
	http.StatusRequestEntityTooLarge: func(_ *testing.T, _ *guarded, _ contracttest.Operation, q question) question {
		q.body = strings.Repeat(" ", maxTestBody) + orEmpty(q.body)
		return q
	},
	http.StatusUnsupportedMediaType: func(_ *testing.T, _ *guarded, _ contracttest.Operation, q question) question {
		q.body, q.contentType = orEmpty(q.body), "text/plain"
		return q
	},
	http.StatusTooManyRequests: func(t *testing.T, g *guarded, _ contracttest.Operation, q question) question {
		t.Helper()
		request, body := g.request(t, question{target: "GET /v1/protocols"})
		g.send(t, g.Server, request, body)
		return q
	},
	http.StatusInternalServerError: func(_ *testing.T, g *guarded, _ contracttest.Operation, q question) question {
		g.store.fail(errUnforeseen)
		return q
	},
	http.StatusServiceUnavailable: func(_ *testing.T, g *guarded, _ contracttest.Operation, q question) question {
		g.store.fail(tablestore.ErrUnavailable)
		return q
	},
}

// The callers of these tests, by their grants.
const (
	everyRole = "submit:* read:* platform:* admin:*"
	anonymous = "anonymous"
)

// contractCallers are all of them.
var contractCallers = []string{everyRole, "submit:*", "read:*", "platform:*", "admin:*"}

// outsider is a caller without a role for the operation.
func outsider(t *testing.T, operation string) string {
	t.Helper()
	i := slices.IndexFunc(auth.Rules(), func(r auth.Rule) bool { return r.Operation == operation })
	for _, role := range auth.Roles() {
		if i >= 0 && !slices.Contains(auth.Rules()[i].Roles, role) {
			return string(role) + ":*"
		}
	}
	t.Fatalf("who may not call %s?", operation)
	return ""
}

// placeholder stands for an object in the path of an operation.
var placeholder = regexp.MustCompile(`\{\w+\}`)

// orEmpty returns the body, or an empty object if there is none.
func orEmpty(body string) string {
	if body == "" {
		return "{}"
	}
	return body
}
