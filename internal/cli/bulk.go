package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// bulk holds the flags of a command that changes many jobs in one operation.
type bulk struct {
	selection

	all, dryRun, detach bool
	limit               int32
	rate                float64
	reason              string
}

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
	flags.Float64Var(&b.rate, "rate", 0, "maximum number of jobs per second; 0 leaves it to the server")
	flags.StringVar(&b.reason, "reason", "", "why, for the history of the jobs")
	asks(cmd)
}

// selects reports whether a flag selects jobs.
func (b *bulk) selects() bool {
	return b.all || !b.All() || len(b.tags) > 0 || b.state+b.createdAfter+b.createdBefore+b.failedAfter+b.failedBefore != ""
}

// request returns the request for the named jobs, or for those that the flags select.
func (b *bulk) request(s *session, ids []string) (*api.BulkRequest, error) {
	switch {
	case len(ids) > 0 && b.selects():
		return nil, usagef("name jobs, or select them by flags, not both")
	case len(ids) == 0 && !b.selects():
		return nil, usagef("say which jobs: their ids, flags such as --service, or --all")
	}
	f, err := b.parse(s)
	if err != nil {
		return nil, err
	}
	return &api.BulkRequest{
		JobIDs: ids, All: b.all, Limit: b.limit, RatePerSecond: b.rate, Reason: b.reason,
		TenantID: optional(f.TenantID), RequestType: optional(f.RequestType), Service: optional(f.Service),
		DocID: optional(f.DocID), Tags: f.Tags,
		StepType: optional(f.StepType), ErrorCode: optional(f.ErrorCode), State: optional(f.State),
		CreatedAfter: f.CreatedAfter, CreatedBefore: f.CreatedBefore,
	}, nil
}

// retry returns lucius retry, which reruns failed jobs.
func (t *tool) retry() *cobra.Command {
	var b bulk
	var from string
	cmd := t.command(spec{
		use: "retry [JOB...]", short: "Rerun failed jobs", more: true, completes: jobIDs,
		long: "Reruns the named jobs, or those that the flags select, in the background on the server. Shows how many\n" +
			"match and asks for confirmation, then shows the progress. Ctrl-C leaves the operation running.",
		example: "  lucius retry --service ocr --since 24h --dry-run\n  lucius retry --service ocr --code bad_scan --yes\n" +
			"  lucius failures --service ocr   # Did it help?",
	}, func(ctx context.Context, s *session, ids []string) error {
		if err := checkFrom(from); err != nil {
			return err
		}
		create := func(ctx context.Context, c *api.Client, key api.IdempotencyKey, r *api.BulkRequest) (*http.Response, error) {
			return c.CreateRetry(ctx, &api.CreateRetryParams{IdempotencyKey: &key}, api.RetryRequest{
				JobIDs: r.JobIDs, All: r.All, Limit: r.Limit, RatePerSecond: r.RatePerSecond, Reason: r.Reason, DryRun: r.DryRun,
				TenantID: r.TenantID, DocID: r.DocID, Tags: r.Tags, RequestType: r.RequestType,
				Service: r.Service, StepType: r.StepType, ErrorCode: r.ErrorCode,
				CreatedAfter: r.CreatedAfter, CreatedBefore: r.CreatedBefore, From: api.RerunFrom(from),
				FailedAfter: b.FailedAfter, FailedBefore: b.FailedBefore,
			})
		}
		return s.operate(ctx, &b, ids, create)
	})
	b.register(t, cmd)
	b.registerSince(cmd)
	registerFrom(cmd, &from)
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
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
func (s *session) operate(ctx context.Context, b *bulk, ids []string, create begin) error {
	request, err := b.request(s, ids)
	if err != nil {
		return err
	}
	key := uuid.NewString()
	if b.dryRun || !s.agreed() {
		request.DryRun = true
		preview, err := call[api.OperationPreview](create(ctx, s.Client, key, request))
		if err != nil {
			return err
		}
		if b.dryRun || preview.Matched == 0 {
			return show(s, preview, func(p *page, preview api.OperationPreview) { showPreview(p, preview, b.limit) })
		}
		if err := s.confirm(question(&preview, b.limit)); err != nil {
			return err
		}
		request.DryRun = false
	}
	op, err := call[api.Operation](create(ctx, s.Client, key, request))
	if ExitCode(err) == ExitInterrupted {
		return &Error{Code: ExitInterrupted, Err: errors.New("interrupted: lucius operations list shows whether the operation has started")}
	}
	if err != nil {
		return err
	}
	if b.detach {
		return show(s, op, showOperation)
	}
	return s.followOperation(ctx, &op)
}

// question asks whether to start an operation.
func question(preview *api.OperationPreview, limit int32) string {
	verb := map[api.OperationKind]string{
		api.OperationKindRetry: "Rerun", api.OperationKindCancel: "Cancel",
		api.OperationKindPause: "Pause", api.OperationKindResume: "Resume",
	}[preview.Kind]
	return verb + " " + affected(preview, limit) + "?"
}

// affected says how many jobs an operation would change, and of how many if that is fewer.
func affected(preview *api.OperationPreview, limit int32) string {
	jobs := diagnosis.Count(preview.Matched, "job")
	switch changed := min(preview.Matched, int(cmp.Or(limit, api.MaxBulkJobs))); {
	case preview.Truncated:
		return fmt.Sprintf("%d of at least %s", changed, jobs)
	case changed < preview.Matched:
		return fmt.Sprintf("%d of %s", changed, jobs)
	}
	return jobs
}

// showPreview writes what an operation would do.
func showPreview(p *page, preview api.OperationPreview, limit int32) {
	if preview.Matched == 0 {
		p.line("No job matches: nothing was changed.")
		return
	}
	rows := make([][]string, len(preview.Sample))
	for i, job := range preview.Sample {
		rows[i] = []string{job.JobID, p.state(string(job.State)), job.TenantID, job.ErrorCode, job.ErrorMessage}
	}
	p.table([]string{"JOB", "STATE", "TENANT", "ERROR", "MESSAGE"}, rows)
	if more := preview.Matched - len(rows); more > 0 {
		p.line("and %d more", more)
	}
	p.line("")
	p.line("%s would be changed. Nothing has been changed.", p.style(bold, affected(&preview, limit)))
}

// checkFrom checks the flag of [registerFrom].
func checkFrom(from string) error {
	if from != string(api.RerunFromFailed) && from != string(api.RerunFromStart) {
		return usagef("--from is %q, it must be failed or start", from)
	}
	return nil
}

// registerFrom registers the flag that says where reruns start.
func registerFrom(cmd *cobra.Command, from *string) {
	cmd.Flags().StringVar(from, "from", string(api.RerunFromFailed), "failed (keeps the results before the failed step) or start")
	completeWords(cmd, "from", string(api.RerunFromFailed), string(api.RerunFromStart))
}
