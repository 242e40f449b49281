package fakeservicebus_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/servicebus"
)

// The tests of sdk/go/servicebus, which is a module without this fake.

const (
	directives = "global-bus-p0/Subscriptions/ocr"
	replies    = "global-bus-replies-p0/Subscriptions/lucius"
)

// bus is a namespace.
type bus struct {
	*fakeservicebus.Server
	t *testing.T
}

func newBus(t *testing.T) *bus { t.Helper(); return newLanes(t, 1) }

// newLanes starts a namespace with so many lanes.
func newLanes(t *testing.T, lanes int) *bus {
	t.Helper()
	var cfg fakeservicebus.Config
	for n := range lanes {
		cfg.Topics = append(cfg.Topics,
			fakeservicebus.Topic{
				Name: fmt.Sprint("global-bus-p", n), Subscriptions: []fakeservicebus.Subscription{{Name: "ocr", LockDuration: 5 * time.Minute}},
			},
			fakeservicebus.Topic{Name: fmt.Sprint("global-bus-replies-p", n), Subscriptions: []fakeservicebus.Subscription{{Name: "lucius"}}})
	}
	peer, err := fakeservicebus.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	return &bus{peer, t}
}

// work runs a worker with the handler until stop is called.
func (b *bus) work(handler lucius.Handler, change func(*servicebus.Config)) (stop func()) {
	b.t.Helper()
	return b.workOn(lucius.AnyStep, handler, change)
}

// workOn runs a worker with the handler for a step type until stop is called.
func (b *bus) workOn(stepType string, handler lucius.Handler, change func(*servicebus.Config)) (stop func()) {
	b.t.Helper()
	w := lucius.NewWorker(lucius.WorkerConfig{Log: slog.New(slog.DiscardHandler)})
	w.Handle(stepType, handler)
	cfg := servicebus.Config{Connection: b.ConnectionString(), Service: "ocr", Lanes: 1, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	done := make(chan error, 1)
	go func() { done <- servicebus.Run(ctx, w, cfg) }()
	return func() {
		b.t.Helper()
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("worker: %v", err)
		}
	}
}

// stores is a handler that succeeds.
func stores(context.Context, *lucius.Task) (any, error) { return lucius.URI("s3://out"), nil }

// send sends a directive, or whatever it is.
func (b *bus) send(body string) { b.t.Helper(); b.sendFor(body, nil) }

// sendFor sends a message that lives so long, or for ever.
func (b *bus) sendFor(body string, timeToLive *time.Duration) {
	b.t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(b.ConnectionString(), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = client.Close(b.t.Context()) }() // The message is there.
	sender, err := client.NewSender("global-bus-p0", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := sender.SendMessage(b.t.Context(), &azservicebus.Message{Body: []byte(body), TimeToLive: timeToLive}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// replied waits for so many replies and returns their types and the last one.
func (b *bus) replied(n int) (types string, last api.ResultCallback) {
	b.t.Helper()
	b.until(func() bool { return b.Depth(replies) >= n })
	for _, m := range b.Messages(replies) {
		last = api.ResultCallback{}
		if err := json.Unmarshal(m.Body, &last); err != nil {
			b.t.Fatalf("reply %s: %v", m.Body, err)
		}
		types += last.Type + " "
	}
	return strings.TrimSpace(types), last
}

// until waits until something is so.
func (b *bus) until(so func() bool) {
	b.t.Helper()
	waittest.Until(b.t, "it comes to that", so)
}

// directive is one as the server sends it.
const directive = `{"type":"DIRECTIVE","jobId":"j","stepId":"s","tenant_id":"t","attempt_no":2,"lease_id":"l",
	"correlation_id":"c","traceparent":"00-a","payload":{}}`

func TestWorker_AnswersADirectiveAndCompletesItLast(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	stop := b.work(stores, nil)
	b.send(directive)
	types, last := b.replied(2)
	if types != "ACK RESULT" || last.Status != api.ResultStatusSucceeded || string(last.ResultRef) != `{"uri":"s3://out"}` ||
		last.JobID != "j" || last.StepID != "s" || last.TenantID != "t" || last.AttemptNo != 2 || last.LeaseID != "l" ||
		last.CorrelationID != "c" || last.Timestamp.IsZero() {
		t.Errorf("%s: %+v", types, last)
	}
	for _, m := range b.Messages(replies) {
		if m.Properties["traceparent"] != "00-a" {
			t.Errorf("the properties of %s are %v", m.Body, m.Properties)
		}
	}
	stop()
	if b.Depth(directives) != 0 {
		t.Error("the directive is still there")
	}
}

// The ACK asks for a lease, which three heartbeats fit into.
func TestWorker_AsksForALease(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lease, heartbeat time.Duration
		want             float64
	}{
		"by default":           {0, 0, 90},
		"as configured":        {15 * time.Second, 0, 15},
		"with rare heartbeats": {0, time.Minute, 180},
		"at most":              {0, 10 * time.Hour, 86400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBus(t)
			defer b.work(stores, func(cfg *servicebus.Config) { cfg.Lease, cfg.Heartbeat = test.lease, test.heartbeat })()
			b.send(directive)
			b.replied(2)
			var ack, result api.AckCallback
			for i, into := range []*api.AckCallback{&ack, &result} {
				if err := json.Unmarshal(b.Messages(replies)[i].Body, into); err != nil {
					t.Fatal(err)
				}
			}
			if ack.Type != "ACK" || ack.LeaseSeconds != test.want || result.LeaseSeconds != 0 {
				t.Errorf("%+v asks for %gs, want %gs; %+v", ack, ack.LeaseSeconds, test.want, result)
			}
		})
	}
}

func TestWorker_ReportsWhatFailed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 2000)
	for name, test := range map[string]struct {
		handler lucius.Handler
		status  api.ResultStatus
		want    api.ReportedError
		after   float64
	}{
		"once": {
			func(context.Context, *lucius.Task) (any, error) {
				return nil, lucius.RetryAfter(time.Minute, "blank", "the page is blank")
			},
			api.ResultStatusFailedRetry, api.ReportedError{Code: "blank", Message: "the page is blank"}, 60,
		},
		"for good": {
			func(context.Context, *lucius.Task) (any, error) {
				return nil, lucius.Final("blank", "the page is blank")
			},
			api.ResultStatusFailedFinal, api.ReportedError{Code: "blank", Message: "the page is blank"}, 0,
		},
		"at length": {
			func(context.Context, *lucius.Task) (any, error) { return nil, lucius.Final(long, "%s", long) },
			api.ResultStatusFailedFinal, api.ReportedError{Code: long[:128], Message: long[:1000]}, 0,
		},
		"panicked": {
			func(context.Context, *lucius.Task) (any, error) { panic("at the page") },
			api.ResultStatusFailedRetry, api.ReportedError{Code: "handler_panicked", Message: "the handler panicked: at the page"}, 0,
		},
		"quoting the connection's key": {
			func(context.Context, *lucius.Task) (any, error) {
				return nil, lucius.Final("denied", "no rights with SharedAccessKey=c2VjcmV0")
			},
			api.ResultStatusFailedFinal, api.ReportedError{Code: "denied", Message: "no rights with SharedAccessKey=[secret]"}, 0,
		},
		"too large": {
			func(context.Context, *lucius.Task) (any, error) { return lucius.URI(strings.Repeat("x", 9000)), nil },
			api.ResultStatusFailedFinal, api.ReportedError{
				Code: "result_too_large", Message: "the result has 9010 bytes, and a reference at most 8192: store the data, and return its URI",
			}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBus(t)
			defer b.work(test.handler, nil)()
			b.send(directive)
			_, last := b.replied(2)
			if last.Status != test.status || last.Error != test.want || last.RetryAfterSeconds != test.after {
				t.Errorf("%+v", last)
			}
		})
	}
}

// A broker that neither accepts nor rejects a RESULT releases it, and a topic that is disabled
// closes the link. The worker sends the RESULT again, and completes the directive only then,
// whatever connection it has.
func TestWorker_SendsAgainWhatTheBusDidNotStore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		effect fakeservicebus.Effect
		change func(*bus, *servicebus.Config)
	}{
		"released":                     {fakeservicebus.Release, func(*bus, *servicebus.Config) {}},
		"modified":                     {fakeservicebus.Modify, func(*bus, *servicebus.Config) {}},
		"refused, and the link closed": {fakeservicebus.Detach, func(*bus, *servicebus.Config) {}},
		"released, with TLS": {fakeservicebus.Release, func(b *bus, cfg *servicebus.Config) {
			address, roots := b.overTLS()
			cfg.Connection = "Endpoint=sb://" + address + ";SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
			cfg.Client = &azservicebus.ClientOptions{TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
		}},
		"released, on the caller's connection": {fakeservicebus.Release, func(b *bus, cfg *servicebus.Config) {
			cfg.Connection = "Endpoint=sb://bus.example;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
			cfg.Client = &azservicebus.ClientOptions{
				NewWebSocketConn: func(ctx context.Context, _ azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "tcp", b.Addr())
				},
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBus(t)
			var sent atomic.Int64
			b.SetHooks(fakeservicebus.Hooks{OnSend: func(topic string, _ []string) fakeservicebus.Fault {
				// The first is the ACK, and the others are tries of the RESULT.
				if topic != "global-bus-replies-p0" {
					return fakeservicebus.Fault{}
				}
				if n := sent.Add(1); n == 1 || n > 5 {
					return fakeservicebus.Fault{}
				}
				if b.Depth(directives) != 1 {
					t.Error("the directive was completed before its RESULT was on the bus")
				}
				return fakeservicebus.Fault{Effect: test.effect, Condition: fakeservicebus.EntityDisabled}
			}})
			b.send(directive)
			stop := b.work(stores, func(cfg *servicebus.Config) { test.change(b, cfg) })
			b.until(func() bool { return b.Depth(directives) == 0 })
			stop()
			if types, last := b.replied(2); types != "ACK RESULT" || last.Status != api.ResultStatusSucceeded {
				t.Errorf("%s: %+v", types, last)
			}
		})
	}
}

// overTLS returns the address of a gate to the broker that speaks TLS, and whom its clients
// must trust.
func (b *bus) overTLS() (address string, roots *x509.CertPool) {
	b.t.Helper()
	identity := httptest.NewTLSServer(http.NotFoundHandler())
	defer identity.Close()
	roots = x509.NewCertPool()
	roots.AddCert(identity.Certificate())
	gate, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: identity.TLS.Certificates, MinVersion: tls.VersionTLS12})
	if err != nil {
		b.t.Fatal(err)
	}
	var piping sync.WaitGroup
	b.t.Cleanup(func() {
		_ = gate.Close() // Nothing more is accepted.
		piping.Wait()
	})
	piping.Go(func() {
		for {
			near, err := gate.Accept()
			if err != nil {
				return
			}
			far, err := (&net.Dialer{}).DialContext(context.WithoutCancel(b.t.Context()), "tcp", b.Addr())
			if err != nil {
				_ = near.Close() // The broker is away.
				continue
			}
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				piping.Go(func() {
					_, _ = io.Copy(way[0], way[1]) // Either side may end the connection.
					_, _ = near.Close(), far.Close()
				})
			}
		}
	})
	return gate.Addr().String(), roots
}

// Heartbeats keep a long step alive, even across an outage of the bus, and show its
// progress.
func TestWorker_BeatsWhileItWorks(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	release := make(chan struct{})
	stop := b.work(func(_ context.Context, task *lucius.Task) (any, error) {
		task.Progress(0.5, "half")
		<-release
		return nil, nil
	}, func(cfg *servicebus.Config) { cfg.Heartbeat = 10 * time.Millisecond })
	b.send(directive)
	b.replied(3)
	b.Stop()
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	b.replied(b.Depth(replies) + 2)
	close(release)
	stop()
	types, last := b.replied(5)
	if !strings.HasPrefix(types, "ACK HEARTBEAT HEARTBEAT") || last.Type != "RESULT" {
		t.Errorf("%s", types)
	}
	var shown []string
	for _, m := range b.Messages(replies) {
		if strings.Contains(string(m.Body), "progress") {
			shown = append(shown, string(m.Body))
		}
	}
	if len(shown) != 1 || !strings.Contains(shown[0], `"progress":{"fraction":0.5,"message":"half"}`) {
		t.Errorf("the progress is shown by %s", shown)
	}
}

// The lock is renewed from before the ACK until the RESULT is on the bus, so that no copy of
// the directive is delivered.
func TestWorker_KeepsTheLockUntilItHasAnswered(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	var refusing atomic.Bool
	refusing.Store(true)
	b.SetHooks(fakeservicebus.Hooks{OnSend: func(topic string, _ []string) fakeservicebus.Fault {
		if topic == "global-bus-replies-p0" && refusing.Load() {
			return fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.ServerBusy}
		}
		return fakeservicebus.Fault{}
	}})
	release := make(chan struct{})
	stop := b.work(func(context.Context, *lucius.Task) (any, error) { <-release; return nil, nil },
		func(cfg *servicebus.Config) { cfg.Heartbeat = 10 * time.Millisecond })
	renewed := func() {
		t.Helper()
		locked := b.Messages(directives)[0].LockedUntil
		b.until(func() bool { return b.Messages(directives)[0].LockedUntil.After(locked) })
	}
	b.send(directive)
	b.until(func() bool { return b.Messages(directives)[0].Locked })
	renewed()
	refusing.Store(false)
	b.replied(1)
	renewed()
	refusing.Store(true)
	close(release)
	for range 5 { // One renewal may have been on its way when the handler returned.
		renewed()
	}
	refusing.Store(false)
	b.until(func() bool { return b.Depth(directives) == 0 })
	stop()
	if types, last := b.replied(2); strings.Count(types, "ACK") != 1 || last.Type != "RESULT" {
		t.Errorf("%s", types)
	}
}

// When the lock is lost, the bus redelivers a directive whose handler is still at it. The
// worker goes on with the copy's lock, and does the work once.
func TestWorker_AdoptsACopyOfWhatItIsAt(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	release := make(chan struct{})
	var calls atomic.Int64
	stop := b.work(func(context.Context, *lucius.Task) (any, error) {
		calls.Add(1)
		<-release
		return nil, nil
	}, func(cfg *servicebus.Config) { cfg.Heartbeat = 10 * time.Millisecond })
	b.send(directive)
	b.replied(1)
	b.ExpireLocks(directives)
	var copied fakeservicebus.Message
	b.until(func() bool { copied = b.Messages(directives)[0]; return copied.Deliveries == 1 && copied.Locked })
	b.until(func() bool { return b.Messages(directives)[0].LockedUntil.After(copied.LockedUntil) }) // A heartbeat renewed it.
	close(release)
	stop()
	if types, last := b.replied(2); last.Type != "RESULT" || strings.Count(types, "ACK") != 1 || calls.Load() != 1 || b.Depth(directives) != 0 {
		t.Errorf("%s after %d calls, %d directives are left", types, calls.Load(), b.Depth(directives))
	}
}

// If the lock is lost and no slot is free, the copy arrives after the RESULT was sent. The
// worker completes it, and does the work once.
func TestWorker_CompletesACopyOfWhatItAnswered(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	release := make(chan struct{})
	var calls atomic.Int64
	stop := b.work(func(context.Context, *lucius.Task) (any, error) {
		calls.Add(1)
		<-release
		return nil, nil
	}, func(cfg *servicebus.Config) { cfg.Parallel = 1 })
	b.send(directive)
	b.replied(1)
	b.ExpireLocks(directives)
	close(release)
	b.until(func() bool { return b.Depth(directives) == 0 })
	stop()
	if types, _ := b.replied(2); types != "ACK RESULT" || calls.Load() != 1 {
		t.Errorf("%s after %d calls", types, calls.Load())
	}
}

// The SDK keeps a link that the bus closed with an error that it takes for passing, and
// receives nothing more on it. The worker opens another one.
func TestWorker_ReadsOnAfterTheBusClosedItsLink(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{fakeservicebus.ServerBusy, fakeservicebus.Timeout, fakeservicebus.DetachForced} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			b := newBus(t)
			release := make(chan struct{})
			stop := b.work(func(context.Context, *lucius.Task) (any, error) { <-release; return nil, nil }, nil)
			b.send(directive)
			b.replied(1)
			if b.CloseReceivers(directives, fakeservicebus.Refusal{Condition: condition}) != 1 {
				t.Fatal("nothing receives from the lane")
			}
			b.send(strings.Replace(directive, `"jobId":"j"`, `"jobId":"k"`, 1))
			b.until(func() bool { types, _ := b.replied(2); return types == "ACK ACK" })
			close(release)
			b.until(func() bool { return b.Depth(directives) == 0 })
			stop()
			if types, _ := b.replied(4); types != "ACK ACK RESULT RESULT" {
				t.Errorf("%s", types)
			}
		})
	}
}

// A directive whose connection was cut is completed by its lock, which lasts for long.
func TestWorker_CompletesAfterAnOutage(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	release := make(chan struct{})
	stop := b.work(func(context.Context, *lucius.Task) (any, error) { <-release; return nil, nil }, nil)
	b.send(directive)
	b.replied(1)
	b.Stop()
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	close(release)
	b.until(func() bool { return b.Depth(directives) == 0 })
	stop()
	if types, _ := b.replied(2); types != "ACK RESULT" {
		t.Errorf("%s", types)
	}
}

// After a stop, a call that the bus does not answer holds up no other directive.
func TestWorker_CompletesBesideACallThatHangs(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	var renewals atomic.Int64
	b.SetHooks(fakeservicebus.Hooks{OnRequest: func(_, operation string) fakeservicebus.Fault {
		if operation == "com.microsoft:renew-lock" && renewals.Add(1) <= 2 {
			return fakeservicebus.Fault{Effect: fakeservicebus.Silence}
		}
		return fakeservicebus.Fault{}
	}})
	finish := map[string]chan struct{}{"quick": make(chan struct{}), "j": make(chan struct{})}
	stop := b.work(func(ctx context.Context, task *lucius.Task) (any, error) {
		select {
		case <-finish[task.JobID]:
			return nil, nil
		case <-ctx.Done(): // The grace is over.
			return nil, ctx.Err()
		}
	}, func(cfg *servicebus.Config) {
		cfg.Heartbeat, cfg.Grace = 10*time.Millisecond, waittest.Scale(15*time.Second)
	})
	b.send(directive)
	b.until(func() bool { return renewals.Load() == 2 }) // The second try waits for long.
	b.send(strings.Replace(directive, `"jobId":"j"`, `"jobId":"quick"`, 1))
	b.until(func() bool { types, _ := b.replied(2); return strings.Count(types, "ACK") == 2 })
	time.AfterFunc(waittest.Scale(1500*time.Millisecond), func() { // The worker has closed its receiver.
		close(finish["quick"])
		b.until(func() bool { return b.Depth(directives) == 1 })
		close(finish["j"])
	})
	stop()
	b.until(func() bool { types, _ := b.replied(4); return strings.Count(types, "RESULT") == 2 })
	if b.Depth(directives) != 0 {
		t.Errorf("%+v is left", b.Messages(directives))
	}
}

// What is no directive is put aside, and does not keep the worker from the next.
func TestWorker_PutsAsideWhatIsNoDirective(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	defer b.work(stores, nil)()
	b.send("not json")
	b.send(`{"type":"ACK"}`)
	b.send(directive)
	b.replied(2)
	b.until(func() bool { return b.Depth(directives+"/$DeadLetterQueue") == 2 })
	for _, m := range b.Messages(directives + "/$DeadLetterQueue") {
		if m.Properties["DeadLetterReason"] != "not_a_directive" {
			t.Errorf("%s: %v", m.Body, m.Properties)
		}
	}
}

// A directive that the worker has no handler for is not acknowledged: another worker of the
// service may have one.
func TestWorker_GivesBackWhatItDoesNotHandle(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	defer b.workOn("OCR", stores, nil)()
	b.send(strings.Replace(directive, `{`, `{"step_type":"SCAN",`, 1))
	b.until(func() bool { left := b.Messages(directives); return len(left) == 0 || left[0].Deliveries > 0 })
	defer b.workOn("SCAN", stores, nil)()
	if types, last := b.replied(2); types != "ACK RESULT" || last.Status != api.ResultStatusSucceeded {
		t.Errorf("%s: %+v", types, last)
	}
}

// A worker that stops gives back the directives that take longer than its grace, without
// a report: another worker may do them, in the same attempt.
func TestWorker_GivesBackWhatOutlastsItsGrace(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	stop := b.work(func(ctx context.Context, _ *lucius.Task) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, func(cfg *servicebus.Config) { cfg.Grace = 10 * time.Millisecond })
	b.sendFor(directive, new(time.Hour))
	b.replied(1)
	stop()
	if left := b.Messages(directives); len(left) != 1 || left[0].Locked || b.Depth(replies) != 1 {
		t.Errorf("%+v is left, after %d replies", left, b.Depth(replies))
	}
}

// What the bus delivers to a worker that stops, because the worker had asked for it, is
// given back at once: otherwise it would stay locked.
func TestWorker_GivesBackWhatItDoesNotTake(t *testing.T) {
	t.Parallel()
	for range 3 { // Each lane hits the moment by chance.
		t.Run("", func(t *testing.T) {
			t.Parallel()
			const lanes, each = 8, 40
			b := newLanes(t, lanes)
			client, err := azservicebus.NewClientFromConnectionString(b.ConnectionString(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close(t.Context()) }() // The messages are there.
			for n := range lanes {
				sender, err := client.NewSender(fmt.Sprint("global-bus-p", n), nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := range each {
					body := strings.Replace(directive, `"jobId":"j"`, fmt.Sprintf(`"jobId":"j%d"`, i), 1)
					if err := sender.SendMessage(t.Context(), &azservicebus.Message{Body: []byte(body)}, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			stop := b.work(stores, func(cfg *servicebus.Config) { cfg.Lanes, cfg.Parallel, cfg.Grace = lanes, 8, time.Minute })
			for n := range lanes {
				b.until(func() bool { return b.Depth(fmt.Sprintf("global-bus-replies-p%d/Subscriptions/lucius", n)) >= each/4 })
			}
			stop()
			for n := range lanes {
				for _, m := range b.Messages(fmt.Sprintf("global-bus-p%d/Subscriptions/ocr", n)) {
					if m.Locked {
						t.Errorf("%s of lane %d is locked", m.Body, n)
					}
				}
			}
		})
	}
}

// A worker gives back its directives even if the connection that delivered them is gone, by
// their locks.
func TestWorker_GivesBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	stop := b.work(func(ctx context.Context, _ *lucius.Task) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, func(cfg *servicebus.Config) { cfg.Grace = 10 * time.Millisecond })
	b.send(directive)
	b.replied(1)
	b.Stop()
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	stop()
	if left := b.Messages(directives); len(left) != 1 || left[0].Locked {
		t.Errorf("%+v is left", left)
	}
}

// The bus would drop an expired message instead of delivering it again, and the step would
// wait for the end of its lease. So its failure is reported.
func TestWorker_ReportsWhatItCannotGiveBack(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	stop := b.work(func(ctx context.Context, _ *lucius.Task) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, func(cfg *servicebus.Config) { cfg.Grace = 10 * time.Millisecond })
	b.send("not json")
	b.until(func() bool { return b.Depth(directives+"/$DeadLetterQueue") == 1 }) // It reads the lane.
	b.sendFor(directive, new(4*time.Second))
	b.replied(1)
	stop()
	types, last := b.replied(2)
	if types != "ACK RESULT" || last.Status != api.ResultStatusFailedRetry || last.Error.Code != "worker_stopped" ||
		last.RetryAfterSeconds != 1 || b.Depth(directives) != 0 {
		t.Errorf("%s: %+v, %d directives are left", types, last, b.Depth(directives))
	}
}

// What ends within the grace is reported.
func TestWorker_FinishesWithinItsGrace(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	release := make(chan struct{})
	stop := b.work(func(context.Context, *lucius.Task) (any, error) { <-release; return nil, nil },
		func(cfg *servicebus.Config) { cfg.Grace = time.Minute })
	b.send(directive)
	b.replied(1)
	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	stop()
	if types, _ := b.replied(2); types != "ACK RESULT" || b.Depth(directives) != 0 {
		t.Errorf("%s, %d directives are left", types, b.Depth(directives))
	}
}
