package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/worker"
)

// kills is how often the server is killed while it is under load.
const kills = 20

// TestCrash_NothingAcknowledgedIsLost kills the real binary again and again,
// at any moment, while clients submit commands and workers carry them through
// three steps. Afterwards every command that got a 202 has a job that ended
// well, and no step of any job was applied twice.
func TestCrash_NothingAcknowledgedIsLost(t *testing.T) {
	t.Parallel()
	c := newCrashed(t)
	c.start()
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for i := range 2 {
		group.Go(func() { c.submit(ctx, i) })
	}
	for i := range 3 {
		group.Go(func() { c.work(ctx, i) })
	}
	for range kills {
		time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		c.kill()
		c.start()
	}
	c.drain()
	stop()
	group.Wait()
	c.audit()
	c.terminate()
}

// crashed is a server process that is killed and started on one data folder.
type crashed struct {
	t       *testing.T
	binary  string
	address string
	dir     string
	client  *api.ClientWithResponses
	process *exec.Cmd

	mu       sync.Mutex
	accepted []string
	stopped  bool
}

func newCrashed(t *testing.T) *crashed {
	t.Helper()
	dir := t.TempDir()
	c := &crashed{t: t, binary: filepath.Join(dir, "lucius"), dir: dir}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", c.binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	c.client, err = api.NewClientWithResponses("http://"+c.address, api.WithHTTPClient(&http.Client{Transport: transport}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.process != nil {
			_ = c.process.Process.Kill() // It may have ended already.
			_ = c.process.Wait()
		}
	})
	return c
}

// start starts the server and waits until it says that it serves.
func (c *crashed) start() {
	c.t.Helper()
	c.process = exec.CommandContext(context.WithoutCancel(c.t.Context()), c.binary, "serve",
		"--listen-addr", c.address, "--data-dir", filepath.Join(c.dir, "data"), "--protocols-dir", "../../protocols",
		"--ack-timeout", "500ms", "--lease-duration", "2s", "--publish-timeout", "500ms",
		"--ack-backoff", "100ms,100ms,100ms,100ms,100ms,100ms,100ms,100ms,100ms,100ms",
		"--execution-backoff", "100ms,100ms,100ms,100ms,100ms,100ms,100ms,100ms,100ms,100ms",
		"--max-attempts", "1000", "--sweep-interval", "50ms", "--outbox-retry-interval", "50ms", "--log-level", "error")
	c.process.Stderr = os.Stderr
	out, err := c.process.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.process.Start(); err != nil {
		c.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, "lucius serves") {
		c.t.Fatalf("the server did not come up: %q, %v", line, err)
	}
}

func (c *crashed) kill() {
	c.t.Helper()
	if err := c.process.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = c.process.Wait() // It was killed, and says so.
}

// terminate asks the server to stop, which it does with status 0.
func (c *crashed) terminate() {
	c.t.Helper()
	if err := c.process.Process.Signal(os.Interrupt); err != nil {
		c.t.Fatal(err)
	}
	if err := c.process.Wait(); err != nil {
		c.t.Errorf("the server did not end well: %v", err)
	}
}

// submit sends commands until it is told to stop, and keeps what got a 202.
func (c *crashed) submit(ctx context.Context, submitter int) {
	for i := 0; ctx.Err() == nil && !c.closed(); i++ {
		response, err := c.client.SubmitCommandWithResponse(ctx, nil, api.Command{
			TenantID: fmt.Sprint("tenant_", submitter), RequestType: "doc.ingest", SchemaVersion: "1",
			InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`),
			Payload: json.RawMessage(`{"language":"en"}`), IdempotencyKey: fmt.Sprint("key-", i),
		})
		if err == nil && response.JSON202 != nil {
			c.mu.Lock()
			c.accepted = append(c.accepted, response.JSON202.JobID)
			c.mu.Unlock()
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (c *crashed) closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// work carries steps out until it is told to stop.
func (c *crashed) work(ctx context.Context, i int) {
	w, err := worker.New(worker.Config{
		Client: c.client, Owner: fmt.Sprint("worker-", i), Services: []string{"extract", "embed", "index"}, Parallel: 16,
		Handle: func(context.Context, api.Directive) (json.RawMessage, error) {
			return json.RawMessage(`{"uri":"s3://result"}`), nil
		},
	})
	if err != nil {
		c.t.Error(err)
		return
	}
	if err := w.Run(ctx); err != nil && ctx.Err() == nil {
		c.t.Errorf("worker: %v", err)
	}
}

// drain stops the submitters and waits until every accepted job has ended.
func (c *crashed) drain() {
	c.t.Helper()
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	for _, id := range c.jobs() {
		for state := api.JobState(""); state != api.JobStateSucceeded; {
			wait := "5s"
			response, err := c.client.GetJobWithResponse(c.t.Context(), id, &api.GetJobParams{Wait: &wait})
			if err != nil || response.JSON200 == nil {
				c.t.Fatalf("accepted job %s cannot be read: %v", id, err)
			}
			state = response.JSON200.State
			if state == api.JobStateFailedFinal || state == api.JobStateCancelled {
				c.t.Fatalf("job %s is %s: %s", id, state, response.JSON200.ErrorMessage)
			}
		}
	}
}

func (c *crashed) jobs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.accepted...)
}

// audit reads each job's history: gapless, and each step ended once.
func (c *crashed) audit() {
	c.t.Helper()
	ids := c.jobs()
	if len(ids) == 0 {
		c.t.Fatal("no command was accepted")
	}
	for _, id := range ids {
		limit := api.Limit(1000)
		page, err := c.client.ListJobEventsWithResponse(c.t.Context(), id, &api.ListJobEventsParams{Limit: &limit})
		if err != nil || page.JSON200 == nil {
			c.t.Fatalf("history of %s: %v", id, err)
		}
		ended, rev := map[string]int{}, int64(0)
		for _, event := range page.JSON200.Events {
			if event.Rev != rev && event.Rev != rev+1 {
				c.t.Errorf("history of %s jumps from rev %d to %d", id, rev, event.Rev)
			}
			rev = event.Rev
			if event.Type == "step.succeeded" || event.Type == "job.succeeded" {
				ended[string(event.Type)+" "+event.ObjectID]++
			}
		}
		if len(ended) != 4 {
			c.t.Errorf("job %s ended %v, want three steps and the job", id, ended)
		}
		for what, times := range ended {
			if times != 1 {
				c.t.Errorf("job %s: %s %d times", id, what, times)
			}
		}
	}
	c.t.Logf("%d commands accepted over %d kills", len(ids), kills)
}
