package cli

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// attention returns lucius attention, which shows what needs an operator.
func (t *tool) attention() *cobra.Command {
	cmd := t.command(spec{
		use: "attention", short: "Show what is wrong now, and what to do about it",
		long: "Shows what needs an operator, the worst first, with the command that helps: work without workers, failures,\n" +
			"blocked lines, missed times of schedules, pauses, closed services, circuits, stuck jobs, webhooks that were given\n" +
			"up, and what the server warns of. With a token for some tenants it shows what is wrong for these. Exits with 7 if\n" +
			"anything needs attention, and with 4 if the token may neither read nor administer a tenant.",
		example: "  lucius attention\n  lucius attention -o json",
	}, func(ctx context.Context, s *session, _ []string) error {
		seen, err := s.look(ctx)
		if err != nil {
			return err
		}
		if seen.Unready == "" {
			if err := s.lookAtOperations(ctx, seen); err != nil {
				return err
			}
		}
		found := findings{diagnosis.Findings(seen)}
		open := len(diagnosis.Open(found.All))
		if err := show(s, found, showFindings); err != nil || open == 0 {
			return err
		}
		return &Error{Code: ExitAttention, Err: errors.New(diagnosis.Counted(open, "thing needs", "things need") + " attention")}
	})
	cmd.AddCommand(t.attentionMark())
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
}

// attentionMark returns lucius attention mark, which acknowledges, snoozes or reopens a finding.
func (t *tool) attentionMark() *cobra.Command {
	var as, after, note string
	cmd := t.command(spec{
		use: "mark FINDING", short: "Acknowledge or snooze what needs attention, or note something about it",
		long: "All users see it. A finding that is acknowledged or snoozed does not count as one that needs attention,\n" +
			"until --for is over: an hour if it is snoozed, else seven days.",
		example: "  lucius attention mark error:ocr:bad_scan --note \"the vendor has a ticket\"\n" +
			"  lucius attention mark no-worker:ocr --as snoozed --for 2h\n  lucius attention mark no-worker:ocr --as open",
		args: 1, completes: findingIDs,
	}, func(ctx context.Context, s *session, args []string) error {
		request := api.MarkRequest{FindingID: args[0], State: api.MarkState(as), Note: note}
		if after != "" {
			lasts, err := period(after)
			if err != nil || lasts <= 0 {
				return usagef("--for is %q, it must be a duration such as 2h or 1d", after)
			}
			request.ForSeconds = lasts.Seconds()
		}
		seen, err := s.look(ctx)
		if err != nil {
			return err
		}
		found := diagnosis.Findings(seen)
		at := slices.IndexFunc(found, func(f diagnosis.Finding) bool { return f.ID == args[0] })
		if at < 0 {
			return &Error{Code: ExitNotFound, Err: errors.New("nothing has that id now: lucius attention shows the ids")}
		}
		request.TenantID = optional(found[at].Tenant)
		mark, err := call[api.Mark](s.SetMark(ctx, request))
		if err != nil {
			return err
		}
		return show(s, mark, func(p *page, mark api.Mark) {
			if mark.State == api.MarkStateOpen && mark.Note == "" {
				p.line("%s is open", mark.FindingID)
				return
			}
			p.line("%s is %s until %s, %s", mark.FindingID, mark.State, mark.Until, p.until(mark.Until.Time))
		})
	})
	cmd.Flags().StringVar(&as, "as", string(api.MarkStateAcknowledged), "acknowledged, snoozed or open")
	cmd.Flags().StringVar(&after, "for", "", "how long, such as 2h or 1d")
	cmd.Flags().StringVar(&note, "note", "", "what others should know")
	return cmd
}

// findingIDs completes the ids of findings.
func findingIDs(ctx context.Context, s *session) (words []cobra.Completion) {
	seen, err := s.look(ctx)
	if err != nil {
		return nil
	}
	for _, f := range diagnosis.Findings(seen) {
		words = append(words, cobra.CompletionWithDesc(f.ID, plain(f.Subject)))
	}
	return words
}

// mostWebhooks is how many undelivered webhooks are counted.
const mostWebhooks = 100

// look asks the API for all that may need an operator, as far as the token may see it. If the
// server is not ready, that may be all.
func (s *session) look(ctx context.Context) (*diagnosis.Situation, error) {
	var date string
	asked := s.now()
	ready, err := call[api.Readiness](recordDate(&date)(s.GetReadiness(ctx)))
	now := s.now()
	ahead, _ := skew(asked, now, date)
	seen := &diagnosis.Situation{Now: now.Add(ahead)} // The times in the answers are the server's.
	if fault, answered := errors.AsType[*Error](err); answered && fault.Problem != nil {
		seen.Unready = err.Error()
	} else if err != nil {
		return nil, err
	}
	seen.Warnings = ready.Warnings
	if err := s.lookAtWork(ctx, seen); err != nil && (seen.Unready == "" || ExitCode(err) != ExitUnavailable) {
		return nil, err
	}
	return seen, nil
}

// lookAtWork adds what the API says of services, pauses, jobs and webhooks.
func (s *session) lookAtWork(ctx context.Context, seen *diagnosis.Situation) error {
	who, err := call[api.Identity](s.GetIdentity(ctx))
	if err != nil {
		return err
	}
	reads, administers := tenantsOf(&who, api.GrantRoleRead), tenantsOf(&who, api.GrantRoleAdmin)
	if slices.Contains(reads, "*") || slices.Contains(administers, "*") {
		minutes := api.Minutes(diagnosis.HistoryMinutes)
		overview, err := call[api.Overview](s.GetOverview(ctx, &api.GetOverviewParams{Minutes: &minutes}))
		if err != nil {
			return err
		}
		services, err := call[api.ServiceList](s.ListServices(ctx, &api.ListServicesParams{Minutes: &minutes}))
		if err != nil {
			return err
		}
		seen.Overview, seen.Pauses, seen.Services, seen.Unmatched = &overview, overview.Pauses, services.Services, services.UnmatchedWorkers
	} else if len(administers) > 0 {
		pauses, err := call[api.PauseList](s.ListPauses(ctx))
		if err != nil {
			return err
		}
		seen.Pauses = pauses.Pauses
	}
	if len(administers) > 0 {
		limits, err := call[api.StartLimitList](s.ListLimits(ctx))
		if err != nil {
			return err
		}
		seen.Limits = limits.Limits
	}
	if seen.Overview != nil && seen.Overview.Stuck.Count > 0 && slices.Contains(administers, "*") {
		stuck, err := call[api.StuckList](s.ListStuck(ctx))
		if err != nil {
			return err
		}
		seen.Stuck = stuck.Stuck
	}
	if slices.Contains(reads, "*") {
		reads = []string{""}
	}
	for _, tenant := range reads {
		one, err := s.lookAt(ctx, tenant, seen.Overview == nil && tenant != "")
		if err != nil {
			return err
		}
		seen.Tenants = append(seen.Tenants, one)
	}
	if len(reads)+len(administers) == 0 {
		return nil
	}
	list, err := call[api.MarkList](s.ListMarks(ctx))
	seen.Marks = list.Marks
	return err
}

// lookAt reads the failures, webhooks, blocked lines and lost occurrences of schedules of a tenant, empty for all, and if
// held is set the jobs that a pause holds back.
func (s *session) lookAt(ctx context.Context, tenant string, held bool) (seen diagnosis.TenantSituation, err error) {
	seen.Tenant = tenant
	if seen.Failures, err = call[api.FailureList](s.ListFailures(ctx, &api.ListFailuresParams{TenantID: optional(tenant)})); err != nil {
		return seen, err
	}
	hooks := &api.ListWebhooksParams{TenantID: optional(tenant), Limit: new(api.Limit(mostWebhooks))}
	if seen.Webhooks, err = call[api.WebhookPage](s.ListWebhooks(ctx, hooks)); err != nil {
		return seen, err
	}
	if seen.Lost, err = call[api.ScheduleLossPage](s.ListLosses(ctx, diagnosis.LostOccurrences(tenant))); err != nil {
		return seen, err
	}
	if seen.Blocked, err = call[api.LinePage](s.ListLines(ctx, diagnosis.BlockedLines(tenant))); err == nil && held {
		seen.Held, err = call[api.JobPage](s.ListJobs(ctx, diagnosis.HeldJobs(tenant)))
	}
	return seen, err
}

// lookAtOperations adds the operations that the token may see, with the results of those about findings. It fails if no role
// of the token shows what needs attention, and the server warns of nothing.
func (s *session) lookAtOperations(ctx context.Context, seen *diagnosis.Situation) error {
	who, err := call[api.Identity](s.GetIdentity(ctx))
	if err != nil {
		return err
	}
	administers := tenantsOf(&who, api.GrantRoleAdmin)
	if len(administers)+len(tenantsOf(&who, api.GrantRoleRead))+len(seen.Warnings) == 0 {
		return &Error{Code: ExitForbidden, Err: errors.New("this requires the role read or admin: ask for a token that has one")}
	}
	if slices.Contains(administers, "*") {
		administers = []string{""}
	}
	for _, tenant := range administers {
		list, err := call[api.OperationPage](s.ListOperations(ctx, &api.ListOperationsParams{TenantID: optional(tenant)}))
		if err != nil {
			return err
		}
		seen.Operations = append(seen.Operations, list.Operations...)
	}
	for _, op := range seen.Done() {
		if op.Results, err = s.results(ctx, op.OperationID); err != nil {
			return err
		}
	}
	return nil
}

// tenantsOf returns the tenants for which the caller has the role; "*" stands for all.
func tenantsOf(who *api.Identity, role api.GrantRole) (tenants []string) {
	for i := range who.Grants {
		if who.Grants[i].Role == role {
			tenants = append(tenants, who.Grants[i].Tenants...)
		}
	}
	slices.Sort(tenants)
	return slices.Compact(tenants)
}

// findings are what needs an operator, as the output of a command.
type findings struct{ All []diagnosis.Finding }

// MarshalJSON encodes the findings with their times as in RFC 3339.
func (f findings) MarshalJSON() ([]byte, error) {
	type action struct {
		Text    string `json:"text"`
		Command string `json:"command,omitempty"`
	}
	type finding struct {
		ID      string   `json:"finding_id"`
		Known   bool     `json:"known,omitempty"`
		Level   string   `json:"level"`
		Subject string   `json:"subject"`
		Text    string   `json:"text"`
		Notes   []string `json:"notes,omitempty"`
		Actions []action `json:"actions,omitempty"`
	}
	exact := func(form diagnosis.Form, at time.Time) string {
		if form == diagnosis.For {
			return "since " + at.UTC().Format(time.RFC3339)
		}
		return "at " + at.UTC().Format(time.RFC3339)
	}
	out := make([]finding, len(f.All))
	for i := range f.All {
		one := &f.All[i]
		out[i] = finding{ID: one.ID, Known: one.Quiet, Level: one.Level, Subject: one.Subject, Text: one.Text.With(exact)}
		for _, note := range one.Notes {
			out[i].Notes = append(out[i].Notes, note.With(exact))
		}
		for _, some := range one.Actions {
			out[i].Actions = append(out[i].Actions, action{some.Text, some.Command})
		}
	}
	return json.Marshal(map[string]any{"findings": out})
}

// showFindings writes what needs an operator.
func showFindings(p *page, found findings) {
	if len(found.All) == 0 {
		p.line("Nothing needs attention.")
	}
	p.findings(found.All, len(found.All))
}

// findings writes at most so many findings, each with the command that helps first.
func (p *page) findings(all []diagnosis.Finding, most int) {
	for i := range all[:min(len(all), most)] {
		f, colour := &all[i], red
		if f.Level == diagnosis.LevelWarn {
			colour = yellow
		}
		if f.Quiet {
			colour = faint
		}
		p.line("%s %s %s", p.style(colour, "●"), p.style(bold, f.Subject), f.Text.With(p.when))
		var notes []string
		for _, note := range f.Notes {
			notes = append(notes, note.With(p.when))
		}
		p.line("  %s", p.style(faint, strings.Join(append(notes, f.ID), " · ")))
		if len(f.Actions) > 0 {
			p.line("  → %s", f.Actions[0].Command)
		}
	}
	if more := len(all) - most; more > 0 {
		p.line("and %d more: lucius attention", more)
	}
}
