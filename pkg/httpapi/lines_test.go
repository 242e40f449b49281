package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

func TestReleaseLine_BeginsTheNextJob(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	line, blocker := h.line(t)
	release := func() answer {
		t.Helper()
		return h.do(t, http.MethodPost, "/v1/lines/"+line+":release", `{"jobId":"`+blocker+`","reason":"known"}`)
	}
	got := decoded[api.Line](t, release())
	head := got.Head.JobID
	want := api.Line{
		LineID: line, TenantID: "t", OrderKey: "line1", State: api.LineStateMoving,
		Head: api.LineHead{JobID: head, State: api.JobStateDispatching},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(api.Line{}, "AsOf", "Since")); diff != "" || head == blocker {
		t.Errorf("after the release (-want +got):\n%s", diff)
	}
	wantProblem(t, release(), apierror.NotBlocking, "The job does not block this line.")
	for _, id := range []string{head, blocker} {
		events := h.do(t, http.MethodGet, "/v1/jobs/"+id+"/events", "")
		if !strings.Contains(events.Body, "release") || !strings.Contains(events.Body, "known") {
			t.Errorf("the history does not tell of the release: %s", events.Body)
		}
	}
}

func TestReleaseLine_OfTheLastJobAnswersTheEmptyLine(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	line, blocker := h.line(t)
	rest := decoded[api.JobPage](t, h.do(t, http.MethodGet, "/v1/jobs?tenant_id=t&state=QUEUED", ""))
	h.given(t, "POST /v1/jobs/"+rest.Jobs[0].JobID+":cancel", "")
	got := decoded[api.Line](t, h.do(t, http.MethodPost, "/v1/lines/"+line+":release", `{"jobId":"`+blocker+`"}`))
	want := api.Line{LineID: line, TenantID: "t", OrderKey: "line1", State: api.LineStateMoving}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(api.Line{}, "AsOf")); diff != "" {
		t.Errorf("the empty line (-want +got):\n%s", diff)
	}
}

// The answers for a job of another line, of another tenant and for none differ in nothing.
func TestReleaseLine_TellsNothingOfOtherJobs(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"submit:t"})
	line, _ := g.line(t)
	other := g.submitted(t)
	cmd := ledgertest.Command("o", "k")
	cmd.Job.Order = statemachine.Order{Key: "line1", Mode: statemachine.OrderFIFO, Blocks: true}
	foreign, err := g.ledger.Accept(t.Context(), cmd)
	musttest.NoError(t, err)
	for _, id := range []string{other, foreign.Job.ID, noJob} {
		got := g.as(t, "submit:t", "POST /v1/lines/"+line+":release", `{"jobId":"`+id+`"}`)
		wantProblem(t, got, apierror.NotBlocking, "The job does not block this line.")
	}
	got := g.as(t, "submit:t", "POST /v1/lines/"+foreign.Job.Place.Line+":release", `{"jobId":"`+foreign.Job.ID+`"}`)
	wantProblem(t, got, apierror.LineNotFound, "No job is in such a line.")
}
