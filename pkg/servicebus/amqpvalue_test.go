package servicebus_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/servicebus"
)

// The encoding of AMQP, as far as the frames of these tests need it.

// null, yes and no are values.
var null, yes, no = []byte{0x40}, []byte{0x41}, []byte{0x42}

// list8 and list32 are lists with small and with large heads.
func list8(items ...[]byte) []byte {
	body := bytes.Join(items, nil)
	return append([]byte{0xc0, byte(len(body) + 1), byte(len(items))}, body...)
}

func list32(items ...[]byte) []byte {
	body := bytes.Join(items, nil)
	b := binary.BigEndian.AppendUint32([]byte{0xd0}, uint32(len(body)+4))
	return append(binary.BigEndian.AppendUint32(b, uint32(len(items))), body...)
}

// symbol8 is a short symbol.
func symbol8(text string) []byte { return append([]byte{0xa3, byte(len(text))}, text...) }

// symbol32 and string32 are texts with large heads.
func symbol32(text string) []byte { return text32(0xb3, text) }
func string32(text string) []byte { return text32(0xb1, text) }

func text32(code byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{code}, uint32(len(text))), text...)
}

// described8 and described64 are values with small and with large descriptors.
func described8(descriptor byte, value []byte) []byte {
	return append([]byte{0x00, 0x53, descriptor}, value...)
}

func described64(descriptor byte, value []byte) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{0x00, 0x80}, uint64(descriptor)), value...)
}

// Whatever else a disposition holds, and however it is encoded, is kept.
func TestPlain_KeepsTheOtherFieldsAsTheyAreEncoded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		field []byte
	}{
		{"null", null},
		{"an empty list", []byte{0x45}},
		{"one byte", []byte{0x52, 7}},
		{"two bytes", []byte{0x60, 0, 7}},
		{"four bytes", []byte{0x70, 0, 0, 0, 7}},
		{"eight bytes", []byte{0x80, 0, 0, 0, 0, 0, 0, 0, 7}},
		{"sixteen bytes", append([]byte{0x98}, make([]byte, 16)...)},
		{"a short binary", []byte{0xa0, 2, 1, 2}},
		{"a long binary", []byte{0xb0, 0, 0, 0, 2, 1, 2}},
		{"an empty text", []byte{0xa1, 0}},
		{"a list", list8(yes, no)},
		{"a long list", list32(yes, no)},
		{"a short array", []byte{0xe0, 4, 2, 0x50, 1, 2}},
		{"a long array", []byte{0xf0, 0, 0, 0, 7, 0, 0, 0, 2, 0x50, 1, 2}},
		{"a described value", described8(0x29, list8(null))},
		{"a described value, large", described64(0x29, list32(null))},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := frame(disposition(list8(yes, test.field, null, yes, released, test.field)))
			want := frame(described8(0x15, list32(yes, test.field, null, yes, rejection(cancelled, "released"), test.field)))
			if got := plain(t, in); !bytes.Equal(got, want) {
				t.Errorf("read\n%x, want\n%x", got, want)
			}
		})
	}
}

// What cannot be read is for the SDK to complain about.
func TestPlain_LeavesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	whole := disposition(list8(yes, null, null, yes, released))
	for _, test := range []struct {
		name string
		body []byte
	}{
		{"a descriptor that is a symbol", append(append([]byte{0x00}, symbol8("amqp:disposition:list")...), list8(yes, null, null, yes, released)...)},
		{"a descriptor with a descriptor", append([]byte{0x00, 0x00, 0x53, 0x15}, list8(yes, null, null, yes, released)...)},
		{"a value with two descriptors", described8(0x15, whole)},
		{"a descriptor and no value", []byte{0x00, 0x53, 0x15}},
		{"half a descriptor", []byte{0x00, 0x53}},
		{"no descriptor", list8(yes, null, null, yes, released)},
		{"not a list", described8(0x15, symbol8("disposition"))},
		{"a map", described8(0x15, append([]byte{0xc1}, list8(yes, null, null, yes, released)[1:]...))},
		{"an empty list", described8(0x15, []byte{0x45})},
		{"a list without its count", described8(0x15, []byte{0xc0, 0})},
		{"a long list without its count", described8(0x15, []byte{0xd0, 0, 0, 0, 3, 0, 0, 0})},
		{"a list that is longer than its frame", described8(0x15, []byte{0xc0, 200, 5, 0x41, 0x40, 0x40, 0x41})},
		{"a long list that is longer than its frame", described8(0x15, []byte{0xd0, 0, 0, 1, 0, 0, 0, 0, 5, 0x41})},
		{"a long list of four gigabytes", described8(0x15, []byte{0xd0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 5, 0x41})},
		{"a list with half an item", described8(0x15, list8(yes, null, null, yes, []byte{0x70, 0}))},
		{"a list with an item that does not exist", described8(0x15, list8(yes, null, null, []byte{0x10}, released))},
		{"a state without its value", described8(0x15, list8(yes, null, null, yes, []byte{0x00, 0x53, 0x26}))},
		{"a state that is null", described8(0x15, list8(yes, null, null, yes, null))},
		{"a state that is a number", described8(0x15, list8(yes, null, null, yes, []byte{0x53, 0x26}))},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := frame(test.body)
			if got := plain(t, in); !bytes.Equal(got, in) {
				t.Errorf("read\n%x, want it unchanged:\n%x", got, in)
			}
		})
	}
}

// A rejection whose reason cannot be read is a rejection without a reason.
func TestPlain_ARejectionWithoutAReason(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		value []byte // of the rejected state
	}{
		{"no fields", []byte{0x45}},
		{"no fields, in a small list", list8()},
		{"null", list8(null)},
		{"an error without fields", list8(described8(0x1d, []byte{0x45}))},
		{"an error that is no list", list8(described8(0x1d, symbol8("x")))},
		{"something else for an error", list8(described8(0x24, []byte{0x45}))},
		{"a condition that is a string", list8(described8(0x1d, list8([]byte{0xa1, 1, 'x'})))},
		{"an empty condition", list8(described8(0x1d, list8(symbol8(""))))},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := outcome(described8(0x25, test.value))
			want := changed(rejection("amqp:not-allowed", "no reason given"))
			if got := plain(t, in); !bytes.Equal(got, want) {
				t.Errorf("read\n%x, want\n%x", got, want)
			}
		})
	}
}

// Frames are looked at up to a size that no disposition has.
func TestPlain_LooksAtFramesUpToTheLargest(t *testing.T) {
	t.Parallel()
	sized := func(size int) []byte {
		text := ""
		rejectedWith := func() []byte {
			return outcome(described8(0x25, list32(described8(0x1d, list32(symbol8("com.example:new"), string32(text))))))
		}
		text = strings.Repeat("x", size-len(rejectedWith()))
		return rejectedWith()
	}
	largest := sized(servicebus.LargestOutcome)
	if got, want := plain(t, largest), changed(rejection("amqp:not-allowed", "com.example:new")); !bytes.Equal(got, want) {
		t.Errorf("the largest was read as\n%x, want\n%x", got, want)
	}
	larger := sized(servicebus.LargestOutcome + 1)
	if got := plain(t, slices.Concat(larger, largest, larger)); !bytes.Equal(got,
		slices.Concat(larger, changed(rejection("amqp:not-allowed", "com.example:new")), larger)) {
		t.Error("a larger one did not pass as it came")
	}
}
