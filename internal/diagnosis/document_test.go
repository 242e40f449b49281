package diagnosis_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

func TestDocument_TellsItsJobsAsOneStory(t *testing.T) {
	t.Parallel()
	at := func(seconds int) api.Time {
		return api.NewTime(time.Date(2026, 1, 27, 10, 0, seconds, 0, time.UTC))
	}
	const first, second, third = "0197f0c2-0000-7000-8000-00000000000a", "0197f0c2-0000-7000-8000-00000000000b", "0197f0c2-0000-7000-8000-00000000000c"
	jobs := []api.Job{
		{JobID: third, State: api.JobStateInProgress, RerunOf: second, CreatedAt: at(30), Steps: []api.Step{
			{StepID: "ocr", State: api.StepStateSucceeded, Outcome: api.StepOutcomeCarried},
			{StepID: "fields", State: api.StepStateSucceeded, Outcome: api.StepOutcomeResolved},
			{StepID: "index", State: api.StepStateInProgress, Owner: "w-1"}, {StepID: "notify", State: api.StepStatePending},
		}},
		{
			JobID: second, State: api.JobStateFailedFinal, RerunOf: first, RerunEdits: []string{"/payload/language"}, CreatedAt: at(20),
			Steps: []api.Step{
				{StepID: "ocr", State: api.StepStateSucceeded, StartedAt: at(1), CompletedAt: at(4)},
				{StepID: "fields", State: api.StepStateFailedFinal, LastErrorCode: "bad_scan"},
			},
		},
		{JobID: first, State: api.JobStateSucceeded, CreatedAt: at(10), FinalOutput: json.RawMessage(`{"uri":"s3://b/out","etag":1}`)},
	}
	gone := errors.New("there is no such job")
	lineages := 0
	read := diagnosis.DocumentReader{
		Jobs: func(params *api.ListJobsParams) (api.JobPage, error) {
			if *params.TenantID != "t" || *params.DocID != "d" || *params.Limit != 3 {
				t.Errorf("asked for %+v", params)
			}
			return api.JobPage{Jobs: jobs, NextPageToken: "more"}, nil
		},
		Lineage: func(jobID string) (api.Lineage, error) {
			if lineages++; jobID == first {
				return api.Lineage{}, gone
			}
			return api.Lineage{Jobs: []api.LineageJob{
				{JobID: second, FirstStep: "ocr", Caller: "ops-1", Reason: "It is German."}, {JobID: third, FirstStep: "index", Caller: "ops-2"},
			}}, nil
		},
	}
	read.Missing = func(err error) bool { return errors.Is(err, gone) }
	runs, more, err := diagnosis.Document("t", "d", 3, read)
	if err != nil || !more || lineages != 2 {
		t.Fatalf("%t, %v, %d lineages", more, err, lineages)
	}
	var got []string
	for _, run := range runs {
		origin := run.Origin.With(func(_ diagnosis.Form, at time.Time) string { return at.Format("at 05") })
		got = append(got, strings.Join([]string{origin, run.Steps, run.Output}, " | "))
	}
	want := []string{
		"Rerun of 0197f0c2…000b from index by ops-2 at 30. | ocr taken over, fields done by hand, index running at w-1, notify not begun | ",
		"Rerun of 0197f0c2…000a from ocr by ops-1 at 20, with another /payload/language: It is German. | ocr done in 3.0 s, fields failed: bad_scan | ",
		"Submitted at 10. |  | s3://b/out",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	read.Lineage = func(string) (api.Lineage, error) { return api.Lineage{}, errors.New("no answer") }
	if _, _, err := diagnosis.Document("t", "d", 3, read); err == nil {
		t.Error("an error of the lineage is lost")
	}
}
