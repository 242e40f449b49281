package cli_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
)

func TestFailures(t *testing.T) {
	t.Parallel()
	list := api.FailureList{Truncated: true, Groups: []api.FailureGroup{
		{
			Service: "ocr", StepType: "OCR", ErrorCode: "bad_scan", Count: 400, FirstAt: at(20 * time.Hour), LastAt: at(time.Minute),
			SampleJobIds: []string{jobID, "older"}, SampleMessage: failedJob().ErrorMessage,
		},
		{Service: "embed", StepType: "EMBED", ErrorCode: "ack_timeout", Count: 2, FirstAt: at(time.Hour), LastAt: at(time.Hour), SampleJobIds: []string{"purged"}},
		{Service: "ocr", StepType: "OCR", ErrorCode: "bad_scan", Count: 1, Resolved: true, FirstAt: at(time.Hour), LastAt: at(time.Hour), SampleJobIds: []string{jobID}},
	}}
	server := newScripted(t, map[string][]any{
		"GET /v1/admin/failures": {list},
	})
	l := newLine(t, server.url)
	out, err := l.run(t, "failures", "--service", "ocr", "--code", "bad_scan", "--tenant", "tenant_a", "--step-type", "OCR",
		"--request-type", "doc.ingest", "--since", "24h", "--ended-before", "1h", "--created-after", "7d", "--created-before", "2h", "--include-resolved")
	musttest.NoError(t, err)
	golden(t, "failures.txt", out)
	server.wantAsked(t, "GET /v1/admin/failures tenant_id=tenant_a&request_type=doc.ingest&service=ocr&step_type=OCR&error_code=bad_scan"+
		"&created_after=2026-01-20T12%3A00%3A00.000Z&created_before=2026-01-27T10%3A00%3A00.000Z"+
		"&ended_after=2026-01-26T12%3A00%3A00.000Z&ended_before=2026-01-27T11%3A00%3A00.000Z&include=resolved")
	forPrograms(t, l, list, "failures")

	server.answers["GET /v1/admin/failures"] = []any{api.FailureList{Groups: []api.FailureGroup{}}}
	if out, err := l.run(t, "failures"); err != nil || out != "No matching job has failed.\n" {
		t.Errorf("without failures: %v, %q", err, out)
	}
}

// The API lists failed jobs by service and code; the command lists those of one group among
// them.
func TestFailuresList(t *testing.T) {
	t.Parallel()
	job := func(id string, change func(*api.Job)) api.Job {
		one := failedJob()
		one.JobID = id
		change(&one)
		return one
	}
	matching := failedJob()
	all := []api.Job{
		matching,
		job("rerun", func(j *api.Job) { j.SupersededBy = "x" }),
		job("without steps", func(j *api.Job) { j.Steps = nil }),
	}
	server := newScripted(t, map[string][]any{
		"GET /v1/jobs": {api.JobPage{Jobs: all, NextPageToken: "next"}, api.JobPage{Jobs: []api.Job{}}},
	})
	l := newLine(t, server.url)
	args := []string{"failures", "list", "--service", "embed", "--code", "bad_scan", "--since", "1h", "--ended-before", "80s", "--step-type", "EMBED"}
	golden(t, "failures-list.txt", l.must(t, args...))
	const asked = "GET /v1/jobs state=FAILED_FINAL&service=embed&step_type=EMBED&error_code=bad_scan&" +
		"ended_after=2026-01-27T11%3A00%3A00.000Z&ended_before=2026-01-27T11%3A58%3A40.000Z&"
	server.wantAsked(t, asked+"limit=50", asked+"limit=48&page_token=next")
	server.answers["GET /v1/jobs"] = []any{api.JobPage{Jobs: all}}
	forPrograms(t, l, api.JobPage{Jobs: []api.Job{all[0], all[2]}}, args...)
	server.answers["GET /v1/jobs"] = []any{api.JobPage{Jobs: all}}
	forPrograms(t, l, api.JobPage{Jobs: all}, append(args, "--include-resolved")...)
}
