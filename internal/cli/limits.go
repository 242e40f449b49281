package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// limitID describes the argument of the commands on a limit.
const limitID = "The limit is its scope: service:ocr or service:ocr,step_type:OCR, each also with ,tenant:tenant_a."

// limits returns lucius limit.
func (t *tool) limits() *cobra.Command {
	cmd := &cobra.Command{
		Use: "limit", Aliases: []string{"limits"}, GroupID: GroupOperate,
		Short: "Limit the starts of a service, and close it for a while",
		Example: "  lucius limit set service:ocr --starts 600/1m --reason \"vendor quota\"\n" +
			"  lucius limit close service:ocr --for 5m --reason \"the vendor answers 503\"\n  lucius limit list",
	}
	cmd.AddCommand(t.limitSet(), t.limitList(), t.limitShow(), t.limitDelete(), t.limitClose(), t.limitOpen(), t.limitApply())
	return t.calls(cmd)
}

// limitSet returns lucius limit set.
func (t *tool) limitSet() *cobra.Command {
	var starts, reason string
	var running int
	var unknown bool
	cmd := t.command(spec{
		use: "set LIMIT", short: "Set how many attempts may start in a window, and run at once", args: 1, completes: limitIDs,
		long: limitID + "\nA limit of starts bounds and does not smooth: of 600/1m all 600 may start in one second; 50/5s is smoother.\n" +
			"What is left out of --starts and --running is no longer limited.",
		example: "  lucius limit set service:ocr --starts 600/1m --reason \"vendor quota\"\n" +
			"  lucius limit set service:ocr --starts 600/1m --running 40 --reason \"vendor quota\"\n" +
			"  lucius limit set service:ocr,tenant:tenant_a --running 5 --reason \"fair share\"",
	}, func(ctx context.Context, s *session, args []string) error {
		request, err := limitRequest(starts, running)
		switch {
		case err != nil:
			return usagef("%w", err)
		case reason == "":
			return usagef("say why with --reason: it is shown with the limit")
		}
		request.Reason, request.AllowUnknown = reason, unknown
		set, err := call[api.StartLimit](s.SetLimit(ctx, args[0], request))
		if err != nil {
			return err
		}
		return show(s, set, func(p *page, set api.StartLimit) {
			p.line("Limited %s to %s: lucius limit delete %s lifts the limit", set.ID, set.Words(), diagnosis.Quoted(set.ID))
		})
	})
	flags := cmd.Flags()
	flags.StringVar(&starts, "starts", "", "starts and window of 1s to 24h, such as 600/1m")
	flags.IntVar(&running, "running", 0, "attempts that may run at once, 1 to 10000")
	flags.StringVar(&reason, "reason", "", "why; shown with the limit")
	flags.BoolVar(&unknown, "allow-unknown", false, "also a service or a step type that the server does not know")
	return cmd
}

// limitList returns lucius limit list.
func (t *tool) limitList() *cobra.Command {
	return t.command(spec{
		use: "list", short: "List the limits with their use, and what is closed", example: "  lucius limit list",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := call[api.StartLimitList](s.ListLimits(ctx))
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.StartLimitList) {
			if len(list.Limits) == 0 {
				p.line("Nothing is limited or closed.")
				return
			}
			p.limits(list.Limits)
		})
	})
}

// limits writes a table of limits and closures.
func (p *page) limits(all []api.StartLimit) {
	rows := make([][]string, len(all))
	for i := range all {
		one := &all[i]
		rows[i] = []string{one.ID, startsOf(one), usedOf(one), runningOf(one), p.closedUntil(one), one.Actor, one.Reason}
	}
	p.table([]string{"LIMIT", "STARTS", "USED", "RUNNING", "CLOSED", "BY", "REASON"}, rows)
}

// limitShow returns lucius limit show.
func (t *tool) limitShow() *cobra.Command {
	return t.command(spec{
		use: "show LIMIT", short: "Show a limit with its use and closure", example: "  lucius limit show service:ocr",
		long: limitID, args: 1, completes: limitIDs,
	}, func(ctx context.Context, s *session, args []string) error {
		one, err := call[api.StartLimit](s.GetLimit(ctx, args[0]))
		if err != nil {
			return err
		}
		return show(s, one, func(p *page, one api.StartLimit) {
			fields := []string{
				"limit", p.style(bold, one.ID), "starts", startsOf(&one), "used", usedOf(&one), "running", runningOf(&one),
				"by", one.Actor, "reason", one.Reason,
			}
			if c := one.Closed; c != nil {
				fields = append(fields, "closed until", c.Until.String()+", "+p.until(c.Until.Time),
					"closed by", c.By+", "+p.ago(c.Since.Time), "because", c.Reason)
			}
			p.fields(fields...)
		})
	})
}

// limitDelete returns lucius limit delete.
func (t *tool) limitDelete() *cobra.Command {
	return t.command(spec{
		use: "delete LIMIT...", short: "Delete limits; closures stay", example: "  lucius limit delete service:ocr",
		long: limitID, args: 1, more: true, completes: limitIDs,
	}, func(ctx context.Context, s *session, ids []string) error {
		return s.each("", ids, func(id string) error {
			left, err := call[api.StartLimit](s.DeleteLimit(ctx, id))
			if err != nil {
				return err
			}
			return show(s, left, func(p *page, left api.StartLimit) { p.line("Deleted the limit of %s", left.ID) })
		})
	})
}

// limitClose returns lucius limit close.
func (t *tool) limitClose() *cobra.Command {
	var ends expiry
	var reason string
	var unknown bool
	cmd := t.command(spec{
		use: "close LIMIT", short: "Start nothing of a scope for a while", args: 1, completes: limitIDs,
		long: limitID + "\nIt need not be limited. Closing it again for longer extends the closure.",
		example: "  lucius limit close service:ocr --for 5m --reason \"the vendor answers 503\"\n" +
			"  lucius limit close service:ocr --until 2026-01-27T18:00:00Z --reason maintenance",
	}, func(ctx context.Context, s *session, args []string) error {
		var until api.PauseRequest
		switch err := ends.fill(&until); {
		case err != nil:
			return err
		case until.ForSeconds == nil && until.Until.IsZero():
			return usagef("say for how long with --for or --until")
		case reason == "":
			return usagef("say why with --reason: it is shown with the closure")
		}
		closed, err := call[api.StartLimit](s.CloseLimit(ctx, args[0], api.CloseRequest{
			ForSeconds: until.ForSeconds, Until: until.Until, Reason: reason, AllowUnknown: unknown,
		}))
		if err != nil {
			return err
		}
		return show(s, closed, func(p *page, closed api.StartLimit) {
			p.line("Closed %s until %s, %s: lucius limit open %s opens it sooner",
				closed.ID, closed.Closed.Until, p.until(closed.Closed.Until.Time), diagnosis.Quoted(closed.ID))
		})
	})
	flags := cmd.Flags()
	flags.StringVar(&ends.after, "for", "", "how long, such as 5m or 1d")
	flags.StringVar(&ends.at, "until", "", "until this time, such as 2026-01-27T18:00:00Z")
	flags.StringVar(&reason, "reason", "", "why; shown with the closure")
	flags.BoolVar(&unknown, "allow-unknown", false, "also a service or a step type that the server does not know")
	return cmd
}

// limitOpen returns lucius limit open.
func (t *tool) limitOpen() *cobra.Command {
	var reason string
	cmd := t.command(spec{
		use: "open LIMIT...", short: "Open closed scopes", args: 1, more: true, completes: limitIDs,
		long:    limitID + "\nStarts then double every second, for as long as the closure lasted, at most 15 s.",
		example: "  lucius limit open service:ocr --reason \"the vendor is back\"",
	}, func(ctx context.Context, s *session, ids []string) error {
		return s.each("", ids, func(id string) error {
			opened, err := call[api.StartLimit](s.OpenLimit(ctx, id, api.ControlRequest{Reason: reason}))
			if err != nil {
				return err
			}
			return show(s, opened, func(p *page, opened api.StartLimit) { p.line("Opened %s", opened.ID) })
		})
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return cmd
}

// limitChange is what lucius limit apply did to a limit.
type limitChange struct {
	ID     string `json:"id"`
	Change string `json:"change"` // set, unchanged or deleted
	Limit  string `json:"limit,omitempty"`
	Before string `json:"before,omitempty"` // the limit before
}

// limitApply returns lucius limit apply.
func (t *tool) limitApply() *cobra.Command {
	var file string
	var prune, unknown bool
	cmd := t.command(spec{
		use: "apply", short: "Set the limits that a file names",
		long: "Sets those that differ, and says what it did. The file is YAML:\n\n  limits:\n" +
			"    - {id: \"service:ocr\", starts: 600/1m, max_running: 40, reason: vendor quota}\n\n" +
			"With --prune it deletes the limits that the file does not name. Closures stay as they are.",
		example: "  lucius limit apply -f limits.yaml\n  lucius limit apply -f limits.yaml --prune --yes",
	}, func(ctx context.Context, s *session, _ []string) error {
		if file == "" {
			return usagef("name the file with -f")
		}
		wanted, err := readLimits(file)
		if err != nil {
			return err
		}
		for id, one := range wanted.requests {
			one.AllowUnknown = unknown
			wanted.requests[id] = one
		}
		changes, err := s.applyLimits(ctx, wanted, prune)
		if err != nil && len(changes) == 0 {
			return err
		}
		failed := show(s, map[string][]limitChange{"changes": changes}, func(p *page, all map[string][]limitChange) {
			for _, one := range all["changes"] {
				switch {
				case one.Change == "unchanged":
					p.line("%s", p.style(faint, one.ID+" is unchanged, "+one.Limit))
				case one.Change == "deleted":
					p.line("Deleted the limit of %s, which was %s", one.ID, one.Before)
				case one.Before == "":
					p.line("Limited %s to %s", one.ID, one.Limit)
				default:
					p.line("Limited %s to %s, which was %s", one.ID, one.Limit, one.Before)
				}
			}
			if len(all["changes"]) == 0 {
				p.line("Nothing was changed.")
			}
		})
		return errors.Join(err, failed)
	})
	flags := cmd.Flags()
	flags.StringVarP(&file, "file", "f", "", "file with the limits")
	flags.BoolVar(&prune, "prune", false, "delete the limits that the file does not name")
	flags.BoolVar(&unknown, "allow-unknown", false, "also services and step types that the server does not know")
	return asks(cmd)
}

// applyLimits sets the limits that differ and, if prune is set, deletes the others. It returns what it
// did, even if a request fails.
func (s *session) applyLimits(ctx context.Context, wanted wantedLimits, prune bool) ([]limitChange, error) {
	changes := []limitChange{} // not nil, which would be printed as null
	list, err := call[api.StartLimitList](s.ListLimits(ctx))
	if err != nil {
		return nil, err
	}
	before := map[string]*api.StartLimit{}
	for i := range list.Limits {
		if one := &list.Limits[i]; one.Limited() {
			before[one.ID] = one
		}
	}
	var superfluous []string
	for _, one := range list.Limits {
		if _, named := wanted.requests[one.ID]; prune && one.Limited() && !named {
			superfluous = append(superfluous, one.ID)
		}
	}
	if len(superfluous) > 0 {
		if err := s.confirm(fmt.Sprintf("Delete %s that the file does not name?", diagnosis.Count(len(superfluous), "limit"))); err != nil {
			return nil, err
		}
	}
	for _, id := range wanted.ids {
		request, change := wanted.requests[id], limitChange{ID: id, Change: "set"}
		if known := before[id]; known != nil {
			change.Before = known.Words()
			if change.Before == request.Words() && known.Reason == request.Reason {
				changes = append(changes, limitChange{ID: id, Change: "unchanged", Limit: change.Before})
				continue
			}
		}
		set, err := call[api.StartLimit](s.SetLimit(ctx, id, request))
		if err != nil {
			return changes, fmt.Errorf("%s: %w", plain(id), err)
		}
		change.Limit = set.Words()
		changes = append(changes, change)
		// The file may write the id in another way than the server.
		superfluous = slices.DeleteFunc(superfluous, func(other string) bool { return other == set.ID })
	}
	for _, id := range superfluous {
		if _, err := call[api.StartLimit](s.DeleteLimit(ctx, id)); err != nil {
			return changes, fmt.Errorf("%s: %w", plain(id), err)
		}
		changes = append(changes, limitChange{ID: id, Change: "deleted", Before: before[id].Words()})
	}
	return changes, nil
}

// startsOf says how many starts a limit allows, "" without one.
func startsOf(one *api.StartLimit) string {
	if one.Starts == nil {
		return ""
	}
	return one.Starts.String()
}

// usedOf says how much of a limit is used, "" without one.
func usedOf(one *api.StartLimit) string {
	if one.Starts == nil || one.Used == nil {
		return ""
	}
	return strconv.Itoa(*one.Used)
}

// runningOf says how many attempts run of how many that may, "" without such a limit.
func runningOf(one *api.StartLimit) string {
	if one.Running == nil {
		return ""
	}
	return fmt.Sprintf("%d of %d", *one.Running, one.MaxRunning)
}

// limitRequest returns the request for a limit as a command line or a file has it: starts such as 600/1m,
// or none, and how many attempts may run at once, 0 if any number may.
func limitRequest(starts string, running int) (request api.StartLimitRequest, err error) {
	if starts == "" && running == 0 {
		return request, errors.New("name the starts of a window, such as 600/1m, how many attempts may run at once, or both")
	}
	if starts != "" {
		parsed, err := api.ParseStarts(starts)
		if err != nil {
			return request, fmt.Errorf("the starts are %w", err)
		}
		request.Starts = &parsed
	}
	if running < 0 || running > api.MaxRunning {
		return request, fmt.Errorf("the number of attempts that run at once must be from 1 to %d", api.MaxRunning)
	}
	request.MaxRunning = int32(running)
	return request, nil
}

// closedUntil says when a closed scope opens, and why it is closed.
func (p *page) closedUntil(one *api.StartLimit) string {
	if one.Closed == nil {
		return ""
	}
	return p.style(yellow, "opens "+p.until(one.Closed.Until.Time)) + ", by " + one.Closed.By + ": " + one.Closed.Reason
}

// limitIDs completes the ids of limits.
func limitIDs(ctx context.Context, s *session) (words []cobra.Completion) {
	list, err := call[api.StartLimitList](s.ListLimits(ctx))
	if err != nil {
		return nil
	}
	for i := range list.Limits {
		one := &list.Limits[i]
		about := one.Words()
		if one.Closed != nil {
			about = "closed"
		}
		words = append(words, cobra.CompletionWithDesc(plain(one.ID), about))
	}
	return words
}
