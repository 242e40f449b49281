//go:build sdk

package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

// onServiceBus is the Go SDK on Azure Service Bus.
var onServiceBus = &sdk{
	name: "go on Service Bus", dir: "../go/servicebus",
	check:   []string{"go", "version"},
	build:   []string{"go", "build", "-o", "../../../bin/conformance-servicebus", "./internal/conformance"},
	command: []string{"../../../bin/conformance-servicebus"},
}

// notOnServiceBus are the scenarios that need the answer of a call, and why is in the README.
var notOnServiceBus = []string{
	"an error that quotes the token", "a cancelled job", "a paused job",
	"a lost lease", "a lost lease that the handler ignores", "a result that the server refuses",
}

// busBench is a bench whose server and workers use a bus.
type busBench struct {
	*bench
	namespace *fakeservicebus.Server
}

// The subscriptions of the bus.
const (
	busDirectives = "global-bus-p0/Subscriptions/conformance"
	busReplies    = "global-bus-replies-p0/Subscriptions/lucius-invoker"
)

// TestConformance_OnServiceBus runs the scenarios of the README that concern a worker on a bus.
func TestConformance_OnServiceBus(t *testing.T) {
	t.Parallel()
	onServiceBus.present(t)
	var services []fakeservicebus.Subscription
	for _, service := range []string{"conformance", "throttled"} {
		services = append(services, fakeservicebus.Subscription{
			Name: service, Filter: map[string]string{"service": service}, LockDuration: time.Hour, MaxDeliveries: 1000,
		})
	}
	namespace, err := fakeservicebus.Start(fakeservicebus.Config{Topics: []fakeservicebus.Topic{
		{Name: "global-bus-p0", Subscriptions: services},
		{Name: "global-bus-replies-p0", Subscriptions: []fakeservicebus.Subscription{{Name: "lucius-invoker", MaxDeliveries: 1000}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(namespace.Close)
	b := &busBench{namespace: namespace, bench: &bench{site: newSite(t, "--bus", "servicebus", "--servicebus-lanes", "1",
		"--servicebus-connection", namespace.ConnectionString(), "--servicebus-replies", "true")}}
	b.worker = b.newWorker(t, 60)
	var tasks []scenario
	for _, s := range scenarios {
		if s.faults == nil && !slices.Contains(notOnServiceBus, s.name) {
			if s.name != "success" {
				s.judge = nil // It looks at calls.
			}
			tasks = append(tasks, s)
		}
	}
	throttled := b.newWorker(t, 60, "CONFORMANCE_SERVICE=throttled")
	b.tasks(t, tasks)
	throttled.terminate()
	throttled.exits(t)
	b.crash(t)
	b.outage(t)
	b.drain(t)
	b.death(t)
	b.superseded(t)
	b.refused(t)
	b.stop(t)
	b.oracle(t)
	b.audit()
}

// newWorker starts a worker on the bus, with further settings.
func (b *busBench) newWorker(t *testing.T, grace int, settings ...string) *worker {
	t.Helper()
	settings = append([]string{"SERVICEBUS_CONNECTION=" + b.namespace.ConnectionString(), fmt.Sprint("CONFORMANCE_LEASE_SECONDS=", lease.Seconds())}, settings...)
	return startWorker(t, onServiceBus, b.proxy.url, grace, settings...)
}

// drain stops the worker while it has a task: it finishes it, and takes no other.
func (b *busBench) drain(t *testing.T) {
	t.Helper()
	job := b.add(what{"do": "sleep", "seconds": 3, "deaf": true})
	b.worker.started(t, job)
	b.worker.terminate()
	b.worker.exits(t)
	if j := b.wait(job); j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
		t.Errorf("the task of a worker that stopped ended its job %s in attempt %d", j.State, j.Steps[0].AttemptNo)
	}
	b.add(what{"do": "succeed"})
	waittest.Until(t, "a directive waits for a worker", func() bool {
		waiting := b.namespace.Messages(busDirectives)
		return len(waiting) == 1 && !waiting[0].Locked
	})
}

// death kills a worker. The lease of its step is long, but its ACK asked for a short one, after
// which another worker gets the step; heartbeats keep it for longer.
func (b *busBench) death(t *testing.T) {
	t.Helper()
	mortal := b.newWorker(t, 60, "CONFORMANCE_ANY_STEP=yes")
	job := b.addOf("sdk.long", what{"do": "sleep", "seconds": 2 * lease.Seconds()})
	mortal.started(t, job)
	if err := mortal.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-mortal.ended
	heir := b.newWorker(t, 60, "CONFORMANCE_ANY_STEP=yes")
	if j := b.wait(job); j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 2 {
		t.Errorf("a step that is longer than its lease, of a worker that died, ended its job %s in attempt %d", j.State, j.Steps[0].AttemptNo)
	}
	heir.terminate()
	heir.exits(t)
}

// superseded freezes a worker until another has done its step in the next attempt. The RESULT
// that it still sends changes nothing.
func (b *busBench) superseded(t *testing.T) {
	t.Helper()
	frozen := b.newWorker(t, 60, "CONFORMANCE_PARALLEL=1") // It has no room for the next attempt.
	job := b.add(what{"do": "sleep", "seconds": 3})
	frozen.started(t, job)
	if err := frozen.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	heir := b.newWorker(t, 60)
	before := b.wait(job)
	if before.State != "SUCCEEDED" || before.Steps[0].AttemptNo != 2 {
		t.Errorf("the job of a worker that stands still ended %s in attempt %d", before.State, before.Steps[0].AttemptNo)
	}
	if err := frozen.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	frozen.await(t, line{Event: "ended", JobID: job, Attempt: 1})
	for _, w := range []*worker{frozen, heir} {
		w.terminate()
		w.exits(t)
	}
	waittest.Until(t, "the server has read all replies", func() bool { return b.namespace.Depth(busReplies) == 0 })
	if after := b.job(job); after.FinalOutput.URI != before.FinalOutput.URI || !strings.HasSuffix(after.FinalOutput.URI, "/2") {
		t.Errorf("the job's output became %q, was %q", after.FinalOutput.URI, before.FinalOutput.URI)
	}
}

// refused has a worker send a RESULT that the server does not take, which becomes a dead letter.
func (b *busBench) refused(t *testing.T) {
	t.Helper()
	w := b.newWorker(t, 60)
	job := b.add(what{"do": "refused"})
	waittest.Until(t, "the RESULT is a dead letter", func() bool { return b.namespace.Depth(busReplies+"/$DeadLetterQueue") > 0 })
	if letter := b.namespace.Messages(busReplies + "/$DeadLetterQueue")[0]; letter.Properties["DeadLetterReason"] != "too_large" {
		t.Errorf("the dead letter: %v", letter.Properties)
	}
	b.call("POST", "/v1/jobs/"+job+":cancel", what{}, nil)
	if j := b.wait(job); j.State != "CANCELLED" {
		t.Errorf("the job ended %s", j.State)
	}
	w.terminate()
	w.exits(t)
}

// stop stops a worker whose task outlasts the grace: the directive goes back to the bus.
func (b *busBench) stop(t *testing.T) {
	t.Helper()
	settings := []string{"CONFORMANCE_ANY_STEP=yes", "CONFORMANCE_LEASE_SECONDS=90"} // No attempt ends meanwhile.
	short := b.newWorker(t, 1, settings...)
	job := b.addOf("sdk.long", what{"do": "sleep", "seconds": 3})
	short.started(t, job)
	short.terminate()
	short.exits(t)
	if want := (line{Event: "cancelled", JobID: job, Attempt: 1, Cause: "stopping"}); !short.wrote(want) {
		t.Errorf("the worker did not write %+v", want)
	}
	heir := b.newWorker(t, 60, settings...)
	if j := b.wait(job); j.State != "SUCCEEDED" || j.Steps[0].AttemptNo != 1 {
		t.Errorf("the task of a worker that stopped ended its job %s in attempt %d", j.State, j.Steps[0].AttemptNo)
	}
	heir.started(t, job)
	heir.terminate()
	heir.exits(t)
}
