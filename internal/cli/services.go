package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// limitedServices are the services, with their limits and closures if the token may see these.
type limitedServices struct {
	api.ServiceList

	Limits []api.StartLimit `json:"limits,omitempty"`
}

// services returns lucius services.
func (t *tool) services() *cobra.Command {
	var service string
	cmd := t.command(spec{
		use: "services", short: "Show the backlog and performance of each service",
		long: "Shows for each service and step type how many steps wait and since when, how many are under way, how\n" +
			"often attempts end and fail, how long they take, and how many workers ask for work. With --service it\n" +
			"shows all figures of one service, and its workers. Limits and closures are shown to those with the role admin.",
		example: "  lucius services\n  lucius services --service ocr",
	}, func(ctx context.Context, s *session, _ []string) error {
		var list limitedServices
		var err error
		if list.ServiceList, err = call[api.ServiceList](s.ListServices(ctx, nil)); err != nil {
			return err
		}
		limits, err := call[api.StartLimitList](s.ListLimits(ctx))
		if list.Limits = limits.Limits; err != nil && ExitCode(err) != ExitForbidden {
			return err
		}
		if service == "" {
			return show(s, list, func(p *page, list limitedServices) {
				showServices(p, list.ServiceList)
				p.limitsOf(list.Limits)
			})
		}
		list.Services = slices.DeleteFunc(list.Services, func(one api.Service) bool { return one.Service != service })
		list.Limits = slices.DeleteFunc(list.Limits, func(one api.StartLimit) bool { return one.Service != service })
		if len(list.Services) == 0 {
			return &Error{Code: ExitNotFound, Err: fmt.Errorf("there is no service %s: lucius services shows all", plain(service))}
		}
		return show(s, list, func(p *page, list limitedServices) {
			showService(p, list.ServiceList)
			p.limitsOf(list.Limits)
		})
	})
	cmd.Flags().StringVar(&service, "service", "", "only this service, with its workers")
	t.completeFlag(cmd, "service", serviceNames)
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
}

// limitsOf writes the limits of services, if there are any, after what is said of the services.
func (p *page) limitsOf(limits []api.StartLimit) {
	if len(limits) > 0 {
		p.line("")
		p.limits(limits)
	}
}

// showService writes all figures of each kind of work of a service.
func showService(p *page, list api.ServiceList) {
	for i := range list.Services {
		one := &list.Services[i]
		if i > 0 {
			p.line("")
		}
		waiting := strconv.Itoa(one.Backlog)
		held := make([]string, len(one.HeldBy))
		for j, by := range one.HeldBy {
			held[j] = fmt.Sprintf("%d by the pause %s", by.Count, by.PauseID)
		}
		if one.OldestWaitingSeconds > 0 {
			waiting += ", the oldest for " + short(seconds(one.OldestWaitingSeconds))
		}
		p.fields(
			"service", p.style(bold, one.Service),
			"step type", one.StepType,
			"waiting", waiting,
			"held", strings.Join(held, ", "),
			"under way", fmt.Sprintf("%d claimed, %d running, %d unpublished, %d in backoff",
				one.Claimed, one.Running, one.Dispatching, one.Backoff),
			"last minute", ended(&one.Attempts.LastMinute),
			"last hour", ended(&one.Attempts.LastHour),
			"attempts take", percentiles(&one.DurationSeconds),
			"steps wait", percentiles(&one.QueueWaitSeconds),
			"in a day they take", percentiles(&one.DurationSecondsInDay),
			"and wait", percentiles(&one.QueueWaitSecondsInDay),
		)
		p.line("")
		rows := make([][]string, len(one.Workers))
		for j, worker := range one.Workers {
			polls := "asked " + p.ago(worker.LastPollAt.Time)
			if worker.Polling {
				polls = p.style(green, "asks for work")
			}
			rows[j] = []string{worker.Owner, polls}
		}
		switch more := one.WorkersTotal - len(rows); {
		case one.WorkersTotal == 0:
			p.line("%s", p.style(red, "No worker has asked for this work in the last hour."))
		case more > 0:
			p.table([]string{"WORKER", "STATE"}, rows)
			p.line("and %d more", more)
		default:
			p.table([]string{"WORKER", "STATE"}, rows)
		}
	}
}

// ended says how many attempts ended, and how many of them failed.
func ended(r *api.Rate) string {
	return fmt.Sprintf("%s ended, %d failed (%.1f %%)", diagnosis.Count(r.Count, "attempt"), r.Failed, 100*r.ErrorRate)
}

// percentiles says how long something takes. It returns "" if that is not known.
func percentiles(d *api.Percentiles) string {
	if d.Count == 0 {
		return ""
	}
	return fmt.Sprintf("p50 %s, p95 %s, p99 %s (of %d)", exact(d.P50), exact(d.P95), exact(d.P99), d.Count)
}

// exact formats seconds as a duration with three digits.
func exact(s float64) string {
	d := seconds(s)
	for unit := time.Microsecond; unit <= time.Minute; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit).String()
		}
	}
	return short(d)
}

// stuck returns lucius stuck.
func (t *tool) stuck() *cobra.Command {
	cmd := t.command(spec{
		use: "stuck", short: "Show jobs that cannot make progress", example: "  lucius stuck",
		long: "Shows live jobs that cannot make progress, which the reconciler's last round found but could not repair.\n" +
			"What else is wrong is shown by lucius attention.",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := call[api.StuckList](s.ListStuck(ctx))
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.StuckList) {
			if list.RoundEndedAt.IsZero() {
				p.line("This process has not checked the jobs. If it has the role sweeper, try again later;\n" +
					"if not, the log of a process with that role names stuck jobs.")
				return
			}
			p.line("%s stuck of %d live jobs checked %s; %s repaired since it started",
				p.style(bold, strconv.Itoa(len(list.Stuck))), list.Checked, p.ago(list.RoundEndedAt.Time),
				diagnosis.Count(list.Repaired, "defect"))
			if len(list.Stuck) == 0 {
				return
			}
			p.line("")
			rows := make([][]string, len(list.Stuck))
			for i, job := range list.Stuck {
				rows[i] = []string{job.JobID, p.state(string(job.State)), p.ago(job.FoundAt.Time), job.Reason}
			}
			p.table([]string{"JOB", "STATE", "FOUND", "WHY"}, rows)
		})
	})
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
}

// protocolCommands returns lucius protocols, which shows what the server has loaded.
func (t *tool) protocolCommands() *cobra.Command {
	cmd := &cobra.Command{
		Use: "protocols", GroupID: GroupSetUp, Short: "Show the protocols of a server, and check files",
		Example: "  lucius protocols list\n  lucius protocols validate ./protocols",
	}
	list := t.command(spec{
		use: "list", short: "List the protocols that new commands are accepted with", example: "  lucius protocols list",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := call[api.ProtocolList](s.ListProtocols(ctx))
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.ProtocolList) {
			rows := make([][]string, len(list.Protocols))
			for i := range list.Protocols {
				one := &list.Protocols[i]
				rows[i] = []string{one.ProtocolID, one.Version, strings.Join(one.RequestTypes, ", "), stepsOf(one), one.File}
			}
			p.table([]string{"PROTOCOL", "VERSION", "TAKES", "STEPS", "FILE"}, rows)
			p.line("loaded %s", p.ago(list.LoadedAt.Time))
		})
	})
	get := t.command(spec{
		use: "show PROTOCOL", short: "Show a protocol with its steps", example: "  lucius protocols show doc_ingest_v1", args: 1,
		completes: protocolIDs,
	}, func(ctx context.Context, s *session, args []string) error {
		list, err := call[api.ProtocolList](s.ListProtocols(ctx))
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list.Protocols, func(one api.Protocol) bool { return one.ProtocolID == args[0] })
		if i < 0 {
			return &Error{Code: ExitNotFound, Err: fmt.Errorf("there is no protocol %s: lucius protocols list shows all", plain(args[0]))}
		}
		return show(s, list.Protocols[i], showProtocol)
	})
	cmd.AddCommand(t.calls(list), t.calls(get))
	return cmd
}

// protocolIDs completes the ids of protocols.
func protocolIDs(ctx context.Context, s *session) (all []cobra.Completion) {
	list, err := call[api.ProtocolList](s.ListProtocols(ctx))
	if err != nil {
		return nil
	}
	for i := range list.Protocols {
		takes := strings.Join(list.Protocols[i].RequestTypes, ", ")
		all = append(all, cobra.CompletionWithDesc(plain(list.Protocols[i].ProtocolID), plain(takes)))
	}
	return all
}

// showProtocol writes a protocol and its steps.
func showProtocol(p *page, one api.Protocol) {
	p.fields("protocol", one.ProtocolID, "version", one.Version, "takes", strings.Join(one.RequestTypes, ", "),
		"schema versions", strings.Join(one.SchemaVersions, ", "), "file", one.File, "digest", one.Digest)
	p.line("")
	rows := make([][]string, len(one.Steps))
	for i, step := range one.Steps {
		rows[i] = []string{strconv.Itoa(i), step.StepID, step.StepType, step.Service}
	}
	p.table([]string{"#", "STEP", "STEP TYPE", "SERVICE"}, rows)
}

// stepsOf returns the steps of a protocol in their order.
func stepsOf(one *api.Protocol) (text string) {
	for i, step := range one.Steps {
		if i > 0 {
			text += " > "
		}
		text += step.StepID
	}
	return text
}
