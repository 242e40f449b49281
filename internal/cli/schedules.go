package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// schedules returns lucius schedules.
func (t *tool) schedules() *cobra.Command {
	cmd := &cobra.Command{
		Use: "schedules", Aliases: []string{"schedule"}, GroupID: GroupOperate,
		Short: "Submit commands at times: show, change, pause and run schedules",
		Example: "  lucius schedules apply -f schedules/\n  lucius schedules list --tenant tenant_a\n" +
			"  lucius schedules next --cron \"30 2 * * 1-5\" --zone Europe/Berlin",
	}
	cmd.AddCommand(t.schedulesList(), t.schedulesShow(), t.schedulesApply(), t.schedulesNext(), t.schedulesFires(), t.schedulesLost(),
		t.schedulesRun(), t.schedulesBackfill(), t.schedulesBackfills(), t.schedulesCancelBackfill(), t.schedulesPause(),
		t.schedulesResume(), t.schedulesDelete())
	return t.calls(cmd)
}

// scheduleID describes the argument of the commands on a schedule.
const scheduleID = "A schedule is named by its tenant and name: tenant_a/nightly-index."

// splitSchedule reads the argument of the commands on a schedule.
func splitSchedule(arg string) (tenant, name string, err error) {
	tenant, name, found := strings.Cut(arg, "/")
	if !found || tenant == "" || name == "" || strings.Contains(name, "/") {
		return "", "", usagef("%q must be a tenant and the name of its schedule, such as tenant_a/nightly-index", plain(arg))
	}
	return tenant, name, nil
}

// schedulesList returns lucius schedules list.
func (t *tool) schedulesList() *cobra.Command {
	var tenant, state string
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List the schedules of a tenant", example: "  lucius schedules list --tenant tenant_a",
	}, func(ctx context.Context, s *session, _ []string) error {
		if tenant == "" {
			return usagef("name the --tenant: each tenant has its own schedules")
		}
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.SchedulePage, []api.Schedule, string, error) {
			page, err := call[api.SchedulePage](s.ListSchedules(ctx, &api.ListSchedulesParams{
				TenantID: tenant, State: optional(api.ScheduleState(state)), Limit: &size, PageToken: token,
			}))
			return page, page.Schedules, page.NextPageToken, err
		}, func(page *api.SchedulePage, all []api.Schedule) { page.Schedules = all })
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.SchedulePage) {
			if len(list.Schedules) == 0 {
				p.line("There are no schedules.")
				return
			}
			rows := make([][]string, len(list.Schedules))
			for i := range list.Schedules {
				one := &list.Schedules[i]
				next, failed := "", ""
				if len(one.Next) > 0 {
					next = one.Next[0].Local + ", " + p.until(one.Next[0].At.Time)
				}
				if one.FailuresInRow > 0 {
					failed = p.style(yellow, strconv.Itoa(one.FailuresInRow))
				}
				rows[i] = []string{one.Name, string(one.State), timesText(one), next, failed}
			}
			p.table([]string{"NAME", "STATE", "TIMES", "NEXT", "FAILED IN A ROW"}, rows)
			p.more(list.NextPageToken != "", len(list.Schedules))
		})
	})
	flags := cmd.Flags()
	flags.StringVar(&tenant, "tenant", "", "the tenant")
	flags.StringVar(&state, "state", "", "only schedules in this state: active, paused or completed")
	flags.IntVar(&limit, "limit", 50, "maximum number of schedules to list")
	completeWords(cmd, "state", string(api.ScheduleStateActive), string(api.ScheduleStatePaused), string(api.ScheduleStateCompleted))
	return cmd
}

// timesText says when a schedule fires.
func timesText(one *api.Schedule) string {
	text := one.Cron
	if text == "" {
		text = "every " + one.Every
	}
	if one.TimeZone != "" {
		text += " " + one.TimeZone
	}
	return text
}

// schedulesShow returns lucius schedules show.
func (t *tool) schedulesShow() *cobra.Command {
	return t.command(spec{
		use: "show SCHEDULE", short: "Show a schedule with its next times", example: "  lucius schedules show tenant_a/nightly-index",
		long: scheduleID, args: 1, query: true,
	}, func(ctx context.Context, s *session, args []string) error {
		tenant, name, err := splitSchedule(args[0])
		if err != nil {
			return err
		}
		one, err := call[api.Schedule](s.GetSchedule(ctx, tenant, name))
		if err != nil {
			return err
		}
		return show(s, one, func(p *page, one api.Schedule) {
			fields := []string{
				"schedule", p.style(bold, one.TenantID+"/"+one.Name), "state", string(one.State), "times", timesText(&one),
				"jitter", one.Jitter, "overlap", string(one.Overlap),
				"catch up", string(one.CatchUp.Policy) + " within " + one.CatchUp.Window,
				"rev", strconv.FormatInt(one.Rev, 10), "version", strconv.Itoa(one.Version),
				"excluded dates", strings.Join(one.ExcludedDates, ", "), "command", string(one.Command),
			}
			if last := one.LastFire; last != nil {
				fields = append(fields, "last", string(last.Outcome)+" for "+last.ScheduledFor.String()+", "+p.ago(last.ScheduledFor.Time),
					"job", last.JobID, "because", last.Detail)
			}
			if one.FailuresInRow > 0 {
				fields = append(fields, "failed in a row", strconv.Itoa(one.FailuresInRow))
			}
			p.fields(fields...)
			p.times(one.Next)
		})
	})
}

// times writes a table of times to come.
func (p *page) times(times []api.ScheduleTime) {
	if len(times) == 0 {
		return
	}
	rows := make([][]string, len(times))
	for i, one := range times {
		rows[i] = []string{one.Local, one.At.String(), p.until(one.At.Time), diagnosis.ClockChange(one.ClockChange)}
	}
	p.table([]string{"LOCAL TIME", "UTC", "WHEN", "CLOCKS"}, rows)
}

// schedulesNext returns lucius schedules next.
func (t *tool) schedulesNext() *cobra.Command {
	var ask api.SchedulePreviewRequest
	var after string
	cmd := t.command(spec{
		use: "next", short: "Preview the times of a cron expression or an interval",
		long: "Marks the times that a change of clocks moves or repeats.",
		example: "  lucius schedules next --cron \"30 2 * * *\" --zone Europe/Berlin --after 2026-03-27\n" +
			"  lucius schedules next --every 15m",
	}, func(ctx context.Context, s *session, _ []string) error {
		if (ask.Cron == "") == (ask.Every == "") {
			return usagef("give one of --cron and --every")
		}
		from, err := s.moment("after", after)
		if err != nil {
			return err
		}
		if from != nil {
			ask.After = *from
		}
		found, err := call[api.SchedulePreview](s.PreviewSchedule(ctx, ask))
		if err != nil {
			return err
		}
		return show(s, found, func(p *page, found api.SchedulePreview) { p.times(found.Times) })
	})
	flags := cmd.Flags()
	flags.StringVar(&ask.Cron, "cron", "", "cron expression, such as \"30 2 * * 1-5\"")
	flags.StringVar(&ask.Every, "every", "", "interval, such as 15m")
	flags.StringVar(&ask.TimeZone, "zone", "", "time zone, such as Europe/Berlin; UTC if left out")
	flags.StringVar(&after, "after", "", "only times after this one: "+momentHelp)
	flags.Int32Var(&ask.Count, "count", 10, "how many, at most 100")
	return cmd
}

// schedulesFires returns lucius schedules fires.
func (t *tool) schedulesFires() *cobra.Command {
	var limit int
	cmd := t.command(spec{
		use: "fires SCHEDULE", short: "Show what became of the times of a schedule",
		example: "  lucius schedules fires tenant_a/nightly-index",
		long:    scheduleID, args: 1, query: true,
	}, func(ctx context.Context, s *session, args []string) error {
		tenant, name, err := splitSchedule(args[0])
		if err != nil {
			return err
		}
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.ScheduleFirePage, []api.ScheduleFire, string, error) {
			page, err := call[api.ScheduleFirePage](s.ListFires(ctx, tenant, name, &api.ListFiresParams{Limit: &size, PageToken: token}))
			return page, page.Fires, page.NextPageToken, err
		}, func(page *api.ScheduleFirePage, all []api.ScheduleFire) { page.Fires = all })
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.ScheduleFirePage) {
			if len(list.Fires) == 0 {
				p.line("Nothing was due yet.")
				return
			}
			rows := make([][]string, len(list.Fires))
			for i := range list.Fires {
				rows[i] = p.fire(&list.Fires[i])
			}
			p.table([]string{"SCHEDULED FOR", "OUTCOME", "JOB", "LATE", "DETAIL"}, rows)
			p.more(list.NextPageToken != "", len(list.Fires))
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of entries to list")
	return cmd
}

// schedulesLost returns lucius schedules lost.
func (t *tool) schedulesLost() *cobra.Command {
	var tenant string
	var limit int
	cmd := t.command(spec{
		use: "lost", short: "List the schedules that missed times in the last day, or whose commands were refused",
		example: "  lucius schedules lost\n  lucius schedules lost --tenant tenant_a", query: true,
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.ScheduleLossPage, []api.ScheduleLosses, string, error) {
			page, err := call[api.ScheduleLossPage](s.ListLosses(ctx, &api.ListLossesParams{
				TenantID: optional(tenant), Limit: &size, PageToken: token,
			}))
			return page, page.Schedules, page.NextPageToken, err
		}, func(page *api.ScheduleLossPage, all []api.ScheduleLosses) { page.Schedules = all })
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.ScheduleLossPage) {
			if len(list.Schedules) == 0 {
				p.line("No schedule missed a time in the last day, and no command was refused.")
				return
			}
			rows := make([][]string, len(list.Schedules))
			for i := range list.Schedules {
				one := &list.Schedules[i]
				rows[i] = []string{
					one.TenantID + "/" + one.Name, strconv.Itoa(one.Missed), strconv.Itoa(one.Refused), strconv.Itoa(one.FailuresInRow),
					one.Since.String(), one.LastFor.String(), one.Detail,
				}
			}
			p.table([]string{"SCHEDULE", "MISSED", "REFUSED", "IN A ROW", "SINCE", "LAST", "DETAIL"}, rows)
			p.more(list.NextPageToken != "", len(list.Schedules))
		})
	})
	cmd.Flags().StringVar(&tenant, "tenant", "", "only schedules of this tenant")
	cmd.Flags().IntVar(&limit, "limit", 50, "maximum number of schedules to list")
	return cmd
}

// fire returns the row of an occurrence.
func (p *page) fire(f *api.ScheduleFire) []string {
	outcome, detail := string(f.Outcome), f.Detail
	if f.Outcome == api.FireOutcomeRefused || f.Outcome == api.FireOutcomeMissed {
		outcome = p.style(yellow, outcome)
	}
	if f.Count > 1 {
		outcome += ", " + diagnosis.Count(f.Count, "time") + " from " + f.From.String()
	}
	switch {
	case f.BackfillID != "":
		detail = strings.TrimSpace("backfill by " + f.Actor + " " + detail)
	case f.Actor != "":
		detail = strings.TrimSpace("run by " + f.Actor + " " + detail)
	}
	return []string{f.ScheduledFor.String(), outcome, f.JobID, strconv.FormatFloat(f.LateSeconds, 'f', 1, 64) + " s", detail}
}

// schedulesRun returns lucius schedules run.
func (t *tool) schedulesRun() *cobra.Command {
	var key string
	cmd := t.command(spec{
		use: "run SCHEDULE", short: "Submit the command of a schedule now", example: "  lucius schedules run tenant_a/nightly-index",
		long: scheduleID, args: 1, query: true,
	}, func(ctx context.Context, s *session, args []string) error {
		tenant, name, err := splitSchedule(args[0])
		if err != nil {
			return err
		}
		fire, err := once(ctx, s, key, func(key string) (api.ScheduleFire, error) {
			params := &api.RunScheduleParams{IdempotencyKey: &key}
			return call[api.ScheduleFire](s.RunSchedule(ctx, tenant, name, params, api.ScheduleChange{}))
		})
		if err != nil {
			return err
		}
		err = show(s, fire, func(p *page, fire api.ScheduleFire) {
			if fire.JobID == "" {
				p.line("The run was %s: %s", fire.Outcome, fire.Detail)
				return
			}
			p.line("Job %s: lucius jobs watch %s", fire.JobID, fire.JobID)
		})
		if err == nil && fire.JobID == "" {
			err = &Error{Code: ExitRefused, Err: fmt.Errorf("there is no new job of %s", plain(args[0]))}
		}
		return err
	})
	cmd.Flags().StringVar(&key, "idempotency-key", "", "a repeated request with this key runs nothing again")
	return cmd
}

// schedulesPause returns lucius schedules pause.
func (t *tool) schedulesPause() *cobra.Command {
	return t.schedulesTurn("pause", "Pause schedules; what is due in the meantime is not caught up", "Paused",
		func(ctx context.Context, s *session, tenant, name, reason string) (api.Schedule, error) {
			return call[api.Schedule](s.PauseSchedule(ctx, tenant, name, api.ScheduleChange{Reason: reason}))
		})
}

// schedulesResume returns lucius schedules resume.
func (t *tool) schedulesResume() *cobra.Command {
	return t.schedulesTurn("resume", "Resume paused schedules", "Resumed",
		func(ctx context.Context, s *session, tenant, name, reason string) (api.Schedule, error) {
			return call[api.Schedule](s.ResumeSchedule(ctx, tenant, name, api.ScheduleChange{Reason: reason}))
		})
}

// schedulesTurn returns a command that changes the state of schedules.
func (t *tool) schedulesTurn(
	verb, short, done string, turn func(ctx context.Context, s *session, tenant, name, reason string) (api.Schedule, error),
) *cobra.Command {
	var reason string
	cmd := t.command(spec{
		use: verb + " SCHEDULE...", short: short, example: "  lucius schedules " + verb + " tenant_a/nightly-index",
		long: scheduleID, args: 1, more: true, query: true,
	}, func(ctx context.Context, s *session, ids []string) error {
		return s.each("", ids, func(id string) error {
			tenant, name, err := splitSchedule(id)
			if err != nil {
				return err
			}
			changed, err := turn(ctx, s, tenant, name, reason)
			if err != nil {
				return err
			}
			return show(s, changed, func(p *page, one api.Schedule) {
				if len(one.Next) > 0 {
					p.line("%s %s/%s, next at %s", done, one.TenantID, one.Name, one.Next[0].Local)
					return
				}
				p.line("%s %s/%s", done, one.TenantID, one.Name)
			})
		})
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}

// schedulesDelete returns lucius schedules delete.
func (t *tool) schedulesDelete() *cobra.Command {
	cmd := t.command(spec{
		use: "delete SCHEDULE...", short: "Delete schedules; their jobs go on", example: "  lucius schedules delete tenant_a/nightly-index",
		long: scheduleID, args: 1, more: true, query: true,
	}, func(ctx context.Context, s *session, ids []string) error {
		return s.each("Delete "+diagnosis.Count(len(ids), "schedule")+"?", ids, func(id string) error {
			tenant, name, err := splitSchedule(id)
			if err != nil {
				return err
			}
			deleted, err := call[api.Schedule](s.DeleteSchedule(ctx, tenant, name))
			if err != nil {
				return err
			}
			return show(s, deleted, func(p *page, one api.Schedule) { p.line("Deleted %s/%s", one.TenantID, one.Name) })
		})
	})
	return asks(cmd)
}

// scheduleDiff is what lucius schedules apply does to a schedule.
type scheduleDiff struct {
	Schedule string   `json:"schedule"`
	Change   string   `json:"change"` // create, change or unchanged
	Fields   []string `json:"fields,omitempty"`
}

// schedulesApply returns lucius schedules apply.
func (t *tool) schedulesApply() *cobra.Command {
	var path string
	var dry bool
	cmd := t.command(spec{
		use: "apply", short: "Create or change the schedules of a file or a folder",
		long: "Shows what differs, asks, and changes that. A folder stands for its files *.yaml, *.yml and *.json.\n" +
			"A file is one schedule, or a list under schedules:\n\n" +
			"  tenant_id: tenant_a\n  name: nightly-index\n  cron: \"30 2 * * 1-5\"\n  time_zone: Europe/Berlin\n" +
			"  command: {request_type: doc.index, schema_version: \"1\", …}\n\n" +
			"Schedules that the files do not name stay as they are.",
		example: "  lucius schedules apply -f schedules/\n  lucius schedules apply -f nightly.yaml --dry-run",
	}, func(ctx context.Context, s *session, _ []string) error {
		if path == "" {
			return usagef("name the file or folder with -f")
		}
		wanted, err := readSchedules(path)
		if err != nil {
			return err
		}
		diffs, changes := make([]scheduleDiff, len(wanted)), 0
		for i := range wanted {
			if diffs[i], err = s.diffSchedule(ctx, &wanted[i]); err != nil {
				return err
			}
			if diffs[i].Change != "unchanged" {
				changes++
			}
		}
		if err := show(s, map[string][]scheduleDiff{"schedules": diffs}, showDiffs); err != nil || dry || changes == 0 {
			return err
		}
		if err := s.confirm("Apply " + diagnosis.Count(changes, "change") + "?"); err != nil {
			return err
		}
		for i := range wanted {
			if diffs[i].Change == "unchanged" {
				continue
			}
			if err := s.putSchedule(ctx, &wanted[i]); err != nil {
				return fmt.Errorf("%s was not applied: %w", plain(diffs[i].Schedule), err)
			}
		}
		return nil
	})
	flags := cmd.Flags()
	flags.StringVarP(&path, "file", "f", "", "file or folder with the schedules")
	flags.BoolVar(&dry, "dry-run", false, "only show what differs")
	return asks(cmd)
}

// showDiffs writes what differs.
func showDiffs(p *page, all map[string][]scheduleDiff) {
	for _, one := range all["schedules"] {
		switch one.Change {
		case "unchanged":
			p.line("%s", p.style(faint, one.Schedule+" is unchanged"))
		case "create":
			p.line("%s is new", one.Schedule)
		default:
			p.line("%s changes", one.Schedule)
		}
		for _, field := range one.Fields {
			p.line("  %s", field)
		}
	}
}
