package diagnosis_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

var now = time.Date(2026, 1, 27, 10, 2, 30, 0, time.UTC)

// words formats a time as its form and its distance in seconds.
func words(form diagnosis.Form, at time.Time) string {
	name := map[diagnosis.Form]string{diagnosis.Ago: "ago", diagnosis.In: "in", diagnosis.For: "for", diagnosis.Within: "within"}[form]
	return "<" + name + " " + at.Sub(now).String() + ">"
}

func TestRelative_FindsTimes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                "",
		"nothing of that": "nothing of that",
		"silent since 2026-01-27T10:02:00.000Z; the lease ends at 2026-01-27T10:03:00Z": "silent <for -30s>; the lease ends <ago 30s>",
		"due by 2026-01-27T10:03:00.5Z.":                                                "due <within 30.5s>.",
		"was due by 2026-01-27T10:02:00Z":                                               "was due by <ago -30s>",
		"2026-01-27T10:02:30Z":                                                          "<ago 0s>",
		"at 2026-99-27T10:02:30Z":                                                       "at 2026-99-27T10:02:30Z",
	} {
		if got := diagnosis.Relative(text, now).With(words); got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
	}
}

// job returns a job whose second step waits for the given reason.
func job(reason api.WaitingReason, detail string) *api.Job {
	w := &api.Waiting{Reason: reason, Detail: detail, Until: api.NewTime(now.Add(9 * time.Second))}
	if reason == api.WaitingReasonBehind || reason == api.WaitingReasonLineBlocked {
		w.BlockedBy = &api.Blocker{Type: api.BlockerTypeJob, ID: "j0"}
	}
	return &api.Job{
		JobID: "j1", State: api.JobStateInProgress, Waiting: w,
		Steps: []api.Step{
			{StepID: "ocr", State: api.StepStateSucceeded},
			{StepID: "embed", StepIndex: 1, Service: "embedder", StepType: "EMBED", Owner: "w-1", Waiting: w, Progress: &api.Progress{Fraction: 0.5, Message: "half"}},
		},
	}
}

func TestJob_SaysWhatALiveOneWaitsFor(t *testing.T) {
	t.Parallel()
	events := []api.Event{
		{Type: api.EventTypeStepFailedRetry, ObjectID: "embed", Detail: "timeout", AttemptNo: 1},
		{Type: api.EventTypeStepFailedRetry, ObjectID: "embed", AttemptNo: 2}, // It was withdrawn.
		{Type: api.EventTypeJobPausing, Caller: "ops-1", Cause: "wrong file.", At: api.NewTime(now.Add(-time.Minute))},
	}
	for reason, want := range map[api.WaitingReason][2]string{
		api.WaitingReasonBackoff:     {"embed failed 1 time, last with timeout; the next attempt starts <in 9s>."},
		api.WaitingReasonRateLimited: {"embedder limits its rate and put off embed; the next attempt starts <in 9s>."},
		api.WaitingReasonJobPaused:   {"The job is paused by ops-1 <ago -1m0s>: wrong file.", "lucius jobs resume j1"},
		api.WaitingReasonScheduled:   {"The job begins at 2026-01-27T10:02:39.000Z, <in 9s>.", "lucius jobs reschedule j1 --now"},
		api.WaitingReasonLineBlocked: {"A job of the same order key before this one has failed.", "lucius why j0"},
		api.WaitingReasonBehind:      {"The job waits for the jobs of its order key before it.", "lucius why j0"},
		api.WaitingReasonStarting:    {"It is the job's turn, and it is about to begin."},
		api.WaitingReasonScopePaused: {"Dispatch to embedder is held.", "it continues when the pause ends"},
		api.WaitingReasonCircuitOpen: {"The bus is out of service for embed; the next try is <in 9s>."},
		api.WaitingReasonPublishing:  {"The directive of embed is about to be published."},
		api.WaitingReasonNoWorker:    {"No worker asks for work of service embedder, step type EMBED.", "start a worker of embedder"},
		api.WaitingReasonQueued:      {"embed waits in the queue for a worker of embedder."},
		api.WaitingReasonDelivered:   {"embed was handed to w-1, which must start <in 9s>."},
		api.WaitingReasonRunning:     {"w-1 runs embed, 50 % done (half); its lease ends <in 9s>."},
		api.WaitingReasonSilent:      {"w-1 runs embed, but has not reported; unless it does, the attempt fails <in 9s>.", "look at w-1"},
		api.WaitingReasonCancelling:  {"The job is cancelled when w-1 ends its attempt, at the latest <in 9s>."},
		api.WaitingReasonPausing:     {"The job is paused when w-1 ends its attempt, at the latest <in 9s>."},
		"moon":                       {"held."},
	} {
		got := diagnosis.Job(job(reason, "held"), events, now)
		if said := got.Headline.With(words); said != want[0] || got.Next.String() != want[1] || got.Step == nil {
			t.Errorf("%s: %q, next %q of step %v", reason, said, got.Next, got.Step)
		}
	}
}

// The class of a queued job is named if other work goes first.
func TestJob_NamesBulkWork(t *testing.T) {
	t.Parallel()
	bulk := job(api.WaitingReasonQueued, "held")
	bulk.Priority = api.PriorityBulk
	const want = "embed waits in the queue for a worker of embedder, as bulk work."
	if got := diagnosis.Job(bulk, nil, now).Headline.With(words); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A server of another version may not name the first job.
func TestJob_NamesNoFirstJobThatTheServerDoesNotName(t *testing.T) {
	t.Parallel()
	behind := job(api.WaitingReasonBehind, "jobs are before it")
	behind.Waiting.BlockedBy = nil
	if got := diagnosis.Job(behind, nil, now); got.Next != (diagnosis.Next{}) || got.Detail.With(words) != "jobs are before it" {
		t.Errorf("%+v", got)
	}
}

// A detail that repeats the headline is left out.
func TestJob_LeavesOutADetailThatIsSaid(t *testing.T) {
	t.Parallel()
	held := job(api.WaitingReasonScopePaused, "paused since 2026-01-27T10:02:00Z")
	held.Waiting.BlockedBy = &api.Blocker{Type: api.BlockerTypeWorkItem, ID: "j1.1.1"}
	if got := diagnosis.Job(held, nil, now); got.Detail != nil || got.HeldBy != "work item j1.1.1" {
		t.Errorf("the detail is %q, held by %q", got.Detail.With(words), got.HeldBy)
	}
	queued := diagnosis.Job(job(api.WaitingReasonQueued, "attempt 1 waits since 2026-01-27T10:02:00Z"), nil, now)
	if got := queued.Detail.With(words); got != "attempt 1 waits <for -30s>" {
		t.Errorf("the detail is %q", got)
	}
}

func TestJob_SaysHowAnEndedOneEnded(t *testing.T) {
	t.Parallel()
	failedStep := api.Step{StepID: "embed", State: api.StepStateFailedFinal}
	for name, test := range map[string]struct {
		job        api.Job
		want, next string
	}{
		"succeeded":  {api.Job{State: api.JobStateSucceeded, AttemptsTotal: 3}, "The job succeeded <ago -5s>, after 3 attempts.", ""},
		"cancelled":  {api.Job{State: api.JobStateCancelled}, "The job was cancelled by client <ago -1m0s>.", "lucius jobs rerun j1"},
		"superseded": {api.Job{State: api.JobStateCancelled, ErrorCode: "superseded"}, "The job was cancelled <ago -5s> for a newer job of its order key.", "lucius jobs rerun j1"},
		"failed": {
			api.Job{State: api.JobStateFailedFinal, ErrorCode: "bad_scan", ErrorMessage: "page 3 is black.", Steps: []api.Step{failedStep}},
			"embed failed for good <ago -5s>, after 1 attempt: bad_scan: page 3 is black.", "lucius jobs rerun j1",
		},
		"expired": {
			api.Job{State: api.JobStateFailedFinal, ErrorCode: "expired", NotAfter: api.NewTime(now), Steps: []api.Step{failedStep}},
			"The job expired <ago -5s>: no worker had started it by its not_after, 2026-01-27T10:02:30.000Z.", "lucius jobs rerun j1",
		},
		"failed without a step": {api.Job{State: api.JobStateFailedFinal, ErrorCode: "odd"}, "The job failed <ago -5s>: odd.", "lucius jobs rerun j1"},
		"rerun": {
			api.Job{State: api.JobStateFailedFinal, ErrorCode: "odd", SupersededBy: "j2"}, "The job failed <ago -5s>: odd.", "lucius why j2",
		},
		"unknown": {api.Job{State: api.JobStateQueued}, "The job is QUEUED.", ""},
	} {
		test.job.JobID, test.job.CompletedAt = "j1", api.NewTime(now.Add(-5*time.Second))
		got := diagnosis.Job(&test.job, []api.Event{
			{Type: api.EventTypeStepFailedFinal, ObjectID: "embed", Detail: "bad_scan"},
			{Type: api.EventTypeJobCancelling, Actor: api.ActorClient, At: api.NewTime(now.Add(-time.Minute))},
		}, now)
		if said := got.Headline.With(words); said != test.want || got.Next.String() != test.next {
			t.Errorf("%s: %q, next %q", name, said, got.Next)
		}
	}
}
