package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
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

// scheduleProblem returns the problem of an error of schedules.
func scheduleProblem(err error) error {
	if invalid, is := errors.AsType[*calendar.Error](err); is {
		return refusedSchedule("/"+invalid.Field, invalid.Message)
	}
	return err
}

func refusedSchedule(pointer, message string) error {
	return &apierror.Error{Code: apierror.ScheduleInvalid, Errors: []apierror.Violation{{Pointer: pointer, Message: message}}}
}
