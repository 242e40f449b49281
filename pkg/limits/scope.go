package limits

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Scope names the directives that share a limit or a closure: those of a service, or of the
// given step type or tenant of it.
type Scope struct {
	Service  string `column:"service" json:"service"`
	StepType string `column:"step_type" json:"step_type,omitempty"` // empty means all
	TenantID string `column:"tenant_id" json:"tenant_id,omitempty"` // empty means all
}

// The parts of an id, in their order.
const (
	partService  = "service"
	partStepType = "step_type"
	partTenant   = "tenant"
)

// covering returns the scopes of a directive, the narrowest first.
func covering(service, stepType, tenantID string) [4]Scope {
	return [4]Scope{
		{service, stepType, tenantID}, {service, "", tenantID}, {service, stepType, ""}, {service, "", ""},
	}
}

// Covers reports whether the directive belongs to the scope.
func (s Scope) Covers(service, stepType, tenantID string) bool {
	return s.Service == service && (s.StepType == "" || s.StepType == stepType) && (s.TenantID == "" || s.TenantID == tenantID)
}

// ID names the scope: "service:ocr,step_type:OCR,tenant:a" without the parts that are empty. A
// character that is not allowed in a path is "~" and two hexadecimal digits, as in the ids of
// pauses.
func (s Scope) ID() string {
	id := partService + ":" + escape(s.Service)
	if s.StepType != "" {
		id += "," + partStepType + ":" + escape(s.StepType)
	}
	if s.TenantID != "" {
		id += "," + partTenant + ":" + escape(s.TenantID)
	}
	return id
}

// ParseScope reads an id. The error says what is wrong with it.
func ParseScope(id string) (Scope, error) {
	scope, err := parse(id)
	if err != nil {
		return Scope{}, fmt.Errorf("%q is not the id of a limit: %w", id, err)
	}
	return scope, nil
}

func parse(id string) (scope Scope, err error) {
	targets := []struct {
		name string
		to   *string
	}{{partService, &scope.Service}, {partStepType, &scope.StepType}, {partTenant, &scope.TenantID}}
	next := 0
	for part := range strings.SplitSeq(id, ",") {
		name, escaped, _ := strings.Cut(part, ":")
		for next < len(targets) && targets[next].name != name {
			next++
		}
		if next == len(targets) {
			return Scope{}, errors.New(`its parts are "service:", "step_type:" and "tenant:", in this order`)
		}
		value, err := url.PathUnescape(strings.ReplaceAll(escaped, "~", "%"))
		if err != nil || value == "" {
			return Scope{}, fmt.Errorf("the %s must be a text that is not empty, in the form of a path", name)
		}
		*targets[next].to = value
		next++
	}
	if scope.Service == "" {
		return Scope{}, errors.New("it must name a service")
	}
	return scope, nil
}

// escape makes the value fit in an id. A comma separates parts, so it is escaped too.
func escape(value string) string {
	value = strings.ReplaceAll(strings.ReplaceAll(url.PathEscape(value), "~", "%7E"), ",", "%2C")
	return strings.ReplaceAll(value, "%", "~")
}
