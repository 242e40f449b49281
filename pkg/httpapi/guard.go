package httpapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/mux"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// guard admits requests by the policy of package auth. It is safe for concurrent
// use.
type guard struct {
	config  Config
	kinds   []objectKind
	rules   map[endpoint]auth.Rule
	queries map[endpoint][]string // The names of query parameters.
	respond *responder
}

// endpoint is a method and a route's template.
type endpoint struct{ method, route string }

// objectKind is a kind of objects that paths name.
type objectKind struct {
	// parameter is its name in paths.
	parameter string
	// missing is the answer for a missing or foreign object.
	missing *apierror.Error
	// owner looks up the owner of an object. Its errors are the problems that the use
	// cases would answer.
	owner func(ctx context.Context, id string) (owner, error)
}

// owner is the owner of an object.
type owner struct {
	// TenantID is empty for an object of no tenant: the caller then needs a role for
	// all tenants.
	TenantID string
	// Service is the service of the object's step, empty for an object without a step.
	Service string
}

// errNoJob is the answer for a missing or foreign job.
var errNoJob = &apierror.Error{Code: apierror.JobNotFound, Detail: "There is no such job."}

// newGuard returns the guard of a server. It admits nothing until loadRules has read the
// routes.
func newGuard(config Config, respond *responder) *guard {
	g := &guard{config: config, rules: map[endpoint]auth.Rule{}, queries: map[endpoint][]string{}, respond: respond}
	missing := func(what string) *apierror.Error {
		return &apierror.Error{Code: apierror.NotFound, Detail: "There is no such " + what + "."}
	}
	g.kinds = []objectKind{
		{"jobId", errNoJob, func(ctx context.Context, id string) (owner, error) {
			return g.ownerOfStep(ctx, id, "")
		}},
		{"workId", &apierror.Error{Code: apierror.WorkNotFound, Detail: "There is no such work item."},
			func(ctx context.Context, id string) (owner, error) {
				view, err := config.Queue.Get(ctx, id)
				return owner{TenantID: view.Item.TenantID, Service: view.Item.Service}, err
			}},
		{"lineId", &apierror.Error{Code: apierror.LineNotFound, Detail: "No job is in such a line."},
			func(ctx context.Context, id string) (owner, error) {
				tenantID, err := config.Ledger.LineTenant(ctx, id)
				return owner{TenantID: tenantID}, ledger.Problem(err)
			}},
		{"operationId", missing("operation"), func(ctx context.Context, id string) (owner, error) {
			found, err := config.Operations.Get(ctx, id, "", 1, "")
			return owner{TenantID: found.Filter.TenantID}, err
		}},
		{"pauseId", missing("pause"), func(_ context.Context, id string) (owner, error) {
			scope, err := statemachine.ParseScope(id) // The pause need not exist.
			if err != nil {
				return owner{}, &apierror.Error{Code: apierror.NotFound, Err: err}
			}
			return owner{TenantID: scope.TenantID()}, nil
		}},
		{"limitId", errNoLimit, func(_ context.Context, id string) (owner, error) {
			scope, err := limitScope(id) // The limit need not exist.
			if err != nil {
				return owner{}, &apierror.Error{Code: apierror.NotFound, Err: err}
			}
			return owner{TenantID: scope.TenantID}, nil
		}},
		{"tenantId", errNoSchedule, func(_ context.Context, id string) (owner, error) {
			return owner{TenantID: id}, nil // A schedule belongs to the tenant that its path names. It need not exist.
		}},
		{"webhookId", missing("webhook"), func(ctx context.Context, id string) (owner, error) {
			jobID, _, err := ledger.ParseWebhookID(id)
			if err != nil {
				return owner{}, &apierror.Error{Code: apierror.NotFound, Err: err}
			}
			return g.ownerOfStep(ctx, jobID, "")
		}},
	}
	return g
}

// ownerOfStep returns the owner of a step. If the job has no such step, that is the job's
// tenant without a service.
func (g *guard) ownerOfStep(ctx context.Context, jobID, stepID string) (owner, error) {
	agg, err := g.config.Ledger.Job(ctx, jobID)
	if err != nil {
		return owner{}, ledger.Problem(err)
	}
	found := owner{TenantID: agg.Job.TenantID}
	for i := range agg.Steps {
		if agg.Steps[i].ID == stepID {
			found.Service = agg.Steps[i].Service
		}
	}
	return found, nil
}

// loadRules looks up the rules of all routes. The error names a route without a rule.
func (g *guard) loadRules(router *mux.Router) error {
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
			if rule.Scope == auth.Owned && strings.Contains(template, "{") && g.kind(template) == nil {
				return fmt.Errorf("httpapi: %s %s names an object of a kind without an owner lookup", method, template)
			}
			g.rules[endpoint{method, template}] = rule
			g.queries[endpoint{method, template}] = queryParameters()[rule.Operation]
		}
		return nil
	})
}

// queryParameters returns the names of the query parameters of each operation: those of
// the types to which the generated glue binds them.
var queryParameters = sync.OnceValue(func() map[string][]string {
	names := map[string][]string{}
	for _, rule := range auth.Rules() {
		operation := rule.Operation
		handler, found := reflect.TypeFor[api.ServerInterface]().MethodByName(strings.ToUpper(operation[:1]) + operation[1:])
		for i := 0; found && i < handler.Type.NumIn(); i++ {
			if params := handler.Type.In(i); params.Kind() == reflect.Struct {
				for field := range params.Fields() {
					if name, _, _ := strings.Cut(field.Tag.Get("form"), ","); name != "" {
						names[operation] = append(names[operation], name)
					}
				}
			}
		}
	}
	return names
})

// checkQuery refuses queries that the generated glue would silently widen: it drops
// parameters that it cannot read or does not know, and takes the first of several. Without
// its tenant filter, a list would show all tenants.
func checkQuery(r *http.Request, known []string) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("the query must be percent-encoded name=value pairs, joined by ampersands", err)
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case len(known) == 0:
			return invalid(fmt.Sprintf("parameter %q is unknown: this path takes none", auth.Printable(name)), nil)
		case !slices.Contains(known, name):
			takes := strings.Join(known, ", ")
			return invalid(fmt.Sprintf("parameter %q is unknown: this path takes %s", auth.Printable(name), takes), nil)
		case len(query[name]) > 1 && name != "tag":
			return invalid("parameter "+name+" occurs more than once", nil)
		case query[name][0] == "" && name != "page_token": // the first page has an empty token
			return invalid("parameter "+name+" must not be empty: leave it out", nil)
		}
	}
	return nil
}

// kind returns the kind of object that a route names, or nil.
func (g *guard) kind(route string) *objectKind {
	i := slices.IndexFunc(g.kinds, func(k objectKind) bool { return strings.Contains(route, "{"+k.parameter+"}") })
	if i < 0 {
		return nil
	}
	return &g.kinds[i]
}

// middleware passes a request on with its caller, or answers it with a problem.
func (g *guard) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, err := g.identified(w, r)
		if err != nil {
			g.respond.problem(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// identified returns the request with its caller, once it is admitted, and its problem.
func (g *guard) identified(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	state := requestStateOf(r.Context())
	if template, err := mux.CurrentRoute(r).GetPathTemplate(); err == nil {
		state.route = template
	}
	state.rule = g.rules[endpoint{r.Method, state.route}]
	if state.rule.Scope != auth.Public {
		if err := g.admit(state, r); err != nil {
			if challenge := auth.Challenge(err); challenge != "" {
				w.Header().Set("WWW-Authenticate", challenge)
			}
			return r, err
		}
		state.kept = state.conn.keep(state.caller.Name(), 1)
		r = r.WithContext(ledger.WithCaller(auth.WithCaller(r.Context(), state.caller), state.caller.Name()))
	}
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		return r, checkQuery(r, g.queries[endpoint{r.Method, state.route}])
	}
	return r, nil
}

const (
	// maxObjectID is the longest id that an object may have, in bytes: a longer one does not
	// fit into the key of a row.
	maxObjectID = 160
	// maxPauseID is the longest id of a pause, in which each byte of a name may take three.
	maxPauseID = maxObjectID + 3*api.MaxScopeName
	// maxLimitID is the same for a limit, which has up to three names.
	maxLimitID = maxObjectID + 3*3*api.MaxScopeName
)

// longestID returns the longest id that an object of that kind may have, in bytes.
func (k *objectKind) longestID() int {
	switch k.parameter {
	case "pauseId":
		return maxPauseID
	case "limitId":
		return maxLimitID
	default:
		return maxObjectID
	}
}

// admit returns the problem of a request that is not allowed. A path's object must be
// the caller's: foreign and missing objects are both answered here, before the rest of
// the request is read, and look alike. Only a release reads on in both cases, see authorizeReleased.
func (g *guard) admit(state *requestState, r *http.Request) error {
	if state.rule.Operation == "" {
		return apierror.Newf(apierror.Forbidden, "This operation may not be called.") // The zero rule: the route has none.
	}
	kind := g.kind(state.route)
	owned := state.rule.Scope == auth.Owned && kind != nil // Otherwise the body names the objects.
	var id string
	if owned {
		vars := mux.Vars(r)
		id = vars[kind.parameter]
		state.object = id // Set before any refusal, for the audit record.
		for _, part := range []string{"name", "backfillId"} {
			if vars[part] != "" {
				state.object += "/" + vars[part]
			}
		}
	}
	var err error
	if state.caller, err = g.config.Auth.Authenticate(r); err != nil {
		return err
	}
	if err := g.config.CallerLimit.Check("caller", state.caller.Name(), time.Now()); err != nil {
		return err
	}
	if err := state.rule.Admit(state.caller); err != nil || !owned {
		return err
	}
	if len(id) > kind.longestID() {
		return kind.missing
	}
	everything := state.rule.AllowsStep(state.caller, "", "")
	if everything && !state.rule.Audited {
		return nil // The use case reports a missing object.
	}
	owner, err := kind.owner(r.Context(), id)
	if everything {
		state.tenant = owner.TenantID // For the audit record. The use case reports err.
		return nil
	}
	if err == nil && !state.rule.AllowsStep(state.caller, owner.TenantID, owner.Service) {
		state.foreign, err = true, kind.missing
	}
	if err != nil {
		err = hide(err, kind.missing)
		if state.unproven = state.rule.Operation == "releaseLine" && errors.Is(err, kind.missing); state.unproven {
			return nil
		}
		return err
	}
	state.tenant = owner.TenantID
	return g.config.TenantLimit.Check("tenant", state.tenant, time.Now())
}

// hide replaces a not-found error with the error for foreign objects, so that the two look
// alike.
func hide(err error, missing *apierror.Error) error {
	if apierror.From(err).Code.Status() == http.StatusNotFound {
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
	return g.config.TenantLimit.Check("tenant", tenantID, time.Now())
}

// authorizeAs checks that the caller has that role for the tenant of the object that the path names.
func (g *guard) authorizeAs(ctx context.Context, role auth.Role) error {
	state := requestStateOf(ctx)
	rule := state.rule
	rule.Roles = []auth.Role{role}
	return rule.Check(state.caller, state.tenant)
}

// authorizeReleased checks that the caller may repeat a release that left no job in its line: whose line
// it was, only the released job says. refused is what is wrong with the request's body. Whatever the caller
// may not know gets the answer for a missing line.
func (g *guard) authorizeReleased(ctx context.Context, lineID, jobID string, refused error) error {
	missing := g.kind("{lineId}").missing
	if refused != nil {
		if apierror.From(refused).Code.Status() < http.StatusInternalServerError {
			return missing
		}
		return refused
	}
	agg, err := g.config.Ledger.Job(ctx, jobID)
	if err != nil {
		return hide(ledger.Problem(err), missing)
	}
	tenantID := agg.Job.TenantID
	if agg.Job.Place.Line != lineID || !g.allows(ctx, tenantID) {
		return missing
	}
	requestStateOf(ctx).tenant = tenantID
	return g.config.TenantLimit.Check("tenant", tenantID, time.Now())
}

// authorizeFilter is authorizeTenant for a request that may name a job as well. A
// job of another tenant is reported as missing.
func (g *guard) authorizeFilter(ctx context.Context, tenantID, jobID string) error {
	if err := g.authorizeTenant(ctx, tenantID); err != nil || jobID == "" || tenantID == "" {
		return err
	}
	owner, err := g.ownerOfStep(ctx, jobID, "")
	if err != nil {
		return hide(err, errNoJob)
	}
	if owner.TenantID != tenantID {
		requestStateOf(ctx).foreign = !g.allows(ctx, owner.TenantID)
		return errNoJob
	}
	return nil
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
	owner, err := g.ownerOfStep(ctx, jobID, stepID)
	switch {
	case err != nil:
		return hide(err, errNoJob)
	case owner.TenantID != tenantID:
		return errNoJob
	case !state.rule.AllowsStep(state.caller, tenantID, owner.Service):
		return apierror.Newf(apierror.StepNotFound, "the job has no step %q", stepID) // The job may have such a step of another service.
	}
	return nil
}

// allows reports whether the caller may see that tenant's objects or, if tenantID is
// empty, those of all tenants.
func (g *guard) allows(ctx context.Context, tenantID string) bool {
	state := requestStateOf(ctx)
	return state.rule.Allows(state.caller, tenantID)
}

// sees returns a function that reports whether the caller may act on a step of that tenant
// and service, for requests that name objects in their bodies.
func (g *guard) sees(ctx context.Context) func(tenantID, service string) bool {
	state := requestStateOf(ctx)
	return func(tenantID, service string) bool { return state.rule.AllowsStep(state.caller, tenantID, service) }
}

// stillAuthorized reports whether the request would still be admitted: its caller's
// rights may have been withdrawn since. While the issuer does not answer, the caller
// keeps its rights.
func (g *guard) stillAuthorized(r *http.Request) bool {
	state := requestStateOf(r.Context())
	caller, err := g.config.Auth.Authenticate(r)
	if errors.Is(err, auth.ErrIssuerUnavailable) {
		return true
	}
	return err == nil && state.rule.AllowsStep(caller, state.tenant, "")
}

// isOperator reports whether the caller of a public operation is known and may read
// the metrics of the whole server.
func (g *guard) isOperator(r *http.Request) bool {
	caller, err := g.config.Auth.Authenticate(r)
	rule := g.rules[endpoint{http.MethodGet, "/metrics"}]
	return err == nil && rule.Scope == auth.Everywhere && rule.Admit(caller) == nil
}
