package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/marks"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/webhook"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// testProtocols require a language, so that some payloads are refused.
const testProtocols = `
protocol_id: doc_ingest_v1
request_types: [doc.ingest]
steps:
  - step_id: ocr
    step_type: OCR
    service: ocr
    payload_schema: {type: object, required: [language], properties: {language: {type: string}}}
  - step_id: embed
    step_type: EMBED
    service: embed
`

// refresh keeps the gate's view young, as the program does.
func refresh(ctx context.Context, gate *admission.Gate) {
	for ticks := time.Tick(time.Second); ; {
		select {
		case <-ticks:
			_ = gate.Refresh(context.WithValue(ctx, uncounted{}, true))
		case <-ctx.Done():
			return
		}
	}
}

// assemble makes the use cases, as the program does.
func (h *harness) assemble(ctx context.Context) error {
	mirror := workqueue.NewMirror(0)
	var ended search.Ended
	var err error
	if h.ledger, err = ledger.Open(ctx, ledger.Config{
		Store: h.store, Ready: mirror.Ready, Taker: mirror.Taker, Ended: ended.Tell, Held: h.paused,
		Freed: func(slots []statemachine.RunSlot) { h.useCases.Gate.Freed(slots) },
		Observe: func(_ context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition) {
			h.useCases.Counts.Observe(before, after, history)
		},
	}); err != nil {
		return err
	}
	stored := admission.New(h.store, h.ledger.Tables().Queue, nil)
	gate, err := admission.NewGate(ctx, admission.Config{
		Service: stored, Runs: h.ledger,
	})
	if err != nil {
		return err
	}
	queue := workqueue.New(workqueue.Config{Ledger: h.ledger, Store: h.store, Mirror: mirror, Held: h.paused, Limits: gate, Closer: h.closures.add})
	breakers := breaker.NewSet(breaker.Config{})
	if h.relay, err = outbox.NewRelay(outbox.Config{
		Ledger: h.ledger, Publisher: queue, Handoff: outbox.NewHandoff(1), Breakers: breakers,
		Fatal: func(e *seqledger.IllegalTransitionError) { panic(e) },
		Admit: func(target statemachine.Target) bool { return !h.paused(target) },
	}); err != nil {
		return err
	}
	h.useCases = httpapi.UseCases{
		Admission: stored, Gate: gate,
		Ledger: h.ledger, Queue: queue, Callbacks: callbacks.New(callbacks.Config{Ledger: h.ledger, Closer: h.closures.add}),
		Jobs: search.New(h.ledger, &ended, search.Surroundings{
			Pause:    func(target statemachine.Target) *statemachine.ScopePause { return h.useCases.Gate.Covering(target) },
			LastPoll: queue.LastPoll,
			EndRate:  func(kind ledger.WorkKind) float64 { return h.useCases.Counts.EndRate(kind) },
		}),
		Operator: outbox.NewOperator(h.ledger, nil), Inbox: newInbox("c-1"),
		Backup: newBackups().take(func(ctx context.Context) error {
			return h.store.request(ctx, &storetest.Request{}, func(context.Context) error { return nil })
		}),
	}
	if err := h.accept(); err != nil {
		return err
	}
	h.operate()
	return nil
}

// paused reports whether a pause of this process covers such directives: the harness does
// not refresh the pauses.
func (h *harness) paused(target statemachine.Target) bool {
	return slices.ContainsFunc(h.useCases.Gate.Active(), func(p admission.Pause) bool { return p.Covers(target) })
}

// accept adds the use cases that accept commands.
func (h *harness) accept() error {
	registry, err := commands.LoadProtocolsFS(fstest.MapFS{"ingest.yaml": {Data: []byte(testProtocols)}})
	if err != nil {
		return err
	}
	h.useCases.Protocols = commands.NewProtocolHolder(registry)
	router, err := routing.New(routing.Config{Lanes: 2, TopicPrefix: "topic"})
	if err != nil {
		return err
	}
	h.useCases.Commands, err = commands.New(commands.Config{
		Ledger: h.ledger, Protocols: h.useCases.Protocols, Router: router,
		Defaults: statemachine.Policy{
			AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, MaxAttempts: 9,
			Dispatch: []time.Duration{time.Minute}, Ack: []time.Duration{time.Minute}, Execution: []time.Duration{time.Minute},
		},
	})
	return err
}

// operate adds the use cases of operators.
func (h *harness) operate() {
	u, table := &h.useCases, h.ledger.Tables().Schedule
	u.Schedules = schedules.New(schedules.Config{Store: h.store, Commands: u.Commands, Ledger: h.ledger})
	u.Operations = background.NewOperations(background.OperationsConfig{Ledger: h.ledger, Commands: u.Commands, Store: h.store, Table: table})
	u.Marks = marks.New(h.store, table)
	u.Counts = search.NewCounts(search.CountsConfig{
		Store: h.store, Table: h.ledger.Tables().Queue, Exclusive: true, Queue: u.Queue,
	})
	u.Counts.Begin()
	u.Counts.End() // No job of another process is left.
	u.Reconciler = background.NewReconciler(background.ReconcilerConfig{Ledger: h.ledger})
}

// command is a command of the tenant t.
const command = `{"tenant_id":"t","request_type":"doc.ingest","schema_version":"1","payload":{"language":"en"},` +
	`"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"},"callback_urls":["https://hooks.example/a"]}`

// given sends a request that creates what a test needs, and returns the answer.
func (h *harness) given(t testing.TB, target, body string, headers ...string) answer {
	t.Helper()
	method, path := split(target)
	got := h.send(t, h.prepare, newRequest(t, method, path, body, headers...), body)
	if got.Status >= http.StatusMultipleChoices {
		t.Fatalf("%s: %d %s", target, got.Status, got.Body)
	}
	return got
}

// submitted submits another command and returns its job's id.
func (h *harness) submitted(t testing.TB) string {
	t.Helper()
	h.commands++
	body := strings.NewReplacer("{\"tenant_id\":\"t\"", fmt.Sprintf(`{"idempotency_key":"k%d","tenant_id":%q`, h.commands, h.tenant)).Replace(command)
	return decoded[api.CommandAccepted](t, h.given(t, "POST /v1/commands", body)).JobID
}

// controlled is a job after a control request.
func (h *harness) controlled(t testing.TB, verb string) string {
	t.Helper()
	id := h.submitted(t)
	h.given(t, "POST /v1/jobs/"+id+verb, "")
	return id
}

// claimed makes a worker claim the step of a new job, and start it if start is set.
func (h *harness) claimed(t testing.TB, start bool) (item api.WorkItem, got api.Directive) {
	t.Helper()
	h.submitted(t)
	_, err := h.relay.RunOnce(t.Context())
	musttest.NoError(t, err)
	body := fmt.Sprintf(`{"owner":"o","request_id":"claim%d","start":%t}`, h.commands, start)
	claimed := decoded[api.ClaimedWork](t, h.given(t, "POST /v1/work:claim", body))
	if len(claimed.Items) != 1 {
		t.Fatalf("%d items are claimed", len(claimed.Items))
	}
	item = claimed.Items[0]
	return item, decoded[api.Directive](t, answer{Body: string(item.Directive)})
}

// failed is a job that ended as a failure.
func (h *harness) failed(t testing.TB) string {
	t.Helper()
	item, directive := h.claimed(t, true)
	h.given(t, "POST /v1/work/"+item.WorkID+":fail", verbBody(item.Rev))
	return directive.JobID
}

// stalled returns a work item that an operator took from its worker.
func (h *harness) stalled(t testing.TB) string {
	t.Helper()
	item, _ := h.claimed(t, false)
	h.given(t, "POST /v1/admin/work/"+item.WorkID+":stall", operatorsBody(strconv.FormatInt(item.Rev, 10), "x1"))
	return item.WorkID
}

// verbBody is the body of a worker's verb.
func verbBody(rev int64) string {
	return fmt.Sprintf(`{"owner":"o","expected_rev":%d,"request_id":"r2"}`, rev)
}

// operatorsBody is the body of an operator's verb. A rev of "$rev" is that of $claimed, and
// $stalled has the rev 3.
func operatorsBody(rev, id string) string {
	return fmt.Sprintf(`{"expected_rev":%s,"request_id":%q}`, rev, id)
}

// exhausted returns a webhook of an ended job, with its attempts exhausted.
func (h *harness) exhausted(t testing.TB) string {
	t.Helper()
	id := h.controlled(t, ":cancel")
	gate := webhook.NewGate(webhook.GateConfig{})
	hooks := background.NewWebhooks(background.WebhooksConfig{
		Ledger: h.ledger, Gate: gate, Send: func(context.Context, webhook.Message) webhook.Result {
			return webhook.Result{Outcome: webhook.Failed, Status: 500}
		},
	})
	pass, err := hooks.RunOnce(t.Context())
	musttest.NoError(t, err)
	if hooks.Wait(); pass.Done == 0 {
		t.Fatal("no webhook is due")
	}
	return id + ".0"
}

// parked is a job that waits for its date.
func (h *harness) parked(t testing.TB) string {
	t.Helper()
	h.commands++
	body := strings.NewReplacer("{\"tenant_id\":\"t\"",
		fmt.Sprintf(`{"idempotency_key":"k%d","delay_seconds":3600,"tenant_id":%q`, h.commands, h.tenant)).Replace(command)
	return decoded[api.CommandAccepted](t, h.given(t, "POST /v1/commands", body)).JobID
}

// line is a line in which a job waits behind one that has failed. It returns the ids of the line and of that job.
func (h *harness) line(t testing.TB) (id, blocker string) {
	t.Helper()
	ctx := t.Context()
	h.commands++
	key := fmt.Sprintf("line%d", h.commands)
	var first *statemachine.Aggregate
	for _, name := range []string{key + "a", key + "b"} {
		cmd := ledgertest.Command(h.tenant, name)
		cmd.Actor, cmd.Job.SchemaVersion, cmd.Job.Mode = string(api.ActorClient), "1", statemachine.ModeDefault
		cmd.Steps[0].Routing.DecisionSource, cmd.Steps[0].Routing.ResolvedMode = "default", statemachine.ModeDefault
		cmd.Job.InputRef, cmd.Job.OutputRef = json.RawMessage(`{"uri":"s3://in"}`), json.RawMessage(`{"uri":"s3://out"}`)
		cmd.Job.Order = statemachine.Order{Key: key, Mode: statemachine.OrderFIFO, Blocks: true}
		accepted := musttest.Make(t, func(cmd ledger.Command) (ledger.Accepted, error) { return h.ledger.Accept(ctx, cmd) }, cmd)
		if first == nil {
			agg, err := h.ledger.Job(ctx, accepted.Job.ID)
			musttest.NoError(t, err)
			first = agg
		}
	}
	message, err := h.ledger.Message(ctx, first)
	musttest.NoError(t, err)
	_, err = h.ledger.Change(ctx, first.Job.ID, ledgertest.Ended(*message, statemachine.ResultFailedFinal, "bad_scan"), ledger.By(ledger.ActorPlatform, "r"))
	musttest.NoError(t, err)
	return first.Job.Place.Line, first.Job.ID
}

// retrying is a bulk retry of the tenant's jobs.
func (h *harness) retrying(t testing.TB) string {
	t.Helper()
	return decoded[api.Operation](t, h.given(t, "POST /v1/admin/retries", `{"tenant_id":"`+h.tenant+`"}`)).OperationID
}

// pausing is a pause of the tenant.
func (h *harness) pausing(t testing.TB) string {
	t.Helper()
	return decoded[api.Pause](t, h.given(t, "POST /v1/admin/pauses", `{"tenant_id":"`+h.tenant+`","reason":"why"}`)).PauseID
}

// limited is a scope of the tenant that has a limit and is closed.
func (h *harness) limited(t testing.TB) string {
	t.Helper()
	id := "service:ocr,tenant:" + h.tenant
	h.given(t, "PUT /v1/admin/limits/"+id, `{"starts":{"count":5,"window":"1h"},"reason":"quota"}`)
	h.given(t, "POST /v1/admin/limits/"+id+":close", `{"for_seconds":3600,"reason":"away"}`)
	return id
}

// scheduled is the tenant, which has a schedule.
func (h *harness) scheduled(t testing.TB) string {
	t.Helper()
	h.given(t, "PUT /v1/schedules/"+h.tenant+"/nightly", nightly(""))
	return h.tenant
}

// nightly is the definition of a schedule.
func nightly(more string) string {
	return `{"cron":"30 2 * * *","time_zone":"Europe/Berlin","command":{"request_type":"doc.ingest","schema_version":"1",` +
		`"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"},"payload":{"language":"en"}}` + more + `}`
}

// backfilled is a backfill of the schedule that the tenant has then.
func (h *harness) backfilled(t testing.TB) string {
	t.Helper()
	target := "POST /v1/schedules/" + h.scheduled(t) + "/nightly:backfill"
	body := `{"from":"2026-01-20T00:00:00Z","to":"2026-01-22T00:00:00Z"}`
	return decoded[api.ScheduleBackfill](t, h.given(t, target, body, "Idempotency-Key: k")).BackfillID
}

// objects maps the names of objects in requests to the functions that make them.
var objects = []struct {
	name string
	make func(t testing.TB, h *harness) string
}{
	{"$cancelled", func(t testing.TB, h *harness) string { return h.controlled(t, ":cancel") }},
	{"$paused", func(t testing.TB, h *harness) string { return h.controlled(t, ":pause") }},
	{"$parked", func(t testing.TB, h *harness) string { return h.parked(t) }},
	{"$failed", func(t testing.TB, h *harness) string { return h.failed(t) }},
	{"$job", func(t testing.TB, h *harness) string { return h.submitted(t) }},
	{"$operation", func(t testing.TB, h *harness) string { return h.retrying(t) }},
	{"$pause", func(t testing.TB, h *harness) string { return h.pausing(t) }},
	{"$limit", func(t testing.TB, h *harness) string { return h.limited(t) }},
	{"$waiting", func(t testing.TB, h *harness) string { return h.controlled(t, ":cancel") + ".0" }},
	{"$exhausted", func(t testing.TB, h *harness) string { return h.exhausted(t) }},
	{"$backfill", func(t testing.TB, h *harness) string { return h.backfilled(t) }},
	{"$tenant", func(t testing.TB, h *harness) string { return h.scheduled(t) }},
	{"$stalled", func(t testing.TB, h *harness) string { return h.stalled(t) }},
}

// fill makes the objects that a request names, and inserts their ids. $claimed and $running
// are a work item of the service ocr with the rev $rev; its directive belongs to the job
// $of and has the lease $lease. $line is a line that the job $blocker blocks. The store does not fail while they are made.
func (h *harness) fill(t testing.TB, target, body string) (filledTarget, filledBody string) {
	t.Helper()
	hook := h.store.on(nil)
	defer func() { h.store.on(hook) }()
	text := target + "\n" + body
	for _, name := range []string{"$claimed", "$running", "$rev", "$of", "$lease"} {
		if !strings.Contains(text, name) {
			continue
		}
		item, directive := h.claimed(t, strings.Contains(text, "$running"))
		text = strings.NewReplacer("$claimed", item.WorkID, "$running", item.WorkID, "$rev", strconv.FormatInt(item.Rev, 10),
			"$of", directive.JobID, "$lease", directive.LeaseID).Replace(text)
	}
	if strings.Contains(text, "$line") || strings.Contains(text, "$blocker") {
		line, blocker := h.line(t)
		text = strings.NewReplacer("$line", line, "$blocker", blocker).Replace(text)
	}
	for _, object := range objects {
		if strings.Contains(text, object.name) {
			text = strings.ReplaceAll(text, object.name, object.make(t, h))
		}
	}
	target, body, _ = strings.Cut(text, "\n")
	return target, body
}
