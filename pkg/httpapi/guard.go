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
	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/problem"
)

// guard lets requests in, by the policy of package access. It is safe for
// concurrent use.
type guard struct {
	access  *access.Authenticator
	callers *access.Limiter
	tenants *access.Limiter
	owners  Owners
	kinds   []objects
	rules   map[endpoint]access.Rule
	respond *responder
}

// endpoint is a method and a route's template.
type endpoint struct{ method, route string }

// newGuard returns the guard of a server. Its rules are those of the routes.
func newGuard(config Config, respond *responder) *guard {
	return &guard{
		access: config.Access, callers: config.CallerLimit, tenants: config.TenantLimit,
		owners: config.Owners, kinds: kinds(config.Owners), rules: map[endpoint]access.Rule{}, respond: respond,
	}
}

// learn looks the rules of all routes up. The error names a route that has none:
// nobody has said who may call it.
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
			rule, ok := access.RuleFor(method, template)
			if !ok {
				return fmt.Errorf("httpapi: %s %s has no rule in package access", method, template)
			}
			if _, known := g.kind(template); rule.Scope == access.Owned && !known {
				return fmt.Errorf("httpapi: %s %s names an object that Owners does not know", method, template)
			}
			g.rules[endpoint{method, template}] = rule
		}
		return nil
	})
}

// kind is the kind of object that a route names.
func (g *guard) kind(route string) (*objects, bool) {
	i := slices.IndexFunc(g.kinds, func(k objects) bool { return strings.Contains(route, "{"+k.parameter+"}") })
	if i < 0 {
		return nil, false
	}
	return &g.kinds[i], true
}

// middleware lets a request go on, with its caller, or answers it.
func (g *guard) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r.Context())
		x.rule = g.rules[endpoint{r.Method, x.route}]
		if x.rule.Scope != access.Public {
			if err := g.admit(x, r); err != nil {
				if challenge := access.Challenge(err); challenge != "" {
					w.Header().Set("WWW-Authenticate", challenge)
				}
				g.respond.problem(w, r, err)
				return
			}
			x.kept = true
			x.seat.keep(1)
			r = r.WithContext(access.WithCaller(r.Context(), x.caller))
		}
		next.ServeHTTP(w, r)
	})
}

// admit returns the problem of a request that may not go on.
func (g *guard) admit(x *exchange, r *http.Request) error {
	if x.rule.Operation == "" {
		return problem.Newf(problem.Forbidden, "Nobody may call this.") // The zero rule is of no route.
	}
	if x.rule.Scope == access.Owned {
		kind, _ := g.kind(x.route)
		x.object = mux.Vars(r)[kind.parameter] // Also that of a request that is refused.
	}
	var err error
	if x.caller, err = g.access.Authenticate(r); err != nil {
		return err
	}
	if err := g.callers.Check("caller", x.caller.Name(), time.Now()); err != nil {
		return err
	}
	if err := x.rule.Admit(x.caller); err != nil {
		return err
	}
	if x.rule.Scope == access.Owned {
		return g.own(x, r)
	}
	return nil
}

// maxObjectID is the longest id that an object may have, in bytes: no row could
// have a longer one in its key.
const maxObjectID = 160

// own sees whose the object of the path is. One of somebody else is answered as
// one that is not there, which is answered here as well, before anything else of
// the request is looked at: so nothing tells the two apart.
func (g *guard) own(x *exchange, r *http.Request) error {
	kind, _ := g.kind(x.route)
	if len(x.object) > maxObjectID {
		return kind.missing
	}
	everything := x.rule.AllowsStep(x.caller, "", "")
	if everything && !x.rule.Audited {
		return nil // The use case says whether it is there.
	}
	owner, err := kind.owner(r.Context(), x.object)
	if everything {
		x.tenant = owner.TenantID // For the record. The use case says what is wrong.
		return nil
	}
	if err != nil {
		return hide(err, kind.missing)
	}
	if !x.rule.AllowsStep(x.caller, owner.TenantID, owner.Service) {
		x.foreign = true
		return kind.missing
	}
	x.tenant = owner.TenantID
	return g.tenants.Check("tenant", x.tenant, time.Now())
}

// hide makes an error that says that there is no such object the one that is
// answered for somebody else's.
func hide(err error, missing *problem.Error) error {
	if problem.From(err).Code.Status() == http.StatusNotFound {
		return missing
	}
	return err
}

// named returns the problem of a request that names that tenant, or none with an
// empty text, where it may not go on.
func (g *guard) named(ctx context.Context, tenantID string) error {
	if len(tenantID) > api.MaxTenantID {
		return invalid(fmt.Sprintf("tenant_id must be at most %d bytes", api.MaxTenantID), nil)
	}
	x := exchangeOf(ctx)
	if x.rule.Audited {
		x.tenant = tenantID
	}
	if err := x.rule.Check(x.caller, tenantID); err != nil {
		return err
	}
	if tenantID == "" {
		return nil
	}
	return g.tenants.Check("tenant", tenantID, time.Now())
}

// filtered is named for a request that also names a job, if it does. One of
// another tenant is not there.
func (g *guard) filtered(ctx context.Context, tenantID, jobID string) error {
	if err := g.named(ctx, tenantID); err != nil || jobID == "" || tenantID == "" {
		return err
	}
	owner, err := g.owners.Job(ctx, jobID)
	if err != nil {
		return hide(err, errNoJob)
	}
	if owner.TenantID != tenantID {
		exchangeOf(ctx).foreign = !g.allows(ctx, owner.TenantID)
		return errNoJob
	}
	return nil
}

// allows reports whether the caller may see what is of that tenant, or of none
// with an empty text.
func (g *guard) allows(ctx context.Context, tenantID string) bool {
	x := exchangeOf(ctx)
	return x.rule.Allows(x.caller, tenantID)
}

// keyOf is the idempotency key of an operation for that tenant. Callers of one
// tenant have keys of their own, so that they neither meet nor learn of those of
// others.
func (g *guard) keyOf(ctx context.Context, key, tenantID string) string {
	if key == "" || g.allows(ctx, "") {
		return key
	}
	return "tenant\x00" + tenantID + "\x00" + key
}

// reported returns the problem of a report on a step where it may not go on: the
// tenant is another's, or the step is of a service that the caller is not for.
func (g *guard) reported(ctx context.Context, tenantID, jobID, stepID string) error {
	if err := g.named(ctx, tenantID); err != nil {
		return err
	}
	x := exchangeOf(ctx)
	if x.rule.AllowsStep(x.caller, tenantID, "") {
		return nil // It is for every service.
	}
	owner, err := g.owners.Step(ctx, jobID, stepID)
	switch {
	case err != nil:
		return hide(err, errNoJob)
	case owner.TenantID != tenantID:
		return errNoJob
	case !x.rule.AllowsStep(x.caller, tenantID, owner.Service):
		return missingStep(stepID)
	}
	return nil
}

// still reports whether the request would still be let in: its caller's rights
// may have been withdrawn since. An issuer that does not answer withdraws none.
func (g *guard) still(r *http.Request) bool {
	x := exchangeOf(r.Context())
	caller, err := g.access.Authenticate(r)
	if errors.Is(err, access.ErrIssuerUnavailable) {
		return true
	}
	return err == nil && x.rule.AllowsStep(caller, x.tenant, "")
}

// operates reports whether the caller of a public operation, if there is one, may
// know how the whole server is.
func (g *guard) operates(r *http.Request) bool {
	caller, err := g.access.Authenticate(r)
	rule := g.rules[endpoint{http.MethodGet, "/metrics"}]
	return err == nil && rule.Scope == access.Everywhere && rule.Admit(caller) == nil
}
