package httpapi

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/api"
)

// MaxWait is the longest time that a request may wait. A longer one is cut.
const MaxWait = 60 * time.Second

// Wait says how long a request may wait for something to happen.
type Wait struct {
	// Limit is the longest wait, up to [MaxWait]; 0 is not to wait.
	Limit time.Duration
	// Ended is closed when the server drains, or another caller may wait instead:
	// answer with what there is.
	Ended <-chan struct{}
}

// Page asks for one page of a list.
type Page struct {
	// Limit is how many entries the page holds at most, 1 to [api.MaxPage].
	Limit int
	// Token is the next_page_token of the page before, empty for the first page.
	Token string
}

// Submission is a command as it came in, still unread.
type Submission struct {
	// Body is the request's body, within the server's size limit. The callee
	// owns it.
	Body []byte
	// IdempotencyKey is the Idempotency-Key header, empty where there is none.
	IdempotencyKey string
	// Traceparent is the traceparent header, empty where there is none.
	Traceparent string
	// Admit returns the problem of a command for that tenant which may not be
	// accepted. The callee asks it once it knows the tenant, and before it accepts
	// the command or tells anything of an earlier one.
	Admit func(tenantID string) error
}

// Commands accepts commands. It is safe for concurrent use.
//
// Source: Option B spec, 4 and 5.
type Commands interface {
	// Submit decodes, checks and accepts a command. Once it returns without an
	// error the job is durable.
	Submit(ctx context.Context, submission Submission) (api.CommandAccepted, error)
}

// Jobs reads and controls jobs. It is safe for concurrent use.
//
// Source: Option B spec, 4.1 and 18.
type Jobs interface {
	// Job returns the job with its steps: when it is terminal, or when the wait
	// is over.
	Job(ctx context.Context, jobID string, wait Wait) (api.Job, error)
	// Steps returns the job's steps by index.
	Steps(ctx context.Context, jobID string) ([]api.Step, error)
	// Events returns a page of the job's history.
	Events(ctx context.Context, jobID string, page Page) (api.EventPage, error)
	// Cancel asks to end the job. Applied is false where that was so already.
	Cancel(ctx context.Context, jobID string, request api.ControlRequest) (job api.Job, applied bool, err error)
	// Pause asks to start nothing new. Applied is false where that was so already.
	Pause(ctx context.Context, jobID string, request api.ControlRequest) (job api.Job, applied bool, err error)
	// Resume ends a pause. Applied is false where there is none.
	Resume(ctx context.Context, jobID string, request api.ControlRequest) (job api.Job, applied bool, err error)
	// Rerun does an ended job again, as a new one.
	Rerun(ctx context.Context, jobID string, request api.RerunRequest) (api.CommandAccepted, error)
	// List returns a page of jobs, newest first. Of the params it reads the
	// filters only.
	List(ctx context.Context, params api.ListJobsParams, page Page) (api.JobPage, error)
	// Follow returns the entries of the job's history behind the event with that
	// id, empty for all, and whether the job has ended and these are the last.
	Follow(ctx context.Context, jobID, afterEventID string) (events []api.Event, ended bool, err error)
}

// Callbacks takes the reports of platform services. It is safe for concurrent
// use. What it is given passed the checks of package api.
//
// Source: Option B spec, 11.
type Callbacks interface {
	// Ack is a worker that took a directive.
	Ack(ctx context.Context, callback api.AckCallback) (api.CallbackOutcome, error)
	// Heartbeat is a worker that still works.
	Heartbeat(ctx context.Context, callback api.HeartbeatCallback) (api.CallbackOutcome, error)
	// Result is a worker that ended its attempt.
	Result(ctx context.Context, callback api.ResultCallback) (api.CallbackOutcome, error)
}

// Work is the pull queue. It is safe for concurrent use. What it is given
// passed the checks of package api.
//
// Source: Job lifecycle plan 02.
type Work interface {
	// Claim returns claimed items, as soon as there are any or none when the wait
	// is over. It takes the work alone that the caller of the context may do:
	// [access.CallerOf].
	Claim(ctx context.Context, request api.ClaimRequest, wait Wait) ([]api.WorkItem, error)
	// Start is claimed to running.
	Start(ctx context.Context, workID string, request api.WorkVerb) (api.WorkItem, error)
	// Heartbeat extends the lease. The item says whether a cancel is requested.
	Heartbeat(ctx context.Context, workID string, request api.WorkVerb) (api.WorkItem, error)
	// Complete is running to succeeded.
	Complete(ctx context.Context, workID string, request api.WorkCompletion) (api.WorkItem, error)
	// Fail is running to failed.
	Fail(ctx context.Context, workID string, request api.WorkFailure) (api.WorkItem, error)
	// Item returns the item, without its lease id.
	Item(ctx context.Context, workID string) (api.WorkItem, error)
	// Events returns a page of the item's history.
	Events(ctx context.Context, workID string, page Page) (api.WorkEventPage, error)
	// Stall is an operator who takes the item from its worker.
	Stall(ctx context.Context, workID string, request api.AdminWorkRequest) (api.WorkItem, error)
	// Requeue is an operator who offers a stalled item again at once.
	Requeue(ctx context.Context, workID string, request api.AdminWorkRequest) (api.WorkItem, error)
}

// Admin is what operators may do beside the pull queue. It is safe for
// concurrent use.
//
// Source: Orchestrator flow canvas, Retry Loop.
type Admin interface {
	// RetryOutbox makes what waits for its dispatch due now.
	RetryOutbox(ctx context.Context, request api.OutboxRetryRequest) (api.OutboxRetryResult, error)
	// Outbox returns a page of the outbox rows of live jobs. Of the params it
	// reads the filters only.
	Outbox(ctx context.Context, params api.ListOutboxParams, page Page) (api.OutboxPage, error)
	// Stuck returns what the liveness check found.
	Stuck(ctx context.Context) (api.StuckList, error)
}

// Failures shows the jobs that failed, and reruns many. It is safe for
// concurrent use.
type Failures interface {
	// Groups returns the failed jobs by step type and error code.
	Groups(ctx context.Context, params api.ListFailuresParams) (api.FailureList, error)
	// CreateRetry begins to rerun jobs. The same key is the same operation.
	CreateRetry(ctx context.Context, key string, request api.RetryRequest) (api.Retry, error)
	// Retry returns an operation with a page of its items.
	Retry(ctx context.Context, retryID string, page Page) (api.Retry, error)
	// CancelRetry ends an operation.
	CancelRetry(ctx context.Context, retryID string, request api.ControlRequest) (api.Retry, error)
}

// Pauses stops dispatch within a scope. It is safe for concurrent use.
type Pauses interface {
	// List returns the pauses.
	List(ctx context.Context) (api.PauseList, error)
	// Create pauses a scope.
	Create(ctx context.Context, request api.PauseRequest) (api.Pause, error)
	// Resume ramps a scope up.
	Resume(ctx context.Context, pauseID string, request api.ResumeRequest) (api.Pause, error)
}

// Webhooks shows what was announced of jobs' ends. It is safe for concurrent
// use.
type Webhooks interface {
	// OfJob returns the webhooks of a job.
	OfJob(ctx context.Context, jobID string) (api.WebhookPage, error)
	// Undelivered returns a page of those that were given up.
	Undelivered(ctx context.Context, params api.ListWebhooksParams, page Page) (api.WebhookPage, error)
	// Replay starts the attempts of a webhook anew.
	Replay(ctx context.Context, webhookID string, request api.ControlRequest) (api.Webhook, error)
}

// Protocols shows the protocols. It is safe for concurrent use.
type Protocols interface {
	// Protocols returns those that new commands are accepted with.
	Protocols(ctx context.Context) (api.ProtocolList, error)
}

// Readiness says whether the process may get requests. It is safe for
// concurrent use.
type Readiness interface {
	// Ready returns what is degraded, as sentences, or an error where the store
	// does not answer.
	Ready(ctx context.Context) (warnings []string, err error)
}
