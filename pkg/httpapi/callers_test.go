package httpapi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// callers returns who caused each change of a job: the kind of actor and the caller's
// name, once for consecutive changes of the same.
func (g *guarded) callers(t *testing.T, job string) []string {
	t.Helper()
	var found []string
	for _, event := range decoded[api.EventPage](t, g.given(t, "GET /v1/jobs/"+job+"/events", "")).Events {
		who := string(event.Actor) + " " + event.Caller
		if len(found) == 0 || found[len(found)-1] != who {
			found = append(found, who)
		}
	}
	return found
}

// Each change of a job names its caller, over any transport; a change by the server itself
// names none.
func TestEventsNameTheirCaller(t *testing.T) {
	t.Parallel()
	const app, ops, ocr = "submit:t", "admin:* read:*", "platform:t"
	g := newGuarded(t, []string{app, ops, ocr}) // caller-a, caller-b and caller-c
	job := decoded[api.CommandAccepted](t, g.as(t, app, "POST /v1/commands", command)).JobID
	// A worker may choose any name.
	claim := g.as(t, ocr, "POST /v1/work:claim", `{"owner":"operator","request_id":"c1"}`)
	item := decoded[api.ClaimedWork](t, claim).Items[0]
	g.as(t, ocr, "POST /v1/work/"+item.WorkID+":start", fmt.Sprintf(`{"owner":"operator","expected_rev":%d,"request_id":"s1"}`, item.Rev))
	g.as(t, ops, "POST /v1/admin/work/"+item.WorkID+":stall", operatorsBody("3", "x1"))
	_, err := g.ledger.Change(t.Context(), job, statemachine.Retry{}, ledger.By(ledger.ActorSystem, ""))
	musttest.NoError(t, err)
	claim = g.as(t, ocr, "POST /v1/work:claim", `{"owner":"o","request_id":"c2"}`)
	directive := decoded[api.Directive](t, answer{Body: string(decoded[api.ClaimedWork](t, claim).Items[0].Directive)})
	identity := fmt.Sprintf(`{"jobId":%q,"stepId":%q,"tenant_id":"t","attempt_no":%d,"lease_id":%q,"timestamp":%q`,
		job, directive.StepID, directive.AttemptNo, directive.LeaseID, time.Now().UTC().Format(time.RFC3339))
	g.as(t, ocr, "POST /v1/callbacks/ack", identity+"}")
	g.as(t, app, "POST /v1/jobs/"+job+":cancel", "")
	g.as(t, ocr, "POST /v1/callbacks/result", identity+succeeded+"}")
	want := []string{
		"client caller-a", "worker caller-c", "operator caller-b", "sweeper ", "worker caller-c", "platform caller-c",
		"client caller-a", "platform caller-c",
	}
	if diff := cmp.Diff(want, g.callers(t, job)); diff != "" {
		t.Errorf("the history names (-want +got):\n%s", diff)
	}
	var moves []string
	for _, move := range decoded[api.WorkEventPage](t, g.given(t, "GET /v1/work/"+item.WorkID+"/events", "")).Events[:5] {
		moves = append(moves, string(move.Type)+" by "+move.Actor+" "+move.Caller)
	}
	want = []string{
		"enqueued by relay caller-a", "claimed by operator caller-c", "started by operator caller-c",
		"stalled by operator caller-b", "requeued by relay ",
	}
	if diff := cmp.Diff(want, moves); diff != "" {
		t.Errorf("the item's history names (-want +got):\n%s", diff)
	}
	stream := g.as(t, ops, "GET /v1/jobs/"+job+"/events", "", "Accept: text/event-stream").Body
	if !strings.Contains(stream, `"caller":"caller-a","cause":"cancel request"`) {
		t.Errorf("the stream shows\n%s", stream)
	}
}

// A step shows its worker, the progress from both kinds of heartbeat, and later which
// caller ended it. Answers tell a worker that begins or continues what is requested of the
// job.
func TestAStepShowsItsWorker(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	job := h.submitted(t)
	shown := func() api.Step {
		t.Helper()
		got := decoded[api.Job](t, h.given(t, "GET /v1/jobs/"+job, "")).Steps[0]
		if listed := decoded[api.StepList](t, h.given(t, "GET /v1/jobs/"+job+"/steps", "")).Steps[0]; !cmp.Equal(got, listed) {
			t.Errorf("the job shows %+v, the list %+v", got, listed)
		}
		return got
	}
	workID := job + ".0.1"
	if step := shown(); step.WorkID != workID || step.Owner != "" {
		t.Errorf("queued, the step shows item %q of %q", step.WorkID, step.Owner)
	}
	claimed := decoded[api.ClaimedWork](t, h.given(t, "POST /v1/work:claim", `{"owner":"w7","request_id":"c"}`)).Items[0]
	if step := shown(); step.WorkID != workID || step.Owner != "w7" || step.Progress != nil {
		t.Errorf("claimed, the step shows item %q of %q, %v", step.WorkID, step.Owner, step.Progress)
	}
	rev := claimed.Rev
	verb := func(name, more string) api.WorkItem {
		t.Helper()
		body := fmt.Sprintf(`{"owner":"w7","expected_rev":%d,"request_id":"r%d"%s}`, rev, rev, more)
		item := decoded[api.WorkItem](t, h.do(t, "POST", "/v1/work/"+workID+":"+name, body))
		rev = item.Rev
		return item
	}
	told := func(item api.WorkItem, cancel, pause bool) {
		t.Helper()
		if item.CancelRequested == nil || *item.CancelRequested != cancel || item.PauseRequested == nil || *item.PauseRequested != pause {
			t.Errorf("the worker is told to cancel %v, to pause %v", item.CancelRequested, item.PauseRequested)
		}
	}
	h.given(t, "POST /v1/jobs/"+job+":pause", "")
	told(verb("start", ""), false, true)
	told(verb("heartbeat", `,"progress":{"fraction":0.4,"message":"Page 4."}`), false, true)
	want := api.Progress{Fraction: .4, Message: "Page 4."}
	if step := shown(); step.Progress == nil || *step.Progress != want {
		t.Errorf("the step shows the progress %v", step.Progress)
	}
	directive := decoded[api.Directive](t, answer{Body: string(claimed.Directive)})
	beat := fmt.Sprintf(`{"jobId":%q,"stepId":"ocr","tenant_id":"t","attempt_no":1,"lease_id":%q,"timestamp":"2026-01-27T10:02:00Z",`+
		`"progress":{"fraction":0.5}}`, job, directive.LeaseID)
	h.given(t, "POST /v1/callbacks/heartbeat", beat)
	if step := shown(); step.Progress == nil || *step.Progress != (api.Progress{Fraction: .5}) {
		t.Errorf("after a callback the step shows the progress %v", step.Progress)
	}
	h.given(t, "POST /v1/jobs/"+job+":cancel", "")
	rev++ // The callback was a heartbeat of the item as well.
	told(verb("heartbeat", ""), true, false)
	verb("complete", "")
	if step := shown(); step.WorkID != workID || step.Owner != "w7" || step.Progress != nil || step.State != api.StepStateSucceeded {
		t.Errorf("at its end the step shows item %q of %q, %v, %s", step.WorkID, step.Owner, step.Progress, step.State)
	}
	beyond := fmt.Sprintf(`{"owner":"w7","expected_rev":%d,"request_id":"x","progress":{"fraction":1.5}}`, rev)
	wantProblem(t, h.do(t, "POST", "/v1/work/"+workID+":heartbeat", beyond), apierror.InvalidEnvelope, "/progress/fraction must be at most 1.")
}
