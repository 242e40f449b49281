package tracing

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Tracer reports the spans of jobs. It is safe for concurrent use. A nil one reports
// nothing, and costs nothing.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  sdktrace.Sampler
}

// FromEnvironment returns a tracer that the variables OTEL_* of OpenTelemetry configure,
// or nil if they name no place to report to, or OTEL_SDK_DISABLED is true. The error
// names the variable whose value is invalid. log gets what the exporter complains of.
func FromEnvironment(ctx context.Context, version string, log *slog.Logger) (*Tracer, error) {
	exporter := os.Getenv("OTEL_TRACES_EXPORTER")
	named := exporter != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	switch {
	case !named || exporter == "none" || os.Getenv("OTEL_SDK_DISABLED") == "true":
		return nil, nil
	case exporter != "" && exporter != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q, must be otlp or none", exporter)
	}
	sampler, err := samplerOf(os.Getenv("OTEL_TRACES_SAMPLER"), os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
	if err != nil {
		return nil, err
	}
	protocol := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
	if protocol == "" {
		protocol = os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
	}
	var to sdktrace.SpanExporter
	switch protocol {
	case "", "http/protobuf":
		to, err = otlptracehttp.New(ctx)
	case "grpc":
		to, err = otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q, must be http/protobuf or grpc", protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(
		attribute.String("service.name", "lucius"), attribute.String("service.version", version),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.WarnContext(ctx, "spans could not be reported", "error", err)
	}))
	return New(sdktrace.NewBatchSpanProcessor(to), about, sampler), nil
}

// samplerOf returns the sampler of a command that begins a trace.
func samplerOf(name, arg string) (sdktrace.Sampler, error) {
	switch name {
	case "", "always_on", "parentbased_always_on":
		return sdktrace.AlwaysSample(), nil
	case "always_off", "parentbased_always_off":
		return sdktrace.NeverSample(), nil
	case "traceidratio", "parentbased_traceidratio":
		ratio, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q, must be a number from 0 to 1", arg)
		}
		return sdktrace.TraceIDRatioBased(ratio), nil
	}
	return nil, fmt.Errorf("OTEL_TRACES_SAMPLER is %q, must be always_on, always_off or traceidratio, "+
		"or one of them after parentbased_", name)
}

// New returns a tracer that gives its spans to the processor, which [Tracer.Close]
// shuts down.
func New(to sdktrace.SpanProcessor, about *resource.Resource, sampler sdktrace.Sampler) *Tracer {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(to), sdktrace.WithResource(about),
		sdktrace.WithSampler(sdktrace.AlwaysSample()), // Only spans of recorded traces are begun.
		sdktrace.WithIDGenerator(ids{}))
	return &Tracer{provider: provider, tracer: provider.Tracer("github.com/lucius-project/lucius"), sampler: sampler}
}

// Close reports the last spans and ends. It returns the exporter's error.
func (t *Tracer) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }

// Sample decides whether a trace that a command begins is recorded.
func (t *Tracer) Sample(id [16]byte) bool {
	return t.sampler.ShouldSample(sdktrace.SamplingParameters{TraceID: id}).Decision == sdktrace.RecordAndSample
}

// senderKey is the key of the span of a context's sender, a [statemachine.Trace].
type senderKey struct{}

// Received returns the context for handling what a sender asks for: the spans that end by
// it are linked to the sender's, which the traceparent names. It returns ctx if that
// names none.
//
// Source: Option B spec, 20.
func (t *Tracer) Received(ctx context.Context, traceparent string) context.Context {
	if t == nil || traceparent == "" {
		return ctx
	}
	if from, ok := statemachine.ParseTrace(traceparent); ok {
		return context.WithValue(ctx, senderKey{}, from)
	}
	return ctx
}

// Observe reports the spans that a committed change ended. It does not block, and is
// for ledger.Config.
func (t *Tracer) Observe(ctx context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition) {
	if t == nil {
		return
	}
	from, ok := statemachine.ParseTrace(after.Job.Traceparent)
	if !ok || !from.Sampled {
		return
	}
	job := from.OfJob(after.Job.ID)
	for i := range history {
		h := &history[i]
		switch {
		case h.Type == statemachine.EventJobAccepted:
			t.report(span{name: "accept", parent: job, begin: after.Job.CreatedAt, end: time.Now()}, ofJob(&after.Job))
		case h.Object == statemachine.ObjectJob && h.From != h.To && statemachine.JobState(h.To).Terminal():
			t.ended(from, &after.Job)
		case h.Object == statemachine.ObjectOutbox && h.From != h.To && h.To == string(statemachine.OutboxSent):
			if row := after.Outbox; row != nil && row.ID == h.ID {
				step := &after.Steps[row.StepIndex]
				attempt := from.OfAttempt(after.Job.ID, row.StepIndex, row.AttemptNo)
				t.report(span{name: "publish", kind: trace.SpanKindProducer, parent: attempt, begin: row.CreatedAt, end: row.SentAt},
					ofStep(&after.Job, step, row.AttemptNo, attribute.String("lucius.bus", string(row.Bus))))
			}
		case h.Object == statemachine.ObjectStep:
			for index := range after.Steps {
				if after.Steps[index].ID == h.ID {
					sender, _ := ctx.Value(senderKey{}).(statemachine.Trace)
					t.stepped(from, sender, before, after, index, h)
				}
			}
		}
	}
}

// stepped reports the spans that the transition of a step ended. If sender is not the zero
// value, the sender's message caused it.
func (t *Tracer) stepped(
	from, sender statemachine.Trace, before, after *statemachine.Aggregate, index int, h *statemachine.Transition,
) {
	if index >= len(before.Steps) {
		return // The job is new: nothing has ended.
	}
	was, step := &before.Steps[index], &after.Steps[index]
	attempt, now := from.OfAttempt(after.Job.ID, index, was.AttemptNo), after.Job.UpdatedAt
	if sender.Span == attempt.Span {
		sender = statemachine.Trace{} // The worker repeats what its directive names, and has no span of its own.
	}
	about := ofStep(&after.Job, step, was.AttemptNo)
	begin := was.UpdatedAt
	if row := before.Outbox; row != nil && row.StepIndex == index {
		begin = row.CreatedAt
		if h.To == string(statemachine.StepInProgress) && h.From != h.To {
			t.report(span{name: "deliver", kind: trace.SpanKindConsumer, parent: attempt, link: sender, begin: row.SentAt, end: now}, about)
		}
	}
	switch statemachine.StepState(h.From) {
	case statemachine.StepDispatching, statemachine.StepAwaitingAck, statemachine.StepInProgress:
	default:
		return // No attempt was in progress: it has ended, or not begun.
	}
	failure := ""
	switch statemachine.StepState(h.To) {
	case statemachine.StepSucceeded, statemachine.StepCancelled:
	case statemachine.StepFailedRetry, statemachine.StepFailedFinal:
		if h.Detail != "" { // Otherwise the attempt was withdrawn, which is no failure.
			failure = step.LastErrorCode + " " + step.LastErrorMessage
		}
	default:
		return
	}
	about = append(about, attribute.String("lucius.outcome", h.To), attribute.String("lucius.cause", h.Cause))
	if h.From == string(statemachine.StepInProgress) { // A RESULT without an ACK starts the step as well.
		t.report(span{name: "run", parent: attempt, link: sender, begin: step.StartedAt, end: now, failure: failure}, about)
	}
	whole := span{name: "step " + step.Type, id: attempt, parent: from.OfJob(after.Job.ID), begin: begin, end: now, failure: failure}
	if was.AttemptNo > 1 {
		whole.link = from.OfAttempt(after.Job.ID, index, was.AttemptNo-1)
	}
	t.report(whole, about)
}

// ended reports the span of a job.
func (t *Tracer) ended(from statemachine.Trace, job *statemachine.Job) {
	whole := span{name: "job " + job.RequestType, kind: trace.SpanKindServer, id: from.OfJob(job.ID), parent: from,
		begin: job.CreatedAt, end: job.CompletedAt}
	if whole.id == from {
		whole.parent = statemachine.Trace{ID: from.ID} // The job began the trace.
	}
	if job.State == statemachine.JobFailedFinal {
		whole.failure = job.ErrorCode + " " + job.ErrorMessage
	}
	t.report(whole, append(ofJob(job), attribute.String("lucius.outcome", string(job.State))))
}

// Webhook reports an attempt to tell a receiver how a job ended.
func (t *Tracer) Webhook(job *statemachine.Job, begin time.Time, outcome, failure string) {
	if t == nil {
		return
	}
	if from, ok := statemachine.ParseTrace(job.Traceparent); ok && from.Sampled {
		sent := span{name: "webhook", kind: trace.SpanKindClient, parent: from.OfJob(job.ID), begin: begin, end: time.Now()}
		sent.failure = failure
		t.report(sent, append(ofJob(job), attribute.String("lucius.outcome", outcome)))
	}
}

func ofJob(job *statemachine.Job, more ...attribute.KeyValue) []attribute.KeyValue {
	return append([]attribute.KeyValue{
		attribute.String("lucius.job_id", job.ID), attribute.String("lucius.tenant_id", job.TenantID),
		attribute.String("lucius.request_type", job.RequestType), attribute.String("lucius.protocol_id", job.ProtocolID),
		attribute.String("lucius.correlation_id", job.CorrelationID),
	}, more...)
}

func ofStep(job *statemachine.Job, step *statemachine.Step, attemptNo int, more ...attribute.KeyValue) []attribute.KeyValue {
	return append(ofJob(job,
		attribute.String("lucius.step_id", step.ID), attribute.String("lucius.step_type", step.Type),
		attribute.String("lucius.service", step.Service), attribute.Int("lucius.attempt_no", attemptNo),
	), more...)
}

// span is a span that has ended.
type span struct {
	name       string
	kind       trace.SpanKind
	id         statemachine.Trace // the zero value draws one
	parent     statemachine.Trace // without a span it begins the trace
	link       statemachine.Trace // the previous attempt, or the sender of the message that ended the span, else the zero value
	begin, end time.Time
	failure    string
}

func (t *Tracer) report(s span, about []attribute.KeyValue) {
	ctx := context.WithValue(context.Background(), idKey{}, [2]statemachine.Trace{s.parent, s.id})
	if s.parent.Span != [8]byte{} {
		ctx = trace.ContextWithRemoteSpanContext(ctx, contextOf(s.parent))
	}
	options := []trace.SpanStartOption{trace.WithTimestamp(s.begin), trace.WithSpanKind(s.kind), trace.WithAttributes(about...)}
	if s.link.Span != [8]byte{} {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: contextOf(s.link)}))
	}
	_, reported := t.tracer.Start(ctx, s.name, options...)
	if s.failure != "" {
		reported.SetStatus(codes.Error, s.failure)
	}
	reported.End(trace.WithTimestamp(s.end))
}

func contextOf(at statemachine.Trace) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: at.ID, SpanID: at.Span, TraceFlags: trace.TraceFlags(0).WithSampled(at.Sampled), Remote: true,
	})
}

// idKey is the key of the ids in a context: of the parent, and of the span.
type idKey struct{}

// ids gives a span the id of its context, or a random one.
type ids struct{}

func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) (id trace.SpanID) {
	if given, ok := ctx.Value(idKey{}).([2]statemachine.Trace); ok && given[1].Span != [8]byte{} {
		return given[1].Span
	}
	for !id.IsValid() {
		_, _ = rand.Read(id[:]) // It never fails.
	}
	return id
}

func (g ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	given, _ := ctx.Value(idKey{}).([2]statemachine.Trace)
	return given[0].ID, g.NewSpanID(ctx, given[0].ID)
}
