package tablestore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// codecVersion is the first byte of all encoded properties.
const codecVersion = 1

// EncodeProperties appends the properties to dst in the binary format of local
// drivers: a version byte, the count, and for each property its kind, name and
// value. Numbers are varints; texts and bytes are preceded by their length. The
// order of the properties is kept.
func EncodeProperties(dst []byte, properties Properties) []byte {
	const numbers = 1 + 2 + binary.MaxVarintLen64 // of one property: kind, length of its name, number or length
	size := 1 + binary.MaxVarintLen64
	for i := range properties {
		p := &properties[i]
		size += numbers + len(p.Name) + len(p.Value.str)
	}
	dst = slices.Grow(dst, size)
	dst = append(dst, codecVersion)
	dst = binary.AppendUvarint(dst, uint64(len(properties)))
	for i := range properties {
		p := &properties[i]
		dst = append(dst, byte(p.Value.kind))
		dst = binary.AppendUvarint(dst, uint64(len(p.Name)))
		dst = append(dst, p.Name...)
		switch p.Value.kind {
		case KindString, KindBytes:
			dst = binary.AppendUvarint(dst, uint64(len(p.Value.str)))
			dst = append(dst, p.Value.str...)
		default:
			dst = binary.AppendVarint(dst, p.Value.num)
		}
	}
	return dst
}

// DecodeProperties returns the properties that [EncodeProperties] wrote. They
// share no memory with data. The error wraps [ErrCorrupt].
func DecodeProperties(data []byte) (Properties, error) {
	if len(data) == 0 || data[0] != codecVersion {
		return nil, fmt.Errorf("%w: unknown version of the encoding", ErrCorrupt)
	}
	// All texts are substrings of one copy.
	d := decoder{data: data[1:], text: string(data[1:])}
	count := d.uvarint()
	// Kind, length and value take at least one byte each, so a greater count is
	// wrong and must not size the slice.
	if count > uint64(len(data)/3) {
		return nil, fmt.Errorf("%w: %d properties in %d bytes", ErrCorrupt, count, len(data))
	}
	properties := make(Properties, 0, count)
	for range count {
		properties = append(properties, d.property())
	}
	if d.bad || d.at != len(d.data) {
		return nil, fmt.Errorf("%w: malformed at byte %d of %d", ErrCorrupt, d.at+1, len(data))
	}
	return properties, nil
}

// decoder reads from data and records the first fault; its results after that
// are meaningless.
type decoder struct {
	data []byte
	text string
	at   int
	bad  bool
}

func (d *decoder) property() Property {
	kind := Kind(d.byte())
	p := Property{Name: d.string()}
	switch kind {
	case KindString:
		p.Value = String(d.string())
		d.bad = d.bad || !utf8.ValidString(p.Value.str)
	case KindBytes:
		p.Value = Value{kind: kind, str: d.string()}
	case KindInt, KindTime:
		p.Value = Value{kind: kind, num: d.varint()}
	case KindBool:
		p.Value = Value{kind: kind, num: d.varint()}
		d.bad = d.bad || p.Value.num&^1 != 0
	default:
		d.bad = true
	}
	return p
}

func (d *decoder) byte() byte {
	if d.bad || d.at >= len(d.data) {
		d.bad = true
		return 0
	}
	d.at++
	return d.data[d.at-1]
}

func (d *decoder) uvarint() uint64 {
	n, size := binary.Uvarint(d.data[d.at:])
	d.advance(size)
	return n
}

func (d *decoder) varint() int64 {
	n, size := binary.Varint(d.data[d.at:])
	d.advance(size)
	return n
}

func (d *decoder) advance(size int) {
	if size <= 0 {
		d.bad = true
		return
	}
	d.at += size
}

func (d *decoder) string() string {
	n := d.uvarint()
	if d.bad || n > uint64(len(d.data)-d.at) {
		d.bad = true
		return ""
	}
	s := d.text[d.at : d.at+int(n)]
	d.at += int(n)
	return s
}
