package console

import (
	"fmt"
	"net/url"
	"strconv"
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

// countFindings returns the count of findings for the navigation, and whether one is bad.
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
	if len(found) == 0 {
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
	return s, nil
}

// stuckJobs returns the stuck jobs, if there are any and the user may see them.
func stuckJobs(r *request, overview *api.Overview) ([]api.StuckJob, error) {
	if overview == nil || overview.Stuck.Count == 0 || !r.May(api.GrantRoleAdmin, "") {
		return nil, nil
	}
	list, err := call[api.StuckList](r.api.ListStuck(r.Context()))
	return list.Stuck, err
}

// lookAt reads what failed for a tenant, empty for all of them.
func (s *situation) lookAt(r *request, tenant string) error {
	age := rememberStored
	if !r.live {
		age = 0 // The user may have changed it a moment ago.
	}
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
	s.Tenants = append(s.Tenants, diagnosis.TenantSituation{Tenant: tenant, Failures: failed, Webhooks: hooks})
	return err
}

// wellness is the line that says how all else is.
func wellness(s *situation) string {
	o := s.Overview
	live := 0
	for _, n := range o.Jobs {
		live += n
	}
	text := fmt.Sprintf("%s accepted, %s", rate(o.Accepted.LastMinute.PerSecond), diagnosis.Counted(live, "live job", "live jobs"))
	if at := o.OldestPendingSeconds; at != nil && *at > 0 {
		text += ", oldest outbox row " + diagnosis.Duration(diagnosis.Seconds(*at))
	}
	if hour := o.Ended[string(api.JobStateSucceeded)].LastHour; hour.Count > 0 {
		text += ", " + diagnosis.Number(hour.Count) + " succeeded within the hour"
	}
	return text
}

// pathOf is a page about the thing of that name, which may hold any character.
func pathOf(page, name string) string { return link(page + "/" + url.PathEscape(name)) }
