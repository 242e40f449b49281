package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// bulk holds the flags of a command that changes many jobs in one operation.
type bulk struct {
	selection

	all, dryRun, detach bool
	limit               int32
	rate                rate
	reason              string

	after string // the operation whose jobs and those before them are left out
	rest  bool   // go on with the jobs that follow a truncated operation, unless there is a limit
}

// rate is a flag: jobs per second, as in 20 or 20/s.
type rate float64

func (r *rate) Set(text string) error {
	number, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64)
	if err != nil {
		return errors.New("it must be a number of jobs per second, such as 20 or 20/s")
	}
	*r = rate(number)
	return nil
}

func (r *rate) String() string { return strconv.FormatFloat(float64(*r), 'g', -1, 64) }

func (r *rate) Type() string { return "rate" }

// begin starts an operation, or previews it. A repeat with the same key starts no second one.
type begin func(ctx context.Context, c *api.Client, key api.IdempotencyKey, request *api.BulkRequest) (*http.Response, error)

// register registers the flags that all such commands have.
func (b *bulk) register(t *tool, cmd *cobra.Command) {
	b.selection.register(t, cmd)
	flags := cmd.Flags()
	flags.BoolVar(&b.all, "all", false, "all jobs that can be changed this way")
	flags.BoolVar(&b.dryRun, "dry-run", false, "show how many jobs match, and some of them; change nothing")
	flags.BoolVar(&b.detach, "detach", false, "do not wait for the operation to end")
	flags.Int32Var(&b.limit, "limit", 0, "maximum number of jobs to change; 0 means 10,000")
	flags.Var(&b.rate, "rate", "maximum number of jobs per second, such as 20/s; 0 leaves it to the server")
	flags.StringVar(&b.reason, "reason", "", "why, for the history of the jobs")
	asks(cmd)
}

// selects reports whether a flag selects jobs. --created-before alone does not.
func (b *bulk) selects() bool {
	return b.all || !b.All() || len(b.tags) > 0 || b.state+b.createdAfter+b.endedAfter+b.endedBefore != ""
}

// request returns the request for the named jobs, or for those that the flags select.
func (b *bulk) request(s *session, ids []string) (*api.BulkRequest, error) {
	switch {
	case len(ids) > 0 && (b.selects() || b.createdBefore != ""):
		return nil, usagef("name jobs, or select them by flags, not both")
	case len(ids) == 0 && !b.selects():
		return nil, usagef("say which jobs: their ids, flags such as --service, or --all")
	}
	f, err := b.parse(s)
	if err != nil {
		return nil, err
	}
	return &api.BulkRequest{
		JobIDs: ids, All: b.all, Limit: b.limit, RatePerSecond: float64(b.rate), Reason: b.reason,
		TenantID: optional(f.TenantID), RequestType: optional(f.RequestType), Service: optional(f.Service),
		DocID: optional(f.DocID), Tags: f.Tags,
		StepType: optional(f.StepType), ErrorCode: optional(f.ErrorCode), State: optional(f.State),
		CreatedAfter: f.CreatedAfter, CreatedBefore: f.CreatedBefore,
	}, nil
}

func createCancellation(ctx context.Context, c *api.Client, key api.IdempotencyKey, r *api.BulkRequest) (*http.Response, error) {
	return c.CreateCancellation(ctx, &api.CreateCancellationParams{IdempotencyKey: &key}, *r)
}

func createPausing(ctx context.Context, c *api.Client, key api.IdempotencyKey, r *api.BulkRequest) (*http.Response, error) {
	return c.CreatePausing(ctx, &api.CreatePausingParams{IdempotencyKey: &key}, *r)
}

func createResumption(ctx context.Context, c *api.Client, key api.IdempotencyKey, r *api.BulkRequest) (*http.Response, error) {
	return c.CreateResumption(ctx, &api.CreateResumptionParams{IdempotencyKey: &key}, *r)
}

// operate starts an operation on many jobs after the user has confirmed their number, and
// shows its progress until it ends.
func (s *session) operate(ctx context.Context, b *bulk, request *api.BulkRequest, create begin) error {
	key := uuid.NewString()
	if b.dryRun || !s.agreed() {
		request.DryRun = true
		preview, err := call[api.OperationPreview](create(ctx, s.Client, key, request))
		if err != nil {
			return err
		}
		if b.dryRun || preview.Matched == 0 && !(preview.Truncated && b.rest) {
			return show(s, preview, func(p *page, preview api.OperationPreview) { b.showPreview(p, &preview) })
		}
		if err := s.confirm(b.question(&preview)); err != nil {
			return err
		}
		request.DryRun = false
	}
	var left error // of operations that were gone on after
	for {
		op, err := call[api.Operation](create(ctx, s.Client, key, request))
		if ExitCode(err) == ExitInterrupted {
			const unknown = "interrupted: lucius operations list shows whether the operation has started"
			return &Error{Code: ExitInterrupted, Err: errors.New(unknown)}
		}
		if err != nil {
			return err
		}
		if b.detach {
			return show(s, op, showOperation)
		}
		err = s.followOperation(ctx, &op)
		if op.State != api.OperationStateDone || !op.Truncated || !b.rest || b.limit > 0 {
			return cmp.Or(err, left)
		}
		if err != nil {
			fmt.Fprintf(s.Stderr, "lucius: %v\n", err)
			left = &Error{Code: ExitFailed, Err: errors.New("not all of them were changed: see above")}
		}
		fmt.Fprintf(s.Stderr, "lucius: goes on with the jobs that follow those of operation %s\n", op.OperationID)
		b.after, key = op.OperationID, uuid.NewString()
	}
}

// question asks whether to start an operation.
func (b *bulk) question(preview *api.OperationPreview) string {
	verb := map[api.OperationKind]string{
		api.OperationKindRetry: "Rerun", api.OperationKindCancel: "Cancel",
		api.OperationKindPause: "Pause", api.OperationKindResume: "Resume",
	}[preview.Kind]
	return verb + " " + b.affected(preview) + "?"
}

// affected says how many jobs would be changed, and of how many if that is fewer.
func (b *bulk) affected(preview *api.OperationPreview) string {
	jobs := diagnosis.Count(preview.Matched, "job")
	switch changed := min(preview.Matched, int(cmp.Or(b.limit, api.MaxBulkJobs))); {
	case b.rest && b.limit == 0 && preview.Truncated:
		return "at least " + jobs
	case b.rest && b.limit == 0:
	case preview.Truncated:
		return fmt.Sprintf("%d of at least %s", changed, jobs)
	case changed < preview.Matched:
		return fmt.Sprintf("%d of %s", changed, jobs)
	}
	return jobs
}

// showPreview writes what an operation would do.
func (b *bulk) showPreview(p *page, preview *api.OperationPreview) {
	if preview.Matched == 0 && preview.Truncated {
		p.line("No job matches among those that were examined, and there are more. Nothing has been changed.")
		return
	}
	if preview.Matched == 0 {
		p.line("No job matches: nothing was changed.")
		return
	}
	rows := make([][]string, len(preview.Sample))
	for i, job := range preview.Sample {
		rows[i] = []string{job.JobID, p.state(string(job.State)), job.TenantID, job.ErrorCode, job.ErrorMessage}
	}
	p.table([]string{"JOB", "STATE", "TENANT", "ERROR", "MESSAGE"}, rows)
	showEdited(p, preview.Sample)
	if more := preview.Matched - len(rows); more > 0 {
		p.line("and %d more", more)
	}
	p.line("")
	if refused := slices.ContainsFunc(preview.Sample, func(job api.OperationSample) bool { return job.Refused != nil }); refused {
		p.line("Jobs that cannot be rerun this way would be skipped.")
	}
	affected := b.affected(preview)
	p.line("%s would be changed. Nothing has been changed.", p.style(bold, strings.ToUpper(affected[:1])+affected[1:]))
}

// showEdited writes what is different in the reruns of a sample, if anything is, and which of its jobs
// cannot be rerun.
func showEdited(p *page, sample []api.OperationSample) {
	var rows [][]string
	for i := range sample {
		job := &sample[i]
		if why := job.Refused; why != nil {
			problem := apierror.Error{Detail: why.Detail, Errors: why.Errors}
			rows = append(rows, []string{job.JobID, "skipped", problem.Summary()})
		}
		for _, row := range changeRows(job.Changes) {
			rows = append(rows, append([]string{job.JobID, job.FirstStep}, row...))
		}
	}
	if len(rows) > 0 {
		p.line("")
		p.table([]string{"RERUN OF", "FROM STEP", "CHANGES", "BEFORE", "AFTER"}, rows)
	}
}
