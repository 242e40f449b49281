package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// workers returns lucius workers.
func (t *tool) workers() *cobra.Command {
	var service string
	cmd := t.command(spec{
		use: "workers", short: "Show the workers of the pull queue",
		long: "Shows the workers that asked for work, held any or reported in the last day: for which services they ask,\n" +
			"what they hold, and how many attempts they ended, failed and lost.",
		example: "  lucius workers --service ocr\n  lucius workers show worker-7",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := call[api.WorkerList](s.ListWorkers(ctx, &api.ListWorkersParams{Service: optional(service)}))
		if err != nil {
			return err
		}
		return show(s, list, showWorkers)
	})
	cmd.Flags().StringVar(&service, "service", "", "only workers that ask for work of this service, or did any")
	t.completeFlag(cmd, "service", serviceNames)
	cmd.GroupID = GroupOperate
	one := t.command(spec{
		use: "show OWNER", short: "Show a worker: what it holds, and its last attempts", args: 1, completes: workerNames, query: true,
		example: "  lucius workers show worker-7",
	}, func(ctx context.Context, s *session, args []string) error {
		list, err := call[api.WorkerList](s.ListWorkers(ctx, &api.ListWorkersParams{Owner: &args[0]}))
		if err != nil {
			return err
		}
		if len(list.Workers) == 0 {
			err := fmt.Errorf("no worker %s was active in the last day: lucius workers shows all", plain(args[0]))
			return &Error{Code: ExitNotFound, Err: err}
		}
		return show(s, list, showWorker)
	})
	cmd.AddCommand(t.calls(one))
	return t.calls(cmd)
}

// workerNames completes the names of workers.
func workerNames(ctx context.Context, s *session) (all []cobra.Completion) {
	list, err := call[api.WorkerList](s.ListWorkers(ctx, nil))
	if err != nil {
		return nil
	}
	for i := range list.Workers {
		all = append(all, cobra.CompletionWithDesc(plain(list.Workers[i].Owner), plain(anyOf(list.Workers[i].Services))))
	}
	return all
}

// anyOf names what a worker asks for.
func anyOf(names []string) string { return cmp.Or(strings.Join(names, ", "), "any") }

// showWorkers writes a table of workers.
func showWorkers(p *page, list api.WorkerList) {
	if list.Bus == api.BusServiceBus {
		p.line("On Service Bus workers are not known: they receive directives from their topics.")
		return
	}
	rows := make([][]string, len(list.Workers))
	for i := range list.Workers {
		one := &list.Workers[i]
		rows[i] = []string{
			one.Owner, anyOf(one.Services), p.polls(one), strconv.Itoa(one.Holds), strconv.Itoa(one.LastDay.Ended),
			strconv.Itoa(one.LastDay.Failed), strconv.Itoa(one.LastDay.Lost), one.Version, one.Host,
		}
	}
	p.table([]string{"WORKER", "SERVICES", "STATE", "HOLDS", "ENDED", "FAILED", "LOST", "VERSION", "HOST"}, rows)
	if more := list.Total - len(rows); more > 0 {
		p.line("and %d more", more)
	}
}

// polls says whether the worker asks for work, or when it was last active.
func (p *page) polls(one *api.Worker) string {
	if one.Polling {
		return p.style(green, "asks for work")
	}
	return "active " + p.ago(one.ActiveAt.Time)
}

// showWorker writes a worker with its attempts.
func showWorker(p *page, list api.WorkerList) {
	one := &list.Workers[0]
	fields := []string{
		"worker", p.style(bold, one.Owner), "state", p.polls(one), "services", anyOf(one.Services), "step types", anyOf(one.StepTypes),
		"version", one.Version, "host", one.Host, "library", one.Library,
	}
	if one.LastDay.Ended > 0 {
		fields = append(fields, "last day", shares(&one.LastDay))
	}
	if list.Others.Ended > 0 {
		fields = append(fields, "the others", shares(&list.Others))
	}
	p.fields(fields...)
	p.line("")
	if one.Holds == 0 {
		p.line("It holds nothing.")
	} else {
		rows := make([][]string, len(one.Held))
		for i := range one.Held {
			a := &one.Held[i]
			rows[i] = []string{
				a.JobID, a.StepID, a.Service, a.TenantID, strconv.Itoa(a.AttemptNo), p.ago(a.ClaimedAt.Time),
				p.ago(a.LastHeartbeatAt.Time), p.until(a.LeaseExpiresAt.Time),
			}
		}
		p.table([]string{"HOLDS", "STEP", "SERVICE", "TENANT", "ATTEMPT", "SINCE", "LAST HEARTBEAT", "LEASE ENDS"}, rows)
		if more := one.Holds - len(rows); more > 0 {
			p.line("and %d more", more)
		}
	}
	if len(one.Attempts) == 0 {
		return
	}
	p.line("")
	rows := make([][]string, len(one.Attempts))
	for i := range one.Attempts {
		a := &one.Attempts[i]
		outcome := string(a.Outcome)
		if a.Outcome == api.WorkerAttemptOutcomeFailed || a.Outcome == api.WorkerAttemptOutcomeLost {
			outcome = p.style(red, outcome)
		}
		rows[i] = []string{
			a.JobID, a.StepID, a.Service, a.TenantID, strconv.Itoa(a.AttemptNo), p.ago(a.EndedAt.Time),
			short(a.EndedAt.Sub(a.ClaimedAt.Time)), outcome, a.ErrorCode,
		}
	}
	p.table([]string{"ENDED", "STEP", "SERVICE", "TENANT", "ATTEMPT", "WHEN", "TOOK", "OUTCOME", "ERROR"}, rows)
}

// shares says how many attempts ended, and which shares of them failed and were lost.
func shares(c *api.AttemptCounts) string {
	percent := func(n int) float64 { return 100 * float64(n) / float64(max(c.Ended, 1)) }
	return fmt.Sprintf("%s ended, %d failed (%.1f %%), %d lost (%.1f %%)",
		diagnosis.Count(c.Ended, "attempt"), c.Failed, percent(c.Failed), c.Lost, percent(c.Lost))
}
