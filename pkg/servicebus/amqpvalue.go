package servicebus

import "encoding/binary"

// The constructors of AMQP's encoding that this package distinguishes. The high
// four bits of any other tell the size of its value.
//
// Source: AMQP 1.0, 1.2.
const (
	codeDescribed  = 0x00
	codeTrue       = 0x41
	codeList0      = 0x45
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
// does not begin with a whole value.
func valueSize(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	if b[0] == codeDescribed {
		return describedSize(b)
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

// describedSize does the same for a described value. Its descriptor and its value
// must not be described themselves.
func describedSize(b []byte) int {
	if len(b) < 2 || b[1] == codeDescribed {
		return 0
	}
	descriptor := valueSize(b[1:])
	if descriptor == 0 || len(b) < 2+descriptor || b[1+descriptor] == codeDescribed {
		return 0
	}
	value := valueSize(b[1+descriptor:])
	if value == 0 {
		return 0
	}
	return 1 + descriptor + value
}

// described splits a described value whose descriptor is a number.
func described(b []byte) (descriptor uint64, value []byte, ok bool) {
	if valueSize(b) == 0 || b[0] != codeDescribed {
		return 0, nil, false
	}
	switch b[1] {
	case codeSmallUlong:
		return uint64(b[2]), b[3:], true
	case codeUlong:
		return binary.BigEndian.Uint64(b[2:]), b[10:], true
	}
	return 0, nil, false
}

// listOf splits a list into its items, which are still encoded.
func listOf(b []byte) (items [][]byte, ok bool) {
	size := valueSize(b)
	switch {
	case size == 0:
		return nil, false
	case b[0] == codeList0:
		return nil, true
	case b[0] == codeList8 && size >= 3:
		b = b[3:size]
	case b[0] == codeList32 && size >= 9:
		b = b[9:size]
	default:
		return nil, false
	}
	for len(b) > 0 {
		item := valueSize(b)
		if item == 0 {
			return nil, false
		}
		items, b = append(items, b[:item]), b[item:]
	}
	return items, true
}

// isTrue reports whether the value is true.
func isTrue(b []byte) bool {
	return b[0] == codeTrue || b[0] == codeBool && b[1] == 1
}

// symbolOf returns the text of a symbol, empty for anything else.
func symbolOf(b []byte) string {
	switch b[0] {
	case codeSymbol8:
		return string(b[2:])
	case codeSymbol:
		return string(b[5:])
	}
	return ""
}

// encodeText encodes a symbol or a string.
func encodeText(code byte, text string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{code}, uint32(len(text)))
	return append(b, text...)
}

// encodeList encodes a list of encoded items.
func encodeList(items [][]byte) []byte {
	size := 4
	for _, item := range items {
		size += len(item)
	}
	b := binary.BigEndian.AppendUint32([]byte{codeList32}, uint32(size))
	b = binary.BigEndian.AppendUint32(b, uint32(len(items)))
	for _, item := range items {
		b = append(b, item...)
	}
	return b
}

// encodeDescribed encodes a value with its descriptor.
func encodeDescribed(descriptor byte, value []byte) []byte {
	return append([]byte{codeDescribed, codeSmallUlong, descriptor}, value...)
}
