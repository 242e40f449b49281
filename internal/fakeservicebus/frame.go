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
