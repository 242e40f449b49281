package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// spans collects what a server reports by OTLP.
type spans struct {
	mu  sync.Mutex
	all []*otlp.Span
}

// collectSpans starts a collector, and has the servers of this test report to it.
func collectSpans(t *testing.T) *spans {
	t.Helper()
	s := &spans{}
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var request collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &request); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, resource := range request.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				s.all = append(s.all, scope.Spans...)
			}
		}
	}))
	t.Cleanup(endpoint.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.URL)
	return s
}

// tree draws the spans below a span, in the order of their starts. Commits that follow each
// other closely may be reported in another order.
func (s *spans) tree(parent, indent string) string {
	ranks := []string{"run", "deliver", "publish", "accept"} // in reverse, for spans that begin in the same millisecond
	slices.SortStableFunc(s.all, func(a, b *otlp.Span) int {
		return cmp.Or(cmp.Compare(a.StartTimeUnixNano, b.StartTimeUnixNano), slices.Index(ranks, b.Name)-slices.Index(ranks, a.Name))
	})
	var out strings.Builder
	for _, span := range s.all {
		if hex.EncodeToString(span.ParentSpanId) == parent {
			links := ""
			for _, link := range span.Links {
				links += " linked"
				if hex.EncodeToString(link.SpanId) == workersSpan && hex.EncodeToString(link.TraceId) == clientTrace {
					links += " to the worker"
				}
			}
			fmt.Fprintf(&out, "%s%s%s\n%s", indent, span.Name, links, s.tree(hex.EncodeToString(span.SpanId), indent+"  "))
		}
	}
	return out.String()
}

const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan  = "00f067aa0ba902b7"
	workersSpan = "b7ad6b7169203331"
)

// workerSpan returns the traceparent of a worker's span below that of its directive, or
// an empty one if the directive names none.
func workerSpan(d *lucius.Directive) string {
	if d.Traceparent == nil {
		return ""
	}
	return "00-" + strings.Split(*d.Traceparent, "-")[1] + "-" + workersSpan + "-01"
}

// A job over HTTP with a retry and a webhook, and a job over Service Bus with replies, are
// each one connected trace below the client's span.
func TestTraces_AJobIsOneConnectedTrace(t *testing.T) { //nolint:paralleltest // It sets the environment.
	attempt := func(step string) string {
		return "  step " + step + "\n    publish\n    deliver\n    run\n"
	}
	const linked = " linked to the worker\n"
	t.Run("over HTTP", func(t *testing.T) {
		collected := collectSpans(t)
		url, hooks := receive(t)
		s := serveOn(t, t.TempDir(), append([]string{
			"--execution-backoff", "1ms", "--webhook-secrets", testSecret, "--webhook-networks", "127.0.0.0/8", "--webhook-allow-http", "true",
		}, longTimeouts...)...)
		jobID := s.submitTraced(t, url)
		item := s.claim(t, "claim", true)
		if !strings.Contains(string(item.Directive), `"traceparent":"00-`+clientTrace) {
			t.Errorf("the directive is %s", item.Directive)
		}
		failed, err := s.client.FailWorkWithResponse(t.Context(), item.WorkID, api.WorkFailure{
			Owner: "w", ExpectedRev: item.Rev, RequestID: "f", Retryable: true, Error: api.ReportedError{Code: "BUSY", Message: "m"},
		}, func(_ context.Context, r *http.Request) error {
			r.Header.Set("traceparent", "00-"+clientTrace+"-"+workersSpan+"-01")
			return nil
		})
		if err != nil || failed.JSON200 == nil {
			t.Fatalf("fail: %v, %s", err, bodyOf(failed))
		}
		finish(t, s, jobID)
		header := waittest.Receive(t, "the webhook", hooks).header.Get("traceparent")
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		want := "job doc.ingest\n  accept\n" + strings.Replace(attempt("EXTRACT"), "run\n", "run"+linked, 1) +
			strings.Replace(attempt("EXTRACT"), "\n", " linked\n", 1) +
			attempt("EMBED") + attempt("INDEX") + "  webhook\n"
		if got := collected.tree(clientSpan, ""); got != want {
			t.Errorf("the trace is\n%s, want\n%s", got, want)
		}
		at := slices.IndexFunc(collected.all, func(s *otlp.Span) bool { return strings.HasPrefix(s.Name, "job ") })
		if want := fmt.Sprintf("00-%s-%x-01", clientTrace, collected.all[at].SpanId); header != want {
			t.Errorf("the webhook names %s, want %s", header, want)
		}
	})
	t.Run("over Service Bus", func(t *testing.T) {
		collected := collectSpans(t)
		namespace := newNamespace(t)
		s := serveOn(t, filepath.Join(t.TempDir(), "data"), append(onBus(namespace), longTimeouts...)...)
		rest := workOnBus(t, namespace, func(context.Context, *lucius.Task) (any, error) { return nil, nil })
		s.wait(t, s.submitTraced(t, ""))
		rest()
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		want := "job doc.ingest\n  accept\n" + attempt("EXTRACT") + attempt("EMBED") + attempt("INDEX")
		want = strings.NewReplacer("deliver\n", "deliver"+linked, "run\n", "run"+linked).Replace(want)
		if got := collected.tree(clientSpan, ""); got != want {
			t.Errorf("the trace is\n%s, want\n%s", got, want)
		}
	})
}

// submitTraced submits a command of a traced client.
func (s *testServer) submitTraced(t *testing.T, callbackURL string) string {
	t.Helper()
	command := api.Command{
		TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1", Payload: []byte(`{"language":"en"}`),
		InputRef: []byte(`{"uri":"s3://in"}`), OutputRef: []byte(`{"uri":"s3://out"}`),
	}
	if callbackURL != "" {
		command.CallbackURLs = []string{callbackURL}
	}
	traceparent := "00-" + clientTrace + "-" + clientSpan + "-01"
	response, err := s.client.SubmitCommandWithResponse(t.Context(), &api.SubmitCommandParams{Traceparent: &traceparent}, command)
	if err != nil || response.JSON202 == nil {
		t.Fatalf("submit: %v, %s", err, bodyOf(response))
	}
	return response.JSON202.JobID
}
