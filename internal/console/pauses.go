package console

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// pausesPage is what is paused.
type pausesPage struct {
	Pauses []pauseRow
}

// pauseRow is a pause with what waits for its end.
type pauseRow struct {
	api.Pause

	What string
	// Waiting says how many directives wait, empty if that is not known.
	Waiting string
}

func pauses(r *request) (view, error) {
	list, err := call[api.PauseList](r.api.ListPauses(r.Context()))
	if err != nil {
		return view{}, err
	}
	var services api.ServiceList
	if len(list.Pauses) > 0 && (r.May(api.GrantRoleRead, "") || r.May(api.GrantRoleAdmin, "")) {
		if services, err = call[api.ServiceList](r.api.ListServices(r.Context(), nil)); err != nil {
			return view{}, err
		}
	}
	data := pausesPage{}
	for i := range list.Pauses {
		p := &list.Pauses[i]
		row := pauseRow{Pause: *p, What: titled(pausedScope(p))}
		situation := diagnosis.Situation{Services: services.Services}
		if waiting, known := situation.HeldBy(p); known {
			row.Waiting = diagnosis.Counted(waiting, "directive waits", "directives wait")
		}
		data.Pauses = append(data.Pauses, row)
	}
	slices.SortStableFunc(data.Pauses, func(a, b pauseRow) int {
		return cmp.Or(strings.Compare(string(a.State), string(b.State)), a.CreatedAt.Compare(b.CreatedAt.Time))
	})
	return view{Title: "Pauses", Template: "pauses", Data: data}, nil
}

// pausedScope says in words what a pause stops.
func pausedScope(p *api.Pause) string { return scopeOfPause(p.PauseID).words() }

// scopeAll is the kind of a pause of everything.
const scopeAll = "all"

// scopeKinds returns what a pause can be of, as parameters of the forms and, but for the first,
// as flags of the command line.
func scopeKinds() []string {
	names := []string{scopeAll}
	for _, kind := range api.ScopeKinds() {
		names = append(names, kind.Name)
	}
	return names
}

// scope is the kind and the name of what a form pauses or resumes.
type scope struct {
	Kind, Name string
	// PauseID is the id of its pause. Optional: the form may only begin one.
	PauseID string
}

// scopeOfPause returns the scope of the pause with that id.
func scopeOfPause(id string) scope {
	if parsed, err := api.ParsePauseID(id); err == nil {
		return scope{cmp.Or(parsed.Kind, scopeAll), parsed.Value, id}
	}
	kind, name, _ := strings.Cut(id, ":")
	return scope{kind, name, id} // The API answers that there is no such pause.
}

// scopeOf returns the scope that the request's parameters name: by its id, by a parameter
// of its kind, or by what was entered into the form. It is empty if there is none yet.
func scopeOf(r *request) scope {
	_ = r.FormValue("pause") // It parses the form.
	return scopeIn(r.Form)
}

// scopeIn is [scopeOf] by the parameters.
func scopeIn(query url.Values) scope {
	if id := query.Get("pause"); id != "" {
		return scopeOfPause(id)
	}
	for _, kind := range scopeKinds() {
		if name := query.Get(kind); name != "" {
			return scope{Kind: kind, Name: name}
		}
	}
	return scope{Kind: query.Get("kind"), Name: strings.TrimSpace(query.Get("name"))}
}

// words says what the scope is.
func (s scope) words() string {
	if s.Kind == scopeAll {
		return api.Scope{}.String()
	}
	return s.Kind + " " + s.Name
}

// id returns the id of the pause of the scope.
func (s scope) id() (string, error) {
	if s.PauseID != "" {
		return s.PauseID, nil
	}
	named, err := s.named()
	return named.ID(), err
}

// command is a command on the scope.
func (s scope) command(verb string, rest ...string) string {
	if s.Kind == scopeAll {
		return diagnosis.Command(verb, append([]string{"--all"}, rest...)...)
	}
	return diagnosis.Command(verb, append([]string{"--" + s.Kind, cmp.Or(s.Name, "NAME")}, rest...)...)
}

// pauseDispatch stops the dispatch within a scope.
func pauseDispatch(r *request) (deed, error) {
	at := scopeOf(r)
	asked := at.Kind == "" || r.FormValue("kind") != "" // The form asks for the scope.
	kinds := scopeKinds()
	if !r.May(api.GrantRoleAdmin, "") {
		kinds = []string{"tenant"} // The other scopes belong to no tenant.
	}
	at.Kind = cmp.Or(at.Kind, kinds[min(1, len(kinds)-1)])
	after := strings.ReplaceAll(r.FormValue("for"), " ", "")
	lasts := field{
		Name: "for", Label: "Resume by itself after", Value: after, Flag: "for",
		Hint: "Such as 30m, 2h or 1d. Empty: not before it is resumed.",
	}
	would := deed{
		Title: "Pause dispatch to " + at.words() + "?", Button: "Pause", NeedsReason: true,
		Text: "Nothing new goes to workers within the scope until it is resumed. " +
			"Commands are still accepted, and workers finish what they hold.",
		Command: at.command("pause", diagnosis.Flag("for", after)...), Fields: []field{lasts},
	}
	if asked {
		would.Title = "Pause dispatch?"
		would.Fields = []field{
			{Name: "kind", Label: "Scope", Value: at.Kind, Options: kinds},
			{
				Name: "name", Label: "Name", Value: at.Name, Hint: "The " + oneOfScopes() + "; empty for all.",
				Offers: offersOf(r.known(), r.tenants(api.GrantRoleAdmin), kinds...),
			},
			lasts,
		}
		if at.Name == "" && at.Kind != scopeAll {
			would.First = "name"
		}
	}
	would.do = func(ctx context.Context, reason string) (string, error) {
		named, err := at.named()
		if err != nil {
			return "", err
		}
		request := api.PauseRequest{Reason: reason}
		request.SetScope(named)
		if after != "" {
			long, err := lasting(after)
			switch {
			case err != nil || long <= 0:
				return "", badField("for", "How long it is paused is a number with a unit, such as 30m, 2h or 1d.")
			case long.Seconds() > api.MaxPause:
				return "", badField("for", "A pause that ends by itself lasts at most 365d.")
			}
			request.ForSeconds = new(long.Seconds())
		}
		_, err = call[api.Pause](r.api.CreatePause(ctx, request))
		return link("pauses"), err
	}
	return would, nil
}

// lasting reads a duration, which may be in days.
func lasting(text string) (time.Duration, error) {
	count, found := strings.CutSuffix(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	days, err := strconv.ParseUint(count, 10, 10)
	return time.Duration(days) * 24 * time.Hour, err
}

// oneOfScopes says what a pause can be of.
func oneOfScopes() string {
	kinds := scopeKinds()[1:]
	last := len(kinds) - 1
	return strings.Join(kinds[:last], ", ") + " or " + kinds[last]
}

// named returns what the scope is for the API. A pause or its end must not cover more than
// was meant.
func (s scope) named() (api.Scope, error) {
	switch {
	case s.Kind == scopeAll:
		return api.Scope{}, nil
	case !slices.Contains(scopeKinds(), s.Kind):
		return api.Scope{}, badField("kind", "A pause is of everything, or of a "+oneOfScopes()+".")
	case s.Name == "":
		return api.Scope{}, badField("name", "Name what to pause.")
	}
	named, err := api.NewScope(s.Kind, s.Name)
	if err != nil {
		return api.Scope{}, badField("name", titled(err.Error())+".")
	}
	return named, nil
}

// resumeDispatch ends a pause.
func resumeDispatch(r *request) (deed, error) {
	at := scopeOf(r)
	ramp := r.FormValue("ramp")
	rest := []string{}
	if ramp != "" {
		rest = []string{"--ramp", ramp + "s"}
	}
	return deed{
		Title: "Resume dispatch to " + at.words() + "?", Button: "Resume",
		Text:    "Waiting directives go out at a rate that doubles every second, so that workers are not flooded.",
		Command: at.command("resume", rest...),
		Fields: []field{{
			Name: "ramp", Label: "Ramp, in seconds", Value: ramp, Flag: "ramp", Unit: "s",
			Hint: "Empty means the server's 15 s; 0 dispatches everything at once.",
		}},
		do: func(ctx context.Context, reason string) (string, error) {
			request := api.ResumeRequest{Reason: reason}
			if ramp != "" {
				seconds, err := strconv.ParseFloat(ramp, 64)
				if err != nil {
					return "", badField("ramp", "The ramp is a number of seconds.")
				}
				request.RampSeconds = &seconds
			}
			id, err := at.id()
			if err == nil {
				_, err = call[api.Pause](r.api.ResumePause(ctx, id, request))
			}
			return link("pauses"), err
		},
	}, nil
}
