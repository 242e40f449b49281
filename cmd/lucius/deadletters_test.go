package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// buryReply sends a reply to the first reply topic and dead-letters it there.
func buryReply(t *testing.T, namespace *fakeservicebus.Server, body string) {
	t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(namespace.ConnectionString(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(t.Context()) }() // The test is over.
	sender, err := client.NewSender("global-bus-replies-p0", nil)
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := client.NewReceiverForSubscription("global-bus-replies-p0", "lucius-invoker", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.SendMessage(t.Context(), &azservicebus.Message{Body: []byte(body)}, nil); err != nil {
		t.Fatal(err)
	}
	got, err := receiver.ReceiveMessages(t.Context(), 1, nil)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d messages: %v", len(got), err)
	}
	if err := receiver.DeadLetterMessage(t.Context(), got[0], nil); err != nil {
		t.Fatal(err)
	}
}

// TestDeadLetters_HaveAWayOut has a good reply and a bad one end in the dead letters. The
// server warns of them; the good one is replayed and moves its job on, and the command
// deletes the other.
func TestDeadLetters_HaveAWayOut(t *testing.T) {
	t.Parallel()
	namespace, dir := newNamespace(t), filepath.Join(t.TempDir(), "data")
	long := append(onBus(namespace), "--ack-timeout", "10m", "--lease-duration", "10m")
	before := serveOn(t, dir, append(long, "--servicebus-replies", "false")...)
	jobID := before.submit(t)
	d := takeDirective(t, namespace, jobID, busServices[0])
	reply, err := json.Marshal(map[string]any{
		"type": "RESULT", "jobId": jobID, "stepId": d.StepID, "tenant_id": d.TenantID, "attempt_no": d.AttemptNo, "lease_id": d.LeaseID,
		"timestamp": "2026-01-27T10:02:00.000Z", "status": "SUCCEEDED",
	})
	if err != nil {
		t.Fatal(err)
	}
	buryReply(t, namespace, string(reply))
	buryReply(t, namespace, "not JSON")
	none, err := before.client.ListDeadLettersWithResponse(t.Context(), nil)
	if err != nil || none.ApplicationProblemJSON404 == nil {
		t.Errorf("without reply topics: %v, %s", err, none.Body)
	}
	if err := before.stop(); err != nil {
		t.Fatal(err)
	}

	s := serveOn(t, dir, long...)
	found, err := s.client.ListDeadLettersWithResponse(t.Context(), nil)
	if err != nil || found.JSON200 == nil || len(found.JSON200.DeadLetters) != 2 || strings.Contains(string(found.Body), d.LeaseID) {
		t.Fatalf("list: %v, %s", err, found.Body)
	}
	counted := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(counted, "\nlucius_bus_dead_letters 2\n"); time.Sleep(50 * time.Millisecond) {
		if counted = scrape(t, s); time.Now().After(end) {
			t.Fatal("the dead letters are not counted")
		}
	}
	ready, err := s.client.GetReadinessWithResponse(t.Context())
	if err != nil || !strings.Contains(string(ready.Body), "2 replies are dead letters") ||
		strings.Contains(counted, "\nlucius_bus_dead_letters_oldest_seconds 0\n") {
		t.Errorf("readiness: %v, %s", err, ready.Body)
	}
	replayed, err := s.client.ReplayDeadLettersWithResponse(t.Context(), api.DeadLetterRequest{All: true, Reason: "mended"})
	if err != nil || replayed.JSON200 == nil || len(replayed.JSON200.Handled) != 2 {
		t.Fatalf("replay: %v, %s", err, replayed.Body)
	}
	for i, want := range []api.HandledDeadLetter{{Outcome: api.DeadLetterOutcomeApplied}, {Outcome: api.DeadLetterOutcomeKept, Code: "invalid_json"}} {
		if got := replayed.JSON200.Handled[i]; got.Outcome != want.Outcome || got.Code != want.Code {
			t.Errorf("replayed %+v, want %+v", got, want)
		}
	}
	workOnBus(t, namespace, func(context.Context, *lucius.Task) (any, error) { return nil, nil })
	if job := s.wait(t, jobID); job.State != api.JobStateSucceeded || job.AttemptsTotal != 3 {
		t.Errorf("the job is %s after %d attempts", job.State, job.AttemptsTotal)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	deadLettersCommand(t, append(onBus(namespace), "--data-dir", dir, "--protocols-dir", "../../protocols"))
}

// deadLettersCommand handles a last dead letter, which cannot be read.
func deadLettersCommand(t *testing.T, flags []string) {
	t.Helper()
	run := func(arguments ...string) (string, error) {
		out := &output{}
		p := &program{Env: cli.Env{Stdout: out, Stderr: &output{}}}
		err := p.run(t.Context(), append(append([]string{"azure", "dead-letters"}, flags...), arguments...))
		return out.String(), err
	}
	for _, arguments := range [][]string{{"replay"}, {"list", "0-1"}, {"bury", "all"}} {
		if _, err := run(arguments...); exitCode(err) != cli.ExitUsage {
			t.Errorf("%v: %v", arguments, err)
		}
	}
	listed, err := run("list")
	var letter api.DeadLetter
	if err := errors.Join(err, json.Unmarshal([]byte(listed), &letter)); err != nil || letter.Body != "not JSON" {
		t.Fatalf("list: %v, %s", err, listed)
	}
	out, err := run("replay", "all")
	if exitCode(err) != cli.ExitFailed || !strings.HasPrefix(out, letter.DeadLetterID+" kept: ") || !strings.Contains(fmt.Sprint(err), "1 dead letters stay") {
		t.Errorf("replay: %v, %s", err, out)
	}
	if out, err := run("purge", letter.DeadLetterID); err != nil || out != letter.DeadLetterID+" purged\n" {
		t.Errorf("purge: %v, %s", err, out)
	}
	if out, err := run("list"); err != nil || out != "" {
		t.Errorf("list of none: %v, %s", err, out)
	}
}

// TestOpenCore_RunsNextToAServer opens the ledger while a server has the address of the
// profiles, and keeps what it counted.
func TestOpenCore_RunsNextToAServer(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // The test is over.
	loaded, err := config.LoadArgs([]string{
		"--data-dir", filepath.Join(t.TempDir(), "data"), "--debug-addr", listener.Addr().String(),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for accepted := range int64(2) {
		c, err := (&program{Env: cli.Env{Stderr: &output{}}}).openCore(t.Context(), &loaded.Config)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.census.Report().Accepted.Total; got != accepted {
			t.Errorf("%d jobs are counted, want %d", got, accepted)
		}
		_, err = c.ledger.Accept(t.Context(), ledger.Command{
			Job:     statemachine.Job{TenantID: "tenant", IdempotencyHash: fmt.Sprint(accepted)},
			Payload: []byte(`{}`), Steps: []statemachine.Step{{ID: "s", Type: "T", Service: "ocr"}},
		})
		if err := errors.Join(err, c.closeCommand()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpenCore_EndsAJobWithWebhooks ends a job in a command, and leaves its webhooks to
// the servers.
func TestOpenCore_EndsAJobWithWebhooks(t *testing.T) {
	t.Parallel()
	loaded, err := config.LoadArgs([]string{"--storage-backend", "memory", "--protocols-dir", "../../protocols"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := (&program{Env: cli.Env{Stderr: &output{}}}).openCore(t.Context(), &loaded.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.store.Close() }() // The test is over.
	registry, err := protocol.Load(c.cfg.ProtocolsDir)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := webhook.NewGuard(webhook.GuardConfig{})
	if err != nil {
		t.Fatal(err)
	}
	accepting, err := newCommands(c.cfg, c.ledger, protocol.NewHolder(registry), guard)
	if err != nil {
		t.Fatal(err)
	}
	command := `{"tenant_id":"tenant_a","request_type":"doc.ingest","schema_version":"1","input_ref":{"uri":"s3://b/in"},` +
		`"output_ref":{"uri":"s3://b/out"},"payload":{"language":"en"},"callback_urls":["https://example.com/hook"]}`
	submission, err := accepting.Prepare([]byte(command), commands.Headers{}, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := submission.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, _, err := jobs.New(c.ledger, &c.ended, jobs.Surroundings{}).Cancel(t.Context(), jobs.Control{JobID: accepted.Job.ID})
	if err != nil || ended.Job.State != statemachine.JobCancelled {
		t.Fatalf("cancel: %v, %v", err, ended)
	}
	due, err := c.ledger.Webhooks(t.Context(), accepted.Job.ID)
	if err != nil || len(due) != 1 || due[0].State != ledger.WebhookPending {
		t.Errorf("the webhooks are %v: %v", due, err)
	}
}
