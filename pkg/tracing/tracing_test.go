package tracing_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tracing"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is a process that reports its spans to a collector.
type replica struct {
	t      *testing.T
	tracer *tracing.Tracer
	ledger *ledgertest.Ledger
	queue  *workqueue.Queue
	sender string // the traceparent that its worker sends, if any
}

func start(t *testing.T, store tablestore.Store, collector *tracetest.InMemoryExporter, sampler sdktrace.Sampler) *replica {
	t.Helper()
	tracer := tracing.New(sdktrace.NewSimpleSpanProcessor(collector), resource.Empty(), sampler)
	mirror := workqueue.NewMirror(0)
	l := ledgertest.Open(t, ledger.Config{
		Store: store, Ready: mirror.Ready, Taker: mirror.Taker, Sample: tracer.Sample,
		Observe: func(ctx context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition) {
			tracer.Observe(ctx, before, after, history)
			if after.Job.State.Terminal() {
				tracer.Webhook(&after.Job, time.Now(), "delivered", "")
			}
		},
	})
	queue := workqueue.New(workqueue.Config{Ledger: l.Ledger, Store: store, Mirror: mirror})
	return &replica{t: t, tracer: tracer, ledger: l, queue: queue}
}

func (r *replica) submit(traceparent string, steps ...string) string {
	var all []statemachine.Step
	for i, step := range steps {
		all = append(all, statemachine.Step{
			ID: fmt.Sprint("s", i), Type: strings.ToUpper(step), Service: step,
			Policy: statemachine.Policy{AckTimeout: time.Minute, Lease: time.Minute, Execution: []time.Duration{time.Second}},
		})
	}
	cmd := ledgertest.Command("tenant_a", "h", all...)
	cmd.Job.Traceparent = traceparent
	return r.ledger.Submit(cmd)
}

// work claims the next item, starts it a second later, and reports its end a second
// after that. It returns the traceparent of the directive.
func (r *replica) work(request, failure string) string {
	r.t.Helper()
	time.Sleep(time.Second)
	ctx := r.tracer.Received(r.t.Context(), r.sender)
	claimed, err := r.queue.Claim(ctx, workqueue.ClaimRequest{Owner: "w", RequestID: request, Max: 1, Wait: time.Minute})
	if err != nil || len(claimed) != 1 {
		r.t.Fatalf("claimed %d items: %v", len(claimed), err)
	}
	item := claimed[0].Item
	by := statemachine.ItemRequest{Actor: "w", ID: request + "-start", ExpectedRev: item.Rev}
	view, err := r.queue.Start(ctx, item.WorkID, by)
	if err != nil {
		r.t.Fatal(err)
	}
	time.Sleep(time.Second)
	by = statemachine.ItemRequest{Actor: "w", ID: request + "-end", ExpectedRev: view.Item.Rev}
	if failure == "" {
		_, err = r.queue.Complete(ctx, item.WorkID, by, statemachine.Product{})
	} else {
		_, err = r.queue.Fail(ctx, item.WorkID, by, workqueue.Failure{
			Retryable: true, Code: failure, Message: "try again",
		})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	var directive statemachine.Directive
	if err := json.Unmarshal(claimed[0].Directive, &directive); err != nil || directive.Traceparent == nil {
		r.t.Fatalf("directive %s: %v", claimed[0].Directive, err)
	}
	return *directive.Traceparent
}

// tree draws the spans below a parent, with durations, failures and links.
func tree(spans tracetest.SpanStubs, parent trace.SpanID, indent string) string {
	var out strings.Builder
	for _, s := range spans {
		if s.Parent.SpanID() != parent {
			continue
		}
		fmt.Fprintf(&out, "%s%s %s", indent, s.Name, s.EndTime.Sub(s.StartTime))
		if s.Status.Description != "" {
			fmt.Fprintf(&out, " failed: %s", s.Status.Description)
		}
		for _, link := range s.Links {
			at := slices.IndexFunc(spans, func(o tracetest.SpanStub) bool { return o.SpanContext.SpanID() == link.SpanContext.SpanID() })
			fmt.Fprintf(&out, " after %s of %s", spans[at].Name, spans[at].EndTime.Sub(spans[at].StartTime))
		}
		out.WriteString("\n" + tree(spans, s.SpanContext.SpanID(), indent+"  "))
	}
	return out.String()
}

const traceOfARetry = `
job doc.ingest 7s
  accept 0s
  step OCR 2s failed: BUSY try again
    publish 0s
    deliver 1s
    run 1s failed: BUSY try again
  step OCR 2s after step OCR of 2s
    publish 0s
    deliver 1s
    run 1s
  step EMBED 2s
    publish 0s
    deliver 1s
    run 1s
  webhook 0s
`

// A job with a retry is one connected trace, whichever replica made which change; the spans
// of workers have a parent in it.
func TestAJobIsOneTrace(t *testing.T) {
	t.Parallel()
	const client = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, c := range []struct{ name, traceparent string }{{"the command's", client}, {"its own", ""}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				collector := tracetest.NewInMemoryExporter()
				store := memstore.New(memstore.Options{})
				one := start(t, store, collector, sdktrace.AlwaysSample())
				other := start(t, store, collector, sdktrace.AlwaysSample())
				id := one.submit(c.traceparent, "ocr", "embed")
				seen := []string{other.work("r1", "BUSY")}
				time.Sleep(time.Second)
				if _, err := other.ledger.Change(t.Context(), id, statemachine.DeadlinePassed{}); err != nil { // The retry is due.
					t.Fatal(err)
				}
				seen = append(seen, other.work("r2", ""), other.work("r3", ""))

				spans := collector.GetSpans()
				root, err := trace.SpanIDFromHex("00f067aa0ba902b7")
				if c.traceparent == "" {
					root, err = trace.SpanID{}, nil
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(traceOfARetry, "\n"+tree(spans, root, "")); diff != "" {
					t.Errorf("trace (-want +got):\n%s", diff)
				}
				for i, traceparent := range seen {
					place, _ := statemachine.ParseTrace(traceparent)
					at := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.SpanContext.SpanID() == place.Span })
					if at < 0 || spans[at].SpanContext.TraceID() != place.ID {
						t.Errorf("directive %d names %s, which is no span of the trace", i, traceparent)
					}
				}
				for _, s := range spans {
					if s.SpanContext.TraceID() != spans[0].SpanContext.TraceID() {
						t.Errorf("span %s is in another trace", s.Name)
					}
				}
			})
		})
	}
}

// An attempt that a pause withdraws ends without a failure.
func TestAWithdrawnAttemptIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		collector := tracetest.NewInMemoryExporter()
		r := start(t, memstore.New(memstore.Options{}), collector, sdktrace.AlwaysSample())
		id := r.submit("", "ocr")
		for _, event := range []statemachine.Event{statemachine.Pause{}, statemachine.Resume{}} {
			if _, err := r.ledger.Change(t.Context(), id, event); err != nil {
				t.Fatal(err)
			}
		}
		r.work("r", "")
		got := tree(collector.GetSpans(), trace.SpanID{}, "")
		if strings.Contains(got, "failed") || !strings.Contains(got, "step OCR 0s\n") || !strings.Contains(got, "step OCR 2s after step OCR of 0s\n") {
			t.Errorf("the trace is\n%s", got)
		}
	})
}

// A span that a worker's request ends is linked to the worker's span, unless the worker
// only repeats the traceparent of its directive.
func TestASpanThatAWorkerEndsIsLinkedToItsSpan(t *testing.T) {
	t.Parallel()
	const worker = "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-00"
	for _, c := range []struct {
		name   string
		sender func(directive string) string
		linked string
	}{
		{"its own span", func(string) string { return worker }, worker},
		{"the directive's", func(directive string) string { return directive }, ""},
		{"no traceparent", func(string) string { return "mine" }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				collector := tracetest.NewInMemoryExporter()
				r := start(t, memstore.New(memstore.Options{}), collector, sdktrace.AlwaysSample())
				id := r.submit("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "ocr")
				job, err := r.ledger.Job(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				at, _ := statemachine.ParseTrace(job.Job.Traceparent)
				r.sender = c.sender(at.OfAttempt(id, 0, 1).String())
				r.work("r", "")
				for _, s := range collector.GetSpans() {
					got := ""
					for _, link := range s.Links {
						got += (statemachine.Trace{
							ID: link.SpanContext.TraceID(), Span: link.SpanContext.SpanID(), Sampled: link.SpanContext.IsSampled(),
						}).String()
					}
					want := ""
					if s.Name == "deliver" || s.Name == "run" {
						want = c.linked
					}
					if got != want {
						t.Errorf("%s is linked to %q, want %q", s.Name, got, want)
					}
				}
			})
		})
	}
}

// Nothing is allocated for traces when there are none.
func TestOffCostsNothing(t *testing.T) { //nolint:paralleltest // Allocations of others would count.
	var off *tracing.Tracer
	after := &statemachine.Aggregate{
		Job:   statemachine.Job{ID: "job", State: statemachine.JobSucceeded, Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		Steps: []statemachine.Step{{ID: "ocr", State: statemachine.StepSucceeded, AttemptNo: 1}},
	}
	history := []statemachine.Transition{
		{Object: statemachine.ObjectStep, ID: "ocr", From: string(statemachine.StepInProgress), To: string(statemachine.StepSucceeded)},
		{Object: statemachine.ObjectJob, From: string(statemachine.JobInProgress), To: string(statemachine.JobSucceeded)},
	}
	ctx, now := t.Context(), time.Now()
	if got := testing.AllocsPerRun(1000, func() {
		off.Observe(off.Received(ctx, after.Job.Traceparent), after, after, history)
		off.Webhook(&after.Job, now, "delivered", "")
	}); got > 0 {
		t.Errorf("%g allocations", got)
	}
}

// A trace that is not recorded has no spans, and its directives say so.
func TestATraceThatIsNotRecorded(t *testing.T) {
	t.Parallel()
	for name, traceparent := range map[string]string{
		"by its sender": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
		"by choice":     "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				collector := tracetest.NewInMemoryExporter()
				r := start(t, memstore.New(memstore.Options{}), collector, sdktrace.NeverSample())
				r.submit(traceparent, "ocr")
				seen := r.work("r", "")
				if spans := collector.GetSpans(); len(spans) > 0 || !strings.HasSuffix(seen, "-00") {
					t.Errorf("%d spans, and the directive names %s", len(spans), seen)
				}
			})
		})
	}
}

func TestFromEnvironment(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, c := range []struct {
		name string
		env  map[string]string
		on   bool
		says string
	}{
		{name: "nothing is set"},
		{name: "none", env: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}},
		{name: "disabled", env: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
		{name: "an endpoint", env: map[string]string{endpoint: "http://127.0.0.1:1"}, on: true},
		{name: "one of gRPC", env: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, on: true},
		{name: "a ratio", env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, on: true},
		{name: "another exporter", env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, says: `OTEL_TRACES_EXPORTER is "zipkin", must be otlp or none`},
		{name: "another protocol", env: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, says: "OTEL_EXPORTER_OTLP_PROTOCOL"},
		{name: "another sampler", env: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER": "jaeger_remote"}, says: "OTEL_TRACES_SAMPLER is"},
		{name: "a bad ratio", env: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, says: "OTEL_TRACES_SAMPLER_ARG"},
		{name: "bad attributes", env: map[string]string{endpoint: "http://127.0.0.1:1", "OTEL_RESOURCE_ATTRIBUTES": "a"}, says: "OTEL_RESOURCE_ATTRIBUTES"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			tracer, err := tracing.FromEnvironment(t.Context(), "v1", slog.New(slog.DiscardHandler))
			switch {
			case c.says != "":
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("error %v, want %q", err, c.says)
				}
			case err != nil || (tracer != nil) != c.on:
				t.Errorf("on: %v, %v; want %v", tracer != nil, err, c.on)
			}
			if tracer != nil {
				if err := tracer.Close(t.Context()); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
	}
}
