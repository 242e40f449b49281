package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// schedulesBackfill returns lucius schedules backfill.
func (t *tool) schedulesBackfill() *cobra.Command {
	var ask api.BackfillRequest
	var from, to, key string
	var watch bool
	cmd := t.command(spec{
		use: "backfill SCHEDULE", short: "Submit the command of a schedule for times of the past",
		long: scheduleID + "\nTimes that have a job are left alone, unless --repeat is given. The server goes on by itself;\n" +
			"one backfill of a schedule at a time.",
		example: "  lucius schedules backfill tenant_a/nightly-index --from 2026-01-20 --to 2026-01-27 --watch\n" +
			"  lucius schedules backfill tenant_a/nightly-index --from 7d --rate 0.5",
		args: 1, query: true,
	}, func(ctx context.Context, s *session, args []string) error {
		tenant, name, err := splitSchedule(args[0])
		if err != nil {
			return err
		}
		if from == "" {
			return usagef("say --from when: %s", momentHelp)
		}
		if err := s.between(&ask, from, to); err != nil {
			return err
		}
		begun, err := once(ctx, s, key, func(key string) (api.ScheduleBackfill, error) {
			params := &api.BackfillScheduleParams{IdempotencyKey: &key}
			return call[api.ScheduleBackfill](s.BackfillSchedule(ctx, tenant, name, params, ask))
		})
		if err != nil {
			return err
		}
		if watch {
			return s.followBackfill(ctx, args[0], &begun)
		}
		return show(s, begun, func(p *page, begun api.ScheduleBackfill) {
			p.line("Backfill %s of %s: lucius schedules backfills %s", begun.BackfillID, diagnosis.Count(begun.Total, "time"), args[0])
		})
	})
	flags := cmd.Flags()
	flags.StringVar(&from, "from", "", "the first time, included: "+momentHelp)
	flags.StringVar(&to, "to", "", "the last time, included; now if left out")
	flags.BoolVar(&ask.Repeat, "repeat", false, "also times that have a job")
	flags.Float64Var(&ask.RatePerSecond, "rate", 0, "at most this many times a second, from 0.01 to 10; 10 if left out")
	flags.StringVar(&ask.Reason, "reason", "", "why, for the audit log")
	flags.StringVar(&key, "idempotency-key", "", "a repeated request with this key begins nothing again")
	flags.BoolVar(&watch, "watch", false, "follow the backfill until its end")
	return cmd
}

// between sets the times of a backfill.
func (s *session) between(ask *api.BackfillRequest, from, to string) error {
	first, err := s.moment("from", from)
	if err != nil {
		return err
	}
	last, err := s.moment("to", to)
	if err != nil {
		return err
	}
	if ask.From = *first; last != nil {
		ask.To = *last
	}
	return nil
}

// followBackfill shows the progress of a backfill until its end, then what it did.
func (s *session) followBackfill(ctx context.Context, schedule string, one *api.ScheduleBackfill) error {
	tenant, name, err := splitSchedule(schedule)
	if err != nil {
		return err
	}
	bar, shown, id := s.progress("backfill", one.Total), 0, one.BackfillID
	for one.State == api.BackfillStateRunning || one.State == api.BackfillStateCancelling {
		bar.add(backfilled(one) - shown)
		shown = backfilled(one)
		if err = s.pause(ctx, operationInterval); err == nil {
			err = s.repeat(ctx, func() error {
				found, err := s.findBackfill(ctx, tenant, name, id)
				if err == nil {
					*one = *found
				}
				return err
			})
		}
		if ExitCode(err) == ExitNotFound { // The schedule was deleted.
			bar.end()
			return err
		}
		if err != nil {
			bar.end()
			return &Error{Code: ExitCode(err), Err: fmt.Errorf("%w; the backfill continues: lucius schedules backfills %s shows it, "+
				"lucius schedules cancel-backfill %[2]s %s stops it", err, schedule, id)}
		}
	}
	bar.end()
	if err := show(s, *one, func(p *page, one api.ScheduleBackfill) { showBackfills(p, []api.ScheduleBackfill{one}) }); err != nil {
		return err
	}
	times := diagnosis.Count(one.Total, "time")
	switch {
	case one.State == api.BackfillStateCancelled:
		return &Error{Code: ExitFailed, Err: fmt.Errorf("the backfill was cancelled after %d of %s", backfilled(one), times)}
	case one.Refused > 0:
		return &Error{Code: ExitFailed, Err: fmt.Errorf("%d of %s were refused", one.Refused, times)}
	}
	return nil
}

// backfilled returns how many times of a backfill are decided.
func backfilled(one *api.ScheduleBackfill) int { return one.Fired + one.LeftAlone + one.Refused }

// findBackfill reads a backfill.
func (s *session) findBackfill(ctx context.Context, tenant, name, id string) (*api.ScheduleBackfill, error) {
	list, err := call[api.ScheduleBackfills](s.ListBackfills(ctx, tenant, name))
	if err != nil {
		return nil, err
	}
	for i := range list.Backfills {
		if list.Backfills[i].BackfillID == id {
			return &list.Backfills[i], nil
		}
	}
	return nil, &Error{Code: ExitNotFound, Err: errors.New("the schedule has no such backfill")}
}

// schedulesBackfills returns lucius schedules backfills.
func (t *tool) schedulesBackfills() *cobra.Command {
	return t.command(spec{
		use: "backfills SCHEDULE", short: "List the backfills of a schedule with their progress, newest first",
		example: "  lucius schedules backfills tenant_a/nightly-index",
		long:    scheduleID, args: 1, query: true,
	}, func(ctx context.Context, s *session, args []string) error {
		tenant, name, err := splitSchedule(args[0])
		if err != nil {
			return err
		}
		list, err := call[api.ScheduleBackfills](s.ListBackfills(ctx, tenant, name))
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.ScheduleBackfills) {
			if len(list.Backfills) == 0 {
				p.line("There are no backfills.")
				return
			}
			showBackfills(p, list.Backfills)
		})
	})
}

// showBackfills writes a table of backfills.
func showBackfills(p *page, all []api.ScheduleBackfill) {
	rows := make([][]string, len(all))
	for i := range all {
		one := &all[i]
		rows[i] = []string{
			one.BackfillID, string(one.State), one.From.String(), one.To.String(), fmt.Sprintf("%d of %d", backfilled(one), one.Total),
			strconv.Itoa(one.Fired), strconv.Itoa(one.LeftAlone), strconv.Itoa(one.Refused), one.Detail,
		}
	}
	p.table([]string{"BACKFILL", "STATE", "FROM", "TO", "DONE", "FIRED", "HAD A JOB", "REFUSED", "DETAIL"}, rows)
}

// schedulesCancelBackfill returns lucius schedules cancel-backfill.
func (t *tool) schedulesCancelBackfill() *cobra.Command {
	var reason string
	cmd := t.command(spec{
		use: "cancel-backfill SCHEDULE BACKFILL", short: "Stop a backfill; the jobs that it has submitted go on",
		example: "  lucius schedules cancel-backfill tenant_a/nightly-index BACKFILL",
		long:    scheduleID, args: 2, query: true,
	}, func(ctx context.Context, s *session, args []string) error {
		tenant, name, err := splitSchedule(args[0])
		if err != nil {
			return err
		}
		stopped, err := call[api.ScheduleBackfill](s.CancelBackfill(ctx, tenant, name, args[1], api.ControlRequest{Reason: reason}))
		if err != nil {
			return err
		}
		return show(s, stopped, func(p *page, one api.ScheduleBackfill) { showBackfills(p, []api.ScheduleBackfill{one}) })
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}
