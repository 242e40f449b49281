package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// schedulesPage lists the schedules of a tenant, and those that missed something.
type schedulesPage struct {
	Tenant    tenantFilter
	Schedules []api.Schedule
	// Lost are those that missed something in the last day, of the tenant or of all.
	Lost    []api.ScheduleLosses
	Many    bool // There are more of these.
	Preview schedulePreview
	More    string
	Command string
}

// schedulePreview shows the next times of what a user entered.
type schedulePreview struct {
	Times, Zone string // as entered
	Next        []api.ScheduleTime
	Fault       string
	Command     string
}

func schedules(r *request) (view, error) {
	data := schedulesPage{Tenant: r.tenant(api.GrantRoleRead)}
	v := view{Title: "Schedules", Template: "schedules", Data: &data}
	data.Command = diagnosis.CommandWith("schedules list", "tenant", data.Tenant.Value)
	var err error
	if data.Preview, err = r.previewTimes(); err != nil {
		return v, err
	}
	lost, err := call[api.ScheduleLossPage](r.api.ListLosses(r.Context(), diagnosis.LostOccurrences(data.Tenant.Value)))
	if data.Lost, data.Many = lost.Schedules, lost.NextPageToken != ""; err != nil || data.Tenant.Value == "" {
		return v, err // Each tenant has its own schedules.
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

// previewTimes computes the next times of what was entered, if anything was: a cron expression, or an interval.
func (r *request) previewTimes() (p schedulePreview, err error) {
	p.Times, p.Zone = strings.TrimSpace(r.FormValue("times")), strings.TrimSpace(r.FormValue("zone"))
	if p.Times == "" {
		return p, nil
	}
	ask, kind := api.SchedulePreviewRequest{TimeZone: p.Zone}, "cron"
	if _, err := time.ParseDuration(p.Times); err == nil {
		ask.Every, kind = p.Times, "every"
	} else {
		ask.Cron = p.Times
	}
	p.Command = diagnosis.CommandWith("schedules next", kind, p.Times, "zone", p.Zone)
	found, err := call[api.SchedulePreview](r.api.PreviewSchedule(r.Context(), ask))
	if refused, ok := errors.AsType[*refusal](err); ok && refused.Status < http.StatusInternalServerError &&
		refused.Status != http.StatusUnauthorized && refused.Status != http.StatusForbidden {
		p.Fault = refused.Error()
		return p, nil
	}
	p.Next = found.Times
	return p, err
}

// schedulePage shows one schedule with its times to come, and what became of past ones.
type schedulePage struct {
	api.Schedule

	Fires []api.ScheduleFire
	// Calendar is nil on later pages of the history.
	Calendar *scheduleCalendar
	Do       []diagnosis.Action
	More     string // the URL of the next page of the history
	Command  string
}

func schedule(r *request) (view, error) {
	tenant, name := r.PathValue("tenant"), r.PathValue("name")
	var data schedulePage
	v := view{Title: "Schedule " + name, Template: "schedule", Nav: "Schedules", Data: &data}
	var err error
	if data.Schedule, err = call[api.Schedule](r.api.GetSchedule(r.Context(), tenant, name)); err != nil {
		return v, err
	}
	fires := func(limit int, token *api.PageToken) (api.ScheduleFirePage, error) {
		return call[api.ScheduleFirePage](r.api.ListFires(r.Context(), tenant, name, &api.ListFiresParams{
			Limit: new(api.Limit(limit)), PageToken: token,
		}))
	}
	history, err := fires(pageSize, r.pageToken())
	if err != nil {
		return v, err
	}
	data.Fires, data.More = history.Fires, r.more(history.NextPageToken)
	if r.pageToken() == nil {
		if history.NextPageToken != "" {
			if history, err = fires(api.MaxPage, nil); err != nil {
				return v, err
			}
		}
		// A time zone that this build does not know has no calendar.
		data.Calendar, _ = calendarOf(&data.Schedule, history.Fires, history.NextPageToken == "", r.now)
	}
	data.Do = scheduleActions(&data.Schedule)
	data.Command = diagnosis.Command("schedules show", tenant+"/"+name)
	return v, nil
}

// scheduleActions returns what can be done with a schedule.
func scheduleActions(s *api.Schedule) []diagnosis.Action {
	of := []any{"schedule", s.TenantID + "/" + s.Name}
	run := diagnosis.Action{Text: "Run now…", Page: "do/schedule-run", Query: of, Form: true}
	switch s.State {
	case api.ScheduleStatePaused:
		return []diagnosis.Action{{Text: "Resume…", Page: "do/schedule-resume", Query: of, Form: true}, run}
	case api.ScheduleStateActive:
		return []diagnosis.Action{run, {Text: "Pause…", Page: "do/schedule-pause", Query: of, Form: true}}
	default:
		return []diagnosis.Action{run}
	}
}

// scheduleAt is the schedule of a form.
type scheduleAt struct{ ID, Tenant, Name string }

// scheduleIn returns the schedule that the parameter names: its tenant, a slash, and its name, which has none.
func scheduleIn(id string) scheduleAt {
	at := strings.LastIndexByte(id, '/')
	return scheduleAt{ID: id, Tenant: id[:max(at, 0)], Name: id[at+1:]}
}

func (s *scheduleAt) page() string {
	return link("schedules/" + url.PathEscape(s.Tenant) + "/" + url.PathEscape(s.Name))
}

// pauseSchedule stops the times of a schedule.
func pauseSchedule(r *request) (deed, error) {
	return turnSchedule(r, "pause", "Pause", "None of its times is fired until it is resumed, and they are not caught up then. "+
		"Jobs that it has submitted go on.", r.api.PauseSchedule)
}

// resumeSchedule starts them again.
func resumeSchedule(r *request) (deed, error) {
	return turnSchedule(r, "resume", "Resume", "It goes on with the first time after now. What was due while it was paused is not "+
		"caught up.", r.api.ResumeSchedule)
}

// turnSchedule changes the state of a schedule.
func turnSchedule(
	r *request, verb, button, text string,
	turn func(ctx context.Context, tenant, name string, change api.ScheduleChange, editors ...api.RequestEditorFn) (*http.Response, error),
) (deed, error) {
	at := scheduleIn(r.FormValue("schedule"))
	return deed{
		Title: button + " schedule " + at.Name + " of " + at.Tenant + "?", Button: button, Text: text,
		Command: diagnosis.Command("schedules "+verb, at.ID),
		do: func(ctx context.Context, reason string) (string, error) {
			_, err := call[api.Schedule](turn(ctx, at.Tenant, at.Name, api.ScheduleChange{Reason: reason}))
			return at.page(), err
		},
	}, nil
}

// runSchedule submits the command of a schedule. A form that is sent twice makes one job. If the first made none, the second is a new run.
func runSchedule(r *request) (deed, error) {
	at, key := scheduleIn(r.FormValue("schedule")), cmp.Or(r.FormValue("key"), rand.Text())
	sent := map[string]string{"key": key}
	return deed{
		Title: "Run schedule " + at.Name + " of " + at.Tenant + " now?", Button: "Run now", NoReason: true,
		Text: "Its command is submitted at once, also if it is paused. Its times stay as they are. If a job of an earlier time has " +
			"not ended, overlap decides as for any time.",
		Sent:    sent,
		Command: diagnosis.Command("schedules run", at.ID),
		do: func(ctx context.Context, _ string) (string, error) {
			fire, err := call[api.ScheduleFire](r.api.RunSchedule(ctx, at.Tenant, at.Name, &api.RunScheduleParams{IdempotencyKey: &key},
				api.ScheduleChange{}))
			if err == nil && fire.JobID == "" {
				sent["key"] = rand.Text()
				err = badInput("It was not run, but " + string(fire.Outcome) + ": " + fire.Detail)
			}
			return link("jobs/" + url.PathEscape(fire.JobID)), err
		},
	}, nil
}
