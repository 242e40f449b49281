package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// inLine returns a command of a line.
func (s *story) inLine(do, key string, mode lucius.OrderMode) lucius.Command {
	command := s.command("sdk.conform", map[string]any{"do": do, "n": rand.Text()})
	command.OrderKey, command.OrderMode = key, mode
	return command
}

// order tells the part 11.
func (s *story) order(ctx context.Context) error {
	command := s.inLine("succeed", "customer-42", "")
	command.NotBefore = time.Now().Add(time.Hour)
	first, err := s.Submit(ctx, command)
	if err != nil {
		return err
	}
	last, err := s.waitsBehind(ctx, first.JobID)
	if err != nil {
		return err
	}
	if _, err := s.Reschedule(ctx, first.JobID, lucius.Dates{Now: true}, ""); err != nil {
		return err
	}
	if ended, err := s.Wait(ctx, last); err != nil || ended.Err() != nil {
		return fmt.Errorf("the last of the line ended as %+v: %w", ended, err)
	}
	return s.blocks(ctx)
}

// waitsBehind submits jobs that wait for the first, and returns the only one that is left.
func (s *story) waitsBehind(ctx context.Context, first string) (last string, err error) {
	const key = "customer-42"
	receipt, err := s.Submit(ctx, s.inLine("succeed", key, ""))
	if err != nil || receipt.State != lucius.JobStateQueued {
		return "", fmt.Errorf("the second receipt of the line is %+v: %w", receipt, err)
	}
	head, err := s.Get(ctx, first)
	if err != nil {
		return "", err
	}
	second, err := s.Get(ctx, receipt.JobID)
	if err != nil || second.Waiting == nil || second.Waiting.Reason != lucius.WaitingReasonBehind || second.Waiting.BlockedBy.ID != first {
		return "", fmt.Errorf("the second of the line is %+v: %w", second, err)
	}
	if second.OrderKey != key || second.OrderMode != lucius.OrderModeFifo || second.LineID == "" || second.LineID != head.LineID {
		return "", fmt.Errorf("the first of the line is %+v, the second %+v", head, second)
	}
	var busy *lucius.Error
	_, err = s.Submit(ctx, s.inLine("succeed", key, lucius.OrderModeReject))
	if !errors.As(err, &busy) || busy.Code != lucius.ProblemCodeLineBusy {
		return "", fmt.Errorf("a busy line was answered with: %w", err)
	}
	older, err := s.Submit(ctx, s.inLine("succeed", key, lucius.OrderModeNewest))
	if err != nil {
		return "", err
	}
	newer, err := s.Submit(ctx, s.inLine("succeed", key, lucius.OrderModeNewest))
	if err != nil {
		return "", err
	}
	if ended, err := s.Wait(ctx, older.JobID); err != nil || ended.ErrorCode != "superseded" {
		return "", fmt.Errorf("the job that was superseded ended as %+v: %w", ended, err)
	}
	if ended, err := s.Cancel(ctx, second.JobID, "no longer wanted"); err != nil || ended.State != lucius.JobStateCancelled {
		return "", fmt.Errorf("the job that waited is %+v: %w", ended, err)
	}
	return newer.JobID, nil
}

// blocks lets the first job of a line fail, and reruns it in its place.
func (s *story) blocks(ctx context.Context) error {
	results, err := s.SubmitBatch(ctx, []lucius.Command{s.inLine("fail", "customer-43", ""), s.inLine("succeed", "customer-43", "")})
	if err != nil {
		return err
	}
	failed, next := results[0].JobID, results[1].JobID
	if ended, err := s.Wait(ctx, failed); err != nil || ended.State != lucius.JobStateFailedFinal {
		return fmt.Errorf("the first of the batch ended as %+v: %w", ended, err)
	}
	job, err := s.Get(ctx, next)
	if err != nil || job.Waiting == nil || job.Waiting.Reason != lucius.WaitingReasonLineBlocked || job.Waiting.BlockedBy.ID != failed {
		return fmt.Errorf("the job of a blocked line is %+v: %w", job, err)
	}
	rerun, err := s.Rerun(ctx, failed, lucius.RerunRequest{PayloadPatch: map[string]any{"do": "succeed"}})
	if err != nil {
		return err
	}
	repeated, err := s.Wait(ctx, rerun.JobID)
	if err != nil || repeated.Err() != nil {
		return fmt.Errorf("the rerun of the line ended as %+v: %w", repeated, err)
	}
	if ended, err := s.Wait(ctx, next); err != nil || ended.Err() != nil {
		return fmt.Errorf("the job after it ended as %+v: %w", ended, err)
	}
	for event, err := range s.History(ctx, next) {
		if err != nil || event.Type == lucius.EventTypeStepDispatching && event.At.Before(repeated.CompletedAt) {
			return fmt.Errorf("%+v is before the end of the rerun at %s: %w", event, repeated.CompletedAt, err)
		}
	}
	return nil
}
