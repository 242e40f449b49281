package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// limitsPage is what is limited or closed.
type limitsPage struct {
	Limits []*limitRow
}

// limitRow is a limit or a closure.
type limitRow struct {
	api.StartLimit

	What string
}

func limits(r *request) (view, error) {
	all, err := r.startLimits()
	data := limitsPage{Limits: limitRows(all)}
	slices.SortStableFunc(data.Limits, func(a, b *limitRow) int {
		return cmp.Compare(closedRank(a.Closed), closedRank(b.Closed))
	})
	return view{Title: "Limits", Template: "limits", Data: data}, err
}

// closedRank puts what is closed first.
func closedRank(c *api.Closure) int {
	if c != nil {
		return 0
	}
	return 1
}

func limitRows(all []api.StartLimit) (rows []*limitRow) {
	for i := range all {
		rows = append(rows, &limitRow{all[i], titled(diagnosis.LimitScope(&all[i]))})
	}
	return rows
}

// Full says whether no start is free now.
func (row *limitRow) Full() bool {
	return row.Starts != nil && row.Used != nil && *row.Used >= int(row.Starts.Count)
}

// Use is the used starts of the limit.
func (row *limitRow) Use() int {
	if row.Used == nil {
		return 0
	}
	return *row.Used
}

// Runs is how many attempts run under the limit, and AtOnce says that as many do as may.
func (row *limitRow) Runs() int {
	if row.Running == nil {
		return 0
	}
	return *row.Running
}

func (row *limitRow) AtOnce() bool { return row.MaxRunning > 0 && row.Runs() >= int(row.MaxRunning) }

// Most is how many attempts may run at once, as the form takes it.
func (row *limitRow) Most() string {
	if row.MaxRunning == 0 {
		return ""
	}
	return strconv.Itoa(int(row.MaxRunning))
}

// Given is the limit as the form takes it.
func (row *limitRow) Given() string {
	if row.Starts == nil {
		return ""
	}
	return row.Starts.String()
}

// startLimits reads the limits and closures that the user may see, none without the role.
func (r *request) startLimits() ([]api.StartLimit, error) {
	if len(r.tenants(api.GrantRoleAdmin)) == 0 {
		return nil, nil
	}
	list, err := recall(r, "limits", r.unlessAsked(rememberCount), func() (api.StartLimitList, error) {
		return call[api.StartLimitList](r.api.ListLimits(r.Context()))
	})
	return list.Limits, err
}

// limitScope is the scope that a form is for.
type limitScope struct {
	// ID is that of the limit, from the request or from the names.
	ID, Service, StepType, Tenant string
	// Asked says that the form asks for the names.
	Asked bool
}

// limitScopeOf returns the scope that the request's parameters name: by its id, or as entered.
func limitScopeOf(r *request) limitScope {
	if id := r.FormValue("limit"); id != "" {
		return limitScope{ID: id}
	}
	entered := func(name string) string { return strings.TrimSpace(r.FormValue(name)) }
	at := limitScope{Service: entered("service"), StepType: entered("step_type"), Tenant: entered("tenant_id"), Asked: true}
	if tenants := r.tenants(api.GrantRoleAdmin); at.Tenant == "" && !r.May(api.GrantRoleAdmin, "") && len(tenants) > 0 {
		at.Tenant = tenants[0] // The scopes of all tenants are not the user's.
	}
	if at.Service != "" {
		at.ID = api.LimitScope{Service: at.Service, StepType: at.StepType, TenantID: at.Tenant}.ID()
	}
	return at
}

// fields are the inputs for the names.
func (s *limitScope) fields(r *request) []field {
	if !s.Asked {
		return nil
	}
	return []field{
		{Name: "service", Label: "Service", Value: s.Service, Offers: offersOf(r.known(), nil, "service")},
		{Name: "step_type", Label: "Step type", Value: s.StepType, Hint: "Empty: all."},
		{
			Name: "tenant_id", Label: "Tenant", Value: s.Tenant, Hint: "Empty: all.",
			Offers: offersOf(nil, r.tenants(api.GrantRoleAdmin), "tenant"),
		},
	}
}

// words says what the form is for.
func (s *limitScope) words() string {
	if s.Asked && s.Service == "" {
		return "a service"
	}
	return s.ID
}

// check refuses a form without a service.
func (s *limitScope) check() error {
	if s.Asked && s.Service == "" {
		return badField("service", "Name the service.")
	}
	return nil
}

// first is the field to fill first: the service, unless it is known.
func (s *limitScope) first(other string) string {
	if s.Asked && s.Service == "" {
		return "service"
	}
	return other
}

// setLimit limits the starts of a scope.
func setLimit(r *request) (deed, error) {
	at := limitScopeOf(r)
	starts := strings.ReplaceAll(r.FormValue("starts"), " ", "")
	running := strings.ReplaceAll(r.FormValue("running"), " ", "")
	if r.Method != http.MethodPost && !at.Asked { // What the form leaves out is no longer limited.
		set, err := call[api.StartLimit](r.api.GetLimit(r.Context(), at.ID))
		if err != nil && !isMissing(err) {
			return deed{}, err
		}
		row := limitRow{StartLimit: set}
		starts, running = row.Given(), row.Most()
	}
	return deed{
		Title: "Limit " + at.words() + "?", Button: "Limit", NeedsReason: true, First: at.first("starts"),
		Text: "Workers get at most so many items in any window of time, or hold at most so many at once. The others stay queued. " +
			"A limit of starts bounds and does not smooth: of 600/1m all 600 may start in one second; 50/5s is smoother. " +
			"It replaces the limit that the scope has: what is empty is no longer limited.",
		Command: diagnosis.Command("limit set", slices.Concat([]string{cmp.Or(at.ID, "LIMIT")},
			diagnosis.Flag("starts", starts), diagnosis.Flag("running", running))...),
		Fields: append(at.fields(r), field{
			Name: "starts", Label: "Starts", Value: starts, Flag: "starts",
			Hint: "A number and a window of 1s to 24h, such as 600/1m. Empty: not limited.",
		}, field{
			Name: "running", Label: "Running at once", Value: running, Flag: "running",
			Hint: "How many attempts may run at once, such as 40. Empty: not limited.",
		}),
		do: func(ctx context.Context, reason string) (string, error) {
			if err := at.check(); err != nil {
				return "", err
			}
			request := api.StartLimitRequest{Reason: reason}
			if starts != "" || running == "" {
				wanted, err := api.ParseStarts(starts)
				if err != nil {
					return "", badField("starts", "The starts are a number and a window of 1s to 24h, such as 600/1m.")
				}
				request.Starts = &wanted
			}
			if running != "" {
				most, err := strconv.ParseInt(running, 10, 32)
				if err != nil || most < 1 || most > api.MaxRunning {
					return "", badField("running", fmt.Sprintf("The attempts that run at once are a number from 1 to %d.", api.MaxRunning))
				}
				request.MaxRunning = int32(most)
			}
			_, err := call[api.StartLimit](r.api.SetLimit(ctx, at.ID, request))
			return link("limits"), err
		},
	}, nil
}

// deleteLimit deletes a limit.
func deleteLimit(r *request) (deed, error) {
	id := r.FormValue("limit")
	return deed{
		Title: "Delete the limit of " + id + "?", Button: "Delete", NoReason: true,
		Text:    "The scope is no longer limited. What waits goes to workers at once. A closure stays.",
		Command: diagnosis.Command("limit delete", id),
		do: func(ctx context.Context, _ string) (string, error) {
			_, err := call[api.StartLimit](r.api.DeleteLimit(ctx, id))
			return link("limits"), err
		},
	}, nil
}

// closeLimit closes a scope for a while.
func closeLimit(r *request) (deed, error) {
	at := limitScopeOf(r)
	after := strings.ReplaceAll(r.FormValue("for"), " ", "")
	return deed{
		Title: "Close " + at.words() + "?", Button: "Close", NeedsReason: true, First: at.first("for"),
		Text: "Nothing of the scope starts until then. Commands are still accepted, and workers finish what they hold.",
		Command: diagnosis.Command("limit close", append([]string{cmp.Or(at.ID, "LIMIT")},
			diagnosis.Flag("for", after)...)...),
		Fields: append(at.fields(r), field{
			Name: "for", Label: "For", Value: after, Flag: "for", Hint: "Such as 5m, 2h or 1d; then it opens by itself.",
		}),
		do: func(ctx context.Context, reason string) (string, error) {
			if err := at.check(); err != nil {
				return "", err
			}
			long, err := lasting(after)
			switch {
			case err != nil || long <= 0:
				return "", badField("for", "How long it is closed is a number with a unit, such as 5m, 2h or 1d.")
			case long.Seconds() > api.MaxPause:
				return "", badField("for", "A closure lasts at most 365d.")
			}
			request := api.CloseRequest{ForSeconds: new(long.Seconds()), Reason: reason}
			_, err = call[api.StartLimit](r.api.CloseLimit(ctx, at.ID, request))
			return link("limits"), err
		},
	}, nil
}

// openLimit ends a closure.
func openLimit(r *request) (deed, error) {
	id := r.FormValue("limit")
	return deed{
		Title: "Open " + id + "?", Button: "Open",
		Text:    "What waits goes to workers at a rate that doubles every second, for as long as the closure lasted, at most 15 s.",
		Command: diagnosis.Command("limit open", id),
		do: func(ctx context.Context, reason string) (string, error) {
			_, err := call[api.StartLimit](r.api.OpenLimit(ctx, id, api.ControlRequest{Reason: reason}))
			return link("limits"), err
		},
	}, nil
}
