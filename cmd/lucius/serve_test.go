package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/sim"
	"github.com/lucius-project/lucius/internal/waittest"
)

// output is a buffer for several goroutines.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// entries returns the variables as entries of a process's environment.
func entries(variables map[string]string) (environment []string) {
	for name, value := range variables {
		environment = append(environment, name+"="+value)
	}
	return environment
}

// testServer is a server in this process.
type testServer struct {
	url    string
	client *api.ClientWithResponses
	http   *http.Client
	stop   func() error
}

// shortTimeouts let a whole retry schedule pass within seconds. A test that is in a race with
// one of them sets it by itself. Loops that pass more often than these would keep a processor busy
// under the race detector, with nothing to do, and on a busy machine no server would get on.
var shortTimeouts = []string{
	"--ack-timeout", "50ms", "--lease-duration", "300ms", "--sweep-interval", "50ms", "--outbox-retry-interval", "50ms",
	"--ack-backoff", "20ms,20ms", "--execution-backoff", "20ms,20ms", "--dispatch-backoff", "20ms", "--log-level", "debug",
}

// longTimeouts let nothing expire during a test.
var longTimeouts = []string{"--ack-timeout", "2h", "--lease-duration", "2h"}

// serveOn starts a server on the folder. More flags override the usual ones.
func serveOn(t *testing.T, dir string, more ...string) *testServer {
	t.Helper()
	return serveIn(t, nil, dir, more...)
}

// serveIn is [serveOn] with variables in the environment.
func serveIn(t *testing.T, environment []string, dir string, more ...string) *testServer {
	t.Helper()
	args := append([]string{
		"--listen-addr", "127.0.0.1:0", "--data-dir", dir, "--protocols-dir", "../../protocols",
	}, shortTimeouts...)
	loaded, err := config.LoadArgs(append(args, more...), environment)
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.CheckServe(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	urls, done := make(chan string, 1), make(chan error, 1)
	log := &output{}
	p := &program{Env: cli.Env{Stdout: &output{}, Stderr: log}}
	go func() { done <- p.runServer(ctx, &loaded.Config, func(url string) error { urls <- url; return nil }) }()
	select {
	case url := <-urls:
		transport := &http.Client{Transport: contracted(&http.Transport{DisableKeepAlives: true})}
		client, err := api.NewClientWithResponses(url, api.WithHTTPClient(transport))
		if err != nil {
			t.Fatal(err)
		}
		s := &testServer{url: url, http: transport, client: client, stop: sync.OnceValue(func() error { cancel(); return <-done })}
		t.Cleanup(func() {
			if err := s.stop(); err != nil {
				t.Errorf("the server did not end well: %v", err)
			}
			expectFields(t, log.String())
			if loaded.StorageBackend == config.BackendLocal && !t.Failed() {
				auditFolder(t, dir)
			}
		})
		return s
	case err := <-done:
		cancel()
		t.Fatalf("the server did not start: %v", err)
		return nil
	}
}

// expectFields fails unless each line of the log about a job names the job, each about a step
// names the attempt as well, and none has a lease id.
func expectFields(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			continue // The audit log has lines of its own.
		}
		if fault := sim.LogFault(fields); fault != "" && fields["msg"] != "audit" {
			t.Errorf("a line of the log %s: %s", fault, line)
		}
	}
}

func (s *testServer) submit(t *testing.T) string {
	t.Helper()
	return s.submitAs(t, t.Name())
}

// submitAs submits the command under an idempotency key.
func (s *testServer) submitAs(t *testing.T, key string) string {
	t.Helper()
	response, err := s.client.SubmitCommandWithResponse(t.Context(), nil, api.Command{
		TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1", Payload: json.RawMessage(`{"language":"en"}`),
		InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`),
		IdempotencyKey: key,
	})
	if err != nil || response.JSON202 == nil {
		t.Fatalf("submit: %v, %s", err, bodyOf(response))
	}
	return response.JSON202.JobID
}

func (s *testServer) claim(t *testing.T, requestID string, start bool) *api.WorkItem {
	t.Helper()
	var items []api.WorkItem
	waittest.Until(t, "there is work for the claim "+requestID, func() bool {
		response, err := s.client.ClaimWorkWithResponse(t.Context(), api.ClaimRequest{
			Owner: "w", RequestID: requestID, Max: 1, WaitSeconds: 60, Start: start,
		})
		if err != nil || response.JSON200 == nil {
			t.Fatalf("claim: %v, %s", err, bodyOf(response))
		}
		items = response.JSON200.Items
		return len(items) > 0
	})
	return &items[0]
}

// wait waits until the job is terminal.
func (s *testServer) wait(t *testing.T, jobID string) *api.Job {
	t.Helper()
	wait := "30s"
	var job *api.Job
	waittest.Until(t, "job "+jobID+" ends", func() bool {
		response, err := s.client.GetJobWithResponse(t.Context(), jobID, &api.GetJobParams{Wait: &wait})
		if err != nil || response.JSON200 == nil {
			t.Fatalf("wait: %v", err)
		}
		job = response.JSON200
		return !job.CompletedAt.IsZero()
	})
	return job
}

func TestServe_AckTimeoutsGoThroughAllAttempts(t *testing.T) {
	t.Parallel()
	s := serveOn(t, t.TempDir())
	id := s.submit(t)
	for _, request := range []string{"c1", "c2", "c3"} {
		s.claim(t, request, false) // and never start it
	}
	job := s.wait(t, id)
	if job.State != api.JobStateFailedFinal || job.ErrorCode != "ack_timeout" || job.Steps[0].AttemptNo != 3 {
		t.Errorf("job is %s, %s after %d attempts", job.State, job.ErrorCode, job.Steps[0].AttemptNo)
	}
}

func TestServe_LeasesExpireAndHeartbeatsKeepThem(t *testing.T) {
	t.Parallel()
	lease := waittest.Scale(6 * time.Second)
	s := serveOn(t, t.TempDir(), "--lease-duration", lease.String())
	id := s.submit(t)
	item := s.claim(t, "c1", true)
	rev := item.Rev
	for i := range 13 { // longer than two leases
		time.Sleep(lease / 6)
		response, err := s.client.HeartbeatWorkWithResponse(t.Context(), item.WorkID, api.WorkHeartbeat{
			Owner: "w", ExpectedRev: rev, RequestID: fmt.Sprint("h", i),
		})
		if err != nil || response.JSON200 == nil {
			t.Fatalf("heartbeat %d: %v, %s", i, err, bodyOf(response))
		}
		rev = response.JSON200.Rev
	}
	for _, request := range []string{"c2", "c3"} {
		if again := s.claim(t, request, true); again.Rev <= rev {
			t.Errorf("claimed %+v", again)
		}
	}
	job := s.wait(t, id)
	if job.State != api.JobStateFailedFinal || job.ErrorCode != "lease_expired" || job.Steps[0].AttemptNo != 3 {
		t.Errorf("job is %s, %s after %d attempts", job.State, job.ErrorCode, job.Steps[0].AttemptNo)
	}
}

func TestServe_ARestartGoesOnWithTheSameJobs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := serveOn(t, dir, longTimeouts...)
	id := first.submit(t)
	if err := first.stop(); err != nil {
		t.Fatalf("the server did not end well: %v", err)
	}
	second := serveOn(t, dir, longTimeouts...)
	for _, request := range []string{"c1", "c2", "c3"} {
		item := second.claim(t, request, true)
		response, err := second.client.CompleteWorkWithResponse(t.Context(), item.WorkID, api.WorkCompletion{
			Owner: "w", ExpectedRev: item.Rev, RequestID: "e-" + request, ResultRef: json.RawMessage(`{"uri":"s3://r"}`),
		})
		if err != nil || response.JSON200 == nil {
			t.Fatalf("complete: %v, %s", err, bodyOf(response))
		}
	}
	if job := second.wait(t, id); job.State != api.JobStateSucceeded || string(job.FinalOutput) != `{"uri":"s3://r"}` {
		t.Errorf("job is %s with %s", job.State, job.FinalOutput)
	}
}

func TestServe_RefusesToStartWithASentence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	held := filepath.Join(dir, "held")
	serveOn(t, held)
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"a data directory that another process has", []string{"--data-dir", held, "--protocols-dir", "../../protocols"}, "LUCIUS_DATA_DIR"},
		{"no protocols", []string{"--data-dir", filepath.Join(dir, "a"), "--protocols-dir", filepath.Join(dir, "none")}, "LUCIUS_PROTOCOLS_DIR"},
		{"a value that makes no sense", []string{"--ack-timeout", "soon"}, "--ack-timeout"},
		{"an address of this host's network", []string{"--listen-addr", "0.0.0.0:0"}, "loopback"},
		{"an argument", []string{"now"}, "argument"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"serve", "--log-level", "error"}, test.args...)
			if !strings.Contains(strings.Join(args, " "), "--listen-addr") && test.name != "an argument" {
				args = append(args, "--listen-addr", "127.0.0.1:0")
			}
			p := &program{Env: cli.Env{Stdout: &output{}, Stderr: &output{}}}
			err := p.run(t.Context(), args)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("answered %v, want a word of %s", err, test.want)
			}
		})
	}
}

func TestRun_PrintsConfigurationAndHelp(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string
		ok   bool
	}{
		{[]string{"serve", "--print-config"}, "LUCIUS_ACK_TIMEOUT=30s", true},
		{[]string{"version"}, "lucius", true},
		{[]string{"--version"}, "lucius", true},
		{[]string{"help"}, "demo", true},
		{[]string{"serve", "--help"}, "sweep-interval", true},
		{[]string{"dance"}, "", false},
		{nil, "Run a server:", true},
		{[]string{"jobs"}, "get", true},
	} {
		out := &output{}
		p := &program{Env: cli.Env{Stdout: out, Stderr: out}}
		if err := p.run(t.Context(), test.args); (err == nil) != test.ok || !strings.Contains(out.String(), test.want) {
			t.Errorf("%v: %v\n%s", test.args, err, out)
		}
	}
}

// The version names the commit if the binary was built in a clone.
func TestVersion_NamesTheCommit(t *testing.T) {
	t.Parallel()
	settings := []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.time", Value: "2026-11-24T20:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}
	for want, info := range map[string]*debug.BuildInfo{
		"development build": nil,
		"v1.2.3":            {Main: debug.Module{Version: "v1.2.3"}},
		"development build (commit 0123456789ab of 2026-11-24T20:00:00Z, with changes)": {Main: debug.Module{Version: "(devel)"}, Settings: settings},
		"v1.2.3 (commit 0123456789ab of 2026-11-24T20:00:00Z)":                          {Main: debug.Module{Version: "v1.2.3"}, Settings: settings[:2]},
	} {
		if got := buildOf(info).String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The order of builds is that of their Go releases, whose time zones they have, and then that of their commits.
func TestBuild_IsOrdered(t *testing.T) {
	t.Parallel()
	ordered := []buildInfo{
		{Go: "go1.9.2"}, {Go: "go1.26.8"}, {Go: "go1.26.8", CommittedAt: "2026-11-24T20:00:00Z"},
		{Go: "go1.26.8", CommittedAt: "2026-12-01T20:00:00Z"}, {Go: "go1.26.10"}, {Go: "go1.27", CommittedAt: "2026-11-24T20:00:00Z"},
	}
	for i := range ordered[1:] {
		if before, after := ordered[i].order(), ordered[i+1].order(); before >= after {
			t.Errorf("%q is not before %q", before, after)
		}
	}
}

// documents is how many documents the demo has.
func documents(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("../../internal/demo/documents/*.[th]*")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestDemo_RunsToItsEndAndAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		out := &output{}
		p := &program{Env: cli.Env{Stdout: out, Stderr: out}}
		err := p.run(t.Context(), []string{"demo", "--data-dir", dir})
		all := fmt.Sprintf("%d of %d documents ingested", documents(t), documents(t))
		if err != nil || !strings.Contains(out.String(), all) || !strings.Contains(out.String(), "search:") {
			t.Fatalf("%v:\n%s", err, out.String())
		}
		auditFolder(t, filepath.Join(dir, "store"), "--quiescent")
	}
}

// A list by time accepts the same formats of times as all other commands.
func TestServe_ListsByTime(t *testing.T) {
	t.Parallel()
	s := serveOn(t, filepath.Join(t.TempDir(), "data"))
	jobID := s.submit(t)
	for query, want := range map[string]int{
		"created_after=2026-01-01T00:00:00Z": 1, "created_after=2026-01-01T00:00:00.5%2B02:00": 1,
		"created_before=2026-01-01T00:00:00Z": 0, "created_after=2100-01-01T00:00:00.000Z": 0,
	} {
		response, err := s.client.ListJobsWithResponse(t.Context(), nil, func(_ context.Context, r *http.Request) error {
			r.URL.RawQuery = query
			return nil
		})
		if err != nil || response.JSON200 == nil || len(response.JSON200.Jobs) != want {
			t.Errorf("%s: %v, %s, want %d jobs", query, err, response.Body, want)
		} else if want == 1 && response.JSON200.Jobs[0].JobID != jobID {
			t.Errorf("%s lists %s", query, response.JSON200.Jobs[0].JobID)
		}
	}
}

// A pause is resumed by its id, whatever characters its scope has, and commands accepted
// during the pause are dispatched soon after.
func TestServe_PausesAndResumes(t *testing.T) {
	t.Parallel()
	s := serveOn(t, filepath.Join(t.TempDir(), "data"))
	for _, request := range []api.PauseRequest{
		{TenantID: new("tenant/a ~%"), Reason: "why"}, {ProtocolID: new("docs/v1?"), AllowUnknown: true, Reason: "why"}, {All: true, Reason: "why"},
	} {
		created, err := s.client.CreatePauseWithResponse(t.Context(), request)
		if err != nil || created.JSON200 == nil {
			t.Fatalf("pause: %v, %s", err, bodyOf(created))
		}
		if request.All {
			s.submit(t)
		}
		resumed, err := s.client.ResumePauseWithResponse(t.Context(), created.JSON200.PauseID, api.ResumeRequest{RampSeconds: new(0.0)})
		if err != nil || resumed.JSON200 == nil || resumed.JSON200.State != api.PauseStateResumed {
			t.Errorf("resume %s: %v, %s", created.JSON200.PauseID, err, bodyOf(resumed))
		}
	}
	s.claim(t, "claim", true) // It waits less than the interval of the periodic check.
}
