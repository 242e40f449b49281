package statemachine

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Target holds the properties of a directive that a pause can name.
type Target struct {
	TenantID   string `column:"tenant_id"`
	ProtocolID string `column:"protocol_id"`
	Lane       int    `column:"lane"`
	Service    string `column:"service"`
}

// TargetOf returns the target of a job's directives to the step.
func TargetOf(job *Job, step *Step) Target {
	return Target{TenantID: job.TenantID, ProtocolID: job.ProtocolID, Lane: step.Routing.Lane, Service: step.Service}
}

// ScopeKind is a property of a [Target] that a pause can name.
type ScopeKind struct {
	// Name is the kind's name in ids, in flags and in forms, and Column its name in rows and
	// in the API.
	Name, Column string
	// Help says what such a pause stops.
	Help string
	// Text or Number points to the property; the other one is nil. A pause can name any text
	// but the empty one, and any number from 0.
	Text   func(*Target) *string
	Number func(*Target) *int
}

// scopeTenant is the kind of a pause that belongs to a tenant.
const scopeTenant = "tenant"

// ScopeKinds lists what a pause can name. What stores, checks or shows scopes reads it.
var ScopeKinds = []ScopeKind{
	{
		Name: "service", Column: "service", Help: "the steps of this service",
		Text: func(t *Target) *string { return &t.Service },
	},
	{
		Name: scopeTenant, Column: "tenant_id", Help: "the jobs of this tenant",
		Text: func(t *Target) *string { return &t.TenantID },
	},
	{
		Name: "protocol", Column: "protocol_id", Help: "the jobs of this protocol",
		Text: func(t *Target) *string { return &t.ProtocolID },
	},
	{
		Name: "lane", Column: "lane", Help: "the directives of this lane of Service Bus",
		Number: func(t *Target) *int { return &t.Lane },
	},
}

// Of returns the property of the target.
func (k *ScopeKind) Of(target *Target) string {
	if k.Number != nil {
		return strconv.Itoa(*k.Number(target))
	}
	return *k.Text(target)
}

// Scope is what a pause holds back: directives with that value of the property. The zero
// scope covers all dispatch. Scopes come from [NewScope] or [ParseScope].
type Scope struct{ Kind, Value string }

// NewScope returns the scope of that kind and value. The error says what is wrong with them.
func NewScope(name, value string) (Scope, error) {
	scope := Scope{Kind: name, Value: value}
	kind := scope.kind()
	switch {
	case kind == nil:
		return Scope{}, fmt.Errorf("there are no pauses of a %q", name)
	case value == "":
		return Scope{}, fmt.Errorf("the %s must not be empty", name)
	case kind.Number != nil:
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return Scope{}, fmt.Errorf("the %s is %q and must be a whole number from 0 on", name, value)
		}
		scope.Value = strconv.Itoa(n)
	}
	return scope, nil
}

// kind returns the row of the scope's kind; nil if it has none.
func (s Scope) kind() *ScopeKind {
	i := slices.IndexFunc(ScopeKinds, func(k ScopeKind) bool { return k.Name == s.Kind })
	if i < 0 {
		return nil
	}
	return &ScopeKinds[i]
}

// Covers reports whether the scope holds such a directive back.
func (s Scope) Covers(target Target) bool {
	return s == Scope{} || s.kind().Of(&target) == s.Value
}

// TenantID returns the tenant that the pause belongs to, empty if it covers several.
func (s Scope) TenantID() string {
	if s.Kind == scopeTenant {
		return s.Value
	}
	return ""
}

// scopeAll is the id of the zero scope.
const scopeAll = "all"

// ID names the scope, and so its pause: "all", or the kind, a colon and the value, in which a
// character that is not allowed in a path is "~" and two hexadecimal digits.
func (s Scope) ID() string {
	if s == (Scope{}) {
		return scopeAll
	}
	// The sign is not "%", so that the value also survives a proxy that decodes the path
	// before it splits it.
	return s.Kind + ":" + strings.ReplaceAll(strings.ReplaceAll(url.PathEscape(s.Value), "~", "%7E"), "%", "~")
}

// unescape returns the value of a part of an id.
func unescape(text string) (string, error) {
	return url.PathUnescape(strings.ReplaceAll(text, "~", "%"))
}

// String says in words what the scope covers.
func (s Scope) String() string {
	if s == (Scope{}) {
		return "everything"
	}
	return s.Kind + " " + s.Value
}

// ParseScope reads an id.
func ParseScope(id string) (Scope, error) {
	if id == scopeAll {
		return Scope{}, nil
	}
	kind, escaped, _ := strings.Cut(id, ":")
	value, err := unescape(escaped)
	if err != nil {
		return Scope{}, fmt.Errorf("%q is not the id of a pause", id)
	}
	scope, err := NewScope(kind, value)
	if err != nil {
		return Scope{}, fmt.Errorf("%q is not the id of a pause: %w", id, err)
	}
	return scope, nil
}

// PauseState is what a pause by scope does at present.
type PauseState string

// The states.
const (
	ScopePaused  PauseState = "PAUSED"  // nothing passes
	ScopeRamping PauseState = "RAMPING" // more passes every second
	ScopeResumed PauseState = "RESUMED" // everything passes; the row is deleted, or will be
)

// ScopePause is a pause by scope. While it ramps up it holds back only directives that are
// not published.
type ScopePause struct {
	Scope `column:"pause_id"`

	State PauseState `column:"state"`
	// Reason and Actor are empty if they must not be shown.
	Reason string `column:"reason"`
	Actor  string `column:"actor"`
	// CreatedAt is when it was paused, ResumedAt since when it ramps up.
	CreatedAt time.Time `column:"created_at"`
	ResumedAt time.Time `column:"resumed_at"`
	// Until is when it resumes by itself; zero if only an operator ends it, and once one
	// has.
	Until time.Time `column:"until"`
	// Ramp is how long it ramps up, or will after Until.
	Ramp time.Duration `column:"ramp_ms"`
}

// At returns the pause at that time: a ramp ends by itself.
func (p ScopePause) At(now time.Time) ScopePause {
	if p.State == ScopeRamping && !now.Before(p.ResumedAt.Add(p.Ramp)) {
		p.State = ScopeResumed
	}
	return p
}
