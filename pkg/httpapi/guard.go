package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/problem"
)

// guard admits requests by the policy of package auth. It is safe for concurrent
// use.
type guard struct {
	auth    *auth.Authenticator
	callers *auth.Limiter
	tenants *auth.Limiter
	owners  owners
	kinds   []objects
	rules   map[endpoint]auth.Rule
	respond *responder
}

// endpoint is a method and a route's template.
type endpoint struct{ method, route string }

// newGuard returns the guard of a server. Its rules are those of the routes.
func newGuard(config Config, respond *responder) *guard {
	owners := owners{ledger: config.Ledger, queue: config.Queue, failures: config.Failures}
	return &guard{
		auth: config.Auth, callers: config.CallerLimit, tenants: config.TenantLimit,
		owners: owners, kinds: owners.kinds(), rules: map[endpoint]auth.Rule{}, respond: respond,
	}
}

// learn looks up the rules of all routes. The error names a route without a rule.
func (g *guard) learn(router *mux.Router) error {
	return router.Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		template, err := route.GetPathTemplate()
		if err != nil {
			return fmt.Errorf("httpapi: route without a path: %w", err)
		}
		methods, err := route.GetMethods()
		if err != nil {
			return fmt.Errorf("httpapi: %s takes any method: %w", template, err)
		}
		for _, method := range methods {
			rule, ok := auth.RuleFor(method, template)
			if !ok {
				return fmt.Errorf("httpapi: %s %s has no rule in package auth", method, template)
			}
			if _, known := g.kind(template); rule.Scope == auth.Owned && !known {
				return fmt.Errorf("httpapi: %s %s names an object of a kind without an owner lookup", method, template)
			}
			g.rules[endpoint{method, template}] = rule
		}
		return nil
	})
}

// kind returns the kind of object that a route names.
func (g *guard) kind(route string) (*objects, bool) {
	i := slices.IndexFunc(g.kinds, func(k objects) bool { return strings.Contains(route, "{"+k.parameter+"}") })
	if i < 0 {
		return nil, false
	}
	return &g.kinds[i], true
}

// middleware passes a request on with its caller, or answers it with a problem.
func (g *guard) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		state := requestStateOf(r.Context())
		state.rule = g.rules[endpoint{r.Method, state.route}]
		if state.rule.Scope != auth.Public {
			if err := g.admit(state, r); err != nil {
				if challenge := auth.Challenge(err); challenge != "" {
					w.Header().Set("WWW-Authenticate", challenge)
				}
				g.respond.problem(w, r, err)
				return
			}
			state.kept = true
			state.conn.keep(1)
			r = r.WithContext(auth.WithCaller(r.Context(), state.caller))
		}
		next.ServeHTTP(w, r)
	})
}

// admit returns the problem of a request that is not allowed.
func (g *guard) admit(state *requestState, r *http.Request) error {
	if state.rule.Operation == "" {
		return problem.Newf(problem.Forbidden, "This operation may not be called.") // The zero rule: the route has none.
	}
	if state.rule.Scope == auth.Owned {
		kind, _ := g.kind(state.route)
		state.object = mux.Vars(r)[kind.parameter] // Set before any refusal, for the audit record.
	}
	var err error
	if state.caller, err = g.auth.Authenticate(r); err != nil {
		return err
	}
	if err := g.callers.Check("caller", state.caller.Name(), time.Now()); err != nil {
		return err
	}
	if err := state.rule.Admit(state.caller); err != nil {
		return err
	}
	if state.rule.Scope == auth.Owned {
		return g.authorizeObject(state, r)
	}
	return nil
}

// maxObjectID is the longest id that an object may have, in bytes: a longer one does
// not fit into the key of a row.
const maxObjectID = 160

// authorizeObject checks that the caller may access the path's object. Foreign and
// missing objects look alike: both are answered here, before the rest of the request
// is read.
func (g *guard) authorizeObject(state *requestState, r *http.Request) error {
	kind, _ := g.kind(state.route)
	if len(state.object) > maxObjectID {
		return kind.missing
	}
	everything := state.rule.AllowsStep(state.caller, "", "")
	if everything && !state.rule.Audited {
		return nil // The use case reports a missing object.
	}
	owner, err := kind.find(r.Context(), state.object)
	if everything {
		state.tenant = owner.TenantID // For the audit record. The use case reports err.
		return nil
	}
	if err != nil {
		return hide(err, kind.missing)
	}
	if !state.rule.AllowsStep(state.caller, owner.TenantID, owner.Service) {
		state.foreign = true
		return kind.missing
	}
	state.tenant = owner.TenantID
	return g.tenants.Check("tenant", state.tenant, time.Now())
}

// hide replaces a not-found error by the one that foreign objects get, so that the
// two look alike.
func hide(err error, missing *problem.Error) error {
	if problem.From(err).Code.Status() == http.StatusNotFound {
		return missing
	}
	return err
}

// authorizeTenant checks that the caller may name that tenant; if it is empty, that
// the caller may leave it out.
func (g *guard) authorizeTenant(ctx context.Context, tenantID string) error {
	if len(tenantID) > api.MaxTenantID {
		return invalid(fmt.Sprintf("tenant_id must be at most %d bytes", api.MaxTenantID), nil)
	}
	state := requestStateOf(ctx)
	if state.rule.Audited {
		state.tenant = tenantID
	}
	if err := state.rule.Check(state.caller, tenantID); err != nil {
		return err
	}
	if tenantID == "" {
		return nil
	}
	return g.tenants.Check("tenant", tenantID, time.Now())
}

// authorizeFilter is authorizeTenant for a request that may name a job as well. A
// job of another tenant is reported as missing.
func (g *guard) authorizeFilter(ctx context.Context, tenantID, jobID string) error {
	if err := g.authorizeTenant(ctx, tenantID); err != nil || jobID == "" || tenantID == "" {
		return err
	}
	owner, err := g.owners.job(ctx, jobID)
	if err != nil {
		return hide(err, errNoJob)
	}
	if owner.TenantID != tenantID {
		requestStateOf(ctx).foreign = !g.allows(ctx, owner.TenantID)
		return errNoJob
	}
	return nil
}

// allows reports whether the caller may see that tenant's objects or, if tenantID is
// empty, those of all tenants.
func (g *guard) allows(ctx context.Context, tenantID string) bool {
	state := requestStateOf(ctx)
	return state.rule.Allows(state.caller, tenantID)
}

// keyOf returns the stored idempotency key of an operation for that tenant. Callers
// without a role for all tenants get keys with the tenant as prefix, so that they can
// neither collide with nor probe the keys of other callers.
func (g *guard) keyOf(ctx context.Context, key, tenantID string) string {
	if key == "" || g.allows(ctx, "") {
		return key
	}
	return "tenant\x00" + tenantID + "\x00" + key
}

// authorizeStep checks that the caller may report on a step: it may name the tenant,
// the job is the tenant's, and its role covers the step's service.
func (g *guard) authorizeStep(ctx context.Context, tenantID, jobID, stepID string) error {
	if err := g.authorizeTenant(ctx, tenantID); err != nil {
		return err
	}
	state := requestStateOf(ctx)
	if state.rule.AllowsStep(state.caller, tenantID, "") {
		return nil // The role covers every service.
	}
	owner, err := g.owners.step(ctx, jobID, stepID)
	switch {
	case err != nil:
		return hide(err, errNoJob)
	case owner.TenantID != tenantID:
		return errNoJob
	case !state.rule.AllowsStep(state.caller, tenantID, owner.Service):
		return missingStep(stepID)
	}
	return nil
}

// stillAuthorized reports whether the request would still be admitted: its caller's
// rights may have been withdrawn since. While the issuer does not answer, the caller
// keeps its rights.
func (g *guard) stillAuthorized(r *http.Request) bool {
	state := requestStateOf(r.Context())
	caller, err := g.auth.Authenticate(r)
	if errors.Is(err, auth.ErrIssuerUnavailable) {
		return true
	}
	return err == nil && state.rule.AllowsStep(caller, state.tenant, "")
}

// operates reports whether the caller of a public operation is known and may read
// the metrics of the whole server.
func (g *guard) operates(r *http.Request) bool {
	caller, err := g.auth.Authenticate(r)
	rule := g.rules[endpoint{http.MethodGet, "/metrics"}]
	return err == nil && rule.Scope == auth.Everywhere && rule.Admit(caller) == nil
}
