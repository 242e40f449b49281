package namespace

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Rule is a rule of a subscription, which takes the messages that pass one of its rules.
type Rule struct {
	Name string
	// SQL is the expression of an SQL filter; "1=1" takes every message. Empty for a
	// correlation filter.
	SQL string
	// Properties are the application properties that a correlation filter compares, and
	// System the properties of the message itself, by the names of the SDK.
	Properties map[string]any
	System     map[string]string
}

// Everything is the expression of a filter that takes every message, and Nothing of one
// that takes none.
const (
	Everything = "1=1"
	Nothing    = "1=0"
)

// coverage says which of the directives of one kind pass a filter.
type coverage int

// The coverages, in order.
const (
	none coverage = iota
	some          // some of them, or this check cannot tell
	all
)

// takes returns which directives of that kind pass the rule.
func (r *Rule) takes(d Directive) coverage {
	if r.SQL != "" {
		return r.sqlTakes(d)
	}
	passed := all
	for name, want := range r.Properties {
		passed = min(passed, compare(name, want, d))
	}
	for name, want := range r.System {
		passed = min(passed, compare(name, want, d))
	}
	return passed
}

// compare returns which directives of that kind have the value as the property. The
// names differ in their case between application and system properties.
func compare(name string, want any, d Directive) coverage {
	have := ""
	switch name {
	case "service":
		have = d.Service
	case "step_type", "Subject":
		have = d.StepType
	case "ContentType":
		have = "application/json"
	case "tenant_id", "jobId", "attempt_no", "traceparent", "CorrelationID", "MessageID":
		return some // These differ from directive to directive.
	}
	if have != "" && want == have {
		return all
	}
	return none
}

// comparison matches the expression that compares one property of directives with one
// or more literals.
var comparison = regexp.MustCompile(`(?i)^\s*(?:user\.)?\[?(service|step_type|sys\.label)\]?\s*` +
	`(?:=\s*('[^']*')|IN\s*\(\s*('[^']*'(?:\s*,\s*'[^']*')*)\s*\))\s*$`)

// sqlTakes evaluates the expressions that are in common use. Any other counts as taking
// some directives.
func (r *Rule) sqlTakes(d Directive) coverage {
	switch strings.ReplaceAll(r.SQL, " ", "") {
	case Everything:
		return all
	case Nothing:
		return none
	}
	parts := comparison.FindStringSubmatch(r.SQL)
	if parts == nil {
		return some
	}
	have := d.StepType
	if strings.EqualFold(parts[1], "service") {
		have = d.Service
	}
	for literal := range strings.SplitSeq(parts[2]+parts[3], ",") {
		if strings.Trim(literal, " '") == have {
			return all
		}
	}
	return none
}

// String returns the rule for an operator.
func (r *Rule) String() string {
	if r.SQL != "" {
		return r.Name + ": " + r.SQL
	}
	var conditions []string
	for _, name := range slices.Sorted(maps.Keys(r.Properties)) {
		conditions = append(conditions, fmt.Sprintf("%s = %#v", name, r.Properties[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(r.System)) {
		conditions = append(conditions, fmt.Sprintf("%s = %q", name, r.System[name]))
	}
	return r.Name + ": " + strings.Join(conditions, " and ")
}

// takes returns which directives of that kind the subscription takes.
func (s *SubscriptionState) takes(d Directive) coverage {
	passed := none
	for i := range s.Rules {
		passed = max(passed, s.Rules[i].takes(d))
	}
	return passed
}

// rules returns the subscription's rules for an operator.
func (s *SubscriptionState) rules() string {
	texts := make([]string, len(s.Rules))
	for i := range s.Rules {
		texts[i] = s.Rules[i].String()
	}
	return strings.Join(texts, "; ")
}
