package console

import (
	"context"
	"fmt"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// operationsPage lists the operations on many jobs.
type operationsPage struct {
	Tenant     tenantFilter
	Operations []api.Operation
	More       string
}

func operations(r *request) (view, error) {
	tenant := r.tenant(api.GrantRoleAdmin)
	list, err := call[api.OperationPage](r.api.ListOperations(r.Context(), &api.ListOperationsParams{
		TenantID: optional(tenant.Value), PageToken: r.pageToken(),
	}))
	return view{Title: "Operations", Template: "operations", Data: operationsPage{
		Tenant: tenant, Operations: list.Operations, More: r.more(list.NextPageToken),
	}}, err
}

// operationPage shows one operation and a page of its jobs.
type operationPage struct {
	api.Operation

	// Outcome is the outcome of the jobs shown, empty for all, and Outcomes are those to
	// choose from.
	Outcome  api.OperationItemOutcome
	Outcomes []api.OperationItemOutcome
	More     string
}

func operation(r *request) (view, error) {
	outcome := api.OperationItemOutcome(r.FormValue("outcome"))
	op, err := call[api.Operation](r.api.GetOperation(r.Context(), r.PathValue("id"), &api.GetOperationParams{
		Outcome: optional(outcome), PageToken: r.pageToken(),
	}))
	if err == nil {
		op.Results, err = resultsOf(r, op.OperationID)
	}
	return view{Title: "Operation " + diagnosis.ShortID(op.OperationID), Template: "operation", Nav: "Operations", Data: operationPage{
		Operation: op, Outcome: outcome, More: r.more(op.NextPageToken),
		Outcomes: []api.OperationItemOutcome{
			"", api.OperationItemOutcomeFailed, api.OperationItemOutcomeSkipped, api.OperationItemOutcomeApplied,
			api.OperationItemOutcomeRepeated, api.OperationItemOutcomeWaiting,
		},
	}}, err
}

// resultsOf returns what became of the jobs of an operation.
func resultsOf(r *request, id string) (*api.OperationResults, error) {
	return recallOwn(r, "results of "+id, rememberStored, func() (*api.OperationResults, error) {
		op, err := call[api.Operation](r.api.GetOperation(r.Context(), id, &api.GetOperationParams{
			Limit: new(api.Limit(1)), Include: &[]api.GetOperationParamsInclude{api.GetOperationParamsIncludeResults},
		}))
		return op.Results, err
	})
}

// repeats says in words what a retry does, empty for other operations.
func repeats(op *api.Operation) string {
	if op.Kind != api.OperationKindRetry {
		return ""
	}
	which := map[api.JobState]string{
		api.JobStateSucceeded: " that succeeded", api.JobStateCancelled: " that had been cancelled",
	}[op.Filter.State]
	if which == "" {
		which = " that failed"
	}
	if op.Named {
		which = " selected by id"
	}
	first := "failed step"
	switch {
	case op.FromStep != "":
		first = "step " + op.FromStep
	case op.From == api.RerunFromStart:
		first = "first step"
	}
	words := "Repeats " + diagnosis.Counted(op.Matched, "job", "jobs") + which + ", from the " + first
	if len(op.PayloadPatch) > 0 {
		words += ", with the patch " + diagnosis.Brief(string(op.PayloadPatch), diagnosis.BriefMessage)
	}
	if op.Protocol == api.RerunProtocolCurrent {
		words += ", on the current protocol"
	}
	if op.Callbacks == api.RerunCallbacksNone {
		words += ", without callbacks"
	}
	if op.Priority != "" {
		words += ", with the priority " + string(op.Priority)
	}
	return words
}

// following returns the URL of the form that goes on with the jobs that a truncated retry has left,
// empty if there are none.
func following(op *api.Operation) string {
	if op.Kind != api.OperationKindRetry || !op.Truncated || op.State != api.OperationStateDone {
		return ""
	}
	s := selection{OperationFilter: op.Filter}
	return link("do/retry", append(s.query(), "from", op.From, "from_step", op.FromStep, "payload_patch", string(op.PayloadPatch),
		"protocol", op.Protocol, "callbacks", op.Callbacks, "priority", op.Priority, "rate", op.RatePerSecond, "after", op.OperationID)...)
}

// utc writes a time as text.
func utc(at api.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

// selects says in words which jobs an operation is for.
func selects(op *api.Operation) string {
	f := &op.Filter
	var words []string
	add := func(format, value string) {
		if value != "" {
			words = append(words, fmt.Sprintf(format, value))
		}
	}
	add("service %s", f.Service)
	add("step type %s", f.StepType)
	add("error %s", f.ErrorCode)
	add("state %s", string(f.State))
	add("request type %s", f.RequestType)
	add("tenant %s", f.TenantID)
	add("document %s", f.DocID)
	for _, tag := range f.Tags.List() {
		add("tag %s", tag)
	}
	for _, bound := range []struct {
		format string
		at     api.Time
	}{
		{"accepted since %s", f.CreatedAfter},
		{"accepted before %s", f.CreatedBefore},
		{"ended since %s", f.EndedAfter},
		{"ended before %s", f.EndedBefore},
	} {
		if !bound.at.IsZero() {
			words = append(words, fmt.Sprintf(bound.format, utc(bound.at)))
		}
	}
	switch {
	case op.Named:
		return "jobs selected by id"
	case len(words) == 0:
		return "all jobs"
	default:
		return strings.Join(words, ", ")
	}
}

// cancelOperation stops an operation.
func cancelOperation(r *request) (deed, error) {
	id := r.FormValue("operation")
	return deed{
		Title: "Stop operation " + diagnosis.ShortID(id) + "?", Button: "Stop the operation",
		Text:    "It changes no further jobs. Jobs already changed stay changed.",
		Command: diagnosis.Command("operations cancel", id),
		do: func(ctx context.Context, reason string) (string, error) {
			_, err := call[api.Operation](r.api.CancelOperation(ctx, id, api.ControlRequest{Reason: reason}))
			return link("operations/" + id), err
		},
	}, nil
}
