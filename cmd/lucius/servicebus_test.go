package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/servicebus"
)

// busLanes is the number of lanes that the tests' namespaces have.
const busLanes = 2

// busServices are the services of the protocol that the tests use.
var busServices = []string{"extract", "embed", "index"}

// newNamespace starts a namespace with what provisioning would make in it.
func newNamespace(t *testing.T) *fakeservicebus.Server {
	t.Helper()
	return newNamespaceOf(t, busLanes)
}

func newNamespaceOf(t *testing.T, lanes int) *fakeservicebus.Server {
	t.Helper()
	var cfg fakeservicebus.Config
	for lane := range lanes {
		directives := fakeservicebus.Topic{Name: fmt.Sprint("global-bus-p", lane)}
		for _, service := range busServices {
			directives.Subscriptions = append(directives.Subscriptions, fakeservicebus.Subscription{
				Name: service, Filter: map[string]string{"service": service}, LockDuration: waittest.Scale(5 * time.Second), MaxDeliveries: 1000,
			})
		}
		replies := fakeservicebus.Subscription{Name: "lucius-invoker", LockDuration: waittest.Scale(5 * time.Second), MaxDeliveries: 1000}
		cfg.Topics = append(cfg.Topics, directives, fakeservicebus.Topic{
			Name: fmt.Sprint("global-bus-replies-p", lane), Subscriptions: []fakeservicebus.Subscription{replies},
		})
	}
	namespace, err := fakeservicebus.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(namespace.Close)
	return namespace
}

// An invalid namespace prevents the start; the error names the variable and does not show
// the key.
func TestServe_NamesTheVariableOfABadNamespace(t *testing.T) {
	t.Parallel()
	for flag, test := range map[string]struct{ value, want string }{
		"--servicebus-websockets=true": {
			"--servicebus-connection=Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=hunter2;UseDevelopmentEmulator=true",
			"LUCIUS_SERVICEBUS_CONNECTION: servicebus publisher: Namespace.WebSockets cannot be used with UseDevelopmentEmulator",
		},
		"--servicebus-connection": {
			"SharedAccessKeyName=n;SharedAccessKey=hunter2", "LUCIUS_SERVICEBUS_CONNECTION: servicebus publisher: Namespace.Connection needs an Endpoint",
		},
		"--servicebus-namespace": {
			"sb://hunter2/", "LUCIUS_SERVICEBUS_NAMESPACE: servicebus publisher: Namespace.Host must be a host name",
		},
	} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			p := &program{Env: cli.Env{Stdout: &output{}, Stderr: &output{}}}
			err := p.run(t.Context(), []string{
				"serve", "--storage-backend", config.BackendMemory, "--listen-addr", "127.0.0.1:0", "--protocols-dir", "../../protocols",
				"--bus", config.BusServiceBus, flag, test.value,
			})
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// onBus are the flags of a server on the namespace.
func onBus(namespace *fakeservicebus.Server) []string {
	return []string{
		"--bus", config.BusServiceBus, "--servicebus-connection", namespace.ConnectionString(),
		"--servicebus-lanes", fmt.Sprint(busLanes), "--servicebus-replies", "true",
	}
}

// succeed is a handler for tests that count attempts: [handle] fails some first attempts.
func succeed(context.Context, *lucius.Task) (any, error) { return lucius.URI("s3://result"), nil }

// workOnBus makes the services work until the test ends, or rest is called.
func workOnBus(t *testing.T, namespace *fakeservicebus.Server, handle lucius.Handler) (rest func()) {
	t.Helper()
	return workOnLanes(t, namespace, busLanes, handle)
}

func workOnLanes(t *testing.T, namespace *fakeservicebus.Server, lanes int, handle lucius.Handler) (rest func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, len(busServices))
	for _, service := range busServices {
		worker := lucius.NewWorker(lucius.WorkerConfig{Log: slog.New(slog.DiscardHandler)})
		worker.Handle(lucius.AnyStep, handle)
		go func() {
			done <- servicebus.Run(ctx, worker, servicebus.Config{
				Connection: namespace.ConnectionString(), Lanes: lanes, Service: service,
				Heartbeat: 500 * time.Millisecond, Parallel: 16, Traceparent: workerSpan, Log: slog.New(slog.DiscardHandler),
			})
		}()
	}
	stopped := false
	rest = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range busServices {
			if err := <-done; err != nil {
				t.Errorf("worker: %v", err)
			}
		}
	}
	t.Cleanup(rest)
	return rest
}

// A command goes through all its steps over the topics, and its workers answer by
// the reply topics.
func TestServe_OnServiceBus(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(onBus(namespace), longTimeouts...)...)
	workOnBus(t, namespace, handle)
	jobID := s.submit(t)
	job := s.wait(t, jobID)
	if job.State != api.JobStateSucceeded || string(job.FinalOutput) != `{"uri":"s3://result"}` {
		t.Errorf("the job is %s, its output %s", job.State, job.FinalOutput)
	}
	for lane := range busLanes {
		for _, path := range []string{
			fmt.Sprintf("global-bus-replies-p%d/Subscriptions/lucius-invoker/$DeadLetterQueue", lane),
			fmt.Sprintf("global-bus-p%d/Subscriptions/embed/$DeadLetterQueue", lane),
		} {
			if found := namespace.Messages(path); len(found) > 0 {
				t.Errorf("%s holds %s: %v", path, found[0].Body, found[0].Properties)
			}
		}
	}
}

// While the namespace denies the server its rights, /readyz names the topics and the rights,
// and directives wait without spending a budget, which is a single retry here.
func TestServe_WaitsForItsRightsOnServiceBus(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	namespace.SetHooks(fakeservicebus.Hooks{OnAttach: func(string) *fakeservicebus.Refusal {
		return &fakeservicebus.Refusal{Condition: fakeservicebus.UnauthorizedAccess, Description: "claim(s) are required"}
	}})
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(onBus(namespace), longTimeouts...)...)
	jobID := s.submit(t)
	for _, want := range []string{
		"is out of service: access is denied (it needs the right Send, or the role Azure Service Bus Data Sender): ",
		"replies cannot be read from global-bus-replies-p0: access is denied (it needs the right Listen, or the role ",
	} {
		warned(t, s, want)
	}
	namespace.SetHooks(fakeservicebus.Hooks{})
	workOnBus(t, namespace, succeed)
	if job := s.wait(t, jobID); job.State != api.JobStateSucceeded || job.AttemptsTotal != len(busServices) {
		t.Errorf("the job is %s after %d attempts", job.State, job.AttemptsTotal)
	}
}

// A worker may answer over HTTP instead, and learns there that it is superseded.
func TestServe_OnServiceBusWithCallbacks(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(onBus(namespace),
		append(longTimeouts, "--servicebus-replies", "false")...)...)
	jobID := s.submit(t)
	for _, service := range busServices {
		d := takeDirective(t, namespace, jobID, service)
		ack, err := s.client.CallbackAckWithResponse(t.Context(), api.AckCallback{
			JobID: jobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID,
			Timestamp: api.Time{Time: time.Now()},
		})
		if err != nil || ack.JSON200 == nil || ack.JSON200.Outcome != api.OutcomeApplied {
			t.Fatalf("ack: %v, %s", err, bodyOf(ack))
		}
		result, err := s.client.CallbackResultWithResponse(t.Context(), api.ResultCallback{
			JobID: jobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID,
			Timestamp: api.Time{Time: time.Now()}, Status: api.ResultStatusSucceeded,
		})
		if err != nil || result.JSON200 == nil {
			t.Fatalf("result: %v, %s", err, bodyOf(result))
		}
	}
	if job := s.wait(t, jobID); job.State != api.JobStateSucceeded {
		t.Errorf("the job is %s", job.State)
	}
}

// A worker that dies silently is noticed when the lease ends that its ACK asked for, not the
// protocol's, and its step is retried.
func TestServe_NoticesADeadWorkerOnServiceBus(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(onBus(namespace), longTimeouts...)...)
	jobID := s.submit(t)
	d := takeDirective(t, namespace, jobID, busServices[0])
	replyOnBus(t, namespace, api.AckCallback{
		Type: "ACK", JobID: jobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID,
		Timestamp: api.Time{Time: time.Now()}, LeaseSeconds: 1,
	})
	workOnBus(t, namespace, succeed)
	job := s.wait(t, jobID)
	if job.State != api.JobStateSucceeded || job.Steps[0].AttemptNo != 2 || job.AttemptsTotal != len(busServices)+1 {
		t.Errorf("the job is %s after %d attempts, %d of the first step", job.State, job.AttemptsTotal, job.Steps[0].AttemptNo)
	}
	if code := job.Steps[0].LastErrorCode; code != "lease_expired" {
		t.Errorf("the first attempt ended with %q", code)
	}
}

// replyOnBus sends a reply on the first lane's reply topic.
func replyOnBus(t *testing.T, namespace *fakeservicebus.Server, reply any) {
	t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(namespace.ConnectionString(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(t.Context()) }() // The reply is on the bus.
	sender, err := client.NewSender("global-bus-replies-p0", nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(reply)
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.SendMessage(t.Context(), &azservicebus.Message{Body: body}, nil); err != nil {
		t.Fatal(err)
	}
}

// takeDirective waits for the directive of a job on the subscription of a service.
func takeDirective(t *testing.T, namespace *fakeservicebus.Server, jobID, service string) (d api.Directive) {
	t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(namespace.ConnectionString(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(t.Context()) }() // The test is over.
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Bound(t))
	defer cancel()
	found := make(chan *azservicebus.ReceivedMessage)
	for lane := range busLanes {
		receiver, err := client.NewReceiverForSubscription(fmt.Sprint("global-bus-p", lane), service, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			messages, err := receiver.ReceiveMessages(ctx, 1, nil)
			if err != nil || len(messages) == 0 {
				return
			}
			_ = receiver.CompleteMessage(ctx, messages[0], nil) // otherwise the bus redelivers it
			found <- messages[0]
		}()
	}
	select {
	case m := <-found:
		if err := json.Unmarshal(m.Body, &d); err != nil || d.JobID != jobID {
			t.Fatalf("directive %s: %v", m.Body, err)
		}
		if m.MessageID == "" || *m.Subject != d.StepType || m.ApplicationProperties["service"] != service ||
			m.ApplicationProperties["attempt_no"] != int64(d.AttemptNo) {
			t.Errorf("message %s, %s: %v", m.MessageID, *m.Subject, m.ApplicationProperties)
		}
	case <-ctx.Done():
		t.Fatalf("no directive for %s", service)
	}
	return d
}

// While the bus is unreachable, jobs wait and spend no attempt, and the server continues to
// serve.
func TestServe_WaitsForAnUnreachableBus(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(onBus(namespace),
		append(longTimeouts, "--publish-timeout", waittest.Scale(time.Second).String())...)...)
	namespace.Stop()
	jobID := s.submit(t)
	warned(t, s, "")
	if err := namespace.Restart(); err != nil {
		t.Fatal(err)
	}
	workOnBus(t, namespace, func(context.Context, *lucius.Task) (any, error) { return nil, nil })
	job := s.wait(t, jobID)
	if job.State != api.JobStateSucceeded || job.AttemptsTotal != 3 {
		t.Errorf("the job is %s after %d attempts", job.State, job.AttemptsTotal)
	}
}

// warned waits until the server, which is ready, has a warning with that text.
func warned(t *testing.T, s *testServer, text string) {
	t.Helper()
	waittest.Until(t, "the server warns: "+text, func() bool {
		response, err := s.client.GetReadinessWithResponse(t.Context())
		if err != nil || response.JSON200 == nil {
			t.Fatalf("not ready: %v, %s", err, bodyOf(response))
		}
		return slices.ContainsFunc(response.JSON200.Warnings, func(warning string) bool { return strings.Contains(warning, text) })
	})
}

// When the bus is changed, items in the pull queue are published to the topics once the ACK
// timeout of the server that queued them has passed. The second server's timeout is long,
// so that workers on a slow machine are not treated as dead.
func TestServe_ChangesFromTheQueueToServiceBus(t *testing.T) {
	t.Parallel()
	namespace, dir := newNamespace(t), filepath.Join(t.TempDir(), "data")
	before := serveOn(t, dir, "--servicebus-lanes", fmt.Sprint(busLanes), "--ack-timeout", "2s")
	jobID := before.submit(t)
	waittest.Until(t, "the step is queued", func() bool {
		response, err := before.client.GetJobWithResponse(t.Context(), jobID, nil)
		if err != nil || response.JSON200 == nil {
			t.Fatalf("%v, %s", err, bodyOf(response))
		}
		return response.JSON200.Steps[0].State == api.StepStateAwaitingAck
	})
	if err := before.stop(); err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, dir, append(onBus(namespace), longTimeouts...)...)
	workOnBus(t, namespace, func(context.Context, *lucius.Task) (any, error) { return nil, nil })
	if job := s.wait(t, jobID); job.State != api.JobStateSucceeded {
		t.Errorf("the job is %s: %+v", job.State, job.Steps[0])
	}
}
