package console

import (
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// schedulesPage lists the schedules of a tenant.
type schedulesPage struct {
	Tenant    tenantFilter
	Schedules []api.Schedule
	More      string
	Command   string
}

func schedules(r *request) (view, error) {
	data := schedulesPage{Tenant: r.tenant(api.GrantRoleRead)}
	v := view{Title: "Schedules", Template: "schedules", Data: &data}
	data.Command = diagnosis.CommandWith("schedules list", "tenant", data.Tenant.Value)
	if data.Tenant.Value == "" {
		return v, nil // Each tenant has its own schedules.
	}
	list, err := call[api.SchedulePage](r.api.ListSchedules(r.Context(), &api.ListSchedulesParams{
		TenantID: data.Tenant.Value, Limit: new(api.Limit(pageSize)), PageToken: r.pageToken(),
	}))
	data.Schedules = list.Schedules
	if list.NextPageToken != "" {
		data.More = link("schedules", "tenant_id", data.Tenant.Value, "page_token", list.NextPageToken)
	}
	return v, err
}

// schedulePage shows one schedule with its times to come, and what became of past ones.
type schedulePage struct {
	api.Schedule

	Fires []api.ScheduleFire
	// Day are the times of the next 24 hours, as far as the next 10 reach.
	Day     []api.ScheduleTime
	More    string // the URL of the next page of the history
	Command string
}

func schedule(r *request) (view, error) {
	tenant, name := r.PathValue("tenant"), r.PathValue("name")
	var data schedulePage
	v := view{Title: "Schedule " + name, Template: "schedule", Nav: "Schedules", Data: &data}
	var err error
	if data.Schedule, err = call[api.Schedule](r.api.GetSchedule(r.Context(), tenant, name)); err != nil {
		return v, err
	}
	history, err := call[api.ScheduleFirePage](r.api.ListFires(r.Context(), tenant, name, &api.ListFiresParams{
		Limit: new(api.Limit(pageSize)), PageToken: r.pageToken(),
	}))
	data.Fires = history.Fires
	data.More = r.more(history.NextPageToken)
	for _, one := range data.Next {
		if one.At.Before(r.now.Add(24 * time.Hour)) {
			data.Day = append(data.Day, one)
		}
	}
	data.Command = diagnosis.Command("schedules fires", tenant+"/"+name)
	return v, err
}
