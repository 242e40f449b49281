package httpapi

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lucius-project/lucius/api"
)

// GetHealth is GET /healthz.
func (e *endpoints) GetHealth(w http.ResponseWriter, r *http.Request) {
	e.respond.json(w, r, http.StatusOK, api.Health{Status: "ok"})
}

// GetReadiness is GET /readyz.
func (e *endpoints) GetReadiness(w http.ResponseWriter, r *http.Request) {
	if e.server.draining() {
		e.respond.problem(w, r, errDraining)
		return
	}
	warnings, err := e.readiness.Ready(r.Context())
	if !e.guard.operates(r) {
		warnings = nil // They tell of tenants, and of what is weak at the moment.
	}
	e.respond.answer(w, r, http.StatusOK, api.Readiness{Status: "ready", Warnings: listed(warnings)}, err)
}

// GetMetrics is GET /metrics.
func (e *endpoints) GetMetrics(w http.ResponseWriter, r *http.Request) {
	e.metrics.ServeHTTP(w, r)
}

// GetOpenAPI is GET /openapi.yaml.
func (e *endpoints) GetOpenAPI(w http.ResponseWriter, _ *http.Request) {
	e.respond.send(w, http.StatusOK, "application/openapi+yaml", e.spec)
}

// metricsHandler shows what the registry holds. A metric that can not be
// collected is logged and left out.
func metricsHandler(registry *prometheus.Registry, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling:     promhttp.ContinueOnError,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelError),
		Registry:          registry,
		EnableOpenMetrics: true,
	})
}

// ListProtocols is GET /v1/protocols.
func (e *endpoints) ListProtocols(w http.ResponseWriter, r *http.Request) {
	found, err := e.protocols.Protocols(r.Context())
	found.Protocols = listed(found.Protocols)
	e.respond.answer(w, r, http.StatusOK, found, err)
}
