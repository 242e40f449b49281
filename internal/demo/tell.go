package demo

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/docpipeline"
)

// hits is how many documents the search shows.
const hits = 3

// tell prints the outcome of the documents and the paths of the results, and searches
// the index.
func (d *demo) tell(documents []*document) error {
	var failed []string
	for _, doc := range documents {
		if doc.job.State != api.JobStateSucceeded {
			failed = append(failed, fmt.Sprintf("%s is %s: %s %s (job %s)",
				doc.name, doc.job.State, doc.job.ErrorCode, doc.job.ErrorMessage, doc.job.JobID))
		}
	}
	fmt.Fprintf(d.Out, "\n%d of %d documents ingested\n", len(documents)-len(failed), len(documents))
	fmt.Fprintf(d.Out, "  outputs  %s\n  index    %s\n",
		filepath.Dir(d.workspace.OutputPath(documents[0].name)), d.workspace.IndexDir())
	heading := "jobs"
	for _, doc := range documents {
		fmt.Fprintf(d.Out, "  %-8s %s/v1/jobs/%s  %s\n", heading, strings.TrimSuffix(d.BaseURL, "/"), doc.job.JobID, doc.name)
		heading = ""
	}
	if len(failed) > 0 {
		return fmt.Errorf("%w: %s", ErrNotIngested, strings.Join(failed, "; "))
	}
	return d.search()
}

// search shows that the index works.
func (d *demo) search() error {
	found, err := docpipeline.Search(d.workspace.IndexDir(), d.Query, hits)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\nsearch: %q\n", d.Query)
	for i, hit := range found {
		fmt.Fprintf(d.Out, "  %d. %.2f  %s (%s)\n           %s\n", i+1, hit.Score, hit.Title, hit.Name, hit.Snippet)
	}
	return nil
}
