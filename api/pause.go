package api

import (
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Check returns what is wrong with the request by itself.
func (c *PauseRequest) Check() []problem.Violation {
	var v violations
	scopes := 0
	for _, named := range []bool{c.TenantID != "", c.ProtocolID != "", c.Lane != nil, c.All} {
		if named {
			scopes++
		}
	}
	if scopes != 1 {
		v.add("", "must hold exactly one of tenant_id, protocol_id, lane and all")
	}
	v.text("/tenant_id", c.TenantID, 0, MaxTenantID)
	v.text("/protocol_id", c.ProtocolID, 0, MaxName)
	if c.Lane != nil {
		v.atLeast("/lane", float64(*c.Lane), 0)
	}
	v.reason(c.Reason, 1)
	return v
}

// Scope returns what the request names.
func (c *PauseRequest) Scope() statemachine.Scope {
	scope := statemachine.Scope{TenantID: c.TenantID, ProtocolID: c.ProtocolID}
	if c.Lane != nil {
		scope.Lane = new(int(*c.Lane))
	}
	return scope
}

// SetScope shows what is paused.
func (p *Pause) SetScope(scope statemachine.Scope) {
	p.TenantID, p.ProtocolID = scope.TenantID, scope.ProtocolID
	if scope.Lane != nil {
		p.Lane = new(int32(*scope.Lane))
	}
}
