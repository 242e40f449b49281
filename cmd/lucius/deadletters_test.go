package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// buryReply sends a reply to a reply topic and dead-letters it there.
func buryReply(t *testing.T, namespace *fakeservicebus.Server, topic, body string) {
	t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(namespace.ConnectionString(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(t.Context()) }() // The test is over.
	sender, err := client.NewSender(topic, nil)
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := client.NewReceiverForSubscription(topic, "lucius-invoker", nil)
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
// warns of them; the valid one is replayed and its job continues, and the invalid one comes
// back and is purged.
func TestDeadLetters_HaveAWayOut(t *testing.T) {
	t.Parallel()
	namespace, dir := newNamespace(t), filepath.Join(t.TempDir(), "data")
	long := append(onBus(namespace), longTimeouts...)
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
	buryReply(t, namespace, "global-bus-replies-p0", string(reply))
	buryReply(t, namespace, "global-bus-replies-p0", "not JSON")
	if err := before.stop(); err != nil {
		t.Fatal(err)
	}

	s := serveOn(t, dir, long...)
	counted := ""
	waittest.Until(t, "the dead letters are counted", func() bool {
		counted = scrape(t, s)
		// A scrape reads the two gauges one after the other.
		return strings.Contains(counted, "\nlucius_bus_dead_letters 2\n") &&
			!strings.Contains(counted, "\nlucius_bus_dead_letters_oldest_seconds 0\n")
	})
	ready, err := s.client.GetReadinessWithResponse(t.Context())
	if err != nil || !strings.Contains(string(ready.Body), "2 replies are dead letters") {
		t.Errorf("readiness: %v, %s", err, bodyOf(ready))
	}
	command := func(wantCode int, args ...string) string {
		t.Helper()
		out, code := azureCommand(t, map[string]string{}, append(append([]string{"dead-letters"}, args...), onBus(namespace)...)...)
		if code != wantCode {
			t.Errorf("%q ends with %d, want %d:\n%s", args, code, wantCode, out)
		}
		return out
	}
	// A command leaves dead letters that do not arrive within seconds, and can be repeated.
	handleAll := func(verb string) {
		t.Helper()
		waittest.Until(t, verb+" of all dead letters", func() bool {
			_, code := azureCommand(t, map[string]string{}, append([]string{"dead-letters", verb, "--all", "--yes"}, onBus(namespace)...)...)
			return code == 0
		})
	}
	if out := command(0, "list"); !strings.Contains(out, "dead letters: 2") || strings.Contains(out, d.LeaseID) {
		t.Errorf("listed:\n%s", out)
	}
	if out := command(0, "list", "--bodies"); !strings.Contains(out, `body "not JSON"`) {
		t.Errorf("listed with bodies:\n%s", out)
	}
	if out := command(2, "replay", "--all"); !strings.Contains(out, "Replay 2 dead letters? There is no terminal to ask on: add --yes") {
		t.Errorf("without confirmation:\n%s", out)
	}
	command(2, "purge")
	handleAll("replay")
	workOnBus(t, namespace, func(context.Context, *lucius.Task) (any, error) { return nil, nil })
	if job := s.wait(t, jobID); job.State != api.JobStateSucceeded || job.AttemptsTotal != 3 {
		t.Errorf("the job is %s after %d attempts", job.State, job.AttemptsTotal)
	}
	waittest.Until(t, "the invalid reply comes back", func() bool { return strings.Contains(command(0, "list"), `reason "invalid_json"`) })
	if out := command(1, "purge", "0-999999", "--yes"); !strings.Contains(out, "0-999999: it does not exist") {
		t.Errorf("without such a letter:\n%s", out)
	}
	handleAll("purge")
	if out := command(0, "list"); out != "dead letters: 0\n" {
		t.Errorf("left:\n%s", out)
	}
	if out, code := azureCommand(t, map[string]string{}, "dead-letters", "list"); code != 2 || !strings.Contains(out, "LUCIUS_BUS is not servicebus") {
		t.Errorf("without Service Bus it ends with %d:\n%s", code, out)
	}
}

// TestDeadLetters_OfATopicAfterOneThatCannotBeRead are listed and handled, and the commands fail
// for the other topic.
func TestDeadLetters_OfATopicAfterOneThatCannotBeRead(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	buryReply(t, namespace, "global-bus-replies-p1", "not JSON")
	namespace.SetHooks(fakeservicebus.Hooks{OnAttach: func(address string) *fakeservicebus.Refusal {
		if strings.Contains(address, "global-bus-replies-p0") {
			return &fakeservicebus.Refusal{Condition: fakeservicebus.EntityDisabled, Description: "Disabled."}
		}
		return nil
	}})
	for _, test := range []struct {
		args, want []string
	}{
		{[]string{"list"}, []string{"1-1: on global-bus-replies-p1", "dead letters: 1"}},
		{[]string{"replay", "--all", "--yes"}, []string{"1-1: done"}},
		{[]string{"list"}, []string{"dead letters: 0"}},
		{[]string{"replay", "--all", "--yes"}, nil},
	} {
		out, code := azureCommand(t, map[string]string{}, append(append([]string{"dead-letters"}, test.args...), onBus(namespace)...)...)
		for _, want := range append(test.want, "the dead letters of global-bus-replies-p0 cannot be read") {
			if !strings.Contains(out, want) || code != cli.ExitUsage {
				t.Errorf("%q ends with %d, want %q:\n%s", test.args, code, want, out)
			}
		}
	}
}
