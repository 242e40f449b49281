//go:build integration && !race

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

var crashJobs = flag.Int("crash.jobs", 400, "how many jobs are repeated while the server and the command line are killed")

// repeated is a protocol of one step, so that many jobs end soon.
const repeated = `
protocol_id: again_v1
request_types: [doc.again]
steps:
  - {step_id: embed, step_type: EMBED, service: embedding, payload_schema: {type: object, properties: {model: {type: string}}}}
`

// TestCrash_ARepetitionMissesAndDoublesNoJob repeats jobs that succeeded from the command line, and
// kills the command or the server at random moments. Run again with the same time, the command
// goes on. In the end each of the jobs has one rerun, with the patch, and no rerun has one.
func TestCrash_ARepetitionMissesAndDoublesNoJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	protocols := t.TempDir()
	if err := os.WriteFile(filepath.Join(protocols, "again.yaml"), []byte(repeated), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *process { return s.start("--protocols-dir", protocols) }
	server := start()
	ctx, rest := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for i := range 2 {
		worker := newWorker(t, siteURL, s.http, fmt.Sprint("worker-", i), func(context.Context, *lucius.Task) (any, error) { return lucius.URI("s3://result"), nil })
		workers.Go(func() { _ = worker.Run(ctx) }) // Jobs that do not end fail the test.
	}
	t.Cleanup(func() { rest(); workers.Wait() })
	old := s.submitAgain(*crashJobs)
	s.awaitSucceeded(len(old))

	time.Sleep(10 * time.Millisecond)
	before := time.Now().UTC().Format(time.RFC3339Nano)
	for range 12 {
		command := s.repetition(before)
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(50+rand.IntN(800)) * time.Millisecond)
		if rand.IntN(2) == 0 {
			server.kill()
			server = start()
		}
		_ = command.Process.Kill() // It may have ended.
		_ = command.Wait()
	}
	if said, err := s.repetition(before).CombinedOutput(); err != nil {
		t.Errorf("the last repetition: %v\n%s", err, said)
	}
	s.awaitSucceeded(2 * len(old))

	reruns := map[string]int{}
	for _, job := range s.jobsAgain() {
		if reruns[job.JobID] += 0; job.RerunOf != "" {
			reruns[job.RerunOf]++
			if job.Tags["lucius.operation"] == "" || len(job.RerunEdits) != 1 {
				t.Errorf("the rerun %s has the tags %v and the edits %v", job.JobID, job.Tags, job.RerunEdits)
			}
		}
	}
	for _, id := range old {
		if reruns[id] != 1 {
			t.Errorf("job %s has %d reruns", id, reruns[id])
		}
		delete(reruns, id)
	}
	for id, n := range reruns {
		if n != 0 {
			t.Errorf("the rerun %s was rerun itself", id)
		}
	}
	rest()
	workers.Wait()
	server.terminate()
	auditRows(t, s)
	t.Logf("%d jobs were repeated", len(old))
}

// submitAgain submits n commands, and returns their jobs.
func (s *site) submitAgain(n int) (ids []string) {
	s.t.Helper()
	for len(ids) < n {
		var batch api.BatchRequest
		for range min(100, n-len(ids)) {
			command := commandOf("t", fmt.Sprint("key-", len(ids)+len(batch.Commands)))
			command.RequestType, command.Payload = "doc.again", json.RawMessage(`{"model":"v2"}`)
			batch.Commands = append(batch.Commands, command)
		}
		response, err := s.client.SubmitBatchWithResponse(s.t.Context(), batch)
		if err != nil || response.JSON200 == nil {
			s.t.Fatalf("a batch is answered %v, %v", response, err)
		}
		for _, item := range response.JSON200.Results {
			ids = append(ids, item.JobID)
		}
	}
	return ids
}

// jobsAgain returns all jobs.
func (s *site) jobsAgain() (jobs []api.Job) {
	s.t.Helper()
	params := api.ListJobsParams{Limit: new(api.Limit(1000))}
	for {
		page, err := s.client.ListJobsWithResponse(s.t.Context(), &params)
		if err != nil || page.JSON200 == nil {
			s.t.Fatalf("list the jobs: %v", err)
		}
		jobs = append(jobs, page.JSON200.Jobs...)
		if page.JSON200.NextPageToken == "" {
			return jobs
		}
		params.PageToken = &page.JSON200.NextPageToken
	}
}

// awaitSucceeded waits until n jobs have succeeded.
func (s *site) awaitSucceeded(n int) {
	s.t.Helper()
	waittest.Until(s.t, fmt.Sprintf("%d jobs succeed", n), func() bool {
		done := 0
		for _, job := range s.jobsAgain() {
			if job.State == api.JobStateSucceeded {
				done++
			}
		}
		return done >= n
	})
}

// repetition returns the command that repeats the jobs.
func (s *site) repetition(before string) *exec.Cmd {
	s.t.Helper()
	binary, err := buildPlain()
	if err != nil {
		s.t.Fatal(err)
	}
	return exec.Command(binary, "retry", "--url", "http://"+s.address.Load().(string), "--state", "SUCCEEDED", "--request-type", "doc.again",
		"--created-before", before, "--patch", `{"model":"v3"}`, "--rate", fmt.Sprint(min(1000, max(100, *crashJobs/20)), "/s"),
		"--reason", "the model is new", "--yes")
}
