package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"sync"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
)

// GetRoot is GET /.
func (e *endpoints) GetRoot(w http.ResponseWriter, r *http.Request) {
	const docs = "/docs"
	w.Header().Set("Vary", "Accept")
	if accepts(r, "text/html") {
		page := docs
		if e.console != nil {
			page = consolePath
		}
		w.Header().Set("Location", page)
		w.WriteHeader(http.StatusFound)
		return
	}
	e.respond.answer(w, r, http.StatusOK, api.Root{Docs: docs, Openapi: "/openapi.yaml"}, nil)
}

// GetHealth is GET /healthz.
func (e *endpoints) GetHealth(w http.ResponseWriter, r *http.Request) {
	e.respond.answer(w, r, http.StatusOK, api.Health{Status: "ok"}, nil)
}

// GetReadiness is GET /readyz.
func (e *endpoints) GetReadiness(w http.ResponseWriter, r *http.Request) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		if e.draining() {
			return nil, errDraining
		}
		warnings, err := e.config.Ready(ctx)
		if warnings == nil || !e.guard.isOperator(r) {
			warnings = []string{} // Warnings name tenants and weaknesses.
		}
		return api.Readiness{Status: "ready", Warnings: warnings}, err
	})
}

// GetMetrics is GET /metrics.
func (e *endpoints) GetMetrics(w http.ResponseWriter, r *http.Request) {
	e.scrape.ServeHTTP(w, r)
}

// spec is the OpenAPI document.
var spec = sync.OnceValue(api.Spec)

// GetOpenAPI is GET /openapi.yaml.
func (e *endpoints) GetOpenAPI(w http.ResponseWriter, _ *http.Request) {
	send(w, http.StatusOK, "application/openapi+yaml", spec())
}

// docsPage returns the API page for people, and a content security policy that allows
// only the page's own style, by its hash: no script, no frame, no external resource.
var docsPage = sync.OnceValues(func() (page []byte, policy string) {
	page = api.Docs()
	_, rest, _ := bytes.Cut(page, []byte("<style>"))
	style, _, _ := bytes.Cut(rest, []byte("</style>"))
	hash := sha256.Sum256(style)
	return page, "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
})

// GetDocs is GET /docs.
func (e *endpoints) GetDocs(w http.ResponseWriter, _ *http.Request) {
	page, policy := docsPage()
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache")
	send(w, http.StatusOK, "text/html; charset=utf-8", page)
}

// GetIdentity is GET /v1/whoami.
func (e *endpoints) GetIdentity(w http.ResponseWriter, r *http.Request) {
	caller := auth.CallerOf(r.Context())
	out := api.Identity{Name: caller.Name(), Origin: api.IdentityOrigin(caller.Origin()), Grants: []api.Grant{}}
	for _, grant := range caller.Grants() {
		tenants := grant.Tenants
		if grant.All {
			tenants = []string{auth.Everyone}
		}
		out.Grants = append(out.Grants, api.Grant{Role: api.GrantRole(grant.Role), Tenants: tenants, Services: grant.Services})
	}
	e.respond.answer(w, r, http.StatusOK, out, nil)
}

// ListProtocols is GET /v1/protocols.
func (e *endpoints) ListProtocols(w http.ResponseWriter, r *http.Request) {
	found := struct {
		Protocols []*commands.Protocol `json:"protocols"`
		LoadedAt  api.Time             `json:"loaded_at"`
	}{e.Protocols.Load().Protocols(), api.NewTime(e.Protocols.Load().LoadedAt)}
	e.respond.answer(w, r, http.StatusOK, found, nil)
}
