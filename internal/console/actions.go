package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// action is something that a user can do: it is asked for by a form, which is a dialog if
// the browser has script, and else a page.
type action struct {
	// prepare returns what would be done, by the parameters of the request. The form
	// sends them again.
	prepare func(*request) (deed, error)
	// role is what a user must have for what the action is on. Optional. Defaults to admin.
	role api.GrantRole
	// many says that the request selects jobs; the API authorizes its preview.
	many bool
}

// MayDo reports whether the user may do what the link to an action is for. It is the one
// place that decides which actions a page offers and which forms it shows; the API decides
// whether they are carried out.
func (r *request) MayDo(target string) bool {
	at, err := url.Parse(target)
	if err != nil {
		return false
	}
	name, _ := strings.CutPrefix(at.Path, Path+"do/")
	a := allActions()[name]
	if a == nil {
		return false
	}
	role, query := a.needs(), at.Query()
	tenant, some := query.Get("tenant_id"), false // some: the role for any one tenant is enough
	switch {
	case strings.HasPrefix(name, "dispatch-"):
		paused := scopeIn(query)
		if paused.Kind == "tenant" {
			tenant = paused.Name
		}
		some = name == "dispatch-pause" && (paused.Kind == "" || paused.Kind == "tenant") // The form asks for the rest.
	case strings.HasPrefix(name, "limit-"):
		if id := query.Get("limit"); id != "" {
			tenant = api.LimitTenant(id)
		} else {
			some = true // The form asks for the scope.
		}
	case strings.HasPrefix(name, "schedule-"):
		tenant = scheduleIn(query.Get("schedule")).Tenant
	case !strings.HasPrefix(name, "inbox") && !a.many:
		// The link to one object does not name its tenant.
		some = slices.ContainsFunc([]string{"job", "work", "operation", "webhook", "line"}, query.Has)
	}
	if tenant == "" && some {
		return len(r.tenants(role)) > 0
	}
	return r.May(role, tenant)
}

// tenantOf returns the tenant of a line, or if that is empty of a job.
func (r *request) tenantOf(line, job string) (string, error) {
	if line != "" {
		found, err := call[api.Line](r.api.GetLine(r.Context(), line))
		return found.TenantID, err
	}
	found, err := call[api.Job](r.api.GetJob(r.Context(), job, nil))
	return found.TenantID, err
}

// needs returns the role that the action takes.
func (a *action) needs() api.GrantRole { return cmp.Or(a.role, api.GrantRoleAdmin) }

// authorize refuses the form of an action that the user may not do. If the user has rights for
// some tenants only, it looks up the tenant of the line or the job. The ids of a job's work and
// webhooks begin with the id of the job.
func (a *action) authorize(r *request) error {
	role, query := a.needs(), r.URL.Query()
	job, _, _ := strings.Cut(cmp.Or(query.Get("job"), query.Get("work"), query.Get("webhook")), ".")
	may, object := r.MayDo(r.URL.RequestURI()), "what it would change"
	if line := query.Get("line"); may && job+line != "" && !r.May(role, "") && len(r.tenants(api.GrantRoleRead)) > 0 {
		tenant, err := r.tenantOf(line, job)
		if err != nil {
			return err
		}
		may, object = r.May(role, tenant), "tenant "+tenant
	}
	if may {
		return nil
	}
	return &refusal{Status: http.StatusForbidden, Problem: api.Problem{
		Detail: fmt.Sprintf("This takes the role %s for %s, which you do not have.", role, object),
	}}
}

// allActions are the actions, made once.
var allActions = sync.OnceValue(actions)

// deed is what an action would do.
type deed struct {
	Title string // A question.
	Text  string // The consequences.
	// Button is the text of the button that does it. Danger says that it cannot be undone.
	Button string
	Danger bool
	// Preview says which jobs match, if the server selects them, Changes how many of them one
	// operation changes. Counting says that the dialog asks for both.
	Preview  *api.OperationPreview
	Changes  int
	Counting bool
	// Plan says what a rerun would do.
	Plan *api.RerunPreview
	// Look is the text of the button that shows what it would do, empty for none.
	Look string
	// Sent are parameters that the form sends in addition to those of the request for it.
	Sent map[string]string
	// Fields are asked for in addition to the reason. They are parameters of the command.
	Fields []field
	// First names the field to fill first. Optional. Defaults to the reason.
	First string
	// NeedsReason says that the reason must not be empty, and NoReason that none is kept.
	NeedsReason, NoReason bool
	// Command does the same on the command line.
	Command string
	// look sets Preview and Changes, or Plan. Optional.
	look func(context.Context, *deed) error
	// do does it, and returns where the browser goes then.
	do func(ctx context.Context, reason string) (location string, err error)
}

// Typed reports whether the user must type the number of jobs, so that a slip does not change many.
func (d deed) Typed() bool { return d.Changes > mostUntyped }

// Few reports whether the form offers to try a few jobs first.
func (d deed) Few() bool { return d.Changes > fewFirst }

// field is an input of a form.
type field struct {
	Name, Label, Value, Hint string
	Options                  []string // Those of a list; else it is a line of text.
	Offers                   []offer  // Names that the line of text offers.
	// Flag is that of the command, if it takes the value, after Prefix and followed by Unit. Script
	// keeps the command up to date by it.
	Flag, Prefix, Unit string
	// At is the API's pointer of what the value becomes. Optional. Defaults to that of Name.
	At string
	// Switch is a flag without a value, which the command has if the value is the last option.
	Switch string
	// Folded says that the field is seldom used: it is folded away while it is empty.
	Folded bool
	// Wrong is the error about the value, empty if there is none.
	Wrong string
}

// actions returns all actions, by the name in their URL.
func actions() map[string]*action {
	return map[string]*action{
		"dispatch-pause":  {prepare: pauseDispatch},
		"dispatch-resume": {prepare: resumeDispatch},
		"finding-mark":    {prepare: markFinding},
		"inbox-discard":   {prepare: discardInbox},
		"inbox-retry":     {prepare: retryInbox},
		"job-cancel": jobControl("cancel", "Steps that have ended keep their results. A worker that runs a step is told to stop, "+
			"and its later reports change nothing.", true, (*api.Client).CancelJob),
		"job-pause": jobControl("pause", "No further step is dispatched. A worker that runs a step is asked to stop at a good "+
			"point, but may finish it.", false, (*api.Client).PauseJob),
		"job-prioritize": {prepare: prioritizeJob, role: api.GrantRoleSubmit},
		"job-reschedule": {prepare: rescheduleJob, role: api.GrantRoleSubmit},
		"job-rerun":      {prepare: rerunJob, role: api.GrantRoleSubmit},
		"job-resume":     jobControl("resume", "It continues where it stopped.", false, (*api.Client).ResumeJob),
		"jobs-cancel": jobsControl("cancel", "They end without a result. A worker that runs a step is told to stop, and its "+
			"later reports change nothing.", true, cancelMany),
		"jobs-pause":       jobsControl("pause", "No further steps are dispatched. Running steps may finish.", false, pauseMany),
		"jobs-resume":      jobsControl("resume", "They continue where they stopped, 20 jobs per second.", false, resumeMany),
		"limit-close":      {prepare: closeLimit},
		"limit-delete":     {prepare: deleteLimit},
		"limit-open":       {prepare: openLimit},
		"limit-set":        {prepare: setLimit},
		"line-cancel":      {prepare: cancelLine, role: api.GrantRoleSubmit},
		"line-release":     {prepare: releaseLine, role: api.GrantRoleSubmit},
		"operation-cancel": {prepare: cancelOperation},
		"outbox-retry":     {prepare: retryOutbox},
		"retry":            {prepare: retryJobs, many: true},
		"schedule-pause":   {prepare: pauseSchedule, role: api.GrantRoleSubmit},
		"schedule-resume":  {prepare: resumeSchedule, role: api.GrantRoleSubmit},
		"schedule-run":     {prepare: runSchedule, role: api.GrantRoleSubmit},
		"webhook-replay":   {prepare: replayWebhook},
		"work-requeue":     {prepare: requeueWork},
		"work-stall":       {prepare: stallWork},
	}
}

// actionForm is what the form shows.
type actionForm struct {
	deed

	Values   url.Values // The parameters that the form sends again.
	CountURL string     // Where the form asks for the count of the jobs.
	Reason   string
	Fault    string
}

// plan returns what would be done, if the user may do it. It refuses an id that the command line
// would take for a flag: a link with such an id could make the copied command one for all jobs.
func (a *action) plan(r *request) (deed, error) {
	for _, name := range []string{"job", "work", "operation", "webhook", "letter", "finding", "line", "limit", "schedule"} {
		if id := r.FormValue(name); strings.HasPrefix(id, "-") {
			return deed{}, badInput(fmt.Sprintf("%q is not an id.", id))
		}
	}
	if r.Method != http.MethodPost { // The API authorizes a form that is sent.
		if err := a.authorize(r); err != nil {
			return deed{}, err
		}
	}
	return a.prepare(r)
}

// form shows what would be done.
func (a *action) form(r *request) (view, error) {
	would, err := a.plan(r)
	if err == nil && a.many && !would.Counting {
		err = would.look(r.Context(), &would)
	}
	if err != nil {
		return view{}, err
	}
	return formOf(r, &would, strings.TrimSpace(r.FormValue("reason")), nil), nil
}

// carryOut does it, or shows in the form what it would do. What the server refuses is shown in the
// form, too.
func (a *action) carryOut(r *request) (view, error) {
	would, err := a.plan(r)
	if err != nil {
		return view{}, err
	}
	reason := strings.TrimSpace(r.PostFormValue("reason"))
	looks := would.Look != "" && r.PostFormValue("look") != ""
	switch {
	case looks:
		would.Counting = false
	case would.NeedsReason && reason == "":
		err = errNoReason
	default:
		location, fault := would.do(r.Context(), reason)
		if fault == nil {
			return view{Location: location}, nil
		}
		err = fault
	}
	if looks || a.many && !would.Counting {
		if fault := would.look(r.Context(), &would); err == nil { // Else the form has something to say.
			err = fault
		}
	}
	return formOf(r, &would, reason, err), nil
}

var errNoReason = badInput("Give a reason: others will read it.")

// badInput is the refusal of what the user entered, as a sentence.
func badInput(sentence string) *refusal {
	return &refusal{Status: http.StatusBadRequest, Problem: api.Problem{Detail: sentence}}
}

// badField is [badInput] about the value of a field.
func badField(name, sentence string) *refusal {
	refused := badInput(sentence)
	refused.Problem.Errors = []api.Violation{{Pointer: "/" + name}}
	return refused
}

// fieldsOf maps the API's pointers to form fields with another name.
var fieldsOf = map[string]string{
	"/tenant_id": "name", "/protocol_id": "name", "/service": "name", "/lane": "name",
	"/starts/count": "starts", "/starts/window": "starts",
	"/for_seconds": "for", "/ramp_seconds": "ramp", "/state": "as", "/rate_per_second": "rate",
}

// isAt reports whether an API pointer is about the value of the field.
func (f *field) isAt(pointer string) bool {
	at := cmp.Or(f.At, "/"+f.Name)
	return fieldsOf[pointer] == f.Name || pointer == "/"+f.Name || pointer == at || strings.HasPrefix(pointer, at+"/")
}

// refuse shows errors next to the fields that they are about, if each is about one, or else at the
// top of the form.
func (form *actionForm) refuse(fault error) {
	form.Fault = fault.Error()
	refused, ok := errors.AsType[*refusal](fault)
	if !ok {
		return
	}
	form.Fault = refused.Error()
	violations, fields, first := refused.Problem.Errors, slices.Clone(form.Fields), ""
	for i := range violations {
		pointer, text := violations[i].Pointer, form.Fault
		if len(violations) > 1 { // The fault has the first.
			text = pointer + " " + violations[i].Message + "."
		}
		n := slices.IndexFunc(fields, func(f field) bool { return f.isAt(pointer) })
		if n < 0 {
			return
		}
		at := &fields[n]
		// The form shows labels, and pointers only of what is inside of a value.
		if rest, of := strings.CutPrefix(text, pointer); of && !strings.HasPrefix(pointer, "/payload/") {
			text = at.Label + rest
		}
		at.Wrong, first = strings.TrimSpace(at.Wrong+" "+text), cmp.Or(first, at.Name)
	}
	if first != "" {
		form.Fields, form.First, form.Fault = fields, first, ""
	}
}

// entered returns the parameters of a request whose form was parsed, each once: without
// script a form is sent to its own URL, which has some of them as well.
func entered(r *http.Request) url.Values {
	values := maps.Clone(r.Form)
	maps.Copy(values, r.PostForm)
	return values
}

// formOf returns the view of a form.
func formOf(r *request, would *deed, reason string, fault error) view {
	sent := entered(r.Request)
	for _, name := range []string{"reason", "shown", "typed", "few", "look"} { // The form asks for them again.
		delete(sent, name)
	}
	form := actionForm{deed: *would, Values: sent, CountURL: r.URL.Path + "?" + sent.Encode(), Reason: reason}
	for name, value := range would.Sent {
		form.Values.Set(name, value)
	}
	for _, input := range would.Fields {
		delete(form.Values, input.Name)
	}
	if fault != nil {
		form.refuse(fault)
	}
	if would.NeedsReason {
		reason = cmp.Or(reason, "WHY")
	}
	if reason != "" && !would.NoReason {
		form.Command += " --reason " + diagnosis.Quoted(reason)
	}
	return view{Title: would.Title, Template: "action", Data: form}
}
