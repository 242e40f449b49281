package statemachine

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Target holds the properties of a directive that a pause can name.
type Target struct {
	TenantID   string
	ProtocolID string
	Lane       int
	Service    string
}

// TargetOf returns the target of a job's directives to the step.
func TargetOf(job *Job, step *Step) Target {
	return Target{TenantID: job.TenantID, ProtocolID: job.ProtocolID, Lane: step.Routing.Lane, Service: step.Service}
}

// Scope is what a pause holds back. At most one of its fields is set; if none is, it covers
// all dispatch.
type Scope struct {
	TenantID   string
	ProtocolID string
	Lane       *int
	Service    string
}

// Covers reports whether the scope holds such a directive back.
func (s Scope) Covers(target Target) bool {
	switch {
	case s.TenantID != "":
		return s.TenantID == target.TenantID
	case s.ProtocolID != "":
		return s.ProtocolID == target.ProtocolID
	case s.Lane != nil:
		return *s.Lane == target.Lane
	case s.Service != "":
		return s.Service == target.Service
	}
	return true
}

// ID names the scope, and so its pause: "all", or "tenant:", "protocol:", "lane:" or
// "service:" and the value, in which a character that is not allowed in a path is "~" and two
// hexadecimal digits.
func (s Scope) ID() string {
	// The sign is not "%", so that the value also survives a proxy that decodes the path
	// before it splits it.
	escape := func(value string) string {
		return strings.ReplaceAll(strings.ReplaceAll(url.PathEscape(value), "~", "%7E"), "%", "~")
	}
	switch {
	case s.TenantID != "":
		return "tenant:" + escape(s.TenantID)
	case s.ProtocolID != "":
		return "protocol:" + escape(s.ProtocolID)
	case s.Lane != nil:
		return "lane:" + strconv.Itoa(*s.Lane)
	case s.Service != "":
		return "service:" + escape(s.Service)
	}
	return "all"
}

// ParseScope reads an id.
func ParseScope(id string) (Scope, error) {
	kind, escaped, _ := strings.Cut(id, ":")
	value, err := url.PathUnescape(strings.ReplaceAll(escaped, "~", "%"))
	switch {
	case err != nil:
	case id == "all":
		return Scope{}, nil
	case kind == "tenant" && value != "":
		return Scope{TenantID: value}, nil
	case kind == "protocol" && value != "":
		return Scope{ProtocolID: value}, nil
	case kind == "service" && value != "":
		return Scope{Service: value}, nil
	case kind == "lane":
		if lane, err := strconv.Atoi(value); err == nil && lane >= 0 {
			return Scope{Lane: &lane}, nil
		}
	}
	return Scope{}, fmt.Errorf("%q is not the id of a pause", id)
}
