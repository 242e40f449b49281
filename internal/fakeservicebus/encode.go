package fakeservicebus

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// appendValue appends the encoding of a value. It panics for a type that is not one
// of AMQP's, which would be a bug of this package.
func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, codeNull)
	case bool:
		if v {
			return append(b, codeTrue)
		}
		return append(b, codeFalse)
	case string:
		return appendBytes(b, codeString8, codeString32, []byte(v))
	case symbol:
		return appendBytes(b, codeSymbol8, codeSymbol32, []byte(v))
	case []byte:
		return appendBytes(b, codeBinary8, codeBinary32, v)
	case uuid:
		return append(append(b, codeUUID), v[:]...)
	case time.Time:
		return binary.BigEndian.AppendUint64(append(b, codeTimestamp), uint64(v.UnixMilli()))
	case opaque:
		return append(append(b, v.code), v.data...)
	case array:
		return append(b, v.raw...)
	case []any:
		return appendList(b, v)
	case pairs:
		return appendMap(b, v)
	case described:
		return appendValue(appendValue(append(b, codeDescribed), v.descriptor), v.value)
	default:
		return appendNumber(b, v)
	}
}

// appendNumber appends a number in its shortest encoding.
func appendNumber(b []byte, v any) []byte {
	order := binary.BigEndian
	switch v := v.(type) {
	case uint8:
		return append(b, codeUbyte, v)
	case uint16:
		return order.AppendUint16(append(b, codeUshort), v)
	case uint32:
		switch {
		case v == 0:
			return append(b, codeUint0)
		case v <= math.MaxUint8:
			return append(b, codeSmallUint, byte(v))
		}
		return order.AppendUint32(append(b, codeUint), v)
	case uint64:
		switch {
		case v == 0:
			return append(b, codeUlong0)
		case v <= math.MaxUint8:
			return append(b, codeSmallUlong, byte(v))
		}
		return order.AppendUint64(append(b, codeUlong), v)
	case float32:
		return order.AppendUint32(append(b, codeFloat), math.Float32bits(v))
	case float64:
		return order.AppendUint64(append(b, codeDouble), math.Float64bits(v))
	default:
		return appendSigned(b, v)
	}
}

// appendSigned appends a signed number in its shortest encoding.
func appendSigned(b []byte, v any) []byte {
	order := binary.BigEndian
	switch v := v.(type) {
	case int8:
		return append(b, codeByte, byte(v))
	case int16:
		return order.AppendUint16(append(b, codeShort), uint16(v))
	case int32:
		if v == int32(int8(v)) {
			return append(b, codeSmallInt, byte(v))
		}
		return order.AppendUint32(append(b, codeInt), uint32(v))
	case int64:
		if v == int64(int8(v)) {
			return append(b, codeSmallLong, byte(v))
		}
		return order.AppendUint64(append(b, codeLong), uint64(v))
	default:
		panic(fmt.Sprintf("fakeservicebus: no encoding for a %T", v))
	}
}

// appendBytes appends a value of variable length.
func appendBytes(b []byte, short, long byte, data []byte) []byte {
	if len(data) <= math.MaxUint8 {
		b = append(b, short, byte(len(data)))
	} else {
		b = binary.BigEndian.AppendUint32(append(b, long), uint32(len(data)))
	}
	return append(b, data...)
}

// appendList appends a list.
func appendList(b []byte, items []any) []byte {
	if len(items) == 0 {
		return append(b, codeList0)
	}
	b, start := openCompound(b, codeList32, len(items))
	for _, item := range items {
		b = appendValue(b, item)
	}
	return closeCompound(b, start)
}

// appendMap appends a map.
func appendMap(b []byte, entries pairs) []byte {
	b, start := openCompound(b, codeMap32, 2*len(entries))
	for _, entry := range entries {
		b = appendValue(appendValue(b, entry.key), entry.value)
	}
	return closeCompound(b, start)
}

// openCompound begins a compound of that many items; start is the offset of its size.
func openCompound(b []byte, code byte, count int) (opened []byte, start int) {
	b = append(b, code)
	start = len(b)
	b = append(b, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint32(b, uint32(count)), start
}

// closeCompound writes the size of the compound that began at start.
func closeCompound(b []byte, start int) []byte {
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// appendDescribed appends a value with a numeric descriptor. Clients accept the
// descriptor of a performative only as a small ulong.
func appendDescribed(b []byte, descriptor byte, value any) []byte {
	return appendValue(append(b, codeDescribed, codeSmallUlong, descriptor), value)
}
