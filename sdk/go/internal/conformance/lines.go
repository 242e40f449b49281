package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// lineKey is the order key of part 12.
const lineKey = "customer-44"

// lines tells the part 12.
func (s *story) lines(ctx context.Context) error {
	results, err := s.SubmitBatch(ctx, []lucius.Command{
		s.inLine("fail", lineKey, ""), s.inLine("succeed", lineKey, ""), s.inLine("succeed", lineKey, ""),
	})
	if err != nil {
		return err
	}
	jobs := make([]string, len(results))
	for i := range results {
		jobs[i] = results[i].JobID
	}
	if ended, err := s.Wait(ctx, jobs[0]); err != nil || ended.State != lucius.JobStateFailedFinal {
		return fmt.Errorf("the first of the line ended as %+v: %w", ended, err)
	}
	line, err := s.showsLine(ctx, jobs)
	if err != nil {
		return err
	}
	if _, err := s.CancelLine(ctx, line, "no longer wanted"); err != nil {
		return err
	}
	for _, id := range jobs[1:] {
		if job, err := s.Get(ctx, id); err != nil || job.State != lucius.JobStateCancelled {
			return fmt.Errorf("the job of a cancelled line is %+v: %w", job, err)
		}
	}
	left, err := s.Line(ctx, line)
	if err != nil || left.State != lucius.LineStateBlocked || left.Waiting != 0 || left.Head.JobID != jobs[0] {
		return fmt.Errorf("the cancelled line is %+v: %w", left, err)
	}
	return s.releases(ctx, line, jobs[0])
}

// showsLine finds the line, which its first job blocks, and returns its id.
func (s *story) showsLine(ctx context.Context, jobs []string) (id string, err error) {
	for _, filter := range []lucius.LineFilter{
		{TenantID: s.tenant, OrderKey: lineKey}, {TenantID: s.tenant, State: lucius.LineStateBlocked, PageSize: 1},
	} {
		found := 0
		for line, err := range s.Lines(ctx, filter) {
			if err != nil || line.OrderKey != lineKey || line.State != lucius.LineStateBlocked || line.Waiting != 2 ||
				line.Head.JobID != jobs[0] || line.Head.ErrorCode != "CONFORMANCE_FINAL" {
				return "", fmt.Errorf("the blocked line is %+v: %w", line, err)
			}
			id, found = line.LineID, found+1
		}
		if found != 1 {
			return "", fmt.Errorf("%+v finds %d lines", filter, found)
		}
	}
	var listed []string
	for job, err := range s.LineJobs(ctx, id) {
		if err != nil || job.LineID != id {
			return "", fmt.Errorf("a job of line %s is %+v: %w", id, job, err)
		}
		listed = append(listed, job.JobID)
	}
	if !slices.Equal(listed, jobs) {
		return "", fmt.Errorf("the line has the jobs %v instead of %v", listed, jobs)
	}
	return id, nil
}

// releases lets the line go on past its failed job.
func (s *story) releases(ctx context.Context, line, failed string) error {
	last, err := s.Submit(ctx, s.inLine("succeed", lineKey, ""))
	if err != nil {
		return err
	}
	job, err := s.Get(ctx, last.JobID)
	if err != nil || job.Waiting == nil || job.Waiting.Reason != lucius.WaitingReasonLineBlocked {
		return fmt.Errorf("the job of a blocked line is %+v: %w", job, err)
	}
	if released, err := s.ReleaseLine(ctx, line, failed, "done by hand"); err != nil || released.State != lucius.LineStateMoving {
		return fmt.Errorf("the released line is %+v: %w", released, err)
	}
	if ended, err := s.Wait(ctx, last.JobID); err != nil || ended.Err() != nil {
		return fmt.Errorf("the job after the release ended as %+v: %w", ended, err)
	}
	if again, err := s.ReleaseLine(ctx, line, failed, ""); err != nil || again.Head.JobID != "" {
		return fmt.Errorf("the line that was released again is %+v: %w", again, err)
	}
	var refused *lucius.Error
	_, err = s.ReleaseLine(ctx, line, last.JobID, "")
	if !errors.As(err, &refused) || refused.Code != lucius.ProblemCodeNotBlocking && refused.Code != lucius.ProblemCodeLineNotFound {
		return fmt.Errorf("the release of a job that succeeded was answered with: %w", err)
	}
	return nil
}
