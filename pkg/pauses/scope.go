package pauses

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Scope is what a pause holds back: of its fields at most one is set, and none
// is all dispatch.
type Scope struct {
	TenantID   string
	ProtocolID string
	Lane       *int
}

// The kinds of scope, as ids begin.
const (
	kindAll      = "all"
	kindTenant   = "tenant"
	kindProtocol = "protocol"
	kindLane     = "lane"
)

// ID names the scope, and so its pause: "all", or "tenant:", "protocol:" or
// "lane:" and the value, in which what does not belong into a path is "~" and two
// hexadecimal digits.
func (s Scope) ID() string {
	switch {
	case s.TenantID != "":
		return kindTenant + ":" + escape(s.TenantID)
	case s.ProtocolID != "":
		return kindProtocol + ":" + escape(s.ProtocolID)
	case s.Lane != nil:
		return kindLane + ":" + strconv.Itoa(*s.Lane)
	}
	return kindAll
}

// ParseScope reads an id.
func ParseScope(id string) (Scope, error) {
	kind, escaped, _ := strings.Cut(id, ":")
	value, err := unescape(escaped)
	switch {
	case err != nil:
	case id == kindAll:
		return Scope{}, nil
	case kind == kindTenant && value != "":
		return Scope{TenantID: value}, nil
	case kind == kindProtocol && value != "":
		return Scope{ProtocolID: value}, nil
	case kind == kindLane:
		if lane, err := strconv.Atoi(value); err == nil && lane >= 0 {
			return Scope{Lane: &lane}, nil
		}
	}
	return Scope{}, fmt.Errorf("%q is not the id of a pause", id)
}

// escape makes a value fit for a path, also one that is decoded before it is
// taken apart: with another sign than "%".
func escape(value string) string {
	return strings.ReplaceAll(strings.ReplaceAll(url.PathEscape(value), "~", "%7E"), "%", "~")
}

// unescape undoes escape.
func unescape(escaped string) (string, error) {
	return url.PathUnescape(strings.ReplaceAll(escaped, "~", "%"))
}

// Subject is a directive, as far as scopes tell directives apart.
type Subject struct {
	TenantID   string
	ProtocolID string
	Lane       int
}

// Covers reports whether the scope holds the directive back.
func (s Scope) Covers(subject Subject) bool {
	switch {
	case s.TenantID != "":
		return s.TenantID == subject.TenantID
	case s.ProtocolID != "":
		return s.ProtocolID == subject.ProtocolID
	case s.Lane != nil:
		return *s.Lane == subject.Lane
	}
	return true
}
