package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
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

// TestDeadLetters_HaveAWayOut dead-letters a valid reply and an invalid one. The server
// warns of them; the valid one is replayed and its job continues, and the command deletes
// the other.
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
	deadLettersCommand(terminalOf(t, s.url, ""), found.JSON200.DeadLetters[1].DeadLetterID)
}

// deadLettersCommand handles a last dead letter, which cannot be read.
func deadLettersCommand(c *terminal, id string) {
	c.t.Helper()
	listed := decode[api.DeadLetterPage](c, "dead-letters", "list").DeadLetters
	if len(listed) != 1 || listed[0].DeadLetterID != id || listed[0].Body != "not JSON" {
		c.t.Errorf("listed are %+v", listed)
	}
	c.want(cli.ExitFailed, id, "dead-letters", "replay", "--all")
	c.want(0, id, "dead-letters", "purge", id, "--yes")
	c.want(0, "There are no dead letters.", "dead-letters", "list")
}
