package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// RetryOutbox is POST /v1/admin/outbox/retry.
func (e *endpoints) RetryOutbox(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.OutboxRetryRequest) (any, error) {
		state := requestStateOf(ctx)
		state.object = cmp.Or(orZero(request.JobID), someOf(request.OutboxIDs))
		if err := e.guard.authorizeFilter(ctx, orZero(request.TenantID), orZero(request.JobID)); err != nil {
			return nil, err
		}
		filter := search.Filter{TenantID: orZero(request.TenantID), Lane: laneOf(request.Lane)}
		if age := seconds(request.OlderThanSeconds); age > 0 {
			filter.UnchangedSince = time.Now().Add(-age)
		}
		report, err := e.Operator.Retry(ctx, outbox.RetryRequest{
			OutboxIDs: request.OutboxIDs, JobID: orZero(request.JobID), Filter: filter, Limit: int(request.Limit),
			Actor: string(api.ActorOperator), RequestID: state.id,
		})
		result := api.OutboxRetryResult{
			Matched: report.Matched, Retried: report.Retried, Skipped: make([]api.OutboxSkip, len(report.Skipped)),
			More: report.More,
		}
		for i, skip := range report.Skipped {
			result.Skipped[i] = api.OutboxSkip{OutboxID: skip.OutboxID, Reason: skip.Reason}
		}
		return result, err
	})
}

// someOf names rows for an audit record, by the first ids.
func someOf(ids []string) string {
	const named = 8
	if len(ids) <= named {
		return strings.Join(ids, ",")
	}
	return fmt.Sprintf("%d rows, such as %s", len(ids), strings.Join(ids[:named], ","))
}

// ListOutbox is GET /v1/admin/outbox.
func (e *endpoints) ListOutbox(w http.ResponseWriter, r *http.Request, params api.ListOutboxParams) {
	e.pageOfTenant(w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		if params.State != nil && !params.State.Valid() {
			return nil, invalid("parameter state must be PENDING, SENT or FAILED_FINAL", nil)
		}
		if orZero(params.Lane) < 0 {
			return nil, invalid("parameter lane "+mustBeLane, nil)
		}
		listed, page, err := e.Jobs.ListOutbox(ctx, search.Filter{
			TenantID: orZero(params.TenantID), Outbox: statemachine.OutboxState(orZero(params.State)), Lane: laneOf(params.Lane),
		}, limit, at.after)
		found := api.OutboxPage{
			Outbox: make([]api.OutboxRow, len(listed)), NextPageToken: at.token(page.Next), SearchedTo: searchedTo(page.Next),
			TenantsOmitted: page.TenantsOmitted,
		}
		for i, agg := range listed {
			row, out := agg.Outbox, &found.Outbox[i]
			*out = api.OutboxRow{
				OutboxID: row.ID, JobID: agg.Job.ID, StepID: row.StepID, TenantID: agg.Job.TenantID,
				State: api.OutboxState(row.State), AttemptNo: row.AttemptNo, Topic: row.Routing.Topic, Lane: row.Routing.Lane,
				LastErrorMessage: row.LastError, CreatedAt: api.NewTime(row.CreatedAt), UpdatedAt: api.NewTime(row.UpdatedAt),
				NextAttemptAt: api.NewTime(row.DueAt),
			}
			if row.LastError != "" {
				out.LastErrorCode = "rejected"
			}
		}
		return found, err
	})
}

// ListStuck is GET /v1/admin/stuck.
func (e *endpoints) ListStuck(w http.ResponseWriter, r *http.Request) {
	report := e.Reconciler.Report()
	found := api.StuckList{
		Stuck: make([]api.StuckJob, len(report.Stuck)), Checked: report.Checked, Repaired: report.Repaired,
		RoundEndedAt: api.NewTime(report.RoundEnded), OldestPendingSeconds: report.OldestPending.Seconds(),
	}
	for i, stuck := range report.Stuck {
		found.Stuck[i] = api.StuckJob{
			JobID: stuck.JobID, State: api.JobState(stuck.State), Reason: stuck.Reason, FoundAt: api.NewTime(stuck.FoundAt),
		}
	}
	e.respond.answer(w, r, http.StatusOK, found, nil)
}

// ListAuditTrail is GET /v1/admin/audit-trail.
func (e *endpoints) ListAuditTrail(w http.ResponseWriter, r *http.Request, params api.ListAuditTrailParams) {
	e.page(w, r, params.Limit, params.PageToken, func(_ context.Context, limit int, at cursor) (any, error) {
		if params.Outcome != nil && !params.Outcome.Valid() {
			return nil, invalid("parameter outcome must be done, denied or failed", nil)
		}
		after, err := at.rev()
		if err != nil {
			return nil, err
		}
		wants := func(wanted *string, has string) bool { return wanted == nil || *wanted == has }
		records, next := e.config.Audit.Trail(after, limit, func(r *auth.Record) bool {
			return wants(params.Caller, r.Caller.Name()) && wants(params.Action, r.Action) && wants(params.Object, r.Object) &&
				(params.Outcome == nil || string(*params.Outcome) == string(r.Outcome))
		})
		page := api.AuditTrail{
			Records: make([]api.AuditRecord, len(records)), Since: api.NewTime(e.config.Audit.Since()), NextPageToken: at.revToken(next),
		}
		for i := range records {
			record := &records[i]
			page.Records[i] = api.AuditRecord{
				At: api.NewTime(record.At), Caller: auth.Printable(record.Caller.Name()), Origin: string(record.Caller.Origin()),
				From: record.From, Action: record.Action, Object: record.Object, TenantID: record.Tenant,
				Outcome: api.AuditOutcome(record.Outcome), Reason: record.Reason,
			}
		}
		return page, nil
	})
}

// ListJobWebhooks is GET /v1/jobs/{jobId}/webhooks.
func (e *endpoints) ListJobWebhooks(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	rows, err := e.Ledger.Webhooks(r.Context(), jobID)
	found, err := e.webhooks(r.Context(), rows, err)
	e.respond.answer(w, r, http.StatusOK, api.WebhookPage{Webhooks: found}, err)
}

// ListWebhooks is GET /v1/admin/webhooks.
func (e *endpoints) ListWebhooks(w http.ResponseWriter, r *http.Request, params api.ListWebhooksParams) {
	e.pageOfTenant(w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		rows, next, bad, err := e.Ledger.Undelivered(ctx, orZero(params.TenantID), limit, at.after)
		if bad != nil {
			e.config.Log.WarnContext(ctx, "webhooks left out of the list: they cannot be read", "error", bad)
		}
		found, err := e.webhooks(ctx, rows, err)
		return api.WebhookPage{Webhooks: found, NextPageToken: at.token(next)}, err
	})
}

// ReplayWebhook is POST /v1/admin/webhooks/{webhookId}:replay.
func (e *endpoints) ReplayWebhook(w http.ResponseWriter, r *http.Request, webhookID api.WebhookID) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, _ api.ControlRequest) (any, error) {
		row, replayed, err := e.Ledger.ReplayWebhook(ctx, webhookID)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound):
			return nil, &apierror.Error{Code: apierror.NotFound, Detail: "There is no such webhook.", Err: err}
		case err != nil:
			return nil, ledger.Problem(err)
		case !replayed:
			return nil, apierror.Newf(apierror.IllegalTransition, "The webhook is already waiting for an attempt.")
		}
		found, err := e.webhooks(ctx, []ledger.WebhookRow{*row}, nil)
		if err != nil {
			return nil, err
		}
		return found[0], nil
	})
}

// webhooks encodes webhooks, unless err is set.
func (e *endpoints) webhooks(ctx context.Context, rows []ledger.WebhookRow, err error) ([]api.Webhook, error) {
	if err != nil {
		return nil, ledger.Problem(err)
	}
	found := make([]api.Webhook, len(rows))
	for i := range rows {
		row := &rows[i]
		job, err := e.Ledger.Job(ctx, row.JobID)
		if err != nil {
			return nil, ledger.Problem(err)
		}
		found[i] = api.Webhook{
			WebhookID: row.ID(), JobID: row.JobID, TenantID: row.TenantID, URL: row.URL, Event: webhook.EventType(job.Job.State),
			State: api.WebhookState(row.State), Attempts: row.Attempts, LastStatus: int32(row.LastStatus), LastError: row.LastError,
			CreatedAt: api.NewTime(row.CreatedAt), UpdatedAt: api.NewTime(row.UpdatedAt),
		}
		if row.State == ledger.WebhookPending {
			found[i].NextAttemptAt = api.NewTime(row.NextAttemptAt)
		}
	}
	return found, nil
}

// ListFailures is GET /v1/admin/failures.
func (e *endpoints) ListFailures(w http.ResponseWriter, r *http.Request, params api.ListFailuresParams) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		if err := e.guard.authorizeTenant(ctx, orZero(params.TenantID)); err != nil {
			return nil, err
		}
		var include search.Include
		for _, what := range orZero(params.Include) {
			switch what {
			case api.ListFailuresParamsIncludeResolved:
				include.Resolved = true
			case api.ListFailuresParamsIncludeRetrying:
				include.Retrying = true
			default:
				return nil, invalid("parameter include must be resolved or retrying", nil)
			}
		}
		tags, err := queriedTags(params.DocID, params.Tag)
		if err != nil {
			return nil, err
		}
		report, err := e.Jobs.Failures(ctx, search.Filter{
			TenantID: orZero(params.TenantID), DocID: orZero(params.DocID), Tags: tags,
			RequestType: orZero(params.RequestType), Service: orZero(params.Service),
			StepType: orZero(params.StepType), ErrorCode: orZero(params.ErrorCode),
			CreatedAfter: orZero(params.CreatedAfter).Time, CreatedBefore: orZero(params.CreatedBefore).Time,
			EndedAfter: orZero(params.EndedAfter).Time, EndedBefore: orZero(params.EndedBefore).Time,
		}, include)
		found := api.FailureList{
			Groups: make([]api.FailureGroup, len(report.Groups)), Truncated: report.Truncated,
			From: api.NewTime(report.From), To: api.NewTime(report.To),
		}
		for i := range report.Groups {
			group := &report.Groups[i]
			found.Groups[i] = api.FailureGroup{
				StepType: group.StepType, Service: group.Service, ErrorCode: group.ErrorCode,
				Resolved: group.Resolved, Retrying: group.Retrying, Count: group.Count,
				FirstAt: api.NewTime(group.FirstAt), LastAt: api.NewTime(group.LastAt),
				SampleJobIds: append([]string{}, group.SampleJobIDs...), SampleMessage: group.SampleMessage,
				Tenants: make([]api.FailureTenant, len(group.Tenants)), TenantCount: group.TenantCount, Histogram: group.Histogram,
			}
			for j, tenant := range group.Tenants {
				found.Groups[i].Tenants[j] = api.FailureTenant{TenantID: tenant.TenantID, Count: tenant.Count}
			}
		}
		return found, err
	})
}

// ListPauses is GET /v1/admin/pauses. Pauses of other tenants are left out.
func (e *endpoints) ListPauses(w http.ResponseWriter, r *http.Request) {
	all, err := e.Admission.Pauses(r.Context())
	found := api.PauseList{Pauses: []api.Pause{}}
	for i := range all {
		if e.guard.allows(r.Context(), all[i].TenantID()) {
			found.Pauses = append(found.Pauses, e.pauseOf(&all[i]))
		}
	}
	e.respond.answer(w, r, http.StatusOK, found, ledger.Problem(err))
}

// CreatePause is POST /v1/admin/pauses.
func (e *endpoints) CreatePause(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.PauseRequest) (any, error) {
		scope := request.Scope()
		if err := e.guard.authorizeTenant(ctx, scope.TenantID()); err != nil {
			return nil, err
		}
		if fault := e.unknownScope(scope); fault != nil && !request.AllowUnknown {
			return nil, apierror.Refused([]apierror.Violation{*fault})
		}
		until, now := request.Until.Time, time.Now()
		switch {
		case request.ForSeconds != nil:
			until = now.Add(seconds(*request.ForSeconds))
		case !until.IsZero() && !until.After(now):
			fault := apierror.Violation{Pointer: "/until", Message: "must be later than the server's time, " + api.NewTime(now).String()}
			return nil, apierror.Refused([]apierror.Violation{fault})
		}
		pause, err := e.Admission.Pause(ctx, admission.Pause{
			Scope: scope, Reason: request.Reason, Actor: auth.CallerOf(ctx).Name(), Until: until, Ramp: rampOf(request.RampSeconds),
		})
		return e.pauseChanged(ctx, &pause, request.Reason, err)
	})
}

// unknownScope returns a violation if this process knows no directives of the scope, else
// nil. Jobs may still be in flight for it: of a protocol that was removed, or that another
// process has loaded already.
func (e *endpoints) unknownScope(scope statemachine.Scope) *apierror.Violation {
	const allow = ": correct it, or set allow_unknown to pause it all the same"
	i := slices.IndexFunc(statemachine.ScopeKinds, func(k statemachine.ScopeKind) bool { return k.Name == scope.Kind })
	if i < 0 {
		return nil
	}
	kind := &statemachine.ScopeKinds[i]
	fault := &apierror.Violation{Pointer: "/" + kind.Column}
	if kind.Number != nil {
		n, _ := strconv.Atoi(scope.Value)
		fault.Message = fmt.Sprintf("must be less than %d, the number of lanes%s", e.config.Lanes, allow)
		if e.config.Lanes == 0 || n < e.config.Lanes {
			return nil
		}
		return fault
	}
	var known []string
	for _, p := range e.Protocols.Load().Protocols() {
		for i := range p.Steps {
			target := statemachine.TargetOf(&statemachine.Job{ProtocolID: p.ID},
				&statemachine.Step{Service: p.Steps[i].Service, Type: p.Steps[i].Type})
			known = append(known, kind.Of(&target))
		}
	}
	slices.Sort(known)
	// Protocols name no tenants.
	if known = slices.Compact(known); slices.Contains(known, scope.Value) || slices.Contains(known, "") {
		return nil
	}
	fault.Message = "must be one of " + strings.Join(known, ", ") + allow
	return fault
}

// ResumePause is POST /v1/admin/pauses/{pauseId}:resume.
func (e *endpoints) ResumePause(w http.ResponseWriter, r *http.Request, pauseID api.PauseID) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, request api.ResumeRequest) (any, error) {
		scope, err := statemachine.ParseScope(pauseID)
		if err != nil || len(scope.Value) > api.MaxScopeName {
			return nil, &apierror.Error{Code: apierror.NotFound, Detail: "There is no such pause.", Err: err}
		}
		pause, err := e.Admission.Resume(ctx, scope, rampOf(request.RampSeconds))
		return e.pauseChanged(ctx, &pause, request.Reason, err)
	})
}

// rampOf is the length of the ramp that a request asks for.
func rampOf(given *float64) time.Duration {
	if given == nil {
		return admission.DefaultRamp
	}
	return seconds(*given)
}

// pauseChanged applies a change to this process's gate immediately, and logs it.
// Other processes see it within a second.
func (e *endpoints) pauseChanged(ctx context.Context, pause *admission.Pause, reason string, err error) (any, error) {
	if err != nil {
		return nil, ledger.Problem(err)
	}
	state := requestStateOf(ctx)
	state.object = pause.ID()
	e.Gate.ApplyPause(*pause)
	e.config.Log.InfoContext(ctx, "dispatch changed", "pause_id", pause.ID(), "state", string(pause.State), "reason", reason,
		"request_id", state.id)
	return e.pauseOf(pause), nil
}

// pauseOf encodes a pause.
func (e *endpoints) pauseOf(p *admission.Pause) api.Pause {
	out := api.Pause{
		PauseID: p.ID(), State: api.PauseState(p.State), Reason: p.Reason, Actor: p.Actor,
		CreatedAt: api.NewTime(p.CreatedAt), ResumedAt: api.NewTime(p.ResumedAt), Until: api.NewTime(p.Until),
	}
	out.SetScope(p.Scope)
	if n, known := e.Counts.Waiting(p.Scope); known {
		out.Waiting = &n
	}
	return out
}
