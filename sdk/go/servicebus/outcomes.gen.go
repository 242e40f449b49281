// Code generated from pkg/servicebus/outcomes.go. DO NOT EDIT.

package servicebus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"

	"github.com/Azure/go-amqp"
)

// outcomeReader reads AMQP frames and rewrites one kind: the disposition that tells
// the outcome of a send. The SDK misreads some outcomes and does not expose them:
//
//	accepted                    success: stays as it is
//	released, modified          would pass for success: becomes rejected, to be retried
//	rejected, condition         stays as it is
//	  known to the SDK
//	rejected, condition         would pass for a broken connection: becomes rejected
//	  unknown to the SDK        as not allowed, with the condition as its description
//
// It passes everything else on unchanged. It serves one reader at a time.
//
// Source: AMQP 1.0, 2.3 (framing), 2.7.6 (disposition), 3.4 (delivery states).
type outcomeReader struct {
	in *bufio.Reader
	// pass is how many of the next bytes to pass on unchanged.
	pass int
	// changed is the rest of a frame that replaces the one read.
	changed []byte
}

// largestOutcome bounds the frames that are inspected: dispositions are smaller.
const largestOutcome = 1 << 14

// frameHead is the size of a frame's fixed head, and of a protocol header.
const frameHead = 8

// newOutcomeReader returns a reader of in.
func newOutcomeReader(in io.Reader) *outcomeReader {
	return &outcomeReader{in: bufio.NewReaderSize(in, 2*largestOutcome)}
}

// Read implements [io.Reader]. After an error such as a deadline's, the next call
// resumes at the same byte.
func (r *outcomeReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.changed) == 0 && r.pass == 0 {
		if err := r.frame(); err != nil {
			return 0, err
		}
	}
	if len(r.changed) > 0 {
		n := copy(p, r.changed)
		r.changed = r.changed[n:]
		return n, nil
	}
	n, err := r.in.Read(p[:min(len(p), r.pass)])
	r.pass -= n
	return n, err
}

// frame decides what to do with the next frame. It passes on truncated frames, and
// bytes that are no frame, for the SDK to reject.
func (r *outcomeReader) frame() error {
	next, err := r.in.Peek(frameHead)
	if err == nil {
		size := int(binary.BigEndian.Uint32(next))
		switch {
		case string(next[:4]) == "AMQP":
			r.pass = frameHead
			return nil
		case size < frameHead:
			r.pass = math.MaxInt
			return nil
		case size > largestOutcome:
			r.pass = size
			return nil
		}
		next, err = r.in.Peek(size)
	}
	if errors.Is(err, io.EOF) && len(next) > 0 {
		r.pass = len(next)
		return nil
	}
	if err != nil {
		return err
	}
	if r.changed = plainOutcome(next); r.changed == nil {
		r.pass = len(next)
		return nil
	}
	_, err = r.in.Discard(len(next))
	return err
}

// The descriptors of the types that the reader inspects.
//
// Source: AMQP 1.0, 2.7.6, 2.8.14 and 3.4.
const (
	descriptorDisposition = 0x15
	descriptorError       = 0x1d
	descriptorRejected    = 0x25
	descriptorReleased    = 0x26
	descriptorModified    = 0x27
)

// Conditions of Service Bus itself.
const (
	conditionServerBusy = amqp.ErrCond("com.microsoft:server-busy")
	conditionTimeout    = amqp.ErrCond("com.microsoft:timeout")
	conditionCancelled  = amqp.ErrCond("com.microsoft:operation-cancelled")
	conditionDisabled   = amqp.ErrCond("com.microsoft:entity-disabled")
)

// understood are the conditions of a rejection that the SDK reports as they are.
// It takes any other for a broken connection.
var understood = []amqp.ErrCond{
	conditionServerBusy, conditionTimeout, conditionCancelled, conditionDisabled,
	amqp.ErrCondResourceLimitExceeded, amqp.ErrCondMessageSizeExceeded, amqp.ErrCondUnauthorizedAccess,
	amqp.ErrCondNotFound, amqp.ErrCondNotAllowed,
}

// plainOutcome returns the frame to read instead of this one, or nil to leave it
// as it is. It leaves frames that it cannot parse.
func plainOutcome(frame []byte) []byte {
	if frame[5] != 0 {
		return nil // A SASL frame.
	}
	start := 4 * int(frame[4])
	if start < frameHead || start >= len(frame) {
		return nil
	}
	descriptor, body := described(frame[start:])
	fields := listOf(body)
	if descriptor != descriptorDisposition || len(fields) < 5 {
		return nil
	}
	if role := fields[0]; role[0] != codeTrue && (role[0] != codeBool || role[1] != 1) {
		return nil // Not about messages that this side sent.
	}
	condition, was := plainState(fields[4])
	if condition == "" {
		return nil
	}
	fields[4] = encodeDescribed(descriptorRejected, encodeList([][]byte{
		encodeDescribed(descriptorError, encodeList([][]byte{
			encodeText(codeSymbol, string(condition)), encodeText(codeString, was),
		})),
	}))
	changed := append(bytes.Clone(frame[:start]), encodeDescribed(descriptorDisposition, encodeList(fields))...)
	binary.BigEndian.PutUint32(changed, uint32(len(changed)))
	return changed
}

// plainState returns the condition of the rejection that replaces the state, empty
// if the state stays, and what the state was.
func plainState(state []byte) (condition amqp.ErrCond, was string) {
	descriptor, body := described(state)
	switch descriptor {
	case descriptorReleased:
		return conditionCancelled, "released"
	case descriptorModified:
		return conditionCancelled, "modified"
	case descriptorRejected:
	default:
		return "", ""
	}
	switch rejected := rejectedCondition(body); {
	case slices.Contains(understood, rejected):
		return "", ""
	case rejected == "":
		return amqp.ErrCondNotAllowed, "no reason given"
	case rejected == amqp.ErrCondInternalError:
		return conditionCancelled, string(rejected) // The broker's fault, not the message's.
	default:
		return amqp.ErrCondNotAllowed, string(rejected)
	}
}

// rejectedCondition returns the condition of a rejected state, empty if it has none.
func rejectedCondition(body []byte) amqp.ErrCond {
	fields := listOf(body)
	if len(fields) == 0 {
		return ""
	}
	descriptor, fault := described(fields[0])
	parts := listOf(fault)
	if descriptor != descriptorError || len(parts) == 0 {
		return ""
	}
	switch symbol := parts[0]; symbol[0] {
	case codeSymbol8:
		return amqp.ErrCond(symbol[2:])
	case codeSymbol:
		return amqp.ErrCond(symbol[5:])
	}
	return ""
}

// The constructors of AMQP's encoding that this package distinguishes. The high
// four bits of any other tell the size of its value.
//
// Source: AMQP 1.0, 1.2.
const (
	codeDescribed  = 0x00
	codeTrue       = 0x41
	codeSmallUlong = 0x53
	codeBool       = 0x56
	codeUlong      = 0x80
	codeSymbol8    = 0xa3
	codeString     = 0xb1
	codeSymbol     = 0xb3
	codeList8      = 0xc0
	codeList32     = 0xd0
)

// valueSize returns how many bytes the value at the beginning of b takes, 0 if b
// does not begin with a whole value. The descriptor and the value of a described
// value must not be described themselves.
func valueSize(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	if b[0] == codeDescribed {
		size := 1
		for range 2 {
			part := 0
			if size < len(b) && b[size] != codeDescribed {
				part = valueSize(b[size:])
			}
			if part == 0 {
				return 0
			}
			size += part
		}
		return size
	}
	size := 0
	switch half := b[0] >> 4; half {
	case 0x4:
		size = 1
	case 0x5, 0x6, 0x7, 0x8, 0x9:
		size = 1 + 1<<(half-0x5)
	case 0xa, 0xc, 0xe:
		if len(b) >= 2 {
			size = 2 + int(b[1])
		}
	case 0xb, 0xd, 0xf:
		if len(b) >= 5 && binary.BigEndian.Uint32(b[1:]) <= largestOutcome {
			size = 5 + int(binary.BigEndian.Uint32(b[1:]))
		}
	}
	if size > len(b) {
		return 0
	}
	return size
}

// described splits a described value whose descriptor is a number. The descriptor
// of anything else is 0.
func described(b []byte) (descriptor uint64, value []byte) {
	if valueSize(b) == 0 || b[0] != codeDescribed {
		return 0, nil
	}
	switch b[1] {
	case codeSmallUlong:
		return uint64(b[2]), b[3:]
	case codeUlong:
		return binary.BigEndian.Uint64(b[2:]), b[10:]
	}
	return 0, nil
}

// listOf splits a list into its items, which are still encoded. Anything else has
// no items.
func listOf(b []byte) (items [][]byte) {
	size := valueSize(b)
	switch {
	case size >= 3 && b[0] == codeList8:
		b = b[3:size]
	case size >= 9 && b[0] == codeList32:
		b = b[9:size]
	default:
		return nil
	}
	for len(b) > 0 {
		item := valueSize(b)
		if item == 0 {
			return nil
		}
		items, b = append(items, b[:item]), b[item:]
	}
	return items
}

// encodeText encodes a symbol or a string.
func encodeText(code byte, text string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{code}, uint32(len(text)))
	return append(b, text...)
}

// encodeList encodes a list of encoded items.
func encodeList(items [][]byte) []byte {
	body := bytes.Join(items, nil)
	b := binary.BigEndian.AppendUint32([]byte{codeList32}, uint32(4+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(items)))
	return append(b, body...)
}

// encodeDescribed encodes a value with its descriptor.
func encodeDescribed(descriptor byte, value []byte) []byte {
	return append([]byte{codeDescribed, codeSmallUlong, descriptor}, value...)
}
