package lucius

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Submit submits a command and returns its receipt once the job is durable. Submitting
// it again, also after a lost answer, returns the same job with Replayed: commands are
// the same if they have the same IdempotencyKey or, without a key, the same tenant,
// request type, schema version, references and payload. For a second job of the same
// content, give each a key.
func (c *Client) Submit(ctx context.Context, command Command) (*CommandAccepted, error) {
	var accepted CommandAccepted
	err := c.do(ctx, call{method: http.MethodPost, path: "/v1/commands", body: prepared(command), answer: &accepted})
	if err != nil {
		return nil, fmt.Errorf("submit: %w", err)
	}
	return &accepted, nil
}

// prepared returns the command with an empty payload instead of none.
func prepared(command Command) Command {
	if command.Payload == nil {
		command.Payload = struct{}{}
	}
	return command
}

// maxBatch is the most entries of a batch, and batchTimeout how long one may take.
const (
	maxBatch     = 100
	batchTimeout = 30 * time.Second
)

// SubmitBatch submits many commands and returns a result for each, at the same index:
// its job, or the error with which the server refused it. Commands with the same order key are
// accepted in their order. If it returns an error, the results of those commands that were not
// answered have the status 0.
func (c *Client) SubmitBatch(ctx context.Context, commands []Command) ([]BatchItem, error) {
	results := make([]BatchItem, len(commands))
	waiting := make([]int, len(commands)) // the indexes of those without a result
	for i := range waiting {
		waiting[i] = i
	}
	for part := range slices.Chunk(waiting, maxBatch) {
		err := c.repeat(ctx, func(ctx context.Context) (err error) {
			part, err = c.submitPart(ctx, commands, part, results)
			return err
		})
		if err != nil {
			return results, fmt.Errorf("submit a batch: %w", err)
		}
	}
	return results, nil
}

// submitPart submits the commands at the indexes and returns those to submit again: the
// server could not decide on them, as the error says.
func (c *Client) submitPart(ctx context.Context, commands []Command, part []int, results []BatchItem) ([]int, error) {
	request := BatchRequest{}
	for _, i := range part {
		request.Commands = append(request.Commands, prepared(commands[i]))
	}
	var answer BatchResult
	err := c.try(ctx, call{method: http.MethodPost, path: "/v1/commands:batch", body: request, timeout: batchTimeout, answer: &answer})
	if err == nil && len(answer.Results) != len(part) {
		err = &Error{Problem: Problem{Status: http.StatusOK, Detail: "it answered another number of commands"}}
	}
	if err != nil {
		return part, err
	}
	var again []int
	for n, result := range answer.Results {
		if result.Error != nil {
			refused := &Error{Problem: *result.Error}
			// A command that was left for one before it in its line is submitted again after that one.
			if passes := mayPass(refused); passes || refused.Code == ProblemCodePredecessorRefused {
				if again = append(again, part[n]); passes || err == nil {
					err = refused
				}
				continue
			}
		}
		results[part[n]] = result
	}
	return again, err
}

// jobPath returns the path of a job, or of a verb on it.
func jobPath(jobID, verb string) string { return "/v1/jobs/" + url.PathEscape(jobID) + verb }

// Get reads a job with its steps.
func (c *Client) Get(ctx context.Context, jobID string) (*Job, error) {
	var job Job
	if err := c.do(ctx, call{method: http.MethodGet, path: jobPath(jobID, ""), answer: &job}); err != nil {
		return nil, fmt.Errorf("job %s: %w", jobID, err)
	}
	return &job, nil
}

// pollWait is how long the server waits for the end of a job.
const pollWait = 30 * time.Second

// minPoll is the least time between two polls that the server answers at once, as it
// does while it shuts down.
const minPoll = 500 * time.Millisecond

// Wait waits until the job has ended, and returns it. [Job.Err] tells whether it succeeded.
func (c *Client) Wait(ctx context.Context, jobID string) (*Job, error) {
	for {
		var job Job
		begun := time.Now()
		err := c.do(ctx, call{
			method: http.MethodGet, path: jobPath(jobID, "?wait="+pollWait.String()), wait: pollWait, answer: &job,
		})
		if err != nil {
			return nil, fmt.Errorf("wait for job %s: %w", jobID, err)
		}
		if job.State.Final() {
			return &job, nil
		}
		if !pause(ctx, minPoll-time.Since(begun)) {
			return nil, fmt.Errorf("wait for job %s: %w", jobID, context.Cause(ctx))
		}
	}
}

// JobFilter selects jobs. Each field is optional, and narrows the selection.
type JobFilter struct {
	TenantID, RequestType, CorrelationID string
	State                                JobState
	// DocID selects the jobs of a document, and Tags those that have all of these tags. Both
	// need a TenantID.
	DocID string
	Tags  Tags
	// CreatedAfter and CreatedBefore bound the time of acceptance. Without the former,
	// jobs that have ended are listed for the last three months.
	CreatedAfter, CreatedBefore time.Time
	// PageSize is how many jobs are read at once, up to 1000. 0 leaves it to the server.
	PageSize int
}

// query returns the filter as the parameters of a list.
func (f JobFilter) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{
		"tenant_id": f.TenantID, "request_type": f.RequestType, "correlation_id": f.CorrelationID, "state": string(f.State),
		"doc_id": f.DocID,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(f.Tags)) {
		query.Add("tag", key+"="+f.Tags[key])
	}
	for name, at := range map[string]time.Time{"created_after": f.CreatedAfter, "created_before": f.CreatedBefore} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Format("2006-01-02T15:04:05.000Z"))
		}
	}
	if f.PageSize != 0 {
		query.Set("limit", strconv.Itoa(f.PageSize))
	}
	return query
}

// List lists jobs, the newest first, without the payloads of their steps. It reads page
// after page while the loop goes on. An error is the last that it yields.
func (c *Client) List(ctx context.Context, filter JobFilter) iter.Seq2[*Job, error] {
	return func(yield func(*Job, error) bool) {
		err := eachPage(ctx, c, "/v1/jobs", filter.query(), func(page *JobPage) (next string, more bool) {
			for i := range page.Jobs {
				if !yield(&page.Jobs[i], nil) {
					return "", false
				}
			}
			return page.NextPageToken, true
		})
		if err != nil {
			yield(nil, fmt.Errorf("list jobs: %w", err))
		}
	}
}

// History yields what has happened to a job so far. An error is the last that it yields.
func (c *Client) History(ctx context.Context, jobID string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		query := url.Values{"limit": {"1000"}}
		err := eachPage(ctx, c, jobPath(jobID, "/events"), query, func(page *EventPage) (next string, more bool) {
			for _, event := range page.Events {
				if !yield(event, nil) {
					return "", false
				}
			}
			return page.NextPageToken, true
		})
		if err != nil {
			yield(Event{}, fmt.Errorf("history of job %s: %w", jobID, err))
		}
	}
}

// eachPage reads the pages of a list until show, which gets each, wants no more.
func eachPage[P any](ctx context.Context, c *Client, path string, query url.Values, show func(*P) (next string, more bool)) error {
	for {
		var page P
		if err := c.do(ctx, call{method: http.MethodGet, path: path + "?" + query.Encode(), answer: &page}); err != nil {
			return err
		}
		next, more := show(&page)
		if !more || next == "" {
			return nil
		}
		query.Set("page_token", next)
	}
}

// Cancel cancels a job. The reason, which may be empty, is kept in its history. The job
// is CANCELLING as long as a worker has an attempt.
func (c *Client) Cancel(ctx context.Context, jobID, reason string) (*Job, error) {
	return c.control(ctx, jobID, ":cancel", reason)
}

// Pause pauses a job: no further attempt starts. The job is PAUSING as long as a worker
// has one.
func (c *Client) Pause(ctx context.Context, jobID, reason string) (*Job, error) {
	return c.control(ctx, jobID, ":pause", reason)
}

// Resume resumes a paused job.
func (c *Client) Resume(ctx context.Context, jobID, reason string) (*Job, error) {
	return c.control(ctx, jobID, ":resume", reason)
}

// control changes a job. A repeat finds it changed, which is a success as well.
func (c *Client) control(ctx context.Context, jobID, verb, reason string) (*Job, error) {
	var job Job
	err := c.do(ctx, call{
		method: http.MethodPost, path: jobPath(jobID, verb), body: ControlRequest{Reason: reason}, answer: &job,
	})
	if err != nil {
		return nil, fmt.Errorf("%s job %s: %w", strings.TrimPrefix(verb, ":"), jobID, err)
	}
	return &job, nil
}

// Rerun creates a new job from one that has ended, with the same steps: from the step that
// failed, or from another one. The request may correct the payload and the references, give
// the outputs of steps that were done by hand, and take the current protocol. There is one
// rerun for each job, starting point and set of corrections: a repeat returns it, with
// Replayed. Corrections that the server refuses are an [Error] with a violation for each fault.
//
// With Newest, the call reruns the last rerun of the job. If an answer is lost and the rerun
// has ended before the call is repeated, the repeat reruns that one.
func (c *Client) Rerun(ctx context.Context, jobID string, request RerunRequest) (*CommandAccepted, error) {
	var accepted CommandAccepted
	err := c.do(ctx, call{method: http.MethodPost, path: jobPath(jobID, ":rerun"), body: request, answer: &accepted})
	if err != nil {
		return nil, fmt.Errorf("rerun job %s: %w", jobID, err)
	}
	return &accepted, nil
}

// PlanRerun returns what [Client.Rerun] would do with the same request, and does nothing: the steps
// of the new job, how its command would differ, and the job that the same rerun made before. Its
// errors are those of Rerun, but for the tenant's limit of jobs.
func (c *Client) PlanRerun(ctx context.Context, jobID string, request RerunRequest) (*RerunPreview, error) {
	var preview RerunPreview
	body := struct {
		RerunRequest
		DryRun bool `json:"dry_run"`
	}{request, true}
	err := c.do(ctx, call{method: http.MethodPost, path: jobPath(jobID, ":rerun"), body: body, answer: &preview})
	if err != nil {
		return nil, fmt.Errorf("plan the rerun of job %s: %w", jobID, err)
	}
	return &preview, nil
}

// Lineage reads the chain of reruns that a job is in, oldest first: at most 100 jobs. Of a job
// that was purged it has only the id.
func (c *Client) Lineage(ctx context.Context, jobID string) (*Lineage, error) {
	var lineage Lineage
	err := c.do(ctx, call{method: http.MethodGet, path: jobPath(jobID, "/lineage"), answer: &lineage})
	if err != nil {
		return nil, fmt.Errorf("lineage of job %s: %w", jobID, err)
	}
	return &lineage, nil
}

// Final reports whether a job in this state has ended.
func (s JobState) Final() bool {
	return s == JobStateSucceeded || s == JobStateFailedFinal || s == JobStateCancelled
}

// Err returns a [*JobError] if the job ended without success, else nil.
func (j *Job) Err() error {
	if !j.State.Final() || j.State == JobStateSucceeded {
		return nil
	}
	return &JobError{JobID: j.JobID, State: j.State, Code: j.ErrorCode, Message: j.ErrorMessage}
}

// JobError is a job that ended without success.
type JobError struct {
	// JobID is the job, State FAILED_FINAL or CANCELLED.
	JobID string
	State JobState
	// Code and Message say why. They may be empty.
	Code, Message string
}

// Error implements error.
func (e *JobError) Error() string {
	parts := []string{fmt.Sprintf("job %s is %s", e.JobID, e.State), e.Code, e.Message}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}
