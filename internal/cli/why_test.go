package cli_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// waitingJob returns a job whose second step waits for the reason.
func waitingJob(state api.JobState, w api.Waiting) api.Job {
	job := failedJob()
	job.State, job.ErrorCode, job.ErrorMessage, job.CompletedAt = state, "", "", api.Time{}
	job.Waiting, job.Steps[1].Waiting = &w, &w
	job.Steps[1].State, job.Steps[1].StepType = api.StepStateDispatching, "EMBED"
	return job
}

// ordered returns the job with an order key.
func ordered(job api.Job) api.Job {
	job.OrderKey, job.OrderMode, job.LineID = "customer-42", api.OrderModeFifo, "3f0d1b0c"
	return job
}

// history returns that of a job whose second step failed six times, and which ops-1 paused
// and ops-2 cancelled.
func history() api.EventPage {
	var page api.EventPage
	for attempt := range 6 {
		page.Events = append(page.Events, api.Event{
			EventID: fmt.Sprint(attempt), Type: api.EventTypeStepFailedRetry, Object: api.EventObjectStep, ObjectID: "embed",
			At: at(time.Duration(60-10*attempt) * time.Minute), AttemptNo: attempt + 1, Actor: "platform", Caller: "worker-1",
			Cause: "RESULT", Detail: "ocr_timeout", Owner: "ocr-7",
		})
	}
	page.Events = append(
		page.Events,
		api.Event{Type: api.EventTypeJobPausing, Object: api.EventObjectJob, At: at(2 * time.Minute), Actor: "client", Caller: "ops-1", Cause: "wrong file."},
		api.Event{Type: api.EventTypeJobPaused, Object: api.EventObjectJob, At: at(time.Minute), Actor: "platform"},
		api.Event{Type: api.EventTypeJobCancelling, Object: api.EventObjectJob, At: at(2 * time.Minute), Actor: "client", Caller: "ops-2", Cause: "not needed"},
		api.Event{Type: api.EventTypeJobCancelled, Object: api.EventObjectJob, At: at(time.Minute), Actor: "platform", To: "CANCELLED", From: "CANCELLING"},
	)
	return page
}

// TestWhy compares the answer for each reason, and for each end.
func TestWhy(t *testing.T) {
	t.Parallel()
	soon, since := api.NewTime(now.Add(9*time.Second)), at(5*time.Minute)
	stamp := soon.String()
	running := waitingJob(api.JobStateInProgress, api.Waiting{
		Reason: api.WaitingReasonRunning, Since: since, Until: soon, Detail: "worker-1 runs attempt 3 and was last heard of at " + since.String(),
		BlockedBy: &api.Blocker{Type: api.BlockerTypeWorkItem, ID: jobID + ".1.3"},
	})
	running.Steps[1].Progress = &api.Progress{Fraction: 0.456, Message: "page 5 of 11"}
	succeeded, cancelled, superseded, expired := failedJob(), failedJob(), failedJob(), failedJob()
	expired.ErrorCode, expired.ErrorMessage, expired.NotAfter = "expired", "no worker had started it by "+since.String(), since
	expired.Steps[1].LastErrorCode, expired.Steps[1].LastErrorMessage = expired.ErrorCode, expired.ErrorMessage
	succeeded.State, succeeded.ErrorCode, succeeded.ErrorMessage, succeeded.AttemptsTotal = api.JobStateSucceeded, "", "", 1
	cancelled.State, cancelled.ErrorCode, cancelled.ErrorMessage = api.JobStateCancelled, "", ""
	superseded.SupersededBy = strings.Replace(jobID, "0198", "0199", 1)
	wait := func(state api.JobState, reason api.WaitingReason, detail string, blocker *api.Blocker) api.Job {
		return waitingJob(state, api.Waiting{Reason: reason, Since: since, Until: soon, Detail: detail, BlockedBy: blocker})
	}
	var screens strings.Builder
	for _, test := range []struct {
		name string
		job  api.Job
	}{
		{"backoff", wait(api.JobStateInProgress, api.WaitingReasonBackoff, "execution retry 6 of 9 at "+stamp+" after ocr_timeout", nil)},
		{"rate_limited", wait(api.JobStateInProgress, api.WaitingReasonRateLimited, "service embed throttled attempt 2; the next is at "+stamp+" and spends no retry", nil)},
		{"job_paused", waitingJob(api.JobStatePaused, api.Waiting{Reason: api.WaitingReasonJobPaused, Since: since, Detail: "the job is paused, and goes on when it is resumed"})},
		{"scheduled", wait(api.JobStateQueued, api.WaitingReasonScheduled, "the job begins at "+stamp+"; it expires at "+stamp+" unless a worker has started it", nil)},
		{"line_blocked", ordered(wait(api.JobStateQueued, api.WaitingReasonLineBlocked, "at most 2 jobs are before it in its line, the first is job "+superseded.SupersededBy+", which has failed: rerun or release that job, and the line goes on", &api.Blocker{Type: api.BlockerTypeJob, ID: superseded.SupersededBy}))},
		{"behind", ordered(wait(api.JobStateQueued, api.WaitingReasonBehind, "at most 2 jobs are before it in its line, the first is job "+superseded.SupersededBy+", which is IN_PROGRESS", &api.Blocker{Type: api.BlockerTypeJob, ID: superseded.SupersededBy}))},
		{"starting", ordered(wait(api.JobStateQueued, api.WaitingReasonStarting, "the job begins as soon as Lucius has looked at its line", nil))},
		{"scope_paused", waitingJob(api.JobStateDispatching, api.Waiting{
			Reason: api.WaitingReasonScopePaused, Since: since, Detail: "paused by ops-1: OCR is down", BlockedBy: &api.Blocker{Type: api.BlockerTypePause, ID: "service:embed"},
		})},
		{"circuit_open", wait(api.JobStateDispatching, api.WaitingReasonCircuitOpen, "circuit global-bus-p1 is open: timeout; a relay tries again at "+stamp, &api.Blocker{Type: api.BlockerTypeCircuit, ID: "global-bus-p1"})},
		{"publishing", waitingJob(api.JobStateDispatching, api.Waiting{Reason: api.WaitingReasonPublishing, Since: since, Detail: "attempt 1 is to be published"})},
		{"no_worker", waitingJob(api.JobStateDispatching, api.Waiting{Reason: api.WaitingReasonNoWorker, Since: since, Detail: "no worker has polled for service embed, step type EMBED since " + since.String()})},
		{"queued", waitingJob(api.JobStateDispatching, api.Waiting{Reason: api.WaitingReasonQueued, Since: since, Detail: "attempt 1 waits for a worker of service embed, step type EMBED, with 3 of its tenant before it"})},
		{"delivered", wait(api.JobStateDispatching, api.WaitingReasonDelivered, "attempt 1 was delivered to worker-1, and its ACK is due by "+stamp, nil)},
		{"running", running},
		{"silent", wait(api.JobStateInProgress, api.WaitingReasonSilent, "worker-1 runs attempt 1 and has sent no heartbeat since "+since.String()+"; the lease ends at "+stamp, nil)},
		{"cancelling", wait(api.JobStateCancelling, api.WaitingReasonCancelling, "the job is cancelled once worker-1 ends attempt 1; the lease ends at "+stamp, nil)},
		{"pausing", wait(api.JobStatePausing, api.WaitingReasonPausing, "the job is paused once worker-1 ends attempt 1; the lease ends at "+stamp, nil)},
		{"a reason of a newer server", wait(api.JobStateDispatching, "moon", "the moon has to rise by "+stamp, nil)},
		{"failed", failedJob()},
		{"failed, and rerun", superseded},
		{"expired", expired},
		{"cancelled", cancelled},
		{"succeeded", succeeded},
	} {
		var page api.EventPage
		if strings.Contains("backoff job_paused failed cancelled failed, and rerun", test.name) {
			page = history()
		}
		l := newLine(t, answers(t, map[string]any{"GET /v1/jobs/" + jobID: test.job, "GET /v1/jobs/" + jobID + "/events": page}))
		out, err := l.run(t, "why", jobID)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		fmt.Fprintf(&screens, "--- %s\n%s\n", test.name, out)
		if strings.Count(out, "\n") > 22 {
			t.Errorf("%s takes more than a screen", test.name)
		}
	}
	golden(t, "why.txt", strings.TrimRight(screens.String(), "\n")+"\n")
}

func TestWhy_ForPrograms(t *testing.T) {
	t.Parallel()
	forPrograms(t, newLine(t, answers(t, map[string]any{"GET /v1/jobs/" + jobID: failedJob()})), failedJob(), "why", jobID)
}
