package fakeservicebus

import (
	"encoding/binary"
	"time"
)

// The values of AMQP that Go has no type for. A list is a []any, a binary is a
// []byte, a timestamp is a time.Time, null is nil, and the numbers are Go's of the
// same width.
type (
	// symbol is text of a fixed vocabulary.
	symbol string
	// uuid is a UUID, in the order of RFC 4122.
	uuid [16]byte
	// pair is one entry of a map.
	pair struct{ key, value any }
	// pairs is a map in the order of the wire, so that passing it on keeps the order.
	pairs []pair
	// described is a value with its descriptor.
	described struct{ descriptor, value any }
	// opaque is a value that is passed on undecoded: a char or a decimal.
	opaque struct {
		code byte
		data []byte
	}
	// array holds items of one type and their encoding.
	array struct {
		items []any
		raw   []byte
	}
)

// The codes of the encodings.
//
// Source: AMQP 1.0, 1.6.
const (
	codeDescribed  = 0x00
	codeNull       = 0x40
	codeTrue       = 0x41
	codeFalse      = 0x42
	codeUint0      = 0x43
	codeUlong0     = 0x44
	codeList0      = 0x45
	codeUbyte      = 0x50
	codeByte       = 0x51
	codeSmallUint  = 0x52
	codeSmallUlong = 0x53
	codeSmallInt   = 0x54
	codeSmallLong  = 0x55
	codeBoolean    = 0x56
	codeUshort     = 0x60
	codeShort      = 0x61
	codeUint       = 0x70
	codeInt        = 0x71
	codeFloat      = 0x72
	codeUlong      = 0x80
	codeLong       = 0x81
	codeDouble     = 0x82
	codeTimestamp  = 0x83
	codeUUID       = 0x98
	codeBinary8    = 0xa0
	codeString8    = 0xa1
	codeSymbol8    = 0xa3
	codeBinary32   = 0xb0
	codeString32   = 0xb1
	codeSymbol32   = 0xb3
	codeList8      = 0xc0
	codeMap8       = 0xc1
	codeList32     = 0xd0
	codeMap32      = 0xd1
	codeArray8     = 0xe0
	codeArray32    = 0xf0
)

// get returns the value of a text key, which may be a symbol on the wire, or nil if
// there is none.
func (p pairs) get(key string) any {
	for _, entry := range p {
		if textOf(entry.key) == key {
			return entry.value
		}
	}
	return nil
}

// with returns a copy with the key set to the value.
func (p pairs) with(key, value any) pairs {
	result := make(pairs, 0, len(p)+1)
	for _, entry := range p {
		if textOf(entry.key) != textOf(key) {
			result = append(result, entry)
		}
	}
	return append(result, pair{key, value})
}

// textOf returns a string or a symbol as text; anything else is empty.
func textOf(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case symbol:
		return string(v)
	default:
		return ""
	}
}

// symbols returns an array of symbols, each shorter than 256 bytes.
func symbols(names ...string) array {
	content := []byte{codeSymbol8}
	for _, name := range names {
		content = append(content, byte(len(name)))
		content = append(content, name...)
	}
	return array{raw: arrayOf(len(names), content)}
}

// timestamps returns an array of timestamps.
func timestamps(times []time.Time) array {
	content := []byte{codeTimestamp}
	for _, at := range times {
		content = binary.BigEndian.AppendUint64(content, uint64(at.UnixMilli()))
	}
	return array{raw: arrayOf(len(times), content)}
}

// arrayOf encodes an array: content is the constructor and the items.
func arrayOf(count int, content []byte) []byte {
	raw := []byte{codeArray32}
	raw = binary.BigEndian.AppendUint32(raw, uint32(4+len(content)))
	raw = binary.BigEndian.AppendUint32(raw, uint32(count))
	return append(raw, content...)
}
