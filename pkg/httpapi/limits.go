package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ListLimits is GET /v1/admin/limits. Those of other tenants are left out.
func (e *endpoints) ListLimits(w http.ResponseWriter, r *http.Request) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		all, err := e.startLimits(ctx)
		found := api.StartLimitList{Limits: []api.StartLimit{}}
		for i := range all {
			if e.guard.allows(ctx, all[i].TenantID) {
				found.Limits = append(found.Limits, all[i])
			}
		}
		return found, err
	})
}

// GetLimit is GET /v1/admin/limits/{limitId}.
func (e *endpoints) GetLimit(w http.ResponseWriter, r *http.Request, limitID api.LimitID) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		_, found, err := e.startLimit(ctx, limitID)
		if err == nil && !found.Limited() && found.Closed == nil {
			err = errNoLimit
		}
		return found, err
	})
}

// SetLimit is PUT /v1/admin/limits/{limitId}.
func (e *endpoints) SetLimit(w http.ResponseWriter, r *http.Request, limitID api.LimitID) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.StartLimitRequest) (any, error) {
		scope, found, err := e.startLimit(ctx, limitID)
		unknown := e.authorizeUnknown(ctx, scope, request.AllowUnknown)
		switch {
		case err != nil:
			return nil, err
		case e.bus() == api.BusServiceBus:
			return nil, apierror.Newf(apierror.LimitUnsupported,
				"This server publishes to Service Bus, which limits no starts. Close the service instead, or pause it.")
		case unknown != nil:
			return nil, unknown
		}
		wanted := admission.Limit{
			Scope: scope, Window: request.Starts.Span(), MaxRunning: int(request.MaxRunning),
			Actor: auth.CallerOf(ctx).Name(), Reason: request.Reason,
		}
		if request.Starts != nil {
			wanted.Count = int(request.Starts.Count)
		}
		set, err := e.Admission.SetLimit(ctx, wanted)
		if err == nil {
			e.refreshLimits(ctx)
			e.showStarts(&found, &set)
		}
		return e.limitChanged(ctx, &found, "limit set", request.Reason, err)
	})
}

// DeleteLimit is DELETE /v1/admin/limits/{limitId}.
func (e *endpoints) DeleteLimit(w http.ResponseWriter, r *http.Request, limitID api.LimitID) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		scope, found, err := e.startLimit(ctx, limitID)
		if err != nil {
			return nil, err
		}
		err = e.Admission.DeleteLimit(ctx, scope)
		if err == nil {
			found.Starts, found.Used, found.Actor, found.Reason = nil, nil, "", ""
			found.MaxRunning, found.Running = 0, nil
			e.refreshLimits(ctx)
		}
		return e.limitChanged(ctx, &found, "limit deleted", "", err)
	})
}

// CloseLimit is POST /v1/admin/limits/{limitId}:close.
func (e *endpoints) CloseLimit(w http.ResponseWriter, r *http.Request, limitID api.LimitID) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.CloseRequest) (any, error) {
		scope, found, err := e.startLimit(ctx, limitID)
		unknown := e.authorizeUnknown(ctx, scope, request.AllowUnknown)
		switch {
		case err != nil:
			return nil, err
		case scope.StepType != "" && e.bus() == api.BusServiceBus:
			return nil, apierror.Newf(apierror.LimitUnsupported,
				"This server publishes to Service Bus, on which a closure is of all step types: leave out the step type.")
		case unknown != nil:
			return nil, unknown
		}
		until, now := request.Until.Time, time.Now()
		switch {
		case request.ForSeconds != nil:
			until = now.Add(seconds(*request.ForSeconds))
		case !until.After(now):
			fault := apierror.Violation{Pointer: "/until", Message: "must be later than the server's time, " + api.NewTime(now).String()}
			return nil, apierror.Refused([]apierror.Violation{fault})
		}
		closed, err := e.Admission.Close(ctx, admission.Closure{
			Scope: scope, Until: until, Actor: auth.CallerOf(ctx).Name(), Reason: request.Reason,
		}, time.Time{})
		if err == nil {
			e.Gate.ApplyClosure(closed)
		}
		found.Closed = closureOf(&closed)
		return e.limitChanged(ctx, &found, "scope closed", request.Reason, err)
	})
}

// OpenLimit is POST /v1/admin/limits/{limitId}:open.
func (e *endpoints) OpenLimit(w http.ResponseWriter, r *http.Request, limitID api.LimitID) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, request api.ControlRequest) (any, error) {
		scope, found, err := e.startLimit(ctx, limitID)
		if err != nil {
			return nil, err
		}
		opened, err := e.Admission.Open(ctx, scope, auth.CallerOf(ctx).Name(), request.Reason)
		if err == nil {
			e.Gate.ApplyClosure(opened)
		}
		found.Closed = nil
		return e.limitChanged(ctx, &found, "scope opened", request.Reason, err)
	})
}

// errNoLimit is the answer for a missing or foreign limit.
var errNoLimit = &apierror.Error{Code: apierror.NotFound, Detail: "There is no such limit."}

// refreshLimits makes this process follow a change of a limit at once.
func (e *endpoints) refreshLimits(ctx context.Context) {
	if err := e.Gate.Refresh(ctx); err != nil { // It is repeated within a second.
		e.config.Log.WarnContext(ctx, "limits not read after a change", "error", err)
	}
}

// limitChanged logs a change, and answers with the scope. Other processes follow within a second.
func (e *endpoints) limitChanged(ctx context.Context, found *api.StartLimit, change, reason string, err error) (any, error) {
	if err != nil {
		return nil, ledger.Problem(err)
	}
	e.config.Log.InfoContext(ctx, "starts changed", "limit_id", found.ID, "change", change, "reason", reason,
		"request_id", requestStateOf(ctx).id)
	return *found, nil
}

// startLimits returns all scopes that have a limit or are closed, by id.
func (e *endpoints) startLimits(ctx context.Context) ([]api.StartLimit, error) {
	now := time.Now()
	set, closed, err := e.Admission.Limits(ctx)
	if err != nil {
		return nil, ledger.Problem(err)
	}
	all := make([]api.StartLimit, len(set), len(set)+len(closed))
	of := map[admission.Scope]int{}
	for i := range set {
		all[i] = limitIn(set[i].Scope, now)
		e.showStarts(&all[i], &set[i])
		of[set[i].Scope] = i
	}
	for i := range closed {
		at, limited := of[closed[i].Scope]
		if !limited {
			at, all = len(all), append(all, limitIn(closed[i].Scope, now))
		}
		all[at].Closed = closureOf(&closed[i])
	}
	slices.SortFunc(all, func(a, b api.StartLimit) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// startLimit returns the scope with that id, with its limit and closure if it has some. The error is a
// not_found problem if the text is no id.
func (e *endpoints) startLimit(ctx context.Context, limitID string) (admission.Scope, api.StartLimit, error) {
	scope, err := limitScope(limitID)
	if err != nil {
		return scope, api.StartLimit{}, &apierror.Error{Code: apierror.NotFound, Detail: err.Error() + "."}
	}
	all, err := e.startLimits(ctx)
	if i := slices.IndexFunc(all, func(l api.StartLimit) bool { return l.ID == scope.ID() }); i >= 0 {
		return scope, all[i], err
	}
	return scope, limitIn(scope, time.Now()), err
}

// limitScope returns the scope with that id. Its names must fit into the key of a row.
func limitScope(id string) (admission.Scope, error) {
	scope, err := statemachine.ParseStartScope(id)
	if err != nil {
		return admission.Scope{}, err
	}
	key := tablestore.Join("closed", scope.Service, scope.StepType, scope.TenantID)
	if max(len(scope.Service), len(scope.StepType), len(scope.TenantID)) > api.MaxScopeName || len(key) > tablestore.MaxKeyBytes {
		return admission.Scope{}, fmt.Errorf("the names in %q are too long", id)
	}
	return scope, nil
}

// limitIn is a scope that is neither limited nor closed.
func limitIn(scope admission.Scope, now time.Time) api.StartLimit {
	return api.StartLimit{
		ID: scope.ID(), Service: scope.Service, StepType: scope.StepType, TenantID: scope.TenantID, AsOf: api.NewTime(now),
	}
}

// showStarts shows a limit and its use.
func (e *endpoints) showStarts(in *api.StartLimit, set *admission.Limit) {
	in.Starts, in.Used, in.MaxRunning, in.Running = nil, nil, int32(set.MaxRunning), nil
	if set.Count > 0 {
		in.Starts, in.Used = new(api.NewStarts(set.Count, set.Window)), new(e.Gate.Used(set))
	}
	if set.MaxRunning > 0 {
		in.Running = new(e.Gate.Running(set.Scope))
	}
	in.Actor, in.Reason = set.Actor, set.Reason
}

func closureOf(c *admission.Closure) *api.Closure {
	return &api.Closure{Until: api.NewTime(c.Until), Since: api.NewTime(c.ClosedAt), By: c.Actor, Reason: c.Reason}
}

// authorizeUnknown refuses a scope that this process knows no step of, unless the caller has the role
// for all tenants and allows it: a tenant has a bounded number of the others, which every process reads.
func (e *endpoints) authorizeUnknown(ctx context.Context, scope admission.Scope, allowed bool) error {
	switch fault := e.unknownLimit(scope); {
	case fault == nil:
		return nil
	case !allowed:
		return apierror.Refused([]apierror.Violation{*fault})
	case !e.guard.allows(ctx, ""):
		return apierror.Newf(apierror.Forbidden, "allow_unknown requires the role %s for all tenants.", auth.Admin)
	default:
		return nil
	}
}

// unknownLimit returns a violation if this process knows no step of the scope, else nil, as for a pause.
func (e *endpoints) unknownLimit(scope admission.Scope) *apierror.Violation {
	services := e.Protocols.Load().Services
	const allow = ": correct it, or set allow_unknown to use it all the same"
	for _, part := range []struct {
		name, value string
		known       []string
	}{{"service", scope.Service, slices.Sorted(maps.Keys(services))}, {"step type", scope.StepType, services[scope.Service]}} {
		if part.value != "" && !slices.Contains(part.known, part.value) {
			return &apierror.Violation{Message: "the " + part.name + " in limitId must be one of " +
				strings.Join(part.known, ", ") + allow}
		}
	}
	return nil
}
