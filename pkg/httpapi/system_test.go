package httpapi_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestHealthzDoesNotDependOnTheStore(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.fail(errors.New("down"))
	h.Drain()
	response := h.do(t, http.MethodGet, "/healthz", "")
	if got := response.Body; response.Status != http.StatusOK || got != `{"status":"ok"}`+"\n" {
		t.Errorf("%d: %s", response.Status, got)
	}
}

func TestReadyz(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const ready = `{"status":"ready","warnings":["The circuit to the bus is open."]}` + "\n"
	if got := h.do(t, http.MethodGet, "/readyz", "").Body; got != ready {
		t.Errorf("with a warning: %s", got)
	}
	h.store.fail(&apierror.Error{Code: apierror.StoreUnavailable, Detail: "The store does not answer."})
	wantProblem(t, h.do(t, http.MethodGet, "/readyz", ""), apierror.StoreUnavailable, "The store does not answer.")
	h.store.fail(nil)
	h.Drain()
	wantProblem(t, h.do(t, http.MethodGet, "/readyz", ""), apierror.ShuttingDown, "This process stops; send the request again.")
}

func TestOpenAPIIsServedUnchanged(t *testing.T) {
	t.Parallel()
	response := newHarness(t).do(t, http.MethodGet, "/openapi.yaml", "")
	if got := response.Body; got != string(api.Spec()) {
		t.Errorf("got %d bytes, want %d", len(got), len(api.Spec()))
	}
}

func TestRequestsAreMeasuredByRouteMethodAndCode(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for range 2 {
		h.do(t, http.MethodPost, "/v1/jobs/$job:cancel", "")
	}
	h.do(t, http.MethodPost, "/v1/jobs/$job:cancel", "{")
	h.do(t, http.MethodGet, "/v1/work/$claimed/events", "")
	h.do(t, "BREW", "/teapot", "")
	h.do(t, "BREW", "/v1/commands", "")
	h.do(t, http.MethodGet, "/v1/jobs/$job?wait=1ms", "")
	h.do(t, http.MethodGet, "/v1/jobs/$job", "")
	h.measures(t,
		`lucius_http_requests_total{code="202",method="POST",route="/v1/jobs/{jobId}:cancel"} 2`,
		`lucius_http_requests_total{code="400",method="POST",route="/v1/jobs/{jobId}:cancel"} 1`,
		`lucius_http_requests_total{code="200",method="GET",route="/v1/work/{workId}/events"} 1`,
		`lucius_http_requests_total{code="404",method="other",route="unmatched"} 1`,
		`lucius_http_requests_total{code="405",method="other",route="unmatched"} 1`,
		`lucius_http_request_duration_seconds_count{method="POST",route="/v1/jobs/{jobId}:cancel"} 3`,
		`lucius_http_request_duration_seconds_count{method="GET",route="/v1/jobs/{jobId}"} 1`,
		`lucius_http_wait_duration_seconds_count{method="GET",route="/v1/jobs/{jobId}"} 1`,
		`lucius_http_requests_in_flight 1`,
	)
}

func TestMetricsShowTheWholeRegistry(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "lucius_something", Help: "Something."})
	h.registry.MustRegister(gauge)
	gauge.Set(7)
	h.measures(t, "lucius_something 7")
	openMetrics := h.do(t, http.MethodGet, "/metrics", "", "Accept: application/openmetrics-text")
	if got := openMetrics.Body; !strings.HasSuffix(got, "# EOF\n") {
		t.Errorf("asked for OpenMetrics, got %s", got)
	}
}
