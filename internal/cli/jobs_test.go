package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

const jobID = "0198c5f2-4a00-7c3e-9d2a-5b1f0e6d7c8b"

func at(before time.Duration) api.Time { return api.NewTime(now.Add(-before)) }

// failedJob returns a job whose second step failed with a message that would clear the screen.
func failedJob() api.Job {
	return api.Job{
		JobID: jobID, State: api.JobStateFailedFinal, TenantID: "tenant_a", RequestType: "doc.ingest", ProtocolID: "doc_ingest_v1",
		ProtocolVersion: "1", DocID: "doc-1", Tags: api.Tags{"env": "prod", "customer": "4=2"}, CorrelationID: "corr-1", CreatedAt: at(3 * time.Hour), CompletedAt: at(90 * time.Second),
		AttemptsTotal: 5, ErrorCode: "bad_scan", ErrorMessage: "The page\nis blank.\x1b[2J", InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`),
		Steps: []api.Step{
			{StepID: "extract", StepIndex: 0, Service: "extract", State: api.StepStateSucceeded, AttemptNo: 1, UpdatedAt: at(2 * time.Hour)},
			{
				StepID: "embed", StepIndex: 1, Service: "embed", State: api.StepStateFailedFinal, AttemptNo: 4, UpdatedAt: at(90 * time.Second),
				LastErrorCode: "bad_scan", Owner: "worker-1",
			},
			{StepID: "index", StepIndex: 2, Service: "index", State: api.StepStatePending, UpdatedAt: at(3 * time.Hour)},
		},
	}
}

func TestJobsGet(t *testing.T) {
	t.Parallel()
	l := newLine(t, answers(t, map[string]any{"GET /v1/jobs/" + jobID: failedJob()}))
	out := l.must(t, "jobs", "get", jobID)
	golden(t, "jobs-get.txt", out)
	l.Terminal = true
	if out, _ = l.run(t, "jobs", "get", jobID); !strings.Contains(out, "\x1b[31mFAILED_FINAL\x1b[0m") || strings.Contains(out, "\x1b[2J") {
		t.Errorf("on a terminal: %q", out)
	}
	l.Environment = append(l.Environment, "NO_COLOR=1")
	if out, _ = l.run(t, "jobs", "get", jobID); strings.Contains(out, "\x1b") {
		t.Errorf("without colours: %q", out)
	}
}

func TestJobsGet_ForPrograms(t *testing.T) {
	t.Parallel()
	forPrograms(t, newLine(t, answers(t, map[string]any{"GET /v1/jobs/" + jobID: failedJob()})), failedJob(), "jobs", "get", jobID)
}

// paged starts a server that lists three jobs, at most two per page, and records the queries.
func paged(t *testing.T) (string, *[]string) {
	t.Helper()
	var queries []string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		queries = append(queries, r.URL.RawQuery)
		page := api.JobPage{Jobs: []api.Job{failedJob(), failedJob()}, NextPageToken: "next"}
		if r.URL.Query().Get("page_token") != "" {
			waiting := failedJob()
			waiting.State, waiting.ErrorCode, waiting.CurrentStepID = api.JobStateDispatching, "", "embed"
			waiting.Waiting = &api.Waiting{Reason: api.WaitingReasonBackoff}
			page = api.JobPage{Jobs: []api.Job{waiting}, TenantsOmitted: true}
		} else if r.URL.Query().Get("limit") == "1" {
			page.Jobs = page.Jobs[:1]
		}
		fmt.Fprint(w, encode(t, page))
	})
	return url, &queries
}

func TestJobsList(t *testing.T) {
	t.Parallel()
	url, queries := paged(t)
	l := newLine(t, url)
	all := l.must(t, "jobs", "list")
	one := l.must(t, "jobs", "list", "--limit", "1")
	golden(t, "jobs-list.txt", all+"\n"+one)
	waiting := failedJob()
	waiting.State, waiting.ErrorCode, waiting.CurrentStepID = api.JobStateDispatching, "", "embed"
	waiting.Waiting = &api.Waiting{Reason: api.WaitingReasonBackoff}
	forPrograms(t, l, api.JobPage{Jobs: []api.Job{failedJob(), failedJob(), waiting}, TenantsOmitted: true}, "jobs", "list")

	*queries = nil
	_, err := l.run(t, "jobs", "list", "--tenant", "tenant_a", "--state", "failed_final", "--request-type", "doc.ingest",
		"--correlation-id", "corr-1", "--service", "ocr", "--code", "bad_scan", "--created-after", "7d", "--created-before", "2026-01-27T10:00:00+01:00",
		"--ended-after", "7d", "--ended-before", "2026-01-27T10:00:00+01:00", "--protocol", "doc_pipeline", "--step-type", "OCR",
		"--waiting", "no_worker,queued", "--limit", "2")
	musttest.NoError(t, err)
	want := []string{
		"tenant_id=tenant_a&state=FAILED_FINAL&waiting=no_worker,queued&protocol_id=doc_pipeline&request_type=doc.ingest&" +
			"correlation_id=corr-1&service=ocr&step_type=OCR&error_code=bad_scan&" +
			"created_after=2026-01-20T12%3A00%3A00.000Z&created_before=2026-01-27T09%3A00%3A00.000Z&" +
			"ended_after=2026-01-20T12%3A00%3A00.000Z&ended_before=2026-01-27T09%3A00%3A00.000Z&limit=2",
	}
	if diff := cmp.Diff(want, *queries); diff != "" {
		t.Errorf("queries (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"soon", "-1h", "xd", "999999d", "213504d"} {
		if _, err := l.run(t, "jobs", "list", "--created-after", bad); cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestJobsControl(t *testing.T) {
	t.Parallel()
	cancelled := failedJob()
	cancelled.State = api.JobStateCancelled
	l := newLine(t, answers(t, map[string]any{
		"POST /v1/jobs/a:cancel": cancelled, "POST /v1/jobs/b:cancel": apierror.IllegalTransition, "POST /v1/jobs/c:cancel": cancelled,
		"POST /v1/jobs/a:pause": cancelled, "POST /v1/jobs/a:resume": cancelled,
	}))
	const done = " job " + jobID + ": it is CANCELLED\n"
	for _, test := range []struct {
		args, stdin string
		interactive bool
		code        int
		out, notes  string
	}{
		{"cancel a", "", false, 0, "Cancelled" + done, ""},
		{"pause a", "", false, 0, "Paused" + done, ""},
		{"resume a", "", false, 0, "Resumed" + done, ""},
		{"cancel b", "", false, cli.ExitRefused, "", ""},
		{"cancel a c", "y\n", false, cli.ExitUsage, "", ""},
		{"cancel a c", "yes\n", true, 0, "Cancelled" + done + "Cancelled" + done, "Cancel 2 jobs? [y/N] "},
		{"cancel a c", "\n", true, cli.ExitFailed, "", "Cancel 2 jobs? [y/N] "},
		{"cancel a c", "", true, cli.ExitFailed, "", "Cancel 2 jobs? [y/N] "},
		{
			"cancel a b c -y", "", false, cli.ExitRefused, "Cancelled" + done + "Cancelled" + done,
			"b: The current state does not allow this\n",
		},
	} {
		l.Stdin, l.Interactive = strings.NewReader(test.stdin), test.interactive
		out, err := l.run(t, append([]string{"jobs"}, strings.Split(test.args, " ")...)...)
		if cli.ExitCode(err) != test.code || out != test.out || l.notes.String() != test.notes {
			t.Errorf("%s %q: %v, %q, %q", test.args, test.stdin, err, out, l.notes.String())
		}
	}
	forPrograms(t, l, cancelled, "jobs", "cancel", "a")
}

// Ctrl-C ends the context, but not a read from a terminal.
func TestCtrlC_EndsACommandThatReadsItsInput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"jobs", "cancel", "a", "b"}, {"submit", "-"}} {
		input, typist := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		l := newLine(t, "http://127.0.0.1:1")
		l.Interactive, l.Stdin = true, cli.Interruptible(ctx, input)
		time.AfterFunc(10*time.Millisecond, interrupt)
		err := cli.Run(ctx, cli.Root(&l.Env), args)
		if cli.ExitCode(err) != cli.ExitInterrupted || !strings.Contains(fmt.Sprint(err), "interrupted") {
			t.Errorf("%v: %v", args, err)
		}
		_ = typist.Close()
	}
}

// Such an id would change the path of the request.
func TestJobsGet_RefusesAnInvalidID(t *testing.T) {
	t.Parallel()
	l := newLine(t, "http://127.0.0.1:1")
	for _, id := range []string{"", ".", "..", "../admin/pauses"} {
		for _, args := range [][]string{{"jobs", "get", id}, {"jobs", "cancel", "a", id}, {"operations", "cancel", id}} {
			if _, err := l.run(t, args...); cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), fmt.Sprintf("%q is not an id", id)) {
				t.Errorf("%q: %v", args, err)
			}
		}
	}
}
