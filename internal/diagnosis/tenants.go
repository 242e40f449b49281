package diagnosis

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
)

// TenantSituation is what failed for a tenant, empty for all of them.
type TenantSituation struct {
	Tenant   string
	Failures api.FailureList
	Webhooks api.WebhookPage
	// Held is a page of the jobs that a pause holds back, for a reader who may not see the overview,
	// which counts them.
	Held api.JobPage
	// Blocked is a page of the lines that a failed job blocks.
	Blocked api.LinePage
	// Lost is a page of the schedules of which occurrences were missed or refused.
	Lost api.ScheduleLossPage
}

// failureFindings says which jobs failed for good, and were not rerun.
func (s *Situation) failureFindings(of *TenantSituation) (found []Finding) {
	more, rest := 0, 0
	for _, g := range byCause(of.Failures.Groups) {
		if len(found) == mostGroups {
			more, rest = more+1, rest+g.Count
			continue
		}
		filter := []any{"tenant_id", of.Tenant, "service", g.Service, "error_code", g.ErrorCode}
		flags := []any{"tenant", of.Tenant, "service", g.Service, "code", g.ErrorCode}
		text := "failed for good at " + cmp.Or(g.Service, "no service") + ": " + cmp.Or(Brief(g.ErrorCode, BriefCode), "no error code")
		if of.Tenant != "" {
			text += ", of tenant " + of.Tenant
		}
		f := Finding{
			ID: ofTenant(causeID(kindError, g.Service, g.ErrorCode), of.Tenant), Tenant: of.Tenant,
			Service: g.Service, ErrorCode: g.ErrorCode,
			Level: LevelMinor, Weight: g.Count, Subject: Counted(g.Count, "job", "jobs"), Text: say(text),
			Notes: []Sentence{say("first ", when{Ago, g.FirstAt.Time}), say("last ", when{Ago, g.LastAt.Time})},
			Actions: []Action{
				{
					Text: "Retry " + Number(g.Count) + "…", Page: "do/retry", Query: append(filter, "step_type", g.StepType), Form: true,
					Command: CommandWith("retry", append(flags, "step-type", g.StepType)...),
				},
				{
					Text: "Show the jobs", Page: "jobs", Query: append(filter, "state", api.JobStateFailedFinal),
					Command: CommandWith("jobs list", append(flags, "state", api.JobStateFailedFinal)...),
				},
			},
			ByMinute: g.Histogram,
		}
		if g.SampleMessage != "" {
			f.Notes = append(f.Notes, say("“", Brief(g.SampleMessage, BriefMessage), "”"))
		}
		if of.Tenant == "" && len(g.Tenants) > 0 {
			f.Notes = append(f.Notes, tenantsOf(&g))
		}
		if s.Now.Sub(g.LastAt.Time) < time.Hour {
			f.Level = LevelBad
		}
		found = append(found, f)
	}
	if more > 0 {
		found = append(found, Finding{
			ID: ofTenant("other-errors", of.Tenant), Tenant: of.Tenant, Level: LevelMinor, Weight: 0, Subject: Counted(rest, "job", "jobs"),
			Text: say("failed for good for ", Counted(more, "other reason", "other reasons")),
			Actions: []Action{{
				Text: "Show all failures", Page: "failures", Query: []any{"tenant_id", of.Tenant},
				Command: CommandWith("failures", "tenant", of.Tenant),
			}},
		})
	}
	return found
}

// webhookFindings says how many webhooks were not delivered.
func webhookFindings(of *TenantSituation) []Finding {
	hooks := of.Webhooks.Webhooks
	if len(hooks) == 0 {
		return nil
	}
	subject := Counted(len(hooks), "webhook was", "webhooks were")
	if of.Webhooks.NextPageToken != "" {
		subject = "More than " + subject
	}
	last := &hooks[0]
	f := Finding{
		ID: ofTenant("webhooks", of.Tenant), Tenant: of.Tenant,
		Level: LevelMinor, Weight: len(hooks), Subject: subject, Text: say("given up without being delivered"),
		Notes: []Sentence{
			say("the last ", when{Ago, last.UpdatedAt.Time}),
			say("to ", Brief(last.URL, BriefMessage), ": ", cmp.Or(Brief(last.LastError, BriefMessage), string(last.State))),
		},
		Actions: []Action{{
			Text: "Show the webhooks", Page: "webhooks", Query: []any{"tenant_id", of.Tenant},
			Command: CommandWith("webhooks list", "tenant", of.Tenant),
		}},
	}
	if of.Tenant != "" {
		f.Text = say(f.Text, ", of tenant ", of.Tenant)
	}
	return []Finding{f}
}

// LostOccurrences returns the request for [TenantSituation.Lost]. One page bounds what the server reads.
func LostOccurrences(tenant string) *api.ListLossesParams {
	params := &api.ListLossesParams{Limit: new(api.Limit(mostLost))}
	if tenant != "" {
		params.TenantID = &tenant
	}
	return params
}

// lostFindings says of which schedules occurrences were missed or refused: one by one, or if there are many in one finding. A
// schedule that goes on to lose them comes before one that has fired since.
func lostFindings(of *TenantSituation) (found []Finding) {
	lost := of.Lost.Schedules
	if len(lost) > mostLosers || of.Lost.NextPageToken != "" && len(lost) > 0 {
		return []Finding{manyLost(of)}
	}
	for i := range lost {
		one := &lost[i]
		named := one.TenantID + "/" + one.Name
		f := Finding{
			ID: bounded("schedule:" + named), Tenant: one.TenantID, Level: LevelMinor, Weight: one.Missed + one.Refused,
			Since: one.Since.Time, Subject: "Schedule " + one.Name,
			Text:  say(lostText(one.Missed, one.Refused), " within a day, for tenant ", one.TenantID),
			Notes: []Sentence{say("the last was due ", when{Ago, one.LastFor.Time})},
			Actions: []Action{{
				Text: "Show the schedule", Page: "schedules/" + url.PathEscape(one.TenantID) + "/" + url.PathEscape(one.Name),
				Command: Command("schedules fires", named),
			}},
		}
		if one.Detail != "" {
			f.Notes[0] = say(f.Notes[0], ": “", one.Detail, "”")
		}
		if one.FailuresInRow > 0 {
			f.Level = LevelBad
			f.Notes = append(f.Notes, say("none has been fired ", when{For, one.Since.Time}))
		} else {
			f.Notes = append(f.Notes, say("a later one was fired"))
		}
		found = append(found, f)
	}
	return found
}

// lostText says how many occurrences were lost.
func lostText(missed, refused int) string {
	var parts []string
	if missed > 0 {
		parts = append(parts, "missed "+Counted(missed, "occurrence", "occurrences"))
	}
	if refused > 0 {
		parts = append(parts, "had "+Counted(refused, "refused occurrence", "refused occurrences"))
	}
	return strings.Join(parts, " and ")
}

// manyLost sums up what was missed or refused of many schedules.
func manyLost(of *TenantSituation) Finding {
	f := Finding{ID: ofTenant("schedules", of.Tenant), Tenant: of.Tenant, Level: LevelMinor}
	missed, refused, failing := 0, 0, 0
	for i := range of.Lost.Schedules {
		one := &of.Lost.Schedules[i]
		missed, refused = missed+one.Missed, refused+one.Refused
		if one.FailuresInRow > 0 {
			failing, f.Level = failing+1, LevelBad
		}
	}
	f.Subject, f.Weight = Counted(len(of.Lost.Schedules), "schedule", "schedules"), missed+refused
	if of.Lost.NextPageToken != "" {
		f.Subject = "At least " + f.Subject
	}
	f.Text = say(lostText(missed, refused), " within a day")
	if of.Tenant != "" {
		f.Text = say(f.Text, ", for tenant ", of.Tenant)
	}
	if failing > 0 {
		f.Notes = append(f.Notes, say(Counted(failing, "schedule has", "schedules have"), " fired none since"))
	}
	f.Actions = []Action{{
		Text: "Show the schedules", Page: "schedules", Query: []any{"tenant_id", of.Tenant},
		Command: CommandWith("schedules lost", "tenant", of.Tenant),
	}}
	return f
}

// HeldJobs returns the request for [TenantSituation.Held].
func HeldJobs(tenant string) *api.ListJobsParams {
	return &api.ListJobsParams{
		TenantID: &tenant, Waiting: &[]api.WaitingReason{api.WaitingReasonScopePaused}, Limit: new(api.Limit(mostHeld)),
	}
}

// heldFindings says how many jobs of the tenant a pause holds back.
func (s *Situation) heldFindings(of *TenantSituation) []Finding {
	jobs := of.Held.Jobs
	if len(jobs) == 0 {
		return nil
	}
	f := Finding{
		ID: ofTenant("held", of.Tenant), Tenant: of.Tenant, Level: LevelWarn, Weight: len(jobs),
		Subject: Counted(len(jobs), "job is", "jobs are"), Text: say("held back by a pause, of tenant ", of.Tenant),
		Actions: []Action{{
			Text: "Show the jobs", Page: "jobs", Query: []any{"tenant_id", of.Tenant, "waiting", api.WaitingReasonScopePaused},
			Command: CommandWith("jobs list", "tenant", of.Tenant, "waiting", api.WaitingReasonScopePaused),
		}},
	}
	if of.Held.NextPageToken != "" {
		f.Subject = "More than " + f.Subject
	}
	if one := jobs[0].Waiting; one != nil {
		f.Notes = []Sentence{Relative(one.Detail, s.Now)}
	}
	return []Finding{f}
}

// BlockedLines returns the request for [TenantSituation.Blocked]. One page bounds what the server reads, so
// there may be more of them.
func BlockedLines(tenant string) *api.ListLinesParams {
	params := &api.ListLinesParams{State: new(api.LineStateBlocked), Limit: new(api.Limit(mostBlocked))}
	if tenant != "" {
		params.TenantID = &tenant
	}
	return params
}

// blockedFindings says how many lines a failed job blocks, and what waits in them. It names no order key: keys
// may be personal data. If there is more than a page, the overview knows how many lines of all tenants were
// blocked when the reconciler last counted them.
func (s *Situation) blockedFindings(of *TenantSituation) []Finding {
	lines, more := of.Blocked.Lines, of.Blocked.NextPageToken != ""
	count, waiting, oldest := len(lines), 0, time.Time{}
	if more && of.Tenant == "" && s.Overview != nil {
		count, oldest = max(count, s.Overview.Lines.Blocked), s.Overview.Lines.BlockedSince.Time
	}
	if count == 0 {
		return nil // With more, the page has found none yet.
	}
	for i := range lines {
		waiting += int(lines[i].Waiting)
		if since := lines[i].Since.Time; !since.IsZero() && (oldest.IsZero() || since.Before(oldest)) {
			oldest = since
		}
	}
	f := Finding{
		ID: ofTenant("blocked-lines", of.Tenant), Tenant: of.Tenant, Level: LevelBad, Weight: count + waiting,
		Subject: Counted(count, "line is", "lines are"), Text: say("blocked by a failed job"),
		Notes: []Sentence{say("rerun the failed job, or release its line: the next job then begins without it")},
		Actions: []Action{{
			Text: "Show the lines", Page: "lines", Query: []any{"tenant_id", of.Tenant, "state", api.LineStateBlocked},
			Command: CommandWith("lines", "tenant", of.Tenant, "state", api.LineStateBlocked),
		}},
	}
	least, lasts := "", "the oldest has been blocked "
	if more {
		least, f.Subject = "at least ", "At least "+f.Subject
	}
	if waiting > 0 {
		f.Text = say(f.Text, "; ", least, Counted(waiting, "job waits", "jobs wait"))
	}
	if len(lines) == 1 && !more {
		lasts = "it has been blocked "
		f.Actions = []Action{{
			Text: "Show the line", Page: "lines/" + url.PathEscape(lines[0].LineID), Command: Command("lines show", lines[0].LineID),
		}}
	}
	if of.Tenant != "" {
		f.Text = say(f.Text, ", of tenant ", of.Tenant)
	}
	if !oldest.IsZero() {
		f.Notes = append([]Sentence{say(lasts, when{For, oldest})}, f.Notes...)
	}
	return []Finding{f}
}
