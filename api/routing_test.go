package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/mux"

	"github.com/lucius-project/lucius/api"
)

// seen is a server that remembers which operation it was asked for.
type seen struct {
	api.ServerInterface

	operation string
	id        string
	params    any
}

func (s *seen) saw(operation, id string) { s.operation, s.id = operation, id }
func (s *seen) reset()                   { *s = seen{} }
func (s *seen) handler() *mux.Router {
	return api.HandlerWithOptions(s, api.GorillaServerOptions{}).(*mux.Router)
}
func (s *seen) describe() (string, string) { return s.operation, s.id }

func (s *seen) GetJob(_ http.ResponseWriter, _ *http.Request, id api.JobID, params api.GetJobParams) {
	s.saw("getJob", id)
	s.params = params
}

func (s *seen) CancelJob(_ http.ResponseWriter, _ *http.Request, id api.JobID) {
	s.saw("cancelJob", id)
}
func (s *seen) PauseJob(_ http.ResponseWriter, _ *http.Request, id api.JobID) { s.saw("pauseJob", id) }
func (s *seen) ResumeJob(_ http.ResponseWriter, _ *http.Request, id api.JobID) {
	s.saw("resumeJob", id)
}

func (s *seen) ListJobSteps(_ http.ResponseWriter, _ *http.Request, id api.JobID) {
	s.saw("listJobSteps", id)
}

func (s *seen) ListJobEvents(_ http.ResponseWriter, _ *http.Request, id api.JobID, _ api.ListJobEventsParams) {
	s.saw("listJobEvents", id)
}

func (s *seen) ClaimWork(http.ResponseWriter, *http.Request)                  { s.saw("claimWork", "") }
func (s *seen) GetWork(_ http.ResponseWriter, _ *http.Request, id api.WorkID) { s.saw("getWork", id) }
func (s *seen) StartWork(_ http.ResponseWriter, _ *http.Request, id api.WorkID) {
	s.saw("startWork", id)
}
func (s *seen) StallWork(_ http.ResponseWriter, _ *http.Request, id api.WorkID) {
	s.saw("stallWork", id)
}
func (s *seen) RequeueWork(_ http.ResponseWriter, _ *http.Request, id api.WorkID) {
	s.saw("requeueWork", id)
}
func (s *seen) FailWork(_ http.ResponseWriter, _ *http.Request, id api.WorkID) { s.saw("failWork", id) }

func (s *seen) HeartbeatWork(_ http.ResponseWriter, _ *http.Request, id api.WorkID) {
	s.saw("heartbeatWork", id)
}

func (s *seen) CompleteWork(_ http.ResponseWriter, _ *http.Request, id api.WorkID) {
	s.saw("completeWork", id)
}

func (s *seen) CompleteWorkBatch(http.ResponseWriter, *http.Request) { s.saw("completeWorkBatch", "") }

func (s *seen) ListWorkEvents(_ http.ResponseWriter, _ *http.Request, id api.WorkID, _ api.ListWorkEventsParams) {
	s.saw("listWorkEvents", id)
}

func (s *seen) SubmitCommand(_ http.ResponseWriter, _ *http.Request, params api.SubmitCommandParams) {
	s.saw("submitCommand", "")
	s.params = params
}

func TestVerbsAfterAColonAreRouted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method, path, operation, id string
	}{
		{"GET", "/v1/jobs/j1", "getJob", "j1"},
		{"GET", "/v1/jobs/j1/steps", "listJobSteps", "j1"},
		{"GET", "/v1/jobs/j1/events", "listJobEvents", "j1"},
		{"POST", "/v1/jobs/j1:cancel", "cancelJob", "j1"},
		{"POST", "/v1/jobs/j1:pause", "pauseJob", "j1"},
		{"POST", "/v1/jobs/j1:resume", "resumeJob", "j1"},
		{"POST", "/v1/work:claim", "claimWork", ""},
		{"POST", "/v1/work:complete", "completeWorkBatch", ""},
		{"GET", "/v1/work/w1", "getWork", "w1"},
		{"GET", "/v1/work/w1/events", "listWorkEvents", "w1"},
		{"POST", "/v1/work/w1:start", "startWork", "w1"},
		{"POST", "/v1/work/w1:heartbeat", "heartbeatWork", "w1"},
		{"POST", "/v1/work/w1:complete", "completeWork", "w1"},
		{"POST", "/v1/work/w1:fail", "failWork", "w1"},
		{"POST", "/v1/admin/work/w1:stall", "stallWork", "w1"},
		{"POST", "/v1/admin/work/w1:requeue", "requeueWork", "w1"},
		// Only the last colon names the verb; an id may hold others.
		{"GET", "/v1/jobs/a:b", "getJob", "a:b"},
		{"GET", "/v1/jobs/a:cancel", "getJob", "a:cancel"},
		{"POST", "/v1/jobs/a:b:cancel", "cancelJob", "a:b"},
		{"POST", "/v1/jobs/a:cancel:pause", "pauseJob", "a:cancel"},
		{"POST", "/v1/jobs/a%3Acancel", "cancelJob", "a"},
		{"POST", "/v1/work/a:start:fail", "failWork", "a:start"},
		{"GET", "/v1/work/a:b/events", "listWorkEvents", "a:b"},
		{"GET", "/v1/jobs/a%20b", "getJob", "a b"},
	} {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			t.Parallel()
			var server seen
			response := httptest.NewRecorder()
			server.handler().ServeHTTP(response, httptest.NewRequest(test.method, test.path, nil))
			operation, id := server.describe()
			if response.Code != http.StatusOK || operation != test.operation || id != test.id {
				t.Errorf("%d, %s of %q; want %s of %q", response.Code, operation, id, test.operation, test.id)
			}
		})
	}
}

func TestUnknownVerbsAndEmptyIDsAreNotRouted(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"POST /v1/jobs/j1:stop", "POST /v1/jobs/j1", "POST /v1/jobs/:cancel", "GET /v1/jobs/", "POST /v1/jobs/j1:CANCEL",
		"POST /v1/jobs/j1:cancel/", "POST /v1/work/:start", "GET /v1/work:claim", "POST /v1/jobs/a%2Fb:cancel",
	} {
		var server seen
		method, path, _ := strings.Cut(target, " ")
		response := httptest.NewRecorder()
		server.handler().ServeHTTP(response, httptest.NewRequest(method, path, nil))
		if server.operation != "" {
			t.Errorf("%s is routed to %s", target, server.operation)
		}
	}
}

func TestTheClientSendsWhatTheServerRoutes(t *testing.T) {
	t.Parallel()
	var server seen
	listener := httptest.NewServer(server.handler())
	t.Cleanup(listener.Close)
	client, err := api.NewClient(listener.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	const id = "a:b c%2F?d"
	for _, test := range []struct {
		operation string
		call      func() (*http.Response, error)
	}{
		{"getJob", func() (*http.Response, error) { return client.GetJob(ctx, id, nil) }},
		{"listJobSteps", func() (*http.Response, error) { return client.ListJobSteps(ctx, id) }},
		{"cancelJob", func() (*http.Response, error) { return client.CancelJob(ctx, id, api.ControlRequest{}) }},
		{"pauseJob", func() (*http.Response, error) { return client.PauseJob(ctx, id, api.ControlRequest{}) }},
		{"resumeJob", func() (*http.Response, error) { return client.ResumeJob(ctx, id, api.ControlRequest{}) }},
		{"startWork", func() (*http.Response, error) { return client.StartWork(ctx, id, api.WorkVerb{}) }},
		{"heartbeatWork", func() (*http.Response, error) { return client.HeartbeatWork(ctx, id, api.WorkHeartbeat{}) }},
		{"completeWork", func() (*http.Response, error) { return client.CompleteWork(ctx, id, api.WorkCompletion{}) }},
		{"failWork", func() (*http.Response, error) { return client.FailWork(ctx, id, api.WorkFailure{}) }},
		{"getWork", func() (*http.Response, error) { return client.GetWork(ctx, id) }},
		{"stallWork", func() (*http.Response, error) { return client.StallWork(ctx, id, api.AdminWorkRequest{}) }},
		{"requeueWork", func() (*http.Response, error) { return client.RequeueWork(ctx, id, api.AdminWorkRequest{}) }},
	} {
		server.reset()
		response, err := test.call()
		if err != nil {
			t.Fatalf("%s: %v", test.operation, err)
		}
		_ = response.Body.Close()
		if server.operation != test.operation || server.id != id {
			t.Errorf("%s of %q arrives as %s of %q, %s", test.operation, id, server.operation, server.id, response.Status)
		}
	}
}

func TestTheClientLeavesUnsetParametersOut(t *testing.T) {
	t.Parallel()
	var server seen
	listener := httptest.NewServer(server.handler())
	t.Cleanup(listener.Close)
	client, err := api.NewClient(listener.URL)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.SubmitCommand(t.Context(), &api.SubmitCommandParams{}, api.Command{
		InputRef: []byte(`{}`), OutputRef: []byte(`{}`), Payload: []byte(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if params, ok := server.params.(api.SubmitCommandParams); !ok || params.IdempotencyKey != nil || params.Traceparent != nil {
		t.Errorf("the server saw %+v", server.params)
	}
	for name, made := range map[string]func(string) (*http.Request, error){
		"listJobs":   func(url string) (*http.Request, error) { return api.NewListJobsRequest(url, &api.ListJobsParams{}) },
		"listOutbox": func(url string) (*http.Request, error) { return api.NewListOutboxRequest(url, &api.ListOutboxParams{}) },
	} {
		if request, err := made(listener.URL); err != nil || request.URL.RawQuery != "" {
			t.Errorf("%s: %v asks for %s", name, err, request.URL)
		}
	}
}
