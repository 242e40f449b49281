package fakeservicebus

import (
	"errors"
	"fmt"
)

// The descriptors of performatives, outcomes and sections.
//
// Source: AMQP 1.0, 2.7, 3.2, 3.4, 3.5 and 5.3.3.
const (
	performativeOpen        = 0x10
	performativeBegin       = 0x11
	performativeAttach      = 0x12
	performativeFlow        = 0x13
	performativeTransfer    = 0x14
	performativeDisposition = 0x15
	performativeDetach      = 0x16
	performativeEnd         = 0x17
	performativeClose       = 0x18

	describedError = 0x1d

	outcomeAccepted = 0x24
	outcomeRejected = 0x25
	outcomeReleased = 0x26
	outcomeModified = 0x27

	saslMechanisms = 0x40
	saslInit       = 0x41
	saslOutcome    = 0x44

	sectionHeader              = 0x70
	sectionDeliveryAnnotations = 0x71
	sectionMessageAnnotations  = 0x72
	sectionProperties          = 0x73
	sectionApplication         = 0x74
	sectionData                = 0x75
	sectionSequence            = 0x76
	sectionValue               = 0x77
	sectionFooter              = 0x78
)

// The roles of a link's end.
const (
	roleSender   = false
	roleReceiver = true
)

// fields are the fields of a performative. A list may be shorter than its schema;
// missing fields are null.
type fields []any

// errNotComposite is returned when a described list was expected.
var errNotComposite = errors.New("expected a described list")

// composite splits a described list into its descriptor and fields.
func composite(v any) (descriptor uint64, f fields, err error) {
	d, ok := v.(described)
	if !ok {
		return 0, nil, errNotComposite
	}
	descriptor, ok = d.descriptor.(uint64)
	if !ok {
		return 0, nil, fmt.Errorf("unknown descriptor %v", d.descriptor)
	}
	list, ok := d.value.([]any)
	if !ok {
		return 0, nil, errNotComposite
	}
	return descriptor, list, nil
}

// at returns the field, or nil.
func (f fields) at(i int) any {
	if i < len(f) {
		return f[i]
	}
	return nil
}

// text returns a field that is a string or a symbol, else an empty text.
func (f fields) text(i int) string { return textOf(f.at(i)) }

// isTrue reports whether a field is true.
func (f fields) isTrue(i int) bool {
	v, _ := f.at(i).(bool)
	return v
}

// number returns a field that is a uint, or the default for null.
func (f fields) number(i int, otherwise uint32) uint32 {
	if v, ok := f.at(i).(uint32); ok {
		return v
	}
	return otherwise
}

// handle returns the field that names a link.
func (f fields) handle(i int) (uint32, error) {
	v, ok := f.at(i).(uint32)
	if !ok {
		return 0, errors.New("the handle is missing")
	}
	return v, nil
}

// compositeAt returns the fields of a composite within a composite, such as the
// source of an attach; none if the field is not a composite.
func (f fields) compositeAt(i int) fields {
	if _, inner, err := composite(f.at(i)); err == nil {
		return inner
	}
	return nil
}

// outcome returns the described value of a delivery's outcome.
func outcome(descriptor byte, values ...any) described {
	return described{uint64(descriptor), values}
}

// errorValue returns an AMQP error.
func errorValue(condition, description string) described {
	return described{uint64(describedError), []any{symbol(condition), description}}
}
