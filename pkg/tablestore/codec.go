package tablestore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// codecVersion is the first byte of all encoded properties.
const codecVersion = 2

// Names numbers property names from 1, so that the rows of a local driver need not
// spell them. It does not change; a nil *Names has no names.
type Names struct {
	list    []string
	numbers map[string]uint64
}

// NewNames numbers the names in their order, and takes ownership of the list. The
// error wraps [ErrCorrupt] if a name occurs twice.
func NewNames(list []string) (*Names, error) {
	n := &Names{list: list, numbers: make(map[string]uint64, len(list))}
	for i, name := range list {
		n.numbers[name] = uint64(i + 1)
	}
	if len(n.numbers) != len(list) {
		return nil, fmt.Errorf("%w: a property name has two numbers", ErrCorrupt)
	}
	return n, nil
}

// List returns the names in the order of their numbers. It belongs to n.
func (n *Names) List() []string {
	if n == nil {
		return nil
	}
	return n.list
}

// Number returns a name's number, or 0 if it has none.
func (n *Names) Number(name string) uint64 {
	if n == nil {
		return 0
	}
	return n.numbers[name]
}

// EncodeProperties appends the properties to dst in the binary format of local
// drivers: a version byte, the count, and for each property its kind, name and
// value. A name is its number, or 0 and its text if it has none. Numbers are varints;
// texts are preceded by their length. The order of the properties is kept.
// spelled reports whether a name had no number.
func EncodeProperties(dst []byte, properties Properties, names *Names) (encoded []byte, spelled bool) {
	const numbers = 1 + 3 + binary.MaxVarintLen64 // of one property: kind, name's number and length, number or length
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
		number := names.Number(p.Name)
		dst = binary.AppendUvarint(dst, number)
		if number == 0 {
			spelled = true
			dst = binary.AppendUvarint(dst, uint64(len(p.Name)))
			dst = append(dst, p.Name...)
		}
		if p.Value.kind == KindString {
			dst = binary.AppendUvarint(dst, uint64(len(p.Value.str)))
			dst = append(dst, p.Value.str...)
		} else {
			dst = binary.AppendVarint(dst, p.Value.num)
		}
	}
	return dst, spelled
}

// DecodeProperties returns the properties that [EncodeProperties] wrote with these
// names, or with fewer of them. They share no memory with data. The error wraps
// [ErrCorrupt].
func DecodeProperties(data []byte, names *Names) (Properties, error) {
	if len(data) == 0 || data[0] != codecVersion {
		return nil, fmt.Errorf("%w: unknown version of the encoding", ErrCorrupt)
	}
	// All texts are substrings of one copy.
	d := decoder{data: data[1:], text: string(data[1:]), names: names.List()}
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
	data  []byte
	text  string
	names []string
	at    int
	bad   bool
}

func (d *decoder) property() Property {
	kind := Kind(d.byte())
	p := Property{Name: d.name()}
	switch kind {
	case KindString:
		p.Value = String(d.string())
		d.bad = d.bad || !utf8.ValidString(p.Value.str)
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

func (d *decoder) name() string {
	switch number := d.uvarint(); {
	case number == 0:
		return d.string()
	case number <= uint64(len(d.names)):
		return d.names[number-1]
	default:
		d.bad = true
		return ""
	}
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
