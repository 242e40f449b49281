package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// scheduled submits a command with dates, and returns its job, which waits.
func (s *story) scheduled(ctx context.Context, date func(*lucius.Command)) (*lucius.Job, error) {
	command := s.command("sdk.conform", map[string]any{"do": "succeed", "n": rand.Text()})
	date(&command)
	receipt, err := s.Submit(ctx, command)
	if err != nil || receipt.State != lucius.JobStateQueued {
		return nil, fmt.Errorf("the receipt is %+v: %w", receipt, err)
	}
	return s.Get(ctx, receipt.JobID)
}

// dates tells the part 10.
func (s *story) dates(ctx context.Context) error {
	for _, part := range []func(context.Context) error{s.delays, s.putsOff, s.lapses} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// delays submits a job that begins after a delay.
func (s *story) delays(ctx context.Context) error {
	job, err := s.scheduled(ctx, func(c *lucius.Command) { c.Delay = lucius.Delay(2 * time.Second) })
	if err != nil {
		return err
	}
	if ended, err := s.Wait(ctx, job.JobID); err != nil || ended.Err() != nil {
		return fmt.Errorf("the delayed job ended as %+v: %w", ended, err)
	}
	for event, err := range s.History(ctx, job.JobID) {
		if err != nil || event.Type == lucius.EventTypeStepDispatching && event.At.Before(job.NotBefore) {
			return fmt.Errorf("%+v is before %s: %w", event, job.NotBefore, err)
		}
	}
	return nil
}

// putsOff puts a job off, then begins it.
func (s *story) putsOff(ctx context.Context) error {
	job, err := s.scheduled(ctx, func(c *lucius.Command) { c.NotBefore = time.Now().Add(time.Hour) })
	if err != nil || job.Waiting == nil || job.Waiting.Reason != lucius.WaitingReasonScheduled {
		return fmt.Errorf("the job of the next hour is %+v: %w", job, err)
	}
	later, err := s.Reschedule(ctx, job.JobID, lucius.Dates{NotBefore: time.Now().Add(2 * time.Hour)}, "not yet")
	if err != nil || later.State != lucius.JobStateQueued || !later.NotBefore.After(job.NotBefore) {
		return fmt.Errorf("the job that was put off is %+v: %w", later, err)
	}
	if bulk, err := s.Prioritize(ctx, job.JobID, lucius.PriorityBulk, "it can wait"); err != nil || bulk.Priority != lucius.PriorityBulk {
		return fmt.Errorf("the job that can wait is %+v: %w", bulk, err)
	}
	if _, err := s.Reschedule(ctx, job.JobID, lucius.Dates{Now: true}, ""); err != nil {
		return err
	}
	if ended, err := s.Wait(ctx, job.JobID); err != nil || ended.Err() != nil {
		return fmt.Errorf("the job that was begun ended as %+v: %w", ended, err)
	}
	return nil
}

// lapses lets a paused job expire.
func (s *story) lapses(ctx context.Context) error {
	job, err := s.scheduled(ctx, func(c *lucius.Command) {
		c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	})
	if err != nil {
		return err
	}
	if paused, err := s.Pause(ctx, job.JobID, ""); err != nil || paused.State != lucius.JobStatePaused {
		return fmt.Errorf("the job is %+v: %w", paused, err)
	}
	expires := func(after time.Duration) error {
		_, err := s.Reschedule(ctx, job.JobID, lucius.Dates{Now: true, NotAfter: time.Now().Add(after)}, "")
		return err
	}
	if expires(time.Second) != nil { // The second may be over before the server has the request.
		if err := expires(30 * time.Second); err != nil {
			return err
		}
	}
	if ended, err := s.Wait(ctx, job.JobID); err != nil || ended.ErrorCode != "expired" {
		return fmt.Errorf("the job that should have expired ended as %+v: %w", ended, err)
	}
	return nil
}
