package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/waittest"
)

// ingest returns a protocol for doc.ingest with that version, and a step for each service
// with its name.
func ingest(version string, steps ...string) string {
	var text strings.Builder
	text.WriteString("protocol_id: ingest\nversion: " + version + "\nrequest_types: [doc.ingest]\nsteps:\n")
	for _, step := range steps {
		text.WriteString("  - {step_id: " + step + ", step_type: T, service: " + step + "}\n")
	}
	return text.String()
}

// put atomically replaces the protocol file of the folder.
func put(t *testing.T, dir, text string) {
	t.Helper()
	next, path := filepath.Join(dir, "next"), filepath.Join(dir, "ingest.yaml")
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, path)); err != nil {
		t.Fatal(err)
	}
}

// version returns the version of the only protocol in use.
func (s *testServer) version(t *testing.T) string {
	t.Helper()
	response, err := s.client.ListProtocolsWithResponse(t.Context())
	if err != nil || response.JSON200 == nil || len(response.JSON200.Protocols) != 1 {
		t.Fatalf("list protocols: %v, %s", err, bodyOf(response))
	}
	return response.JSON200.Protocols[0].Version
}

// work executes the next step, and returns its id.
func (s *testServer) work(t *testing.T, requestID string) string {
	t.Helper()
	item := s.claim(t, requestID, true)
	s.complete(t, item)
	return stepOf(t, item)
}

func (s *testServer) complete(t *testing.T, item *api.WorkItem) {
	t.Helper()
	done := api.WorkCompletion{
		Owner: "w", ExpectedRev: item.Rev, RequestID: "done-" + item.WorkID, ResultRef: json.RawMessage(`{"uri":"s3://r"}`),
	}
	waittest.Until(t, "the work is completed", func() bool { // It is repeated, as by a worker, while the store is unreachable.
		response, err := s.client.CompleteWorkWithResponse(t.Context(), item.WorkID, done)
		if err != nil || response.JSON200 == nil && response.StatusCode() != http.StatusServiceUnavailable {
			t.Fatalf("complete: %v, %s", err, bodyOf(response))
		}
		return response.JSON200 != nil
	})
}

// stepOf returns the id of the step that the item's directive is for.
func stepOf(t *testing.T, item *api.WorkItem) string {
	t.Helper()
	var directive struct {
		StepID string `json:"stepId"`
	}
	if err := json.Unmarshal(item.Directive, &directive); err != nil {
		t.Fatal(err)
	}
	return directive.StepID
}

// outcome is the result of a job: its state, its protocol's version and its steps.
func outcome(job *api.Job) []string {
	lines := []string{string(job.State), job.ProtocolVersion}
	for i := range job.Steps {
		lines = append(lines, job.Steps[i].StepID+" by "+job.Steps[i].Service)
	}
	return lines
}

// watching starts a server on a protocol folder.
func watching(t *testing.T, dir, protocols string) *testServer {
	t.Helper()
	return serveOn(t, dir, append([]string{"--protocols-dir", protocols, "--protocols-interval", "5ms"}, longTimeouts...)...)
}

func TestReload_AJobKeepsTheStepsThatItWasAcceptedWith(t *testing.T) {
	t.Parallel()
	protocols := t.TempDir()
	put(t, protocols, ingest("1", "read", "write"))
	s := watching(t, t.TempDir(), protocols)
	old := s.submitAs(t, "old")
	item := s.claim(t, "c1", true)

	put(t, protocols, ingest("2", "scan", "check", "file"))
	waittest.Until(t, "version 2 is in use", func() bool { return s.version(t) == "2" })
	s.complete(t, item)
	if step := s.work(t, "c2"); step != "write" {
		t.Errorf("the job goes on with %s, want write", step)
	}
	if diff := cmp.Diff([]string{"SUCCEEDED", "1", "read by read", "write by write"}, outcome(s.wait(t, old))); diff != "" {
		t.Errorf("the job of before (-want +got):\n%s", diff)
	}

	next := s.submitAs(t, "new")
	for i, want := range []string{"scan", "check", "file"} {
		if step := s.work(t, "n"+string(rune('1'+i))); step != want {
			t.Errorf("step %d is %s, want %s", i, step, want)
		}
	}
	want := []string{"SUCCEEDED", "2", "scan by scan", "check by check", "file by file"}
	if diff := cmp.Diff(want, outcome(s.wait(t, next))); diff != "" {
		t.Errorf("the job of after (-want +got):\n%s", diff)
	}
}

func TestReload_AJobOutlivesItsProtocol(t *testing.T) {
	t.Parallel()
	dir, protocols := t.TempDir(), t.TempDir()
	put(t, protocols, ingest("1", "read", "write"))
	first := watching(t, dir, protocols)
	id := first.submit(t)
	if step := first.work(t, "c1"); step != "read" {
		t.Errorf("the first step is %s, want read", step)
	}
	if err := first.stop(); err != nil {
		t.Fatalf("the server did not end well: %v", err)
	}
	gone := strings.NewReplacer("doc.ingest", "doc.other", "_id: ingest", "_id: other").Replace(ingest("9", "other"))
	put(t, protocols, gone)
	second := watching(t, dir, protocols)
	if step := second.work(t, "c2"); step != "write" {
		t.Errorf("the job goes on with %s, want write", step)
	}
	if diff := cmp.Diff([]string{"SUCCEEDED", "1", "read by read", "write by write"}, outcome(second.wait(t, id))); diff != "" {
		t.Errorf("job (-want +got):\n%s", diff)
	}
}

// metric returns the line of a metric, without its name.
func (s *testServer) metric(t *testing.T, name string) string {
	t.Helper()
	response, err := s.client.GetMetricsWithResponse(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(response.Body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return "none"
}

func TestReload_ABadFileIsRefusedAndShows(t *testing.T) {
	t.Parallel()
	protocols := t.TempDir()
	put(t, protocols, ingest("1", "read"))
	s := watching(t, t.TempDir(), protocols)
	const refused, failures = "lucius_protocols_refused", `lucius_protocol_reloads_total{outcome="refused"}`
	if s.metric(t, refused) != "0" || s.metric(t, failures) != "0" {
		t.Errorf("at the start refused is %s after %s failures, want 0 and 0", s.metric(t, refused), s.metric(t, failures))
	}
	put(t, protocols, ingest("2", "read")+"leese: 1m\n")
	waittest.Until(t, "the file is refused", func() bool { return s.metric(t, refused) == "1" })
	if s.version(t) != "1" || s.metric(t, failures) != "1" {
		t.Errorf("version %s is in use after %s failures, want 1 and 1", s.version(t), s.metric(t, failures))
	}
	ready, err := s.client.GetReadinessWithResponse(t.Context())
	if err != nil || ready.StatusCode() != http.StatusOK || !strings.Contains(string(ready.Body), "protocol files are refused") {
		t.Errorf("readyz: %v, %s, want ready with a warning", err, bodyOf(ready))
	}
	if strings.Contains(string(ready.Body), protocols) {
		t.Errorf("readyz tells a client the folder: %s", ready.Body)
	}
	s.submit(t)
	put(t, protocols, ingest("2", "read"))
	waittest.Until(t, "the file is taken", func() bool { return s.version(t) == "2" })
	if s.metric(t, refused) != "0" || s.metric(t, failures) != "1" {
		t.Errorf("mended, refused is %s after %s failures, want 0 and 1", s.metric(t, refused), s.metric(t, failures))
	}
}

// The signal reaches all servers of the process, but only this one checks its files so
// rarely that it matters.
func TestReload_OnSIGHUP(t *testing.T) {
	t.Parallel()
	protocols := t.TempDir()
	put(t, protocols, ingest("1", "read"))
	ctx, cancel := context.WithCancel(t.Context())
	out, done := &output{}, make(chan error, 1)
	p := &program{Env: cli.Env{Stdout: out, Stderr: out}}
	go func() {
		done <- p.run(ctx, []string{
			"serve", "--listen-addr", "127.0.0.1:0", "--storage-backend", "memory", "--protocols-dir", protocols,
			"--protocols-interval", "1h", "--log-level", "error",
		})
	}()
	var url string
	waittest.Until(t, "the server is up", func() bool {
		select {
		case err := <-done:
			t.Fatalf("the server did not start: %v", err)
		default:
		}
		text, up := strings.CutPrefix(out.String(), "lucius serves ")
		url = strings.TrimSpace(text)
		return up
	})
	client, err := api.NewClientWithResponses(url, api.WithHTTPClient(&http.Client{Transport: contracted(&http.Transport{DisableKeepAlives: true})}))
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{client: client}
	put(t, protocols, ingest("2", "read"))
	if got := s.version(t); got != "1" {
		t.Errorf("before the signal version %s is in use, want 1", got)
	}
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "version 2 is in use", func() bool { return s.version(t) == "2" })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the server did not end well: %v", err)
	}
}
