package servicebus_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
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

// A connection may end anywhere. The bytes that came are passed on, and a truncated
// frame stays as it is.
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
