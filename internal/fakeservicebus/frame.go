package fakeservicebus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The sizes and types of frames.
const (
	frameHeader  = 8
	maxFrame     = 65536 // bytes, in both directions
	minFrame     = 512   // the largest frame that every peer must accept
	frameAMQP    = 0
	frameSASL    = 1
	frameMargin  = 128 // the most bytes of a transfer besides its payload
	frameOffsets = 4   // bytes per unit of a frame's data offset
)

// errFrame is returned for bytes that are not a valid frame.
var errFrame = errors.New("malformed frame")

// frame is one received frame.
type frame struct {
	kind    byte
	channel uint16
	body    []byte
}

// readFrame reads the next frame. Its body belongs to the caller.
func readFrame(from io.Reader) (frame, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return frame{}, fmt.Errorf("read a frame: %w", err)
	}
	size := binary.BigEndian.Uint32(head[:])
	skipped := int(head[4])*frameOffsets - frameHeader
	if size > maxFrame || skipped < 0 || int(size)-frameHeader < skipped {
		return frame{}, fmt.Errorf("%w: size %d, data offset %d", errFrame, size, head[4])
	}
	body := make([]byte, size-frameHeader)
	if _, err := io.ReadFull(from, body); err != nil {
		return frame{}, fmt.Errorf("read a frame: %w", err)
	}
	return frame{kind: head[5], channel: binary.BigEndian.Uint16(head[6:]), body: body[skipped:]}, nil
}

// performative is a performative and the payload after it in its frame.
type performative struct {
	code    uint64
	fields  fields
	payload []byte
}

// decodePerformative reads the body of a frame.
func decodePerformative(body []byte) (performative, error) {
	d := decoder{data: body}
	v, err := d.value()
	if err != nil {
		return performative{}, fmt.Errorf("decode a performative: %w", err)
	}
	code, f, err := composite(v)
	if err != nil {
		return performative{}, fmt.Errorf("decode a performative: %w", err)
	}
	return performative{code: code, fields: f, payload: d.rest()}, nil
}

// appendFrame appends a frame with one performative and its payload.
func appendFrame(b []byte, kind byte, channel uint16, code byte, f fields, payload []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0, frameHeader/frameOffsets, kind)
	b = binary.BigEndian.AppendUint16(b, channel)
	b = appendDescribed(b, code, []any(f))
	b = append(b, payload...)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// appendEmptyFrame appends a keep-alive frame.
func appendEmptyFrame(b []byte) []byte {
	return append(b, 0, 0, 0, frameHeader, frameHeader/frameOffsets, frameAMQP, 0, 0)
}

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
