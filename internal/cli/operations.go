package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// operations returns lucius operations.
func (t *tool) operations() *cobra.Command {
	cmd := &cobra.Command{
		Use: "operations", GroupID: GroupOperate, Short: "Show operations on many jobs, and stop them",
		Long: "Operations on many jobs are started by lucius retry, and by lucius jobs cancel, pause and resume with\n" +
			"flags that select jobs. The server keeps them for seven days after they end.",
		Example: "  lucius operations list\n  lucius operations get OPERATION",
	}
	cmd.AddCommand(t.operationsList(), t.operationsGet(), t.operationsCancel())
	return t.calls(cmd)
}

func (t *tool) operationsList() *cobra.Command {
	var tenant, kind string
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List operations with their progress, newest first", example: "  lucius operations list",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.OperationPage, []api.Operation, string, error) {
			page, err := call[api.OperationPage](s.ListOperations(ctx, &api.ListOperationsParams{
				TenantID: optional(tenant), Kind: optional(api.OperationKind(kind)), Limit: &size, PageToken: token,
			}))
			return page, page.Operations, page.NextPageToken, err
		}, func(page *api.OperationPage, all []api.Operation) { page.Operations = all })
		if err != nil {
			return err
		}
		return show(s, list, showOperations)
	})
	cmd.Flags().StringVar(&tenant, "tenant", "", "only operations that select jobs of this tenant")
	cmd.Flags().StringVar(&kind, "kind", "", "only operations of this kind: retry, cancel, pause or resume")
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of operations to list")
	return cmd
}

// showOperations writes a table of operations.
func showOperations(p *page, list api.OperationPage) {
	rows := make([][]string, len(list.Operations))
	for i := range list.Operations {
		op := &list.Operations[i]
		rows[i] = []string{
			op.OperationID, string(op.Kind), p.operationState(op), fmt.Sprintf("%d of %d", op.Done, op.Matched), fmt.Sprint(op.Failed),
			op.Caller, p.ago(op.CreatedAt.Time), op.Reason,
		}
	}
	p.table([]string{"OPERATION", "KIND", "STATE", "DONE", "FAILED", "BY", "BEGUN", "REASON"}, rows)
	p.more(list.NextPageToken != "", len(rows))
}

func (p *page) operationState(op *api.Operation) string {
	colour := map[api.OperationState]style{api.OperationStateDone: green, api.OperationStateCancelled: yellow}[op.State]
	return p.style(cmp.Or(colour, cyan), string(op.State))
}

// operationIDs completes the ids of the newest operations.
func operationIDs(ctx context.Context, s *session) (words []cobra.Completion) {
	page, err := call[api.OperationPage](s.ListOperations(ctx, &api.ListOperationsParams{Limit: new(api.Limit(20))}))
	if err != nil {
		return nil
	}
	for i := range page.Operations {
		op := &page.Operations[i]
		about := plain(fmt.Sprintf("%s of %s, %s", op.Kind, diagnosis.Count(op.Matched, "job"), op.State))
		words = append(words, cobra.CompletionWithDesc(op.OperationID, about))
	}
	return words
}

func (t *tool) operationsGet() *cobra.Command {
	var limit int
	var watch bool
	cmd := t.command(spec{
		use: "get OPERATION", short: "Show an operation, the outcomes of its jobs, and what became of them",
		args: 1, completes: operationIDs,
		example: "  lucius operations get OPERATION\n  lucius operations get OPERATION --watch",
	}, func(ctx context.Context, s *session, args []string) error {
		op, err := s.operation(ctx, args[0], limit)
		if err != nil {
			return err
		}
		if watch {
			return s.followOperation(ctx, &op)
		}
		if op.Results, err = s.results(ctx, args[0]); err != nil {
			return err
		}
		return show(s, op, showOperation)
	})
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of jobs to show")
	cmd.Flags().BoolVar(&watch, "watch", false, "follow the operation until its end")
	return cmd
}

func (t *tool) operationsCancel() *cobra.Command {
	var reason string
	cmd := t.command(spec{
		use: "cancel OPERATION", short: "Stop an operation; jobs already changed stay changed", args: 1, completes: operationIDs,
		example: "  lucius operations cancel OPERATION",
	}, func(ctx context.Context, s *session, args []string) error {
		op, err := call[api.Operation](s.CancelOperation(ctx, args[0], api.ControlRequest{Reason: reason}))
		if err != nil {
			return err
		}
		return show(s, op, showOperation)
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}

// operation reads an operation with at most limit of its jobs.
func (s *session) operation(ctx context.Context, id string, limit int) (api.Operation, error) {
	return pages(limit, func(size api.Limit, token *api.PageToken) (api.Operation, []api.OperationItem, string, error) {
		op, err := call[api.Operation](s.GetOperation(ctx, id, &api.GetOperationParams{Limit: &size, PageToken: token}))
		return op, op.Items, op.NextPageToken, err
	}, func(op *api.Operation, items []api.OperationItem) { op.Items = items })
}

// results reads what became of the jobs of an operation.
func (s *session) results(ctx context.Context, id string) (*api.OperationResults, error) {
	op, err := call[api.Operation](s.GetOperation(ctx, id, &api.GetOperationParams{
		Limit: new(api.Limit(1)), Include: &[]api.GetOperationParamsInclude{api.GetOperationParamsIncludeResults},
	}))
	return op.Results, err
}

// operationInterval is the time between two looks at an operation.
const operationInterval = 500 * time.Millisecond

// mostItems is more than the jobs that an operation has.
const mostItems = 1 << 20

// followOperation shows the progress of an operation until its end, then the outcome.
func (s *session) followOperation(ctx context.Context, op *api.Operation) error {
	bar, shown, id := s.progress(string(op.Kind), op.Matched), 0, op.OperationID
	for op.State == api.OperationStateRunning {
		bar.add(op.Done - shown)
		shown = op.Done
		err := s.pause(ctx, operationInterval)
		if err == nil {
			err = s.repeat(ctx, func() (err error) {
				*op, err = s.operation(ctx, id, 1)
				return err
			})
		}
		if err != nil {
			bar.end()
			return &Error{Code: ExitCode(err), Err: fmt.Errorf("%w; the operation continues: lucius operations get %s --watch follows it, "+
				"lucius operations cancel %[2]s stops it", err, id)}
		}
	}
	bar.end()
	all, err := s.operation(ctx, id, mostItems)
	if err != nil {
		return err
	}
	return errors.Join(show(s, all, showOutcome), operationOutcome(&all))
}

// operationOutcome returns the error of an operation that ended, and did not change all of
// its jobs. Jobs that no longer match are none of them.
func operationOutcome(op *api.Operation) error {
	switch {
	case op.State == api.OperationStateCancelled:
		jobs := diagnosis.Count(op.Matched, "job")
		return &Error{Code: ExitFailed, Err: fmt.Errorf("the operation was cancelled after %d of %s", op.Done, jobs)}
	case op.Done < op.Matched:
		jobs := diagnosis.Count(op.Matched, "job")
		return &Error{Code: ExitFailed, Err: fmt.Errorf("the operation ended without the outcome of %d of %s", op.Matched-op.Done, jobs)}
	case op.Failed > 0:
		return &Error{Code: ExitFailed, Err: fmt.Errorf("%d of %s could not be changed", op.Failed, diagnosis.Count(op.Matched, "job"))}
	}
	return nil
}

// showOperation writes an operation with the jobs that were read.
func showOperation(p *page, op api.Operation) {
	rate := fmt.Sprintf("at most %g jobs a second", op.RatePerSecond)
	p.fields("operation", op.OperationID, "kind", string(op.Kind), "edits", editsOf(&op),
		"state", p.operationState(&op), "jobs", progressOf(&op), "results", diagnosis.Results(&op),
		"by", op.Caller, "reason", op.Reason, "begun", p.ago(op.CreatedAt.Time), "changed", p.ago(op.UpdatedAt.Time), "rate", rate)
	if len(op.Items) > 0 {
		p.line("")
		showItems(p, op.Items)
		p.more(op.NextPageToken != "", len(op.Items))
	}
	if len(op.Items) == 0 && op.State == api.OperationStateRunning {
		p.line("")
		p.line("lucius operations get %s --watch follows it.", op.OperationID)
	}
}

// editsOf says what is different in the reruns of an operation.
func editsOf(op *api.Operation) string {
	var parts []string
	if op.FromStep != "" {
		parts = append(parts, "from the step "+op.FromStep)
	} else if op.From == api.RerunFromStart {
		parts = append(parts, "from the start")
	}
	if len(op.PayloadPatch) > 0 {
		parts = append(parts, "with the patch "+shortened(op.PayloadPatch))
	}
	if op.Protocol == api.RerunProtocolCurrent {
		parts = append(parts, "on the current protocol")
	}
	if op.Callbacks == api.RerunCallbacksNone {
		parts = append(parts, "without callbacks")
	}
	if op.Priority != "" {
		parts = append(parts, "with the priority "+string(op.Priority))
	}
	return strings.Join(parts, ", ")
}

// progressOf says what became of an operation's jobs so far.
func progressOf(op *api.Operation) string {
	text := fmt.Sprintf("%d of %d tried: %d changed, %d skipped, %d failed", op.Done, op.Matched, op.Applied, op.Skipped, op.Failed)
	if op.Truncated {
		text += "; there may be more jobs, which it left out"
	}
	return text
}

// showOutcome writes how an operation ended, with the jobs that it did not change.
func showOutcome(p *page, op api.Operation) {
	p.line("%s %s: %s", op.Kind, p.operationState(&op), progressOf(&op))
	var left []api.OperationItem
	for _, item := range op.Items {
		if item.Outcome == api.OperationItemOutcomeFailed || item.Outcome == api.OperationItemOutcomeSkipped {
			left = append(left, item)
		}
	}
	if len(left) > 0 {
		p.line("")
		showItems(p, left)
	}
}

func showItems(p *page, items []api.OperationItem) {
	rows := make([][]string, len(items))
	for i, item := range items {
		outcome := string(item.Outcome)
		if item.Outcome == api.OperationItemOutcomeFailed {
			outcome = p.style(red, outcome)
		}
		rows[i] = []string{item.JobID, outcome, item.NewJobID, item.Detail}
	}
	p.table([]string{"JOB", "OUTCOME", "RERUN", "DETAIL"}, rows)
}
