package console

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// linesPage lists the lines of jobs with an order key, the blocked ones first.
type linesPage struct {
	Tenant  tenantFilter
	State   api.LineState // empty for all
	Parts   []linesPart
	Command string
}

// linesPart is a page of the lines in one state, those whose jobs have waited longest first.
type linesPart struct {
	State api.LineState
	Lines []api.Line
	More  string
}

func lines(r *request) (view, error) {
	data := linesPage{Tenant: r.tenant(api.GrantRoleRead), State: api.LineState(r.FormValue("state"))}
	states, token := []api.LineState{data.State}, r.pageToken()
	if data.State == "" {
		states, token = []api.LineState{api.LineStateBlocked, api.LineStateMoving}, nil
	}
	for _, state := range states {
		list, err := call[api.LinePage](r.api.ListLines(r.Context(), &api.ListLinesParams{
			TenantID: optional(data.Tenant.Value), State: optional(state), Limit: new(api.Limit(pageSize)), PageToken: token,
		}))
		if err != nil {
			return view{}, err
		}
		slices.SortStableFunc(list.Lines, func(a, b api.Line) int { return a.Since.Compare(b.Since.Time) })
		part := linesPart{State: state, Lines: list.Lines}
		if list.NextPageToken != "" {
			part.More = link("lines", "tenant_id", data.Tenant.Value, "state", state, "page_token", list.NextPageToken)
		}
		data.Parts = append(data.Parts, part)
	}
	data.Command = diagnosis.CommandWith("lines", "tenant", data.Tenant.Value, "state", data.State)
	return view{Title: "Lines", Template: "lines", Data: data}, nil
}

// linePage shows one line and a page of its jobs, in their order.
type linePage struct {
	api.Line

	// None says that no job is in the line.
	None bool
	// Leads is its first job, nil unless this page shows it.
	Leads *listedJob
	Jobs  []listedJob
	Do    []diagnosis.Action // The one that helps first comes first.
	// Later and First are the URLs of the next page and of the first, empty if this is it.
	Later, First string
	Command      string
}

func line(r *request) (view, error) {
	id := r.PathValue("id")
	v := view{Title: "Line " + diagnosis.ShortID(id), Template: "line", Nav: "Lines"}
	token := r.pageToken()
	data, err := recallOwn(r, "line", rememberCount, func() (data linePage, err error) {
		if data.Line, err = call[api.Line](r.api.GetLine(r.Context(), id)); err != nil {
			return data, err
		}
		list, err := call[api.LineJobPage](r.api.ListLineJobs(r.Context(), id, &api.ListLineJobsParams{
			Limit: new(api.Limit(pageSize)), PageToken: token,
		}))
		data.Later = r.more(list.NextPageToken)
		for i := range list.Jobs {
			data.Jobs = append(data.Jobs, listed(&list.Jobs[i], r.now))
		}
		return data, err
	})
	if isMissing(err) { // It exists again with the next job of its key.
		v.Status, v.Data = http.StatusNotFound, linePage{None: true}
		return v, nil
	}
	if len(data.Jobs) > 0 && data.Jobs[0].JobID == data.Head.JobID {
		data.Leads = &data.Jobs[0]
	}
	if token != nil {
		data.First = link("lines/" + url.PathEscape(id))
	}
	data.Do = r.lineActions(&data.Line)
	data.Command = diagnosis.Command("lines show", id)
	v.Data = data
	return v, err
}

// lineActions returns what the user can do for a line.
func (r *request) lineActions(of *api.Line) (do []diagnosis.Action) {
	if !r.May(api.GrantRoleSubmit, of.TenantID) {
		return nil
	}
	if of.State == api.LineStateBlocked {
		do = append(do, rerunFailed(of.Head.JobID), releaseOf(of.LineID, of.Head.JobID))
	}
	if of.Waiting > 0 || of.Head.State == api.JobStateQueued {
		do = append(do, diagnosis.Action{Text: "Cancel what waits…", Page: "do/line-cancel", Query: []any{"line", of.LineID}, Form: true})
	}
	return do
}

// rerunFailed returns the action that reruns the job that blocks a line, in its place.
func rerunFailed(jobID string) diagnosis.Action {
	return diagnosis.Action{Text: "Rerun the failed job…", Page: "do/job-rerun", Query: []any{"job", jobID}, Form: true}
}

// releaseOf returns the action that lets a line go on without the job that blocks it.
func releaseOf(lineID, jobID string) diagnosis.Action {
	return diagnosis.Action{Text: "Release the line…", Page: "do/line-release", Query: []any{"line", lineID, "job", jobID}, Form: true}
}

// jobLine is the line of a job.
type jobLine struct {
	api.Line

	// Blocks says that the job blocks it.
	Blocks bool
	// Before and After are the job's neighbours, empty if there is none or the job is not among the first
	// mostNeighbours of the line.
	Before, After string
}

const (
	// mostNeighbours is how many jobs of a line are read to find the neighbours of one.
	mostNeighbours = 10
	// mostDocumentLines is how many lines of a document are read.
	mostDocumentLines = 5
)

// lineOf reads the line of a job, nil if no job is in it.
func (r *request) lineOf(found *api.Job) (*jobLine, error) {
	if found.LineID == "" {
		return nil, nil //nolint:nilnil // The template tests it.
	}
	of, err := call[api.Line](r.api.GetLine(r.Context(), found.LineID))
	if isMissing(err) {
		return nil, nil //nolint:nilnil // As above.
	}
	if err != nil {
		return nil, err
	}
	one := &jobLine{Line: of, Blocks: of.State == api.LineStateBlocked && of.Head.JobID == found.JobID}
	if !found.CompletedAt.IsZero() && !one.Blocks {
		return one, nil // It has left the line.
	}
	list, err := call[api.LineJobPage](r.api.ListLineJobs(r.Context(), found.LineID, &api.ListLineJobsParams{
		Limit: new(api.Limit(mostNeighbours)),
	}))
	if err != nil && !isMissing(err) {
		return nil, err
	}
	if at := slices.IndexFunc(list.Jobs, func(job api.Job) bool { return job.JobID == found.JobID }); at >= 0 {
		if at > 0 {
			one.Before = list.Jobs[at-1].JobID
		}
		if at+1 < len(list.Jobs) {
			one.After = list.Jobs[at+1].JobID
		}
	}
	return one, nil
}

// linesOf reads the lines of a document's jobs, newest first.
func (r *request) linesOf(runs []diagnosis.Run) (found []api.Line, err error) {
	var ids []string
	for i := range runs {
		if id := runs[i].Job.LineID; id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range ids[:min(len(ids), mostDocumentLines)] {
		one, err := call[api.Line](r.api.GetLine(r.Context(), id))
		if err != nil && !isMissing(err) {
			return nil, err
		}
		if err == nil {
			found = append(found, one)
		}
	}
	return found, nil
}

// releaseLine lets a blocked line go on without a rerun of its failed job.
func releaseLine(r *request) (deed, error) {
	id, job := r.FormValue("line"), r.FormValue("job")
	return deed{
		Title: "Release the line of job " + diagnosis.ShortID(job) + "?", Button: "Release the line",
		Text: "The next job of the line begins, although the failed job before it was not repaired. The failed job stays " +
			"as it is; a later rerun of it goes to the end of the line.",
		Command: diagnosis.CommandWith("lines release", "", id, "job", job),
		do: func(ctx context.Context, reason string) (string, error) {
			_, err := call[api.Line](r.api.ReleaseLine(ctx, id, api.ReleaseRequest{JobID: job, Reason: reason}))
			return link("lines/" + url.PathEscape(id)), err
		},
	}, nil
}

// cancelLine cancels the jobs of a line that have not begun. The form stays as long as more of them may wait.
func cancelLine(r *request) (deed, error) {
	id := r.FormValue("line")
	return deed{
		Title: "Cancel the jobs that wait in line " + diagnosis.ShortID(id) + "?", Button: "Cancel what waits",
		Danger: true, NeedsReason: true,
		Text: "All jobs of the line that have not begun end without a result, the last first. A job that has begun stays, " +
			"and so does a failed job: it still blocks the line, and jobs that come later wait.",
		Command: diagnosis.Command("lines cancel", id),
		do: func(ctx context.Context, reason string) (string, error) {
			done, err := call[api.LineCancellation](r.api.CancelLine(ctx, id, api.LineCancelRequest{Reason: reason}))
			if err == nil && done.More && done.Cancelled > 0 {
				cancelled := diagnosis.Counted(done.Cancelled, "job was", "jobs were")
				err = badInput(cancelled + " cancelled, and more wait. Send the form again.")
			}
			return link("lines/" + url.PathEscape(id)), err
		},
	}, nil
}
