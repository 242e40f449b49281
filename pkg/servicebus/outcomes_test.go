package servicebus_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/lucius-project/lucius/pkg/servicebus"
)

// header is the protocol header with which both sides begin.
var header = []byte{'A', 'M', 'Q', 'P', 0, 1, 0, 0}

// conversation returns what a peer sends, frame by frame, and how each is read.
func conversation() (in, out [][]byte) {
	in = [][]byte{
		{'A', 'M', 'Q', 'P', 3, 1, 0, 0}, header, frame(nil), frame(described8(0x10, list8(string32("peer")))),
		outcome(accepted), outcome(released), outcome(rejectedFor("com.example:new")), frame(nil), outcome(modified),
		frame(append(described8(0x14, list8(null)), bytes.Repeat([]byte("x"), servicebus.LargestOutcome)...)), outcome(accepted),
	}
	out = slices.Clone(in)
	out[5] = changed(rejection(cancelled, "released"))
	out[6] = changed(rejection("amqp:not-allowed", "com.example:new"))
	out[8] = changed(rejection(cancelled, "modified"))
	return in, out
}

// The result does not depend on how the bytes arrive or how many are asked for.
func TestOutcomeReader_ReadsTheSameInAnyPieces(t *testing.T) {
	t.Parallel()
	in, out := conversation()
	stream, want := slices.Concat(in...), slices.Concat(out...)
	for _, test := range []struct {
		name string
		in   io.Reader
	}{
		{"at once", bytes.NewReader(stream)},
		{"byte by byte", iotest.OneByteReader(bytes.NewReader(stream))},
		{"by halves", iotest.HalfReader(bytes.NewReader(stream))},
		{"the end with the last bytes", iotest.DataErrReader(bytes.NewReader(stream))},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := io.ReadAll(servicebus.NewOutcomeReader(test.in))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v, read\n%x, want\n%x", err, got, want)
			}
		})
	}
	t.Run("asked for byte by byte", func(t *testing.T) {
		t.Parallel()
		got, err := io.ReadAll(iotest.OneByteReader(servicebus.NewOutcomeReader(bytes.NewReader(stream))))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v, read\n%x, want\n%x", err, got, want)
		}
	})
}

// A connection may end anywhere. The bytes received so far are passed on, and a truncated
// frame stays unchanged.
func TestOutcomeReader_AConnectionThatEndsAnywhere(t *testing.T) {
	t.Parallel()
	for _, state := range [][]byte{accepted, released, modified, rejectedFor("com.example:new")} {
		in := slices.Concat(header, outcome(state))
		want := slices.Concat(header, plain(t, outcome(state)))
		for cut := range len(in) {
			if got := plain(t, in[:cut]); !bytes.Equal(got, in[:cut]) {
				t.Errorf("cut at %d, %x was read as %x", cut, in[:cut], got)
			}
			after := slices.Concat(in, in[:cut])
			if cut > len(header) { // The next header is whole.
				after = slices.Concat(in, in[len(header):cut])
			}
			if got := plain(t, after); !bytes.Equal(got, slices.Concat(want, after[len(in):])) {
				t.Errorf("cut at %d after a whole frame, %x was read as %x", cut, after, got)
			}
		}
	}
}

// A truncated frame is not completed, even if only bytes that the reader ignores are
// missing.
func TestOutcomeReader_DoesNotMakeACutFrameWhole(t *testing.T) {
	t.Parallel()
	long := frame(append(disposition(list8(yes, null, null, yes, released)), "and more"...))
	short := long[:len(long)-1]
	if got := plain(t, short); !bytes.Equal(got, short) {
		t.Errorf("read\n%x, want it unchanged:\n%x", got, short)
	}
	if got := plain(t, long); bytes.Equal(got, long) {
		t.Error("the whole one was not changed")
	}
}

// interrupted fails once after each byte, as a connection with a deadline does.
type interrupted struct {
	in     io.Reader
	failed bool
}

func (i *interrupted) Read(p []byte) (int, error) {
	i.failed = !i.failed
	if i.failed {
		return 0, os.ErrDeadlineExceeded
	}
	return i.in.Read(p[:1])
}

func TestOutcomeReader_GoesOnAfterADeadline(t *testing.T) {
	t.Parallel()
	in, out := conversation()
	in, out = in[:9], out[:9]
	reader := servicebus.NewOutcomeReader(&interrupted{in: bytes.NewReader(slices.Concat(in...))})
	var got []byte
	p := make([]byte, 16)
	interruptions := 0
	for {
		n, err := reader.Read(p)
		got = append(got, p[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if err != nil {
			interruptions++
		}
	}
	if want := slices.Concat(out...); !bytes.Equal(got, want) || interruptions == 0 {
		t.Errorf("with %d interruptions, read\n%x, want\n%x", interruptions, got, want)
	}
}

func TestOutcomeReader_AConnectionThatBreaks(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	in := slices.Concat(header, outcome(released))
	for _, cut := range []int{0, 4, len(header), len(header) + 4, len(in) - 1, len(in)} {
		t.Run(strconv.Itoa(cut), func(t *testing.T) {
			t.Parallel()
			reader := servicebus.NewOutcomeReader(io.MultiReader(bytes.NewReader(in[:cut]), iotest.ErrReader(broken)))
			if _, err := io.ReadAll(reader); !errors.Is(err, broken) {
				t.Errorf("%v, want %v", err, broken)
			}
		})
	}
}

// Bytes that are not AMQP pass unchanged, and so do all after them.
func TestOutcomeReader_GarbagePasses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		in   []byte
	}{
		{"nothing", nil},
		{"a size of nothing", slices.Concat(make([]byte, 8), outcome(released))},
		{"a size below the head", slices.Concat([]byte{0, 0, 0, 7, 2, 0, 0, 0}, outcome(released))},
		{"an answer of HTTP", []byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")},
		{"an alert of TLS", []byte{21, 3, 1, 0, 2, 2, 70}},
		{"some letters", []byte("hello")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := plain(t, test.in); !bytes.Equal(got, test.in) {
				t.Errorf("read\n%x, want it unchanged:\n%x", got, test.in)
			}
		})
	}
}

func TestOutcomeReader_AskedForNothingWaitsForNothing(t *testing.T) {
	t.Parallel()
	reader := servicebus.NewOutcomeReader(iotest.ErrReader(errors.New("it waited")))
	if n, err := reader.Read(nil); n != 0 || err != nil {
		t.Errorf("%d, %v, want nothing", n, err)
	}
}

// For any bytes, the result does not depend on how they are split, and reading it
// again changes nothing.
func FuzzOutcomeReader(f *testing.F) {
	in, _ := conversation()
	f.Add(slices.Concat(in[:9]...))
	f.Fuzz(func(t *testing.T, data []byte) {
		once := plain(t, data)
		pieces, err := io.ReadAll(servicebus.NewOutcomeReader(iotest.OneByteReader(bytes.NewReader(data))))
		if err != nil || !bytes.Equal(pieces, once) {
			t.Errorf("%v, %x is read as %x in pieces, and %x at once", err, data, pieces, once)
		}
		if twice := plain(t, once); !bytes.Equal(twice, once) {
			t.Errorf("%x is read as %x, and that as %x", data, once, twice)
		}
	})
}

// cancelled is the condition of a send that must be retried.
const cancelled = "com.microsoft:operation-cancelled"

// The states of a delivery that have no reason.
var (
	accepted = described8(0x24, []byte{0x45})
	released = described8(0x26, []byte{0x45})
	modified = described8(0x27, list8(yes, no))
)

// frame is a frame of AMQP on channel 3.
func frame(body []byte) []byte {
	head := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(append(head, 2, 0, 0, 3), body...)
}

// disposition is the performative with those fields.
func disposition(fields []byte) []byte { return described8(0x15, fields) }

// outcome is a frame that tells the sender of the deliveries 5 to 7 their state.
func outcome(state []byte) []byte {
	return frame(disposition(list32(yes, []byte{0x52, 5}, []byte{0x52, 7}, yes, state)))
}

// changed is the frame as it is read after its state was rewritten.
func changed(state []byte) []byte { return outcome(state) }

// rejection is a rejected state as the reader writes it.
func rejection(condition, description string) []byte {
	return described8(0x25, list32(described8(0x1d, list32(symbol32(condition), string32(description)))))
}

// rejectedFor is a rejected state as brokers write it.
func rejectedFor(condition string) []byte {
	return described8(0x25, list8(described8(0x1d, list8(symbol8(condition), []byte{0xa1, 2, 'n', 'o'}))))
}

// plain returns incoming bytes as the reader rewrites them.
func plain(t *testing.T, in []byte) []byte {
	t.Helper()
	out, err := servicebus.Plain(in)
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	return out
}

// The SDK takes released and modified for success, and a rejection with an unknown
// condition for a broken connection.
func TestPlain_RewritesOutcomesThatTheSDKMisreads(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		state     []byte
		condition string // of the rejection that it becomes; empty if it stays
		text      string
	}{
		{"accepted", accepted, "", ""},
		{"accepted, large", described64(0x24, list32()), "", ""},
		{"received", described8(0x23, list8([]byte{0x43}, []byte{0x44})), "", ""},
		{"a state of a transaction", described8(0x34, list8([]byte{0xa0, 1, 1}, accepted)), "", ""},
		{"released", released, cancelled, "released"},
		{"released, large", described64(0x26, list32()), cancelled, "released"},
		{"modified", modified, cancelled, "modified"},
		{"modified without fields", described8(0x27, []byte{0x45}), cancelled, "modified"},
		{"a fault of the broker", rejectedFor("amqp:internal-error"), cancelled, "amqp:internal-error"},
		{"an unknown reason", rejectedFor("com.microsoft:argument-error"), "amqp:not-allowed", "com.microsoft:argument-error"},
		{"a reason that is not the message's", rejectedFor("amqp:decode-error"), "amqp:not-allowed", "amqp:decode-error"},
		{"an unknown reason, large", described64(0x25, list32(described64(0x1d, list32(symbol32("x:y"))))), "amqp:not-allowed", "x:y"},
		{"throttled", rejectedFor("com.microsoft:server-busy"), "", ""},
		{"time is up", rejectedFor("com.microsoft:timeout"), "", ""},
		{"cancelled", rejectedFor(cancelled), "", ""},
		{"disabled", rejectedFor("com.microsoft:entity-disabled"), "", ""},
		{"full", rejectedFor("amqp:resource-limit-exceeded"), "", ""},
		{"too large", rejectedFor("amqp:link:message-size-exceeded"), "", ""},
		{"no right", rejectedFor("amqp:unauthorized-access"), "", ""},
		{"missing", rejectedFor("amqp:not-found"), "", ""},
		{"not allowed", rejectedFor("amqp:not-allowed"), "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := outcome(test.state)
			want := in
			if test.condition != "" {
				want = changed(rejection(test.condition, test.text))
			}
			if got := plain(t, in); !bytes.Equal(got, want) {
				t.Errorf("read\n%x, want\n%x", got, want)
			}
		})
	}
}

// Dispositions for receivers, and frames that are no dispositions, stay as they are.
func TestPlain_LeavesAllOtherFrames(t *testing.T) {
	t.Parallel()
	told := list8(no, null, null, yes, released)
	for _, test := range []struct {
		name string
		in   []byte
	}{
		{"about a received message", frame(disposition(told))},
		{"about a received message, spelled out", frame(disposition(list8([]byte{0x56, 0}, null, null, yes, released)))},
		{"no state", frame(disposition(list8(yes, null, null, yes)))},
		{"a transfer that holds such a frame", frame(append(described8(0x14, list8(null)), outcome(released)...))},
		{"an empty frame", frame(nil)},
		{"one of SASL", []byte{0, 0, 0, 12, 2, 1, 0, 0, 0x00, 0x53, 0x44, 0x45}},
		{"a head that goes beyond the frame", append([]byte{0, 0, 0, 12, 200, 0, 0, 0}, 1, 2, 3, 4)},
		{"a head that is too short", append([]byte{0, 0, 0, 12, 1, 0, 0, 0}, 1, 2, 3, 4)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := plain(t, test.in); !bytes.Equal(got, test.in) {
				t.Errorf("read\n%x, want it unchanged:\n%x", got, test.in)
			}
		})
	}
}

func TestPlain_KeepsTheHead(t *testing.T) {
	t.Parallel()
	extended := func(fields []byte) []byte {
		body := disposition(fields)
		head := binary.BigEndian.AppendUint32(nil, uint32(12+len(body)))
		return append(append(head, 3, 0, 1, 2, 'm', 'o', 'r', 'e'), body...)
	}
	in := extended(list8([]byte{0x56, 1}, null, null, yes, modified))
	want := extended(list32([]byte{0x56, 1}, null, null, yes, rejection(cancelled, "modified")))
	if got := plain(t, in); !bytes.Equal(got, want) {
		t.Errorf("read\n%x, want\n%x", got, want)
	}
}

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

// Frames that cannot be parsed are left to the SDK to reject.
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

// Only frames up to a size that no disposition reaches are inspected.
func TestPlain_InspectsFramesUpToTheLargest(t *testing.T) {
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
