package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
)

// PreviewSchedule is POST /v1/schedules:preview.
func (e *endpoints) PreviewSchedule(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, strict, func(_ context.Context, request api.SchedulePreviewRequest) (any, error) {
		every, _ := api.Span(request.Every) // Check has read it.
		parsed, err := calendar.Parse(calendar.Spec{
			Cron: request.Cron, Every: every, TimeZone: request.TimeZone,
			StartAt: request.StartAt.Time, EndAt: request.EndAt.Time, ExcludedDates: request.ExcludedDates,
		})
		if err != nil {
			return nil, scheduleProblem(err)
		}
		after := request.After.Time
		if after.IsZero() {
			after = time.Now()
		}
		const byDefault = 10
		found := api.SchedulePreview{
			TimeZone: parsed.Zone().String(), Times: timesOf(parsed.Preview(after, int(cmp.Or(request.Count, byDefault)))),
		}
		return found, nil
	})
}

// timesOf encodes occurrences.
func timesOf(found []calendar.Occurrence) []api.ScheduleTime {
	times := make([]api.ScheduleTime, len(found))
	for i, one := range found {
		times[i] = api.ScheduleTime{
			At: api.NewTime(one.At), Local: one.At.Format("2006-01-02T15:04:05-07:00"), ClockChange: api.ClockChange(one.Clock),
		}
	}
	return times
}

// ListLosses is GET /v1/schedules:lost.
func (e *endpoints) ListLosses(w http.ResponseWriter, r *http.Request, params api.ListLossesParams) {
	e.pageOfTenant(w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		found, next, err := e.Schedules.Losses(ctx, orZero(params.TenantID), at.after, limit)
		page := api.ScheduleLossPage{Schedules: make([]api.ScheduleLosses, len(found)), NextPageToken: at.token(next)}
		for i := range found {
			one := &found[i]
			page.Schedules[i] = api.ScheduleLosses{
				ScheduleID: one.ScheduleID, TenantID: one.TenantID, Name: one.Name, Missed: one.Missed, Refused: one.Refused,
				FailuresInRow: one.FailuresInRow, Since: api.NewTime(one.Since), LastFor: api.NewTime(one.LastFor),
				LastAt: api.NewTime(one.LastAt), Outcome: api.FireOutcome(one.Outcome), Detail: one.Detail,
			}
		}
		return page, scheduleProblem(err)
	})
}

// ListSchedules is GET /v1/schedules.
func (e *endpoints) ListSchedules(w http.ResponseWriter, r *http.Request, params api.ListSchedulesParams) {
	e.pageOfTenant(w, r, &params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		state := orZero(params.State)
		if state != "" && !state.Valid() {
			return nil, invalid("parameter state must be active, paused or completed", nil)
		}
		found, next, err := e.Schedules.List(ctx, params.TenantID, schedules.State(state), at.after, limit)
		page := api.SchedulePage{Schedules: make([]api.Schedule, len(found)), NextPageToken: at.token(next)}
		for i := range found {
			page.Schedules[i] = scheduleOf(&found[i], 1)
		}
		return page, scheduleProblem(err)
	})
}

// GetSchedule is GET /v1/schedules/{tenantId}/{name}.
func (e *endpoints) GetSchedule(w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		return oneSchedule(e.Schedules.Get(ctx, tenantID, name))
	})
}

// PutSchedule is PUT /v1/schedules/{tenantId}/{name}.
func (e *endpoints) PutSchedule(w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.ScheduleRequest) (any, error) {
		change := e.scheduleChange(ctx, tenantID, name, request.ExpectedRev)
		definition := definitionOf(tenantID, name, &request)
		edited, err := e.Schedules.Edit(ctx, change, definition)
		if !errors.Is(err, schedules.ErrNotFound) || change.Rev != 0 {
			return e.scheduleChanged(ctx, edited, "schedule set", "", err)
		}
		made, err := e.Schedules.Create(ctx, definition, change.Actor)
		shown, err := e.scheduleChanged(ctx, made, "schedule created", "", err)
		return chosen{status: http.StatusCreated, value: shown}, err
	})
}

// DeleteSchedule is DELETE /v1/schedules/{tenantId}/{name}.
func (e *endpoints) DeleteSchedule(w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		deleted, err := e.Schedules.Get(ctx, tenantID, name)
		if err == nil {
			err = e.Schedules.Delete(ctx, e.scheduleChange(ctx, tenantID, name, 0))
		}
		return e.scheduleChanged(ctx, deleted, "schedule deleted", "", err)
	})
}

// PauseSchedule is POST /v1/schedules/{tenantId}/{name}:pause.
func (e *endpoints) PauseSchedule(w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, request api.ScheduleChange) (any, error) {
		paused, err := e.Schedules.Pause(ctx, e.scheduleChange(ctx, tenantID, name, request.ExpectedRev))
		return e.scheduleChanged(ctx, paused, "schedule paused", request.Reason, err)
	})
}

// ResumeSchedule is POST /v1/schedules/{tenantId}/{name}:resume.
func (e *endpoints) ResumeSchedule(w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, request api.ScheduleChange) (any, error) {
		resumed, err := e.Schedules.Resume(ctx, e.scheduleChange(ctx, tenantID, name, request.ExpectedRev))
		return e.scheduleChanged(ctx, resumed, "schedule resumed", request.Reason, err)
	})
}

// RunSchedule is POST /v1/schedules/{tenantId}/{name}:run.
func (e *endpoints) RunSchedule(
	w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName, params api.RunScheduleParams,
) {
	serve(e, w, r, http.StatusAccepted, optional, func(ctx context.Context, request api.ScheduleChange) (any, error) {
		key, err := commands.HeaderKey(orZero(params.IdempotencyKey))
		if err != nil {
			return nil, err
		}
		change := e.scheduleChange(ctx, tenantID, name, request.ExpectedRev)
		fire, replayed, err := e.Schedules.Run(ctx, change, cmp.Or(key, rand.Text()))
		if err != nil {
			return nil, unconfirmed(scheduleProblem(err), key, "run", "occurrences")
		}
		if replayed {
			return chosen{status: http.StatusOK, value: fireOf(fire)}, nil
		}
		return fireOf(fire), nil
	})
}

// BackfillSchedule is POST /v1/schedules/{tenantId}/{name}:backfill.
func (e *endpoints) BackfillSchedule(
	w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName, params api.BackfillScheduleParams,
) {
	serve(e, w, r, http.StatusAccepted, strict, func(ctx context.Context, request api.BackfillRequest) (any, error) {
		key, err := commands.HeaderKey(orZero(params.IdempotencyKey))
		if err != nil {
			return nil, err
		}
		begun, known, err := e.Schedules.Backfill(ctx, schedules.BackfillRequest{
			Change: e.scheduleChange(ctx, tenantID, name, request.ExpectedRev), Key: cmp.Or(key, rand.Text()),
			From: request.From.Time, To: request.To.Time, Repeat: request.Repeat, Rate: request.RatePerSecond, Reason: request.Reason,
		})
		if err != nil {
			return nil, unconfirmed(scheduleProblem(err), key, "backfill", "backfills")
		}
		if known {
			return chosen{status: http.StatusOK, value: backfillOf(begun)}, nil
		}
		e.config.Log.InfoContext(ctx, "backfill begun", "tenant_id", tenantID, "schedule", name, "backfill_id", begun.ID,
			"occurrences", begun.Total, "reason", request.Reason, "request_id", requestStateOf(ctx).id)
		return backfillOf(begun), nil
	})
}

// ListBackfills is GET /v1/schedules/{tenantId}/{name}/backfills.
func (e *endpoints) ListBackfills(w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		found, err := e.Schedules.Backfills(ctx, tenantID, name)
		list := api.ScheduleBackfills{Backfills: make([]api.ScheduleBackfill, len(found))}
		for i := range found {
			list.Backfills[i] = backfillOf(&found[i])
		}
		return list, scheduleProblem(err)
	})
}

// CancelBackfill is POST /v1/schedules/{tenantId}/{name}/backfills/{backfillId}:cancel.
func (e *endpoints) CancelBackfill(
	w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName, backfillID api.BackfillID,
) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, request api.ControlRequest) (any, error) {
		stopped, err := e.Schedules.CancelBackfill(ctx, tenantID, name, backfillID)
		if err != nil {
			return nil, scheduleProblem(err)
		}
		e.config.Log.InfoContext(ctx, "backfill cancelled", "tenant_id", tenantID, "schedule", name, "backfill_id", stopped.ID,
			"reason", request.Reason, "request_id", requestStateOf(ctx).id)
		return backfillOf(stopped), nil
	})
}

// ListFires is GET /v1/schedules/{tenantId}/{name}/fires.
func (e *endpoints) ListFires(
	w http.ResponseWriter, r *http.Request, tenantID api.TenantID, name api.ScheduleName, params api.ListFiresParams,
) {
	e.page(w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		found, next, err := e.Schedules.Fires(ctx, tenantID, name, at.after, limit)
		page := api.ScheduleFirePage{Fires: make([]api.ScheduleFire, len(found)), NextPageToken: at.token(next)}
		for i := range found {
			page.Fires[i] = fireOf(&found[i])
		}
		return page, scheduleProblem(err)
	})
}

func (e *endpoints) scheduleChange(ctx context.Context, tenantID, name string, rev int64) schedules.Change {
	return schedules.Change{TenantID: tenantID, Name: name, Rev: rev, Actor: auth.CallerOf(ctx).Name()}
}

// scheduleChanged logs a change, and answers with the schedule.
func (e *endpoints) scheduleChanged(ctx context.Context, changed *schedules.Schedule, change, reason string, err error) (any, error) {
	shown, err := oneSchedule(changed, err)
	if err == nil {
		e.config.Log.InfoContext(ctx, "schedule changed", "schedule_id", changed.ID, "change", change, "reason", reason,
			"request_id", requestStateOf(ctx).id)
	}
	return shown, err
}

func oneSchedule(found *schedules.Schedule, err error) (any, error) {
	if err != nil {
		return nil, scheduleProblem(err)
	}
	return scheduleOf(found, 10), nil
}

// definitionOf decodes a definition, whose durations the request's Check has read.
func definitionOf(tenantID, name string, request *api.ScheduleRequest) schedules.Definition {
	every, _ := api.Span(request.Every)
	jitter, _ := api.Span(request.Jitter)
	window, _ := api.Span(request.CatchUp.Window)
	return schedules.Definition{
		TenantID: tenantID, Name: name,
		Spec: calendar.Spec{
			Cron: request.Cron, Every: every, TimeZone: request.TimeZone, Jitter: jitter,
			StartAt: request.StartAt.Time, EndAt: request.EndAt.Time, ExcludedDates: request.ExcludedDates,
		},
		Overlap: schedules.Overlap(request.Overlap),
		CatchUp: schedules.CatchUp{Policy: schedules.CatchUpPolicy(request.CatchUp.Policy), Window: window},
		Command: request.Command,
	}
}

// scheduleOf encodes a schedule with that many of its next occurrences.
func scheduleOf(s *schedules.Schedule, next int) api.Schedule {
	shown := api.Schedule{
		ScheduleID: s.ID, TenantID: s.TenantID, Name: s.Name, Rev: s.Rev, Version: s.Version, State: api.ScheduleState(s.State),
		Cron: s.Cron, Every: api.SpanText(s.Every), TimeZone: s.TimeZone, Jitter: api.SpanText(s.Jitter),
		StartAt: api.NewTime(s.StartAt), EndAt: api.NewTime(s.EndAt), ExcludedDates: s.ExcludedDates,
		Overlap: api.ScheduleOverlap(s.Overlap), Command: s.Command, FailuresInRow: s.FailuresInRow,
		CatchUp:   api.ScheduleCatchUp{Policy: api.ScheduleCatchUpPolicy(s.CatchUp.Policy), Window: api.SpanText(s.CatchUp.Window)},
		CreatedAt: api.NewTime(s.CreatedAt), UpdatedAt: api.NewTime(s.UpdatedAt),
	}
	if parsed, err := calendar.Parse(s.Spec); err == nil && !s.Upcoming.IsZero() {
		shown.Next = timesOf(parsed.Preview(s.Upcoming.Add(-1), next))
	}
	if s.LastFire != nil {
		shown.LastFire = new(fireOf(s.LastFire))
	}
	return shown
}

func fireOf(f *schedules.Fire) api.ScheduleFire {
	return api.ScheduleFire{
		ScheduledFor: api.NewTime(f.ScheduledFor), Outcome: api.FireOutcome(f.Outcome), JobID: f.JobID, Version: f.Version,
		LateSeconds: f.Late().Seconds(), Detail: f.Detail, Code: f.Code, Actor: f.Actor, JobPurged: f.JobPurged,
		From: api.NewTime(f.From), Count: f.Count, BackfillID: f.BackfillID,
	}
}

func backfillOf(b *schedules.Backfill) api.ScheduleBackfill {
	shown := api.ScheduleBackfill{
		BackfillID: b.ID, State: api.BackfillStateRunning, Version: b.Version, From: api.NewTime(b.From), To: api.NewTime(b.To),
		Repeat: b.Repeat, RatePerSecond: b.Rate(), Total: b.Total, Fired: b.Fired, LeftAlone: b.Left, Refused: b.Refused,
		Detail: b.Detail, Actor: b.Actor, Reason: b.Reason, CreatedAt: api.NewTime(b.CreatedAt), EndedAt: api.NewTime(b.EndedAt),
	}
	if !b.Cursor.Before(b.From) {
		shown.At = api.NewTime(b.Cursor)
	}
	switch {
	case b.Done && b.Cancelled:
		shown.State = api.BackfillStateCancelled
	case b.Done:
		shown.State = api.BackfillStateDone
	case b.Cancelled:
		shown.State = api.BackfillStateCancelling
	}
	return shown
}

// errNoSchedule is the answer for a missing or foreign schedule.
var errNoSchedule = &apierror.Error{Code: apierror.ScheduleNotFound, Detail: "There is no such schedule."}

// unconfirmed returns the problem of a run or a backfill. If the store did not confirm it and the request has no key, a repeat may
// make a second one, so the problem names the list to look at.
func unconfirmed(err error, key, one, list string) error {
	fault := apierror.From(err)
	if key != "" || fault.Code != apierror.StoreUnavailable {
		return err
	}
	told := *fault
	told.Detail = "The store did not confirm the " + one + ", which may have been made. Look at the " + list + " of the schedule " +
		"before you send the request again, or send it with an Idempotency-Key: then a repeat is safe."
	return &told
}

// scheduleProblem returns the problem of an error of schedules.
func scheduleProblem(err error) error {
	field, inCalendar := errors.AsType[*calendar.Error](err)
	refused, inDefinition := errors.AsType[*schedules.InvalidError](err)
	switch {
	case inCalendar:
		return refusedSchedule("/"+field.Field, field.Message)
	case inDefinition:
		return refusedSchedule(refused.Pointer, refused.Message)
	case errors.Is(err, schedules.ErrNotFound):
		return errNoSchedule
	case errors.Is(err, schedules.ErrNoBackfill):
		return apierror.Newf(apierror.NotFound, "The schedule has no such backfill.")
	case errors.Is(err, schedules.ErrBackfilling):
		return apierror.Newf(apierror.IllegalTransition, "Another backfill of the schedule goes on: wait for its end, or cancel it.")
	case errors.Is(err, schedules.ErrKeyReused):
		return apierror.Newf(apierror.IdempotencyMismatch, "The Idempotency-Key is that of another backfill.")
	case errors.Is(err, schedules.ErrExists): // It was created since the edit did not find it.
		return apierror.Newf(apierror.Conflict, "Another request has just created the schedule.")
	case errors.Is(err, schedules.ErrRevConflict):
		return apierror.Newf(apierror.RevConflict, "The schedule is not at the expected revision: read it again.")
	case errors.Is(err, schedules.ErrLimit):
		return apierror.Newf(apierror.ScheduleLimit, "The tenant has %d schedules, or the store %d: delete one.",
			schedules.MaxPerTenant, schedules.MaxPerStore)
	case errors.Is(err, schedules.ErrState):
		return apierror.Newf(apierror.IllegalTransition, "The schedule is completed: change its times to start it again.")
	}
	return ledger.Problem(err)
}

func refusedSchedule(pointer, message string) error {
	return &apierror.Error{Code: apierror.ScheduleInvalid, Errors: []apierror.Violation{{Pointer: pointer, Message: message}}}
}
