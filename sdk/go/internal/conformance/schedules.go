package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// scheduleName is the schedule of part 13.
const scheduleName = "hourly"

// schedules tells the part 13.
func (s *story) schedules(ctx context.Context) error {
	made, err := s.PutSchedule(ctx, s.tenant, scheduleName, lucius.ScheduleRequest{
		Every: "1h", TimeZone: "Europe/Berlin", Overlap: lucius.ScheduleOverlapAllow,
		Command: map[string]any{
			"request_type": "sdk.conform", "schema_version": "1", "payload": map[string]any{"do": "succeed", "n": "${scheduled_for}"},
			"input_ref": lucius.URI("conformance://in"), "output_ref": lucius.URI("conformance://out"),
		},
	})
	if err != nil || made.State != lucius.ScheduleStateActive || len(made.Next) != 10 {
		return fmt.Errorf("the schedule is %+v: %w", made, err)
	}
	times, err := s.PreviewSchedule(ctx, lucius.SchedulePreviewRequest{Every: "1h", TimeZone: "Europe/Berlin", Count: 2})
	if err != nil || len(times) != 2 || times[1].At.Sub(times[0].At) != time.Hour {
		return fmt.Errorf("the preview is %+v: %w", times, err)
	}
	if paused, err := s.PauseSchedule(ctx, s.tenant, scheduleName, "to see"); err != nil || paused.State != lucius.ScheduleStatePaused {
		return fmt.Errorf("the paused schedule is %+v: %w", paused, err)
	}
	found := 0
	for one, err := range s.Schedules(ctx, s.tenant, lucius.ScheduleFilter{State: lucius.ScheduleStatePaused, PageSize: 1}) {
		if found++; err != nil || one.ScheduleID != made.ScheduleID || found > 1 {
			return fmt.Errorf("paused is %+v: %w", one, err)
		}
	}
	if resumed, err := s.ResumeSchedule(ctx, s.tenant, scheduleName, ""); err != nil || found != 1 || len(resumed.Next) != 10 {
		return fmt.Errorf("%d are paused, and the resumed schedule is %+v: %w", found, resumed, err)
	}
	if err := s.runs(ctx); err != nil {
		return err
	}
	if err := s.backfills(ctx); err != nil {
		return err
	}
	if err := s.DeleteSchedule(ctx, s.tenant, scheduleName); err != nil {
		return err
	}
	if _, err := s.Schedule(ctx, s.tenant, scheduleName); !lucius.HasCode(err, lucius.ProblemCodeScheduleNotFound) {
		return fmt.Errorf("the deleted schedule was answered with: %w", err)
	}
	return nil
}

// runs runs the schedule by hand.
func (s *story) runs(ctx context.Context) error {
	first, err := s.RunSchedule(ctx, s.tenant, scheduleName, "by hand")
	if err != nil || first.Outcome != lucius.FireOutcomeFired {
		return fmt.Errorf("the run is %+v: %w", first, err)
	}
	if again, err := s.RunSchedule(ctx, s.tenant, scheduleName, "by hand"); err != nil || again.JobID != first.JobID {
		return fmt.Errorf("the same run is %+v: %w", again, err)
	}
	if ended, err := s.Wait(ctx, first.JobID); err != nil || ended.Err() != nil {
		return fmt.Errorf("the job of the run ended as %+v: %w", ended, err)
	}
	for fire, err := range s.ScheduleFires(ctx, s.tenant, scheduleName) {
		if err == nil && fire.JobID == first.JobID {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return errors.New("the history does not have the run")
}

// backfills fires the occurrences of the last three hours.
func (s *story) backfills(ctx context.Context) error {
	request := lucius.BackfillRequest{From: time.Now().Add(-3 * time.Hour), Reason: "they were missed"}
	begun, err := s.BackfillSchedule(ctx, s.tenant, scheduleName, request, "")
	if err != nil || begun.Total < 3 {
		return fmt.Errorf("the backfill is %+v: %w", begun, err)
	}
	for {
		all, err := s.ScheduleBackfills(ctx, s.tenant, scheduleName)
		if err != nil || len(all) != 1 || all[0].BackfillID != begun.BackfillID {
			return fmt.Errorf("the backfills are %+v: %w", all, err)
		}
		if all[0].State == lucius.BackfillStateDone {
			if all[0].Fired != begun.Total {
				return fmt.Errorf("the backfill has fired %d of %d", all[0].Fired, begun.Total)
			}
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the backfill is %+v: %w", all[0], ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	ended, err := s.CancelBackfill(ctx, s.tenant, scheduleName, begun.BackfillID, "too late")
	if err != nil || ended.State != lucius.BackfillStateDone {
		return fmt.Errorf("the backfill that was cancelled after its end is %+v: %w", ended, err)
	}
	return nil
}
