package httpapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/problem"
)

// dialAPI returns a generated client of the harness.
func dialAPI(t *testing.T, h *harness) *api.ClientWithResponses {
	t.Helper()
	server := listen(t, h)
	client, err := api.NewClientWithResponses(server.URL, api.WithHTTPClient(server.Client()))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestTheGeneratedClientSubmits(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	client := dialAPI(t, h)
	key := "k1"
	response, err := client.SubmitCommandWithResponse(t.Context(), &api.SubmitCommandParams{IdempotencyKey: &key}, api.Command{
		TenantID: "t", RequestType: "doc.ingest", SchemaVersion: "1",
		InputRef: []byte(`{"uri":"in"}`), OutputRef: []byte(`{"uri":"out"}`), Payload: []byte(`{"n":1e2}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&accepted, response.JSON202); diff != "" {
		t.Errorf("receipt (-want +got):\n%s", diff)
	}
	if response.Headers202.Location != "/v1/jobs/j1" {
		t.Errorf("Location is %q", response.Headers202.Location)
	}
	want := httpapi.Submission{
		IdempotencyKey: "k1",
		Body: []byte(`{"input_ref":{"uri":"in"},"output_ref":{"uri":"out"},"payload":{"n":1e2},"request_type":"doc.ingest",` +
			`"schema_version":"1","tenant_id":"t"}`),
	}
	if diff := cmp.Diff(want, h.useCases.all()[0].Request); diff != "" {
		t.Errorf("submission (-want +got):\n%s", diff)
	}
}

func TestTheGeneratedClientReadsProblems(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.useCases.err = &problem.Error{Code: problem.TenantLimit, RetryAfter: 5 * time.Second}
	response, err := dialAPI(t, h).SubmitCommandWithResponse(t.Context(), nil, api.Command{
		InputRef: []byte(`{}`), OutputRef: []byte(`{}`), Payload: []byte(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if found := response.ApplicationProblemJSON429; found == nil || found.Code != problem.TenantLimit {
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
	claimed, err := client.ClaimWorkWithResponse(t.Context(), api.ClaimRequest{Owner: "o", RequestID: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	got := claimed.JSON200.Items[0]
	completed, err := client.CompleteWorkWithResponse(t.Context(), got.WorkID, api.WorkCompletion{
		Owner: "o", ExpectedRev: got.Rev, RequestID: "r2", ResultRef: []byte(`{"uri":"u"}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if completed.StatusCode() != http.StatusOK || completed.JSON200.WorkID != "w1" {
		t.Errorf("%s: %s", completed.Status(), completed.Body)
	}
	cancelled, err := client.CancelJobWithResponse(t.Context(), "j1", api.ControlRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(job.Steps[0].Payload, cancelled.JSON200.Steps[0].Payload); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
	for _, id := range h.useCases.all()[1:] {
		if id.ID != "w1" && id.ID != "j1" {
			t.Errorf("%s of %q", id.Operation, id.ID)
		}
	}
}
