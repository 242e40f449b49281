package api

import (
	"fmt"
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Check returns what is wrong with the request by itself.
func (c *PauseRequest) Check() []apierror.Violation {
	var v violations
	scopes := 0
	for _, named := range []bool{c.TenantID != nil, c.ProtocolID != nil, c.Lane != nil, c.Service != nil, c.All} {
		if named {
			scopes++
		}
	}
	if scopes != 1 {
		v.add("", "must hold exactly one of tenant_id, protocol_id, lane, service and all")
	}
	v.scope("/tenant_id", c.TenantID)
	v.scope("/protocol_id", c.ProtocolID)
	v.scope("/service", c.Service)
	if c.Lane != nil {
		v.atLeast("/lane", float64(*c.Lane), 0)
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

// scope checks the name of what is paused, unless it is absent. The pause's id, by which it
// is resumed, holds it.
func (v *violations) scope(pointer string, name *string) {
	v.optional(pointer, name)
	if name != nil && len(*name) > MaxScopeName && utf8.RuneCountInString(*name) <= MaxName {
		v.exceeds(pointer, fmt.Sprintf("is %d bytes long; at most %d are allowed", len(*name), MaxScopeName))
	}
}

// Scope returns what the request names.
func (c *PauseRequest) Scope() statemachine.Scope {
	var scope statemachine.Scope
	if c.TenantID != nil {
		scope.TenantID = *c.TenantID
	}
	if c.ProtocolID != nil {
		scope.ProtocolID = *c.ProtocolID
	}
	if c.Lane != nil {
		scope.Lane = new(int(*c.Lane))
	}
	if c.Service != nil {
		scope.Service = *c.Service
	}
	return scope
}

// ParsePauseID returns a pause with that id and what it pauses, or an error if no pause has such
// an id.
func ParsePauseID(id string) (Pause, error) {
	scope, err := statemachine.ParseScope(id)
	pause := Pause{PauseID: id}
	pause.SetScope(scope)
	return pause, err
}

// SetScope shows what is paused.
func (p *Pause) SetScope(scope statemachine.Scope) {
	p.TenantID, p.ProtocolID, p.Service = scope.TenantID, scope.ProtocolID, scope.Service
	if scope.Lane != nil {
		p.Lane = new(int32(*scope.Lane))
	}
}
