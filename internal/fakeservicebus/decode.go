package fakeservicebus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// The limits of the decoder.
const (
	maxDepth      = 32      // of compounds within compounds
	maxZeroWidths = 1 << 12 // of items of an array that take no bytes
)

var (
	errShort   = errors.New("the value ends too early")
	errDeep    = errors.New("compounds are nested too deeply")
	errCount   = errors.New("a compound has more items than bytes")
	errOddMap  = errors.New("a map has a key without a value")
	errNoWidth = errors.New("an array has too many empty items")
)

// decoder decodes values one after another. They may share memory with the data.
type decoder struct {
	data  []byte
	at    int
	depth int
}

// rest returns the data that was not decoded yet.
func (d *decoder) rest() []byte { return d.data[d.at:] }

// take returns the next n bytes.
func (d *decoder) take(n int) ([]byte, error) {
	if n < 0 || n > len(d.data)-d.at {
		return nil, errShort
	}
	taken := d.data[d.at : d.at+n : d.at+n]
	d.at += n
	return taken, nil
}

// value reads the next value.
func (d *decoder) value() (any, error) {
	code, err := d.take(1)
	if err != nil {
		return nil, err
	}
	return d.valueOf(code[0])
}

// valueOf reads a value whose code has been read.
func (d *decoder) valueOf(code byte) (any, error) {
	if d.depth >= maxDepth {
		return nil, errDeep
	}
	d.depth++
	defer func() { d.depth-- }()
	if code == codeDescribed {
		return d.described()
	}
	width, err := d.width(code)
	if err != nil {
		return nil, err
	}
	data, err := d.take(width)
	if err != nil {
		return nil, err
	}
	switch code >> 4 {
	case 0x4:
		return emptyValue(code)
	case 0xa, 0xb:
		return variableValue(code, data)
	case 0xc, 0xd:
		return d.compound(code, data)
	case 0xe, 0xf:
		return d.array(code, data)
	default:
		return fixedValue(code, data), nil
	}
}

// described reads the descriptor and the value.
func (d *decoder) described() (any, error) {
	descriptor, err := d.value()
	if err != nil {
		return nil, err
	}
	value, err := d.value()
	if err != nil {
		return nil, err
	}
	return described{descriptor, value}, nil
}

// width returns how many bytes the value has after its size field, if it has one.
func (d *decoder) width(code byte) (int, error) {
	switch code >> 4 {
	case 0x4:
		return 0, nil
	case 0x5, 0x6, 0x7, 0x8, 0x9:
		return 1 << (code>>4 - 0x5), nil
	case 0xa, 0xc, 0xe:
		size, err := d.take(1)
		if err != nil {
			return 0, err
		}
		return int(size[0]), nil
	case 0xb, 0xd, 0xf:
		size, err := d.take(4)
		if err != nil {
			return 0, err
		}
		return int(binary.BigEndian.Uint32(size)), nil
	default:
		return 0, unknownCode(code)
	}
}

// unknownCode returns the error for a code that AMQP does not define.
func unknownCode(code byte) error { return fmt.Errorf("unknown encoding 0x%02x", code) }

// emptyValue returns the value of a code without data.
func emptyValue(code byte) (any, error) {
	switch code {
	case codeNull:
		return nil, nil //nolint:nilnil // null is a value
	case codeTrue:
		return true, nil
	case codeFalse:
		return false, nil
	case codeUint0:
		return uint32(0), nil
	case codeUlong0:
		return uint64(0), nil
	case codeList0:
		return []any{}, nil
	default:
		return nil, unknownCode(code)
	}
}

// fixedValue returns a value of fixed width. Types that are not decoded are opaque.
func fixedValue(code byte, data []byte) any {
	order := binary.BigEndian
	switch code {
	case codeUbyte:
		return data[0]
	case codeByte:
		return int8(data[0])
	case codeSmallUint:
		return uint32(data[0])
	case codeSmallUlong:
		return uint64(data[0])
	case codeSmallInt:
		return int32(int8(data[0]))
	case codeSmallLong:
		return int64(int8(data[0]))
	case codeBoolean:
		return data[0] != 0
	case codeUshort:
		return order.Uint16(data)
	case codeShort:
		return int16(order.Uint16(data))
	case codeUint:
		return order.Uint32(data)
	case codeInt:
		return int32(order.Uint32(data))
	case codeFloat:
		return math.Float32frombits(order.Uint32(data))
	case codeUlong:
		return order.Uint64(data)
	case codeLong:
		return int64(order.Uint64(data))
	case codeDouble:
		return math.Float64frombits(order.Uint64(data))
	case codeTimestamp:
		return time.UnixMilli(int64(order.Uint64(data))).UTC()
	case codeUUID:
		return uuid(data)
	default:
		return opaque{code, data}
	}
}

// variableValue returns a value of variable length.
func variableValue(code byte, data []byte) (any, error) {
	switch code {
	case codeBinary8, codeBinary32:
		return data, nil
	case codeString8, codeString32:
		return string(data), nil
	case codeSymbol8, codeSymbol32:
		return symbol(data), nil
	default:
		return nil, unknownCode(code)
	}
}

// inside returns a decoder for the content of a compound, and its count.
func (d *decoder) inside(wide bool, data []byte) (*decoder, int, error) {
	inner := &decoder{data: data, depth: d.depth}
	width := 1
	if wide {
		width = 4
	}
	count, err := inner.take(width)
	if err != nil {
		return nil, 0, err
	}
	if wide {
		return inner, int(binary.BigEndian.Uint32(count)), nil
	}
	return inner, int(count[0]), nil
}

// compound returns a list or a map.
func (d *decoder) compound(code byte, data []byte) (any, error) {
	inner, count, err := d.inside(code>>4 == 0xd, data)
	if err != nil {
		return nil, err
	}
	if count > len(inner.rest()) {
		return nil, errCount
	}
	items := make([]any, count)
	for i := range items {
		if items[i], err = inner.value(); err != nil {
			return nil, err
		}
	}
	switch code {
	case codeList8, codeList32:
		return items, nil
	case codeMap8, codeMap32:
		return mapOf(items)
	default:
		return nil, unknownCode(code)
	}
}

// mapOf makes a map of keys and values in turn.
func mapOf(items []any) (any, error) {
	if len(items)%2 != 0 {
		return nil, errOddMap
	}
	entries := make(pairs, 0, len(items)/2)
	for i := 0; i < len(items); i += 2 {
		entries = append(entries, pair{items[i], items[i+1]})
	}
	return entries, nil
}

// array returns an array. Its items share the constructor before the first.
func (d *decoder) array(code byte, data []byte) (any, error) {
	if code != codeArray8 && code != codeArray32 {
		return nil, unknownCode(code)
	}
	inner, count, err := d.inside(code == codeArray32, data)
	if err != nil {
		return nil, err
	}
	constructor, err := inner.take(1)
	if err != nil {
		return nil, err
	}
	items, err := inner.items(constructor[0], count)
	if err != nil {
		return nil, err
	}
	return array{items: items, raw: rawArray(code, data)}, nil
}

// items decodes that many values of one constructor.
func (d *decoder) items(constructor byte, count int) ([]any, error) {
	var descriptor any
	isDescribed := constructor == codeDescribed
	if isDescribed {
		var err error
		if descriptor, err = d.value(); err != nil {
			return nil, err
		}
		next, err := d.take(1)
		if err != nil {
			return nil, err
		}
		constructor = next[0]
	}
	switch {
	case constructor>>4 == 0x4 && count > maxZeroWidths:
		return nil, errNoWidth
	case constructor>>4 != 0x4 && count > len(d.rest()):
		return nil, errCount
	}
	items := make([]any, count)
	for i := range items {
		item, err := d.valueOf(constructor)
		if err != nil {
			return nil, err
		}
		if isDescribed {
			item = described{descriptor, item}
		}
		items[i] = item
	}
	return items, nil
}

// rawArray encodes the array as it was read.
func rawArray(code byte, data []byte) []byte {
	if code == codeArray8 {
		return append([]byte{code, byte(len(data))}, data...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{code}, uint32(len(data))), data...)
}
