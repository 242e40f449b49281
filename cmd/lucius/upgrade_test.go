//go:build integration

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

var updateStore = flag.Bool("store.update", false, "make the store of testdata/store again, of this version")

// storeFile is a backup of a store with a job in each state, made by the version that first
// had its layout: go test -tags integration ./cmd/lucius -run TestUpgrade_JobsGoOn
// -store.update. It is made again only with a new layout, under a new name; the old one
// stays for as long as it can be read.
const storeFile = "testdata/store/layout-6.backup"

// storeMade is a time before the store was made.
var storeMade = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// kept are flags that keep ended jobs of any age.
var kept = []string{"--retention", "0"}

// TestUpgrade_JobsGoOnInAStoreOfAnEarlierVersion serves a store that an earlier version
// wrote.
func TestUpgrade_JobsGoOnInAStoreOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	if *updateStore {
		makeStore(t) // Its leases last for 5 minutes: run the test without the flag once they have ended.
		return
	}
	dir := filepath.Join(t.TempDir(), "data")
	out := &output{}
	p := &program{Env: cli.Env{Stdout: out, Stderr: out}}
	if err := p.run(t.Context(), []string{"restore", storeFile, "--data-dir", dir}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	const held = "10 jobs, 1 CANCELLED, 1 CANCELLING, 1 DISPATCHING, 1 FAILED_FINAL, 3 IN_PROGRESS, 1 PAUSED, 1 PAUSING, 1 SUCCEEDED; "
	if !strings.Contains(out.String(), held) {
		t.Errorf("the store holds:\n%s", out.String())
	}
	s := serveOn(t, dir, kept...)
	client, err := lucius.NewClient(lucius.ClientConfig{URL: s.url})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	w := lucius.NewWorker(lucius.WorkerConfig{Client: client, Log: slog.New(slog.DiscardHandler)})
	w.Handle(lucius.AnyStep, func(context.Context, *lucius.Task) (any, error) { return nil, nil })
	ctx, stop := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() { worked <- w.Run(ctx) }()
	jobs := 0
	for job, err := range client.List(ctx, lucius.JobFilter{TenantID: "tenant_a", CreatedAfter: storeMade}) {
		if err != nil {
			t.Fatal(err)
		}
		jobs++
		was := job.CorrelationID
		want := lucius.JobStateSucceeded
		switch state := lucius.JobState(was); state {
		case lucius.JobStatePausing, lucius.JobStatePaused:
			if _, err := client.Resume(ctx, job.JobID, "upgraded"); err != nil {
				t.Error(err)
			}
		case lucius.JobStateCancelling:
			want = lucius.JobStateCancelled
		case lucius.JobStateCancelled, lucius.JobStateFailedFinal:
			want = state
		}
		if ended, err := client.Wait(ctx, job.JobID); err != nil || ended.State != want {
			t.Errorf("a job that was %s ended as %+v: %v", was, ended, err)
		}
	}
	if jobs != 10 {
		t.Errorf("%d jobs are listed", jobs)
	}
	stop()
	if err := <-worked; err != nil {
		t.Error(err)
	}
}

// makeStore writes storeFile. Each job's correlation id is the state that it is left in,
// or what is special about it.
func makeStore(t *testing.T) {
	t.Helper()
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(kept, "--ack-timeout", "5m", "--lease-duration", "5m")...)
	submit := func(left string) string {
		response, err := s.client.SubmitCommandWithResponse(t.Context(), nil, api.Command{
			TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1", Payload: json.RawMessage(`{"language":"en"}`),
			InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`),
			CorrelationID: left, IdempotencyKey: left,
		})
		if err != nil || response.JSON202 == nil {
			t.Fatalf("submit: %v, %s", err, bodyOf(response))
		}
		return response.JSON202.JobID
	}
	start := func() *api.WorkItem { return s.claim(t, uuid.NewString(), true) }
	do := func(status int, err error) {
		if err != nil || status/100 != 2 {
			t.Fatalf("%d, %v", status, err)
		}
	}
	fail := func(item *api.WorkItem, retryable bool) {
		response, err := s.client.FailWorkWithResponse(t.Context(), item.WorkID, api.WorkFailure{
			Owner: "w", ExpectedRev: item.Rev, RequestID: uuid.NewString(), Retryable: retryable, RetryAfterSeconds: 30,
			Error: api.ReportedError{Code: "blank", Message: "the page is blank"},
		})
		do(response.StatusCode(), err)
	}
	pause := func(jobID string) {
		response, err := s.client.PauseJobWithResponse(t.Context(), jobID, api.ControlRequest{Reason: "to see"})
		do(response.StatusCode(), err)
	}
	cancel := func(jobID string) {
		response, err := s.client.CancelJobWithResponse(t.Context(), jobID, api.ControlRequest{Reason: "to see"})
		do(response.StatusCode(), err)
	}
	finish(t, s, submit("SUCCEEDED"))
	submit("FAILED_FINAL")
	fail(start(), false)
	cancel(submit("CANCELLED"))
	pause(submit("PAUSED"))
	submit("IN_PROGRESS")
	start()
	submit("a second step")
	item := start()
	response, err := s.client.CompleteWorkWithResponse(t.Context(), item.WorkID, api.WorkCompletion{
		Owner: "w", ExpectedRev: item.Rev, RequestID: uuid.NewString(), ResultRef: json.RawMessage(`{"uri":"s3://text"}`),
	})
	do(response.StatusCode(), err)
	start()
	pausing := submit("PAUSING")
	start()
	pause(pausing)
	cancelling := submit("CANCELLING")
	start()
	cancel(cancelling)
	submit("a retry")
	fail(start(), true)
	submit("DISPATCHING")
	if err := os.Remove(storeFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	terminalOf(t, s.url, "").want(0, "holds the store", "backup", "--to", storeFile)
}
