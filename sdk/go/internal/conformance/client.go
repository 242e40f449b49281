package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"reflect"
	"slices"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/internal/conformance/handler"
)

// story is the story of the conformance client.
type story struct {
	*lucius.Client
	tenant string
	asked  chan struct{} // gets one from each handler that waits
	out    io.Writer
}

// tell tells the story, with a worker in the same process.
func tell(ctx context.Context) error {
	client, err := lucius.NewClient(lucius.ClientConfig{})
	if err != nil {
		return err
	}
	defer client.Close()
	s := &story{Client: client, tenant: "tenant_" + rand.Text()[:8], asked: make(chan struct{}, 8), out: os.Stdout}
	w := lucius.NewWorker(lucius.WorkerConfig{Client: client, Service: "conformance", ClaimWait: time.Second})
	w.Handle("CONFORM", s.conform)
	working, stop := context.WithCancel(ctx)
	worked := make(chan error, 1)
	go func() { worked <- w.Run(working) }()
	telling, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	waiting := ""
	first, err := s.submits(telling)
	if err == nil {
		waiting, err = s.controls(telling)
	}
	if err == nil {
		err = s.reruns(telling, first, waiting)
	}
	if err == nil {
		err = s.corrects(telling)
	}
	if err == nil {
		err = s.dates(telling)
	}
	if err == nil {
		err = s.order(telling)
	}
	if err == nil {
		err = s.lines(telling)
	}
	if err == nil {
		err = s.schedules(telling)
	}
	stop()
	return errors.Join(err, <-worked)
}

// conform does a task at once, fails, or waits until it is cancelled.
func (s *story) conform(ctx context.Context, task *lucius.Task) (any, error) {
	var p handler.Payload
	if err := task.Decode(&p); err != nil {
		return nil, err
	}
	switch p.Do {
	case "fail":
		return nil, lucius.Final("CONFORMANCE_FINAL", "told to fail")
	case "wait":
		s.asked <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return lucius.URI(fmt.Sprintf("conformance://%s/%d", task.JobID, task.AttemptNo)), nil
}

func (s *story) command(requestType string, payload map[string]any) lucius.Command {
	return lucius.Command{
		TenantID: s.tenant, RequestType: requestType, SchemaVersion: "1", Payload: payload,
		InputRef: lucius.URI("conformance://in"), OutputRef: lucius.URI("conformance://out"),
	}
}

// tagged returns a command that can be found by its document and tags.
func (s *story) tagged() lucius.Command {
	command := s.command("sdk.conform", map[string]any{"do": "succeed", "n": 2})
	command.DocID, command.Tags = "conformance doc", lucius.Tags{"env": "test", "a.key": "4=2 & more"}
	return command
}

// submits tells the parts 1 and 2. It returns the jobs, the newest first.
func (s *story) submits(ctx context.Context) (jobs []string, err error) {
	succeed := s.command("sdk.conform", map[string]any{"do": "succeed"})
	first, err := s.Submit(ctx, succeed)
	if err != nil {
		return nil, err
	}
	second, err := s.Submit(ctx, succeed)
	if err != nil || !second.Replayed || second.JobID != first.JobID {
		return nil, fmt.Errorf("the second receipt is %+v, the first %+v: %w", second, first, err)
	}
	job, err := s.Wait(ctx, first.JobID)
	if err != nil || job.Err() != nil || job.FinalOutput.URI() != fmt.Sprintf("conformance://%s/1", job.JobID) {
		return nil, fmt.Errorf("the job ended as %+v: %w", job, err)
	}
	history, ended, err := read(s.History(ctx, job.JobID))
	if err != nil {
		return nil, err
	}
	watched, _, err := read(s.Watch(ctx, job.JobID))
	if err != nil || !slices.Equal(history, watched) || ended != string(lucius.JobStateSucceeded) {
		return nil, fmt.Errorf("the history is %s and ends %s, and the watch saw %s: %w", history, ended, watched, err)
	}
	results, err := s.SubmitBatch(ctx, []lucius.Command{
		s.tagged(), s.command("unknown", map[string]any{"do": "succeed"}),
	})
	if err != nil {
		return nil, err
	}
	good, bad := results[0], results[1].Error
	if good.Error != nil || bad == nil || bad.Code != lucius.ProblemCodeUnknownRequestType {
		return nil, fmt.Errorf("the batch was answered with %+v", results)
	}
	if job, err = s.Wait(ctx, good.JobID); err != nil || job.Err() != nil {
		return nil, fmt.Errorf("the job of the batch ended as %+v: %w", job, err)
	}
	return []string{good.JobID, first.JobID}, nil
}

// read returns the ids of the entries, and the last state of the job that they name.
func read(entries iter.Seq2[lucius.Event, error]) (ids []string, state string, err error) {
	for event, err := range entries {
		if err != nil {
			return ids, state, err
		}
		ids = append(ids, event.EventID)
		if event.Object == lucius.EventObjectJob {
			state = event.To
		}
	}
	return ids, state, nil
}

// controls tells the part 3, and returns its job.
func (s *story) controls(ctx context.Context) (jobID string, err error) {
	receipt, err := s.Submit(ctx, s.command("sdk.conform", map[string]any{"do": "wait"}))
	if err != nil {
		return "", err
	}
	jobID = receipt.JobID
	next, stop := iter.Pull2(s.Watch(ctx, jobID))
	defer stop()
	if event, err, _ := next(); err != nil || event.Type != lucius.EventTypeJobAccepted {
		return "", fmt.Errorf("the watch begins with %+v: %w", event, err)
	}
	if err := s.await(ctx); err != nil {
		return "", err
	}
	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if job, err := s.Wait(soon, jobID); !errors.Is(err, context.DeadlineExceeded) {
		return "", fmt.Errorf("the wait for a job that does not end returned %+v, %w", job, err)
	}
	for _, step := range []struct {
		verb func(context.Context, string, string) (*lucius.Job, error)
		want lucius.JobState
	}{{s.Pause, lucius.JobStatePausing}, {s.Resume, lucius.JobStateInProgress}, {s.Cancel, lucius.JobStateCancelling}} {
		if job, err := step.verb(ctx, jobID, "to see"); err != nil || job.State != step.want {
			return "", fmt.Errorf("the job is %+v, want %s: %w", job, step.want, err)
		}
	}
	rest := func(yield func(lucius.Event, error) bool) {
		for {
			if event, err, more := next(); !more || !yield(event, err) {
				return
			}
		}
	}
	if _, ended, err := read(rest); err != nil || ended != string(lucius.JobStateCancelled) {
		return "", fmt.Errorf("the watch ends with %s: %w", ended, err)
	}
	if job, err := s.Get(ctx, jobID); err != nil || job.State != lucius.JobStateCancelled {
		return "", fmt.Errorf("the job is %+v: %w", job, err)
	}
	return jobID, nil
}

// await waits until a handler waits.
func (s *story) await(ctx context.Context) error {
	select {
	case <-s.asked:
		return nil
	case <-ctx.Done():
		return errors.New("the handler was not called")
	}
}

// reruns tells the parts 4 to 7.
func (s *story) reruns(ctx context.Context, submitted []string, cancelled string) error {
	again, err := s.Rerun(ctx, cancelled, lucius.RerunRequest{From: lucius.RerunFromStart, Reason: "once more"})
	if err != nil || again.JobID == cancelled {
		return fmt.Errorf("the rerun is %+v: %w", again, err)
	}
	if err := s.await(ctx); err != nil {
		return err
	}
	if _, err := s.Cancel(ctx, again.JobID, ""); err != nil {
		return err
	}
	if job, err := s.Wait(ctx, again.JobID); err != nil || job.State != lucius.JobStateCancelled {
		return fmt.Errorf("the rerun ended as %+v: %w", job, err)
	}
	if err := s.lists(ctx, append([]string{again.JobID, cancelled}, submitted...)); err != nil {
		return err
	}
	_, err = s.Get(ctx, "0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77")
	if refused, ok := errors.AsType[*lucius.Error](err); !ok || refused.Status != 404 || refused.Code != lucius.ProblemCodeJobNotFound {
		return fmt.Errorf("a job that does not exist: %w", err)
	}
	return s.misspell(ctx)
}

// lists lists all jobs, which are these, and the third of them by its document and tags.
func (s *story) lists(ctx context.Context, all []string) error {
	tagged := s.tagged()
	for _, list := range []struct {
		filter lucius.JobFilter
		want   []string
	}{
		{lucius.JobFilter{PageSize: 2}, all},
		{lucius.JobFilter{DocID: tagged.DocID}, all[2:3]},
		{lucius.JobFilter{Tags: tagged.Tags}, all[2:3]},
		{lucius.JobFilter{DocID: tagged.DocID, Tags: lucius.Tags{"env": "prod"}}, nil},
	} {
		list.filter.TenantID = s.tenant
		var listed []string
		for job, err := range s.List(ctx, list.filter) {
			if err != nil {
				return err
			}
			listed = append(listed, job.JobID)
			if job.JobID == all[2] && (job.DocID != tagged.DocID || !maps.Equal(job.Tags, tagged.Tags)) {
				return fmt.Errorf("job %s shows the document %q and the tags %v", job.JobID, job.DocID, job.Tags)
			}
		}
		if !slices.Equal(listed, list.want) {
			return fmt.Errorf("the list for %+v is %s, want %s", list.filter, listed, list.want)
		}
	}
	return nil
}

// misspell submits a command whose payload has a misspelt key, and prints the refusal.
func (s *story) misspell(ctx context.Context) error {
	_, err := s.Submit(ctx, s.command("sdk.strict", map[string]any{"wrods": 3}))
	return s.refused("misspelt", err)
}

// refused prints the refusal of a payload with a misspelt key.
func (s *story) refused(what string, err error) error {
	refused, ok := errors.AsType[*lucius.Error](err)
	if !ok || len(refused.Errors) != 2 || refused.Errors[1].Pointer != "/payload/wrods" {
		return fmt.Errorf("%s: %w", what, err)
	}
	_, err = fmt.Fprintln(s.out, what+":", refused)
	return err
}

// corrects tells the parts 8 and 9.
func (s *story) corrects(ctx context.Context) error {
	command := s.command("sdk.corrected", map[string]any{"do": "fail", "words": 3})
	command.Tags = lucius.Tags{"env": "test"}
	receipt, err := s.Submit(ctx, command)
	if err != nil {
		return err
	}
	failed, err := s.Wait(ctx, receipt.JobID)
	if err != nil || failed.State != lucius.JobStateFailedFinal {
		return fmt.Errorf("the job to correct ended as %+v: %w", failed, err)
	}
	_, err = s.Rerun(ctx, failed.JobID, lucius.RerunRequest{PayloadPatch: map[string]any{"words": nil, "wrods": 3}})
	if err := s.refused("wrong patch", err); err != nil {
		return err
	}
	first := lucius.LineageJob{JobID: failed.JobID, FirstStep: "scan", State: failed.State, ErrorCode: "CONFORMANCE_FINAL"}
	if err := s.descends(ctx, failed.JobID, first); err != nil {
		return err
	}

	byHand := lucius.URI("conformance://by-hand")
	request := lucius.RerunRequest{
		PayloadPatch: map[string]any{"do": "succeed"}, Resolve: []lucius.ResolvedStep{{StepID: "scan", OutputRef: byHand}},
		Tags: lucius.Tags{"run": "second"}, Reason: "scanned by hand",
	}
	if err := s.plans(ctx, failed.JobID, request, ""); err != nil {
		return err
	}
	if err := s.descends(ctx, failed.JobID, first); err != nil {
		return err
	}
	corrected, err := s.Rerun(ctx, failed.JobID, request)
	if err != nil {
		return err
	}
	job, err := s.Wait(ctx, corrected.JobID)
	if err != nil || job.Err() != nil || !maps.Equal(job.Tags, lucius.Tags{"env": "test", "run": "second"}) {
		return fmt.Errorf("the corrected job ended as %+v: %w", job, err)
	}
	scan, printed := job.Steps[0], job.Steps[1]
	if scan.Outcome != lucius.StepOutcomeResolved || scan.OutputRef.URI() != byHand.URI() || printed.InputRef.URI() != byHand.URI() {
		return fmt.Errorf("the steps of the corrected job are %+v", job.Steps)
	}
	again, err := s.Rerun(ctx, failed.JobID, request)
	if err != nil || !again.Replayed || again.JobID != job.JobID {
		return fmt.Errorf("the repeated rerun is %+v: %w", again, err)
	}
	if err := s.plans(ctx, failed.JobID, request, job.JobID); err != nil {
		return err
	}
	return s.descends(ctx, failed.JobID, first, lucius.LineageJob{
		JobID: job.JobID, RerunOf: failed.JobID, FirstStep: "print", RerunEdits: []string{"/payload/do"},
		State: lucius.JobStateSucceeded, Reason: request.Reason,
	})
}

// plans compares the plan of the rerun of part 9 with what it will do, or has done as that job.
func (s *story) plans(ctx context.Context, jobID string, request lucius.RerunRequest, existing string) error {
	plan, err := s.PlanRerun(ctx, jobID, request)
	if err != nil {
		return err
	}
	want := &lucius.RerunPreview{
		DryRun: true, JobID: jobID, ExistingJobID: existing, ProtocolID: "corrected_v1", ProtocolVersion: plan.ProtocolVersion,
		Steps: []lucius.PlannedStep{
			{StepID: "scan", StepType: "CONFORM", Service: "conformance", Outcome: lucius.StepOutcomeResolved},
			{StepID: "print", StepType: "CONFORM", Service: "conformance"},
		},
		Changes: []lucius.CommandChange{
			{Pointer: "/payload/do", Before: json.RawMessage(`"fail"`), After: json.RawMessage(`"succeed"`)},
		},
	}
	if !reflect.DeepEqual(plan, want) {
		return fmt.Errorf("the plan of the rerun is %+v, want %+v", plan, want)
	}
	return nil
}

// descends compares the lineage of a job with these jobs.
func (s *story) descends(ctx context.Context, jobID string, want ...lucius.LineageJob) error {
	lineage, err := s.Lineage(ctx, jobID)
	if err != nil {
		return err
	}
	var found []lucius.LineageJob
	for _, job := range lineage.Jobs {
		found = append(found, lucius.LineageJob{
			JobID: job.JobID, RerunOf: job.RerunOf, FirstStep: job.FirstStep, RerunEdits: job.RerunEdits,
			State: job.State, ErrorCode: job.ErrorCode, Reason: job.Reason,
		})
	}
	if !reflect.DeepEqual(found, want) || lineage.Truncated {
		return fmt.Errorf("the lineage of job %s is %+v, want %+v", jobID, lineage, want)
	}
	return nil
}
