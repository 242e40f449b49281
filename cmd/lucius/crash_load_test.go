package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// load has clients and workers use a server that may crash at any moment: clients send each
// command until it is accepted, and workers execute its three steps.
type load struct {
	t       *testing.T
	site    *site
	tenants int
	pause   time.Duration // between two commands of one tenant

	mu       sync.Mutex
	accepted map[string]string // the job of each command, by its key
	replayed []string          // commands whose first 202 was a replay: an earlier 202 was lost
	quiet    chan struct{}     // closed when no new command is to be sent

	submitters sync.WaitGroup
	workers    sync.WaitGroup
	rest       context.CancelFunc
}

// startLoad makes two tenants send commands, and three workers pull work.
func startLoad(s *site, pause time.Duration) *load {
	l, ctx := startClients(s, pause)
	for i := range 3 {
		l.workers.Go(func() { l.work(ctx, fmt.Sprint("worker-", i)) })
	}
	return l
}

// startClients makes two tenants send commands. Calling rest stops them and cancels the
// context.
func startClients(s *site, pause time.Duration) (*load, context.Context) {
	ctx, rest := context.WithCancel(s.t.Context())
	l := &load{
		t: s.t, site: s, tenants: 2, pause: pause, accepted: map[string]string{}, quiet: make(chan struct{}), rest: rest,
	}
	for i := range l.tenants {
		l.submitters.Go(func() { l.submitAll(ctx, fmt.Sprint("tenant_", i)) })
	}
	s.t.Cleanup(func() {
		rest()
		l.submitters.Wait()
		l.workers.Wait()
	})
	return l, ctx
}

// submitAll sends one command after another until the load is quiet. It repeats each until it
// is accepted.
func (l *load) submitAll(ctx context.Context, tenant string) {
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprint("key-", i)
		for ctx.Err() == nil && !l.submit(ctx, tenant, key) {
			time.Sleep(10 * time.Millisecond)
		}
		select {
		case <-l.quiet:
			return
		case <-time.After(l.pause):
		}
	}
}

// submit sends a command, records it if it got a 202, and reports whether it did.
func (l *load) submit(ctx context.Context, tenant, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, waittest.Bound(l.t))
	defer cancel()
	command := commandOf(tenant, key)
	if strings.HasSuffix(key, "3") { // The job waits for its date, often across a kill, and then has plenty of time to start.
		command.DelaySeconds, command.NotAfter = 1, api.NewTime(time.Now().Add(24*time.Hour))
	}
	if strings.HasSuffix(key, "5") || strings.HasSuffix(key, "6") { // The second job often waits for the first.
		command.OrderKey = "document"
	}
	response, err := l.site.client.SubmitCommandWithResponse(ctx, nil, command)
	if err != nil || response.JSON202 == nil {
		if err == nil && response.StatusCode() < 500 && response.StatusCode() != http.StatusTooManyRequests {
			l.t.Errorf("command %s of %s was refused: %s", key, tenant, response.Body)
		}
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	name, id := tenant+"/"+key, response.JSON202.JobID
	before := l.accepted[name]
	if before != "" && before != id {
		l.t.Errorf("command %s was accepted as %s and as %s", name, before, id)
	}
	if before == "" && response.JSON202.Replayed {
		l.replayed = append(l.replayed, name)
	}
	l.accepted[name] = id
	return true
}

// commandOf returns the command that a tenant sends under a key.
func commandOf(tenant, key string) api.Command {
	return api.Command{
		TenantID: tenant, RequestType: "doc.ingest", SchemaVersion: "1", IdempotencyKey: key,
		InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`),
		Payload: json.RawMessage(`{"language":"en"}`),
	}
}

// work executes steps until the context ends.
func (l *load) work(ctx context.Context, owner string) {
	if err := newWorker(l.t, siteURL, l.site.http, owner, handle).Run(ctx); err != nil && ctx.Err() == nil {
		l.t.Errorf("worker: %v", err)
	}
}

// newWorker returns a worker for all services of a server.
func newWorker(t *testing.T, url string, transport *http.Client, owner string, handle lucius.Handler) *lucius.Worker {
	t.Helper()
	client, err := lucius.NewClient(lucius.ClientConfig{URL: url, HTTPClient: transport})
	if err != nil {
		t.Fatal(err)
	}
	w := lucius.NewWorker(lucius.WorkerConfig{
		Client: client, Owner: owner, Parallel: 16, ClaimWait: 2 * time.Second, Log: slog.New(slog.DiscardHandler),
	})
	w.Handle(lucius.AnyStep, handle)
	return w
}

// handle executes a step. In one of sixteen jobs a step takes so long that its lease needs a
// heartbeat, and in another one the first attempt of each step fails.
func handle(ctx context.Context, task *lucius.Task) (any, error) {
	last := task.JobID[len(task.JobID)-1]
	switch {
	case last == '0' && task.StepID == "embed":
		select {
		case <-time.After(waittest.Scale(800 * time.Millisecond)):
		case <-ctx.Done():
		}
	case last == '1' && task.AttemptNo == 1:
		return nil, fmt.Errorf("attempt %d of this step fails", task.AttemptNo)
	}
	return lucius.URI("s3://result"), nil
}

// drain waits until the submitters' last commands are accepted and every accepted job has
// succeeded, stops the workers, and returns the jobs.
func (l *load) drain() map[string]string {
	l.t.Helper()
	close(l.quiet)
	giveUp := time.AfterFunc(waittest.Bound(l.t), l.rest)
	l.submitters.Wait()
	if !giveUp.Stop() {
		l.t.Fatal("the last commands are not accepted")
	}
	jobs := l.jobs()
	for name, id := range jobs {
		l.await(name, id)
	}
	l.rest()
	l.workers.Wait()
	return jobs
}

// await waits until the job has succeeded.
func (l *load) await(name, id string) {
	l.t.Helper()
	wait := "5s"
	waittest.Until(l.t, fmt.Sprintf("job %s of command %s succeeds", id, name), func() bool {
		asked := time.Now()
		response, err := l.site.client.GetJobWithResponse(l.t.Context(), id, &api.GetJobParams{Wait: &wait})
		if err == nil && response.StatusCode() == http.StatusServiceUnavailable { // The emulator of a busy machine may be slow.
			return false
		}
		if err != nil || response.JSON200 == nil {
			l.t.Fatalf("job %s of the accepted command %s cannot be read after %s: %v, %s", id, name, time.Since(asked), err, bodyOf(response))
		}
		job := response.JSON200
		if job.State == api.JobStateFailedFinal || job.State == api.JobStateCancelled {
			l.t.Fatalf("job %s of command %s is %s: %s", id, name, job.State, job.ErrorMessage)
		}
		return job.State == api.JobStateSucceeded
	})
}

// more waits until five more commands are accepted.
func (l *load) more() {
	l.t.Helper()
	want := len(l.jobs()) + 5
	waittest.Until(l.t, "five more commands are accepted", func() bool { return len(l.jobs()) >= want })
}

// jobs returns the jobs accepted so far, by the keys of their commands.
func (l *load) jobs() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.accepted)
}
