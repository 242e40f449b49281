package httpapi

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// CreateRetry is POST /v1/admin/retries.
func (e *endpoints) CreateRetry(w http.ResponseWriter, r *http.Request, params api.CreateRetryParams) {
	createOperation(e, w, r, params.IdempotencyKey, func(q *api.RetryRequest) (background.BulkRequest, bool) {
		return background.BulkRequest{
			Kind: background.KindRetry, JobIDs: q.JobIDs, All: q.All, After: orZero(q.After),
			Edits: background.Edits{
				From: ledger.RerunFrom(q.From), FromStep: orZero(q.FromStep), PayloadPatch: q.PayloadPatch,
				Current: q.Protocol == api.RerunProtocolCurrent, NoCallbacks: q.Callbacks == api.RerunCallbacksNone,
				Priority: string(q.Priority),
			},
			Filter: search.Filter{
				TenantID: orZero(q.TenantID), DocID: orZero(q.DocID), Tags: statemachine.NewTags(q.Tags),
				RequestType: orZero(q.RequestType), State: statemachine.JobState(q.State),
				Service: orZero(q.Service), StepType: orZero(q.StepType), ErrorCode: orZero(q.ErrorCode),
				CreatedAfter: q.CreatedAfter.Time, CreatedBefore: q.CreatedBefore.Time,
				EndedAfter: q.EndedAfter.Time, EndedBefore: q.EndedBefore.Time,
			},
			Limit: int(q.Limit), RatePerSecond: q.RatePerSecond, Reason: q.Reason,
		}, q.DryRun
	})
}

// CreateCancellation is POST /v1/admin/cancellations.
func (e *endpoints) CreateCancellation(w http.ResponseWriter, r *http.Request, params api.CreateCancellationParams) {
	createOperation(e, w, r, params.IdempotencyKey, controlling(background.KindCancel))
}

// CreatePausing is POST /v1/admin/pausings.
func (e *endpoints) CreatePausing(w http.ResponseWriter, r *http.Request, params api.CreatePausingParams) {
	createOperation(e, w, r, params.IdempotencyKey, controlling(background.KindPause))
}

// CreateResumption is POST /v1/admin/resumptions.
func (e *endpoints) CreateResumption(w http.ResponseWriter, r *http.Request, params api.CreateResumptionParams) {
	createOperation(e, w, r, params.IdempotencyKey, controlling(background.KindResume))
}

// controlling returns the translation of a request to control live jobs.
func controlling(kind background.Kind) func(*api.BulkRequest) (background.BulkRequest, bool) {
	return func(q *api.BulkRequest) (background.BulkRequest, bool) {
		return background.BulkRequest{
			Kind: kind, JobIDs: q.JobIDs, All: q.All,
			Filter: search.Filter{
				TenantID: orZero(q.TenantID), DocID: orZero(q.DocID), Tags: statemachine.NewTags(q.Tags),
				RequestType: orZero(q.RequestType), State: statemachine.JobState(orZero(q.State)),
				Service: orZero(q.Service), StepType: orZero(q.StepType), ErrorCode: orZero(q.ErrorCode),
				CreatedAfter: q.CreatedAfter.Time, CreatedBefore: q.CreatedBefore.Time,
			},
			Limit: int(q.Limit), RatePerSecond: q.RatePerSecond, Reason: q.Reason,
		}, q.DryRun
	}
}

// createOperation begins the requested operation, or answers with its preview. translate
// returns the operation, and whether it is a dry run.
func createOperation[Body any, Checked pointerTo[Body]](e *endpoints, w http.ResponseWriter, r *http.Request, header *api.IdempotencyKey,
	translate func(*Body) (background.BulkRequest, bool),
) {
	serve[Body, Checked](e, w, r, http.StatusAccepted, strict, func(ctx context.Context, body Body) (any, error) {
		request, dryRun := translate(&body)
		request.Actor = string(api.ActorOperator)
		tenantID := request.Filter.TenantID
		if err := e.guard.authorizeTenant(ctx, tenantID); err != nil {
			return nil, err
		}
		key, err := commands.HeaderKey(orZero(header))
		if err != nil {
			return nil, err
		}
		state := requestStateOf(ctx)
		if dryRun {
			preview, err := e.Operations.Preview(ctx, request)
			state.previewed = err == nil
			return chosen{status: http.StatusOK, value: previewOf(request.Kind, &preview)}, err
		}
		if key != "" && !e.guard.allows(ctx, "") {
			// A caller without a role for all tenants can neither collide with the keys of
			// other callers nor probe them.
			key = "tenant\x00" + tenantID + "\x00" + key
		}
		op, err := e.Operations.Create(ctx, key, request)
		if err != nil {
			return nil, err
		}
		state.object = op.ID
		e.config.Log.InfoContext(ctx, "operation begun", "operation_id", op.ID, "kind", string(op.Kind), "matched", op.Matched,
			"reason", request.Reason, "request_id", state.id)
		return operationOf(&op, nil), nil
	})
}

// ListRetries is GET /v1/admin/retries.
func (e *endpoints) ListRetries(w http.ResponseWriter, r *http.Request, params api.ListRetriesParams) {
	e.ListOperations(w, r, api.ListOperationsParams{
		Kind: new(api.OperationKindRetry), TenantID: params.TenantID, Limit: params.Limit, PageToken: params.PageToken,
	})
}

// ListOperations is GET /v1/admin/operations.
func (e *endpoints) ListOperations(w http.ResponseWriter, r *http.Request, params api.ListOperationsParams) {
	e.pageOfTenant(w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		if params.Kind != nil && !params.Kind.Valid() {
			return nil, invalid("parameter kind must be retry, cancel, pause or resume", nil)
		}
		found, next, err := e.Operations.List(ctx, background.Kind(orZero(params.Kind)), orZero(params.TenantID), limit, at.after)
		page := api.OperationPage{Operations: make([]api.Operation, len(found)), NextPageToken: at.token(next)}
		for i := range found {
			if page.Operations[i] = operationOf(&found[i], nil); len(found[i].PayloadPatch) > mostShown {
				page.Operations[i].PayloadPatch = nil
			}
		}
		return page, err
	})
}

// GetOperation is GET /v1/admin/operations/{operationId}.
func (e *endpoints) GetOperation(w http.ResponseWriter, r *http.Request, operationID api.OperationID, params api.GetOperationParams) {
	e.page(w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		if params.Outcome != nil && !params.Outcome.Valid() {
			return nil, invalid("parameter outcome must be waiting, applied, repeated, skipped or failed", nil)
		}
		for _, what := range orZero(params.Include) {
			if !what.Valid() {
				return nil, invalid("parameter include must be results", nil)
			}
		}
		found, err := e.Operations.Get(ctx, operationID, background.ItemOutcome(orZero(params.Outcome)), limit, at.after)
		op := operationOf(&found.Operation, found.Items)
		op.NextPageToken = at.token(found.Next)
		if err != nil || len(orZero(params.Include)) == 0 {
			return op, err
		}
		results, err := e.Operations.Results(ctx, operationID)
		op.Results = &api.OperationResults{
			Counted: results.Counted, Succeeded: results.Succeeded, Failed: results.Failed,
			Cancelled: results.Cancelled, Live: results.Live,
		}
		return op, err
	})
}

// CancelOperation is POST /v1/admin/operations/{operationId}:cancel.
func (e *endpoints) CancelOperation(w http.ResponseWriter, r *http.Request, operationID api.OperationID) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, request api.ControlRequest) (any, error) {
		op, err := e.Operations.Cancel(ctx, operationID)
		if err == nil {
			e.config.Log.InfoContext(ctx, "operation cancelled", "operation_id", op.ID, "kind", string(op.Kind),
				"reason", request.Reason, "request_id", requestStateOf(ctx).id)
		}
		return operationOf(&op, nil), err
	})
}

// mostShown is how much an answer about many jobs or operations shows of a value.
const mostShown = 200

// cut returns the value, or if it is long the beginning of its text as a string.
func cut(value json.RawMessage) json.RawMessage {
	var text string
	if json.Unmarshal(value, &text) != nil {
		text = string(value)
	}
	if runes := []rune(text); len(runes) > mostShown {
		value, _ = jsontext.AppendQuote(nil, string(runes[:mostShown])+"…")
	}
	return value
}

// operationOf encodes an operation with some of its items.
func operationOf(op *background.Operation, items []background.Item) api.Operation {
	f := &op.Filter
	out := api.Operation{
		OperationID: op.ID, Kind: api.OperationKind(op.Kind), State: api.OperationState(op.State),
		Named: op.Named,
		Filter: api.OperationFilter{
			TenantID: f.TenantID, DocID: f.DocID, Tags: f.Tags.Map(), RequestType: f.RequestType, State: api.JobState(f.State),
			Service: f.Service, StepType: f.StepType, ErrorCode: f.ErrorCode,
			CreatedAfter: api.NewTime(f.CreatedAfter), CreatedBefore: api.NewTime(f.CreatedBefore),
			EndedAfter: api.NewTime(f.EndedAfter), EndedBefore: api.NewTime(f.EndedBefore),
		},
		From: api.RerunFrom(op.From), FromStep: op.FromStep, PayloadPatch: op.PayloadPatch, Matched: op.Matched, Truncated: op.Truncated,
		Done: op.Done(), Applied: op.Applied, Skipped: op.Skipped, Failed: op.Failed,
		Priority: api.Priority(op.Priority), RatePerSecond: op.RatePerSecond, Reason: op.Reason, Caller: op.Caller,
		CreatedAt: api.NewTime(op.CreatedAt), UpdatedAt: api.NewTime(op.UpdatedAt),
		Items: make([]api.OperationItem, len(items)),
	}
	if op.Current {
		out.Protocol = api.RerunProtocolCurrent
	}
	if op.NoCallbacks {
		out.Callbacks = api.RerunCallbacksNone
	}
	for i, item := range items {
		out.Items[i] = api.OperationItem{
			JobID: item.JobID, Outcome: api.OperationItemOutcome(item.Outcome), NewJobID: item.NewJobID, Detail: item.Detail,
		}
	}
	return out
}

// previewOf encodes the preview of an operation.
func previewOf(kind background.Kind, p *background.Preview) api.OperationPreview {
	out := api.OperationPreview{
		DryRun: true, Kind: api.OperationKind(kind), Matched: p.Matched, Truncated: p.Truncated,
		Sample: make([]api.OperationSample, len(p.Sample)),
	}
	for i := range p.Sample {
		one := &p.Sample[i]
		job, step := &one.Job, &one.Steps[one.Job.CurrentStepIndex]
		sample := api.OperationSample{
			JobID: job.ID, TenantID: job.TenantID, State: api.JobState(job.State),
			ErrorCode: step.LastErrorCode, ErrorMessage: step.LastErrorMessage,
		}
		if one.Plan != nil {
			sample.FirstStep, sample.Changes = one.Plan.Command.Steps[one.Plan.First].ID, changesOf(one.Plan)
			for j := range sample.Changes {
				change := &sample.Changes[j]
				change.Before, change.After = cut(change.Before), cut(change.After)
			}
		}
		if why := one.Refused; why != nil {
			sample.Refused = &api.Refusal{Code: string(why.Code), Detail: why.Detail, Errors: why.Errors}
		}
		out.Sample[i] = sample
	}
	return out
}
