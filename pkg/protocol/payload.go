package protocol

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/lucius-project/lucius/pkg/canonicaljson"
	"github.com/lucius-project/lucius/pkg/problem"
)

// MaxViolations is how many violations of one payload are named.
const MaxViolations = 100

// The bounds of the violations of one payload: a short schema can refuse every
// element of a long array.
const (
	maxMessage    = 300       // bytes of one message
	maxExplaining = 128 << 10 // bytes of all pointers and messages together
)

// ValidatePayload applies every step's schema to its part of the payload, which
// is a tree of [canonicaljson.Parse] and is not changed. Each violation points
// into the command: /payload/language. A violation that several steps find is
// named once; they are ordered by pointer. The list is empty if the payload is valid.
// At most [MaxViolations] are named; one more says that some are left out.
//
// If a step's pointer finds nothing, that is a violation for a step with a schema; a
// step without a schema then gets no payload.
//
// Source: Option B spec, 5.2, Step payload validation.
func (p *Protocol) ValidatePayload(payload any) []problem.Violation {
	var v violations
	complete := true
	for i := 0; i < len(p.Steps) && complete; i++ {
		complete = p.Steps[i].validate(payload, &v)
	}
	// The validator walks objects in random order.
	slices.SortFunc(v.list, func(a, b problem.Violation) int {
		return cmp.Or(strings.Compare(a.Pointer, b.Pointer), strings.Compare(a.Message, b.Message))
	})
	if !complete {
		v.list = append(v.list, problem.Violation{Pointer: "/payload", Message: "has more violations than these"})
	}
	return v.list
}

// validate adds the step's violations, and reports false if there is no room left.
func (s *Step) validate(payload any, v *violations) bool {
	if s.schema == nil {
		return true
	}
	base := jsontext.Pointer("/payload" + s.PayloadPointer)
	part, found := canonicaljson.Lookup(payload, s.PayloadPointer)
	if !found {
		return v.add(base, fmt.Sprintf("is required by the step %s", s.ID))
	}
	err := s.schema.Validate(part)
	if err == nil {
		return true
	}
	invalid, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return v.add(base, err.Error())
	}
	for finding := range explain(invalid) {
		pointer := base
		for _, token := range finding.location {
			pointer = pointer.AppendToken(token)
		}
		if !v.add(pointer, finding.message) {
			return false
		}
	}
	return true
}

// violations collects a bounded number of violations.
type violations struct {
	list []problem.Violation
	size int
}

// add adds a violation unless it is there already, and reports false without room.
func (v *violations) add(pointer jsontext.Pointer, message string) bool {
	violation := problem.Violation{Pointer: string(pointer), Message: truncate(message)}
	if slices.Contains(v.list, violation) {
		return true
	}
	v.size += len(violation.Pointer) + len(violation.Message)
	if len(v.list) == MaxViolations || v.size > maxExplaining {
		return false
	}
	v.list = append(v.list, violation)
	return true
}

// truncate cuts a message that quotes a long value.
func truncate(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	cut := maxMessage
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return strings.TrimSpace(message[:cut]) + "…"
}
