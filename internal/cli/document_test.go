package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
)

func TestDoc_TellsWhatHappenedToADocument(t *testing.T) {
	t.Parallel()
	job := failedJob()
	job.FinalOutput = json.RawMessage(`{"uri":"s3://b/partial"}`)
	l := newLine(t, answers(t, map[string]any{
		"GET /v1/jobs":                           api.JobPage{Jobs: []api.Job{job}, NextPageToken: "more"},
		"GET /v1/jobs/" + job.JobID + "/lineage": api.Lineage{Jobs: []api.LineageJob{{JobID: job.JobID, Caller: "app-1"}}},
	}))
	out, err := l.run(t, "doc", "tenant_a", "doc 1", "--limit", "1")
	for _, want := range []string{job.JobID + " FAILED_FINAL", "Submitted by app-1", "embed failed", "output s3://b/partial", "There may be more"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("it does not say %q: %v\n%s", want, err, out)
		}
	}
	var told struct {
		DocID string `json:"doc_id"`
		Jobs  []api.Job
		More  bool
	}
	out, err = l.run(t, "doc", "tenant_a", "doc 1", "-o", "json")
	if err != nil || json.Unmarshal([]byte(out), &told) != nil || told.DocID != "doc 1" || len(told.Jobs) != 1 || !told.More {
		t.Errorf("%v\n%s", err, out)
	}
	none := newLine(t, answers(t, map[string]any{"GET /v1/jobs": api.JobPage{}}))
	if out, err = none.run(t, "doc", "tenant_a", "doc 2"); err != nil || !strings.Contains(out, "no job of document doc 2 of tenant tenant_a") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err = none.run(t, "doc", "tenant_a"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("without a document: %v", err)
	}
}
