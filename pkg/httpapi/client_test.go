package httpapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// dialAPI returns a generated client of the harness.
func dialAPI(t *testing.T, h *harness) *api.ClientWithResponses {
	t.Helper()
	server := listen(t, h)
	client, err := api.NewClientWithResponses(server.URL, api.WithHTTPClient(server.Client()))
	musttest.NoError(t, err)
	return client
}

// sent is a command as a client builds it.
var sent = api.Command{
	TenantID: "t", RequestType: "doc.ingest", SchemaVersion: "1",
	InputRef: []byte(`{"uri":"in"}`), OutputRef: []byte(`{"uri":"out"}`), Payload: []byte(`{"language":"en","n":1e2}`),
}

func TestTheGeneratedClientSubmits(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	key := "k1"
	response, err := dialAPI(t, h).SubmitCommandWithResponse(t.Context(), &api.SubmitCommandParams{IdempotencyKey: &key}, sent)
	musttest.NoError(t, err)
	accepted := response.JSON202
	if accepted == nil || accepted.State != api.JobStateDispatching || accepted.Replayed {
		t.Fatalf("%s: %s", response.Status(), response.Body)
	}
	if response.Headers202.Location != "/v1/jobs/"+accepted.JobID {
		t.Errorf("Location is %q", response.Headers202.Location)
	}
	job := decoded[api.Job](t, h.given(t, "GET /v1/jobs/"+accepted.JobID, ""))
	if job.IdempotencyKey != key || string(job.Steps[0].Payload) != string(sent.Payload) || string(job.OutputRef) != string(sent.OutputRef) {
		t.Errorf("the job is %+v", job)
	}
}

func TestTheGeneratedClientReadsProblems(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.fail(&apierror.Error{Code: apierror.TenantLimit, RetryAfter: 5 * time.Second})
	response, err := dialAPI(t, h).SubmitCommandWithResponse(t.Context(), nil, sent)
	musttest.NoError(t, err)
	if found := response.ApplicationProblemJSON429; found == nil || found.Code != apierror.TenantLimit {
		t.Errorf("%s: problem %+v", response.Status(), found)
	}
	if response.Headers429.RetryAfter != 5 {
		t.Errorf("Retry-After is %d", response.Headers429.RetryAfter)
	}
}

func TestTheGeneratedClientWorks(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	client := dialAPI(t, h)
	job := h.submitted(t)
	_, err := h.relay.RunOnce(t.Context())
	musttest.NoError(t, err)
	claimed, err := client.ClaimWorkWithResponse(t.Context(), api.ClaimRequest{Owner: "o", RequestID: "r1", Start: true})
	musttest.NoError(t, err)
	got := claimed.JSON200.Items[0]
	completed, err := client.CompleteWorkWithResponse(t.Context(), got.WorkID, api.WorkCompletion{
		Owner: "o", ExpectedRev: got.Rev, RequestID: "r2", ResultRef: []byte(`{"uri":"u"}`),
	})
	musttest.NoError(t, err)
	if completed.StatusCode() != http.StatusOK || completed.JSON200.WorkID != got.WorkID || completed.JSON200.Status != api.WorkStatusSucceeded {
		t.Errorf("%s: %s", completed.Status(), completed.Body)
	}
	cancelled, err := client.CancelJobWithResponse(t.Context(), job, api.ControlRequest{})
	musttest.NoError(t, err)
	if diff := cmp.Diff(`{"uri":"u"}`, string(cancelled.JSON202.Steps[0].ResultRef)); diff != "" {
		t.Errorf("what the worker reported (-want +got):\n%s", diff)
	}
}
