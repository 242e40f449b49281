package httpapi

import (
	"log/slog"
	"net/http"
	"path/filepath"

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
	warnings, err := e.ready(r.Context())
	if warnings == nil || !e.guard.operates(r) {
		warnings = []string{} // They name tenants and weaknesses.
	}
	e.respond.answer(w, r, http.StatusOK, api.Readiness{Status: "ready", Warnings: warnings}, err)
}

// GetMetrics is GET /metrics.
func (e *endpoints) GetMetrics(w http.ResponseWriter, r *http.Request) {
	e.metrics.ServeHTTP(w, r)
}

// GetOpenAPI is GET /openapi.yaml.
func (e *endpoints) GetOpenAPI(w http.ResponseWriter, _ *http.Request) {
	e.respond.send(w, http.StatusOK, "application/openapi+yaml", e.spec)
}

// metricsHandler serves the registry's metrics. A metric that cannot be collected is
// logged and left out.
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
	all := e.Protocols.Current().Protocols()
	found := api.ProtocolList{Protocols: make([]api.Protocol, len(all)), LoadedAt: api.NewTime(e.Protocols.LoadedAt())}
	for i, p := range all {
		found.Protocols[i] = api.Protocol{
			ProtocolID: p.ID, Version: p.Version, Digest: p.Digest, RequestTypes: p.RequestTypes,
			SchemaVersions: p.SchemaVersions, File: filepath.Base(p.File), Steps: make([]api.ProtocolStep, len(p.Steps)),
		}
		for j := range p.Steps {
			step := &p.Steps[j]
			found.Protocols[i].Steps[j] = api.ProtocolStep{StepID: step.ID, StepType: step.Type, Service: step.Service}
		}
	}
	e.respond.json(w, r, http.StatusOK, found)
}
