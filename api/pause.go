package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Scope is what a pause stops. The zero scope is all dispatch.
type Scope = statemachine.Scope

// ScopeKinds returns what a pause can name.
func ScopeKinds() []statemachine.ScopeKind { return statemachine.ScopeKinds }

// NewScope returns the scope of that kind and value. The error says what is wrong with them.
func NewScope(kind, value string) (Scope, error) { return statemachine.NewScope(kind, value) }

// ParsePauseID returns what the pause with that id stops, or an error if no pause has such an id.
func ParsePauseID(id string) (Scope, error) { return statemachine.ParseScope(id) }

// Check returns what is wrong with the request by itself.
func (c *PauseRequest) Check() []apierror.Violation {
	var v violations
	if scopes := c.scopes(&v); len(scopes) != 1 {
		var columns strings.Builder
		for _, kind := range ScopeKinds() {
			columns.WriteString(kind.Column + ", ")
		}
		v.add("", "must hold exactly one of "+columns.String()+"and all")
	}
	if c.ForSeconds != nil {
		v.number("/for_seconds", *c.ForSeconds, MaxPause)
		if s := *c.ForSeconds; s >= 0 && s < 0.001 { // It would be over at once, while 0 elsewhere means no limit.
			v.add("/for_seconds", "must be at least 0.001")
		}
	}
	if c.RampSeconds != nil {
		v.number("/ramp_seconds", *c.RampSeconds, MaxRamp)
	}
	if !c.Until.IsZero() && c.ForSeconds != nil {
		v.add("/until", "must be absent if for_seconds is given")
	}
	v.reason(c.Reason, 1)
	return v
}

// scopes returns what the request names, and checks the values.
func (c *PauseRequest) scopes(v *violations) (scopes []Scope) {
	if c.All {
		scopes = append(scopes, Scope{})
	}
	text, _ := json.Marshal(c) // Texts and numbers: it cannot fail.
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var members map[string]any
	_ = decoder.Decode(&members)
	for _, kind := range ScopeKinds() {
		switch value := members[kind.Column].(type) {
		case json.Number:
			number, _ := value.Float64()
			v.atLeast("/"+kind.Column, number, 0)
			scopes = append(scopes, Scope{Kind: kind.Name, Value: value.String()})
		case string:
			v.scope("/"+kind.Column, value)
			scopes = append(scopes, Scope{Kind: kind.Name, Value: value})
		}
	}
	return scopes
}

// scope checks the name of what is paused. The pause's id, by which it is resumed, holds it.
func (v *violations) scope(pointer, name string) {
	v.optional(pointer, &name)
	if len(name) > MaxScopeName && utf8.RuneCountInString(name) <= MaxName {
		v.exceeds(pointer, fmt.Sprintf("is %d bytes long; at most %d are allowed", len(name), MaxScopeName))
	}
}

// Scope returns what the request, which [PauseRequest.Check] has accepted, names.
func (c *PauseRequest) Scope() Scope { return c.scopes(new(violations))[0] }

// SetScope names what to pause.
func (c *PauseRequest) SetScope(scope Scope) {
	c.All = scope == Scope{}
	setScope(c, scope)
}

// SetScope shows what is paused.
func (p *Pause) SetScope(scope Scope) { setScope(p, scope) }

// setScope sets the field of the scope in a request or a pause.
func setScope(into any, scope Scope) {
	for _, kind := range ScopeKinds() {
		if kind.Name != scope.Kind {
			continue
		}
		var value any = scope.Value
		if kind.Number != nil {
			value = json.Number(scope.Value)
		}
		text, _ := json.Marshal(map[string]any{kind.Column: value}) // A text or a number: it cannot fail.
		_ = json.Unmarshal(text, into)                              // A number that is too large sets nothing.
	}
}
