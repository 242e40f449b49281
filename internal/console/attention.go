package console

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// attentionPage is the first page: what is wrong, the worst first, and how all else is.
type attentionPage struct {
	Findings []diagnosis.Finding
	// Well says how all else is, empty for a user who may not see all tenants: the names of
	// those that were looked at are in Tenants, and Unseen is how many others there are.
	Well     string
	Tenants  []string
	Unseen   int
	Overview *api.Overview
}

// Open returns the findings that no operator has acknowledged or snoozed.
func (p attentionPage) Open() []diagnosis.Finding { return diagnosis.Open(p.Findings) }

// Quiet returns the findings that [attentionPage.Open] leaves out.
func (p attentionPage) Quiet() []diagnosis.Finding { return p.Findings[len(p.Open()):] }

const (
	// rememberStored is how long findings that cost a read of the store are shown again on
	// live pages, and rememberCount how long the count of findings in the navigation is.
	rememberStored = 30 * time.Second
	rememberCount  = 5 * time.Second
	// mostTenants is how many of a user's tenants are looked at, one by one.
	mostTenants = 10
	// mostWebhooks is how many undelivered webhooks are counted.
	mostWebhooks = 100
)

func attention(r *request) (view, error) {
	found, err := look(r)
	if err == nil {
		err = found.lookAtOperations(r)
	}
	data := attentionPage{Findings: diagnosis.Findings(&found.Situation), Overview: found.Overview}
	if found.Overview != nil {
		data.Well = wellness(found)
	} else {
		tenants := r.tenants(api.GrantRoleRead)
		data.Tenants = tenants[:min(len(tenants), mostTenants)]
		data.Unseen = len(tenants) - len(data.Tenants)
	}
	return view{Title: "Attention", Template: "attention", Data: data}, err
}

// countFindings returns the count of open findings for the navigation, and whether one is bad.
func (f *frame) countFindings() (count string, hot bool) {
	var found []diagnosis.Finding
	if shown, ok := f.View.Data.(attentionPage); ok {
		found = shown.Findings
	} else {
		found, _ = recall(f.request, "findings", rememberCount, func() ([]diagnosis.Finding, error) { // Without them there is no count.
			quick := *f.request
			quick.live = true
			found, err := look(&quick)
			return diagnosis.Findings(&found.Situation), err
		})
	}
	if found = diagnosis.Open(found); len(found) == 0 {
		return "", false
	}
	return strconv.Itoa(len(found)), found[0].Level == diagnosis.LevelBad
}

// look asks the API for all that may need an operator, as far as the user may see it.
func look(r *request) (*situation, error) {
	s, ctx := &situation{Situation: diagnosis.Situation{Now: r.now}}, r.Context()
	if r.seesAll() {
		var err error
		if s, err = figures(r); err != nil {
			return s, err
		}
	} else if len(r.tenants(api.GrantRoleAdmin)) > 0 {
		list, err := recall(r, "pauses", rememberCount, func() (api.PauseList, error) {
			return call[api.PauseList](r.api.ListPauses(ctx))
		})
		if err != nil {
			return s, err
		}
		s.Pauses = list.Pauses
	}
	var err error
	if s.Limits, err = r.startLimits(); err != nil {
		return s, err
	}
	ready, err := call[api.Readiness](r.api.GetReadiness(ctx))
	if err != nil {
		s.Unready = err.Error()
	}
	s.Warnings = ready.Warnings
	if s.Stuck, err = stuckJobs(r, s.Overview); err != nil {
		return s, err
	}
	tenants := []string{""}
	if !r.May(api.GrantRoleRead, "") {
		tenants = r.tenants(api.GrantRoleRead)
	}
	for _, tenant := range tenants[:min(len(tenants), mostTenants)] {
		if err := s.lookAt(r, tenant); err != nil {
			return s, err
		}
	}
	if len(r.tenants(api.GrantRoleRead))+len(r.tenants(api.GrantRoleAdmin)) == 0 {
		return s, nil
	}
	list, err := recall(r, "marks", r.unlessAsked(rememberCount), func() (api.MarkList, error) {
		return call[api.MarkList](r.api.ListMarks(ctx))
	})
	s.Marks = list.Marks
	return s, err
}

// unlessAsked returns how old a cached response may be: age on a live page. A user who requests a
// page may have just changed something, and gets no cached response.
func (r *request) unlessAsked(age time.Duration) time.Duration {
	if !r.live {
		return 0
	}
	return age
}

// stuckJobs returns the stuck jobs, if there are any and the user may see them.
func stuckJobs(r *request, overview *api.Overview) ([]api.StuckJob, error) {
	if overview == nil || overview.Stuck.Count == 0 || !r.May(api.GrantRoleAdmin, "") {
		return nil, nil
	}
	list, err := call[api.StuckList](r.api.ListStuck(r.Context()))
	return list.Stuck, err
}

// lookAt reads what failed, what is blocked and what schedules lost for a tenant, empty for all of them.
func (s *situation) lookAt(r *request, tenant string) error {
	age := r.unlessAsked(rememberStored)
	failed, err := recall(r, "failures of "+tenant, age, func() (api.FailureList, error) {
		return call[api.FailureList](r.api.ListFailures(r.Context(), &api.ListFailuresParams{TenantID: optional(tenant)}))
	})
	if err != nil {
		return err
	}
	most := api.Limit(mostWebhooks)
	hooks, err := recall(r, "webhooks of "+tenant, age, func() (api.WebhookPage, error) {
		return call[api.WebhookPage](r.api.ListWebhooks(r.Context(), &api.ListWebhooksParams{TenantID: optional(tenant), Limit: &most}))
	})
	if err != nil {
		return err
	}
	blocked, err := recall(r, "blocked lines of "+tenant, age, func() (api.LinePage, error) {
		return call[api.LinePage](r.api.ListLines(r.Context(), diagnosis.BlockedLines(tenant)))
	})
	if err != nil {
		return err
	}
	lost, err := recall(r, "losses of "+tenant, age, func() (api.ScheduleLossPage, error) {
		return call[api.ScheduleLossPage](r.api.ListLosses(r.Context(), diagnosis.LostOccurrences(tenant)))
	})
	if err != nil {
		return err
	}
	var held api.JobPage
	if s.Overview == nil && tenant != "" {
		held, err = recall(r, "held jobs of "+tenant, age, func() (api.JobPage, error) {
			return call[api.JobPage](r.api.ListJobs(r.Context(), diagnosis.HeldJobs(tenant)))
		})
	}
	s.Tenants = append(s.Tenants, diagnosis.TenantSituation{
		Tenant: tenant, Failures: failed, Webhooks: hooks, Held: held, Blocked: blocked, Lost: lost,
	})
	return err
}

// lookAtOperations reads the operations that the user may see, and the results of those that are about
// a finding.
func (s *situation) lookAtOperations(r *request) error {
	if err := s.listOperations(r); err != nil {
		return err
	}
	for _, op := range s.Done() {
		var err error
		if op.Results, err = resultsOf(r, op.OperationID); err != nil {
			return err
		}
	}
	return nil
}

// listOperations reads the operations on many jobs that the user may see.
func (s *situation) listOperations(r *request) error {
	tenants := r.tenants(api.GrantRoleAdmin)
	if r.May(api.GrantRoleAdmin, "") {
		tenants = []string{""}
	}
	for _, tenant := range tenants[:min(len(tenants), mostTenants)] {
		list, err := recall(r, "operations of "+tenant, r.unlessAsked(rememberStored), func() (api.OperationPage, error) {
			return call[api.OperationPage](r.api.ListOperations(r.Context(), &api.ListOperationsParams{TenantID: optional(tenant)}))
		})
		if err != nil {
			return err
		}
		s.Operations = append(s.Operations, list.Operations...)
	}
	return nil
}

// wellness is the line that says how all else is.
func wellness(s *situation) string {
	o := s.Overview
	live := 0
	for _, n := range o.Jobs {
		live += n
	}
	text := fmt.Sprintf("%s accepted, %s", rate(o.Accepted.LastMinute.PerSecond), diagnosis.Counted(live, "live job", "live jobs"))
	if n := o.Jobs[string(api.JobStateQueued)]; n > 0 {
		text += ", " + diagnosis.Number(n) + " not begun"
	}
	if at := o.OldestPendingSeconds; at != nil && *at > 0 {
		text += ", oldest outbox row " + diagnosis.Duration(diagnosis.Seconds(*at))
	}
	if hour := o.Ended[string(api.JobStateSucceeded)].LastHour; hour.Count > 0 {
		within := "the hour"
		if counted := diagnosis.Seconds(hour.OverSeconds); counted < time.Hour {
			within = diagnosis.Duration(counted.Truncate(time.Second))
		}
		text += ", " + diagnosis.Number(hour.Count) + " succeeded within " + within
	}
	return text
}

// markFinding acknowledges, snoozes or reopens a finding, for all users.
func markFinding(r *request) (deed, error) {
	id, tenant, note := r.FormValue("finding"), r.FormValue("tenant_id"), r.FormValue("note")
	as, after := api.MarkState(r.FormValue("as")), strings.ReplaceAll(r.FormValue("for"), " ", "")
	states := []string{string(api.MarkStateAcknowledged), string(api.MarkStateSnoozed), string(api.MarkStateOpen)}
	command := diagnosis.CommandWith("attention mark", "", id, "as", as, "for", after, "note", note)
	return deed{
		Title: "Mark “" + id + "”?", Button: "Mark it", NoReason: true, Command: command, First: "note",
		Text: "All users see it. A finding that is acknowledged or snoozed does not count as one that needs attention.",
		Fields: []field{
			{Name: "as", Label: "It is", Value: string(as), Options: states, Flag: "as"},
			{
				Name: "for", Label: "For", Value: after, Flag: "for",
				Hint: "Such as 30m, 2h or 1d. Empty: an hour if it is snoozed, else seven days.",
			},
			{Name: "note", Label: "Note", Value: note, Flag: "note", Hint: "What others should know."},
		},
		do: func(ctx context.Context, _ string) (string, error) {
			request := api.MarkRequest{FindingID: id, TenantID: optional(tenant), State: as, Note: note}
			if after != "" {
				long, err := lasting(after)
				if err != nil || long <= 0 {
					return "", badField("for", "How long it lasts is a number with a unit, such as 30m, 2h or 1d.")
				}
				request.ForSeconds = long.Seconds()
			}
			_, err := call[api.Mark](r.api.SetMark(ctx, request))
			return link(""), err
		},
	}, nil
}

// pathOf is a page about the thing of that name, which may hold any character.
func pathOf(page, name string) string { return link(page + "/" + url.PathEscape(name)) }
