package httpapi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
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

// Each change of a job names its caller, over whichever transport it came; what the
// server did by itself names none.
func TestEventsNameTheirCaller(t *testing.T) {
	t.Parallel()
	const app, ops, ocr = "submit:t", "admin:* read:*", "platform:t"
	g := newGuarded(t, []string{app, ops, ocr}) // caller-a, caller-b and caller-c
	job := decoded[api.CommandAccepted](t, g.as(t, app, "POST /v1/commands", command)).JobID
	// A worker may call itself as it likes.
	claim := g.as(t, ocr, "POST /v1/work:claim", `{"owner":"operator","request_id":"c1"}`)
	item := decoded[api.ClaimedWork](t, claim).Items[0]
	g.as(t, ocr, "POST /v1/work/"+item.WorkID+":start", fmt.Sprintf(`{"owner":"operator","expected_rev":%d,"request_id":"s1"}`, item.Rev))
	g.as(t, ops, "POST /v1/admin/work/"+item.WorkID+":stall", "")
	_, err := g.ledger.Change(t.Context(), job, statemachine.Retry{}, ledger.By(ledger.ActorSystem, ""))
	must(t, err)
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
	stream := g.as(t, ops, "GET /v1/jobs/"+job+"/events", "", "Accept: text/event-stream").Body
	if !strings.Contains(stream, `"caller":"caller-a","cause":"cancel request"`) {
		t.Errorf("the stream shows\n%s", stream)
	}
}
