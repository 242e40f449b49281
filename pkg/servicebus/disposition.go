package servicebus

import (
	"encoding/binary"

	"github.com/Azure/go-amqp"
)

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

// understood reports whether the SDK reports this condition of a rejection as it
// is. The SDK takes any other for a broken connection.
func understood(condition amqp.ErrCond) bool {
	switch condition {
	case conditionServerBusy, conditionTimeout, conditionCancelled, conditionDisabled,
		amqp.ErrCondResourceLimitExceeded, amqp.ErrCondMessageSizeExceeded, amqp.ErrCondUnauthorizedAccess,
		amqp.ErrCondNotFound, amqp.ErrCondNotAllowed:
		return true
	}
	return false
}

// plainOutcome returns the frame to read instead of this one, or nil to leave it
// as it is. It leaves frames that it cannot parse.
func plainOutcome(frame []byte) []byte {
	if len(frame) < frameHead || frame[5] != 0 {
		return nil // A SASL frame.
	}
	start := 4 * int(frame[4])
	if start < frameHead || start >= len(frame) {
		return nil
	}
	descriptor, body, ok := described(frame[start:])
	if !ok || descriptor != descriptorDisposition {
		return nil
	}
	fields, ok := listOf(body)
	if !ok || len(fields) < 5 || !isTrue(fields[0]) {
		return nil // Not about messages that this side sent.
	}
	condition, was := plainState(fields[4])
	if condition == "" {
		return nil
	}
	fields[4] = rejected(condition, was)
	return dispositionFrame(frame[:start], fields)
}

// plainState returns the condition of the rejection that replaces the state, empty
// if the state stays, and what the state was.
func plainState(state []byte) (condition amqp.ErrCond, was string) {
	descriptor, body, ok := described(state)
	if !ok {
		return "", ""
	}
	switch descriptor {
	case descriptorReleased:
		return conditionCancelled, "released"
	case descriptorModified:
		return conditionCancelled, "modified"
	case descriptorRejected:
		return plainRejection(rejection(body))
	}
	return "", ""
}

// plainRejection does the same for a rejection with that condition.
func plainRejection(was amqp.ErrCond) (condition amqp.ErrCond, text string) {
	switch {
	case understood(was):
		return "", ""
	case was == "":
		return amqp.ErrCondNotAllowed, "no reason given"
	case was == amqp.ErrCondInternalError:
		return conditionCancelled, string(was) // The broker's fault, not the message's.
	}
	return amqp.ErrCondNotAllowed, string(was)
}

// rejection returns the condition of a rejected state, empty if it has none.
func rejection(body []byte) amqp.ErrCond {
	fields, ok := listOf(body)
	if !ok || len(fields) == 0 {
		return ""
	}
	descriptor, inner, ok := described(fields[0])
	if !ok || descriptor != descriptorError {
		return ""
	}
	parts, ok := listOf(inner)
	if !ok || len(parts) == 0 {
		return ""
	}
	return amqp.ErrCond(symbolOf(parts[0]))
}

// rejected encodes a rejected state.
func rejected(condition amqp.ErrCond, description string) []byte {
	fault := encodeDescribed(descriptorError, encodeList([][]byte{
		encodeText(codeSymbol, string(condition)), encodeText(codeString, description),
	}))
	return encodeDescribed(descriptorRejected, encodeList([][]byte{fault}))
}

// dispositionFrame encodes a disposition after a copy of another frame's head.
func dispositionFrame(head []byte, fields [][]byte) []byte {
	frame := append([]byte(nil), head...)
	frame = append(frame, encodeDescribed(descriptorDisposition, encodeList(fields))...)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)))
	return frame
}
