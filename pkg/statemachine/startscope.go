package statemachine

import (
	"errors"
	"fmt"
	"strings"
)

// StartScope names the directives that share a limit of starts or a closure: those of a service,
// or of the given step type or tenant of it.
type StartScope struct {
	Service  string `column:"service"`
	StepType string `column:"step_type"` // empty means all
	TenantID string `column:"tenant_id"` // empty means all
}

// RunSlot is one of the slots of a limit of attempts that run at once.
type RunSlot struct {
	Limit string `json:"limit"` // the id of its scope
	No    int    `json:"no"`    // from 0 on
}

// The parts of an id, in their order.
const (
	partService  = "service"
	partStepType = "step_type"
	partTenant   = scopeTenant
)

// Covers reports whether the directive belongs to the scope.
func (s StartScope) Covers(service, stepType, tenantID string) bool {
	return s.Service == service && (s.StepType == "" || s.StepType == stepType) && (s.TenantID == "" || s.TenantID == tenantID)
}

// ID names the scope: "service:ocr,step_type:OCR,tenant:a" without the parts that are empty. A
// character that is not allowed in a path is "~" and two hexadecimal digits, as in the ids of
// pauses.
func (s StartScope) ID() string {
	var parts []string
	for _, part := range []Scope{{partService, s.Service}, {partStepType, s.StepType}, {partTenant, s.TenantID}} {
		if part.Value != "" {
			parts = append(parts, strings.ReplaceAll(part.ID(), ",", "~2C")) // A comma separates parts.
		}
	}
	return strings.Join(parts, ",")
}

// ParseStartScope reads an id. The error says what is wrong with it.
func ParseStartScope(id string) (StartScope, error) {
	scope, err := parseStartScope(id)
	if err != nil {
		return StartScope{}, fmt.Errorf("%q is not the id of a limit: %w", id, err)
	}
	return scope, nil
}

func parseStartScope(id string) (scope StartScope, err error) {
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
			return StartScope{}, errors.New(`its parts are "service:", "step_type:" and "tenant:", in this order`)
		}
		value, err := unescape(escaped)
		if err != nil || value == "" {
			return StartScope{}, fmt.Errorf("the %s must be a text that is not empty, in the form of a path", name)
		}
		*targets[next].to = value
		next++
	}
	if scope.Service == "" {
		return StartScope{}, errors.New("it must name a service")
	}
	return scope, nil
}
