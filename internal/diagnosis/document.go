package diagnosis

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
)

// Run is a job of a document, as a part of the document's story.
type Run struct {
	Job *api.Job
	// Origin says how the job came to be: by whom, and what a rerun repeats and corrects.
	Origin Sentence
	// Steps says of each step in a few words how far it is, in their order.
	Steps string
	// Output is the URI of what the job produced, empty as long as it has produced nothing.
	Output string
}

// DocumentReader reads what a document's story is made of.
type DocumentReader struct {
	Jobs    func(*api.ListJobsParams) (api.JobPage, error)
	Lineage func(jobID string) (api.Lineage, error)
	// Missing reports whether an error says that there is no such job.
	Missing func(error) bool
}

// Document returns the story of a document: its jobs, newest first, at most limit, and whether there
// are more. It reads one lineage for each job that no other one leads to. The errors are those of the
// reader.
func Document(tenantID, docID string, limit api.Limit, read DocumentReader) ([]Run, bool, error) {
	page, err := read.Jobs(&api.ListJobsParams{TenantID: &tenantID, DocID: &docID, Limit: &limit})
	if err != nil {
		return nil, false, err
	}
	known := map[string]*api.LineageJob{}
	runs := make([]Run, len(page.Jobs))
	for i := range page.Jobs {
		job := &page.Jobs[i]
		if known[job.JobID] == nil {
			lineage, err := read.Lineage(job.JobID)
			if err != nil && !read.Missing(err) { // It may have been purged since.
				return nil, false, err
			}
			for n := range lineage.Jobs {
				known[lineage.Jobs[n].JobID] = &lineage.Jobs[n]
			}
		}
		runs[i] = Run{Job: job, Origin: originOf(job, known[job.JobID]), Steps: stepsOf(job), Output: uriOf(job.FinalOutput)}
	}
	return runs, page.NextPageToken != "", nil
}

// originOf says how a job came to be.
func originOf(job *api.Job, in *api.LineageJob) Sentence {
	if in == nil {
		in = &api.LineageJob{}
	}
	origin := say("Submitted")
	if job.RerunOf != "" {
		origin = say("Rerun of ", ShortID(job.RerunOf))
		if in.FirstStep != "" {
			origin = say(origin, " from ", in.FirstStep)
		}
	}
	if in.Caller != "" {
		origin = say(origin, " by ", in.Caller)
	}
	origin = say(origin, " ", when{Ago, job.CreatedAt.Time})
	if len(job.RerunEdits) > 0 {
		origin = say(origin, ", with another ", strings.Join(job.RerunEdits, ", "))
	}
	if job.RerunOf != "" && in.Reason != "" {
		origin = say(origin, ": ", strings.TrimSuffix(in.Reason, "."))
	}
	return say(origin, ".")
}

// stepsOf says of each step of a job in a few words how far it is.
func stepsOf(job *api.Job) string {
	parts := make([]string, len(job.Steps))
	for i := range job.Steps {
		step := &job.Steps[i]
		state := strings.ToLower(strings.ReplaceAll(string(step.State), "_", " "))
		switch {
		case step.Outcome == api.StepOutcomeCarried:
			state = "taken over"
		case step.Outcome == api.StepOutcomeResolved:
			state = "done by hand"
		case step.State == api.StepStatePending:
			state = "not begun"
		case step.State == api.StepStateSucceeded:
			state = "done"
			if !step.StartedAt.IsZero() {
				state += " in " + Duration(max(step.CompletedAt.Sub(step.StartedAt.Time), time.Millisecond))
			}
		case step.State == api.StepStateFailedFinal:
			state = "failed: " + Brief(step.LastErrorCode, BriefCode)
		case step.State == api.StepStateInProgress && step.Owner != "":
			state = "running at " + step.Owner
		}
		parts[i] = step.StepID + " " + state
	}
	return strings.Join(parts, ", ")
}

// uriOf returns the URI of a reference, empty if it has none.
func uriOf(ref json.RawMessage) string {
	var of struct {
		URI string `json:"uri"`
	}
	_ = json.Unmarshal(ref, &of) // A reference that a service reported has a URI.
	return of.URI
}
