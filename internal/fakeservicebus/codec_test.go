package fakeservicebus_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
)

func TestValuesSurviveTheWire(t *testing.T) {
	t.Parallel()
	id := fakeservicebus.UUID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	for name, value := range map[string]any{
		"null": nil, "true": true, "false": false,
		"ubyte": uint8(200), "ushort": uint16(60000), "uint 0": uint32(0), "small uint": uint32(255), "uint": uint32(256),
		"ulong 0": uint64(0), "small ulong": uint64(255), "ulong": uint64(math.MaxUint64),
		"byte": int8(-1), "short": int16(-300), "small int": int32(-128), "int": int32(-129), "small long": int64(127), "long": int64(128),
		"float": float32(1.5), "double": 1.25, "timestamp": time.UnixMilli(1_700_000_000_123).UTC(),
		"before 1970": time.UnixMilli(-1).UTC(), "uuid": id,
		"empty string": "", "string": "grüß", "long string": strings.Repeat("x", 256),
		"symbol": fakeservicebus.Symbol("amqp:not-found"), "binary": []byte{0, 1}, "long binary": bytes.Repeat([]byte{7}, 300),
		"empty list": []any{}, "list": []any{nil, "a", []any{uint32(1)}},
		"map":       fakeservicebus.Map(fakeservicebus.Symbol("a"), int64(1), "b", nil),
		"described": fakeservicebus.Describe(uint64(0x24), []any{}),
		"filter":    fakeservicebus.Describe(uint64(0x137000000c), "session"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, left, err := fakeservicebus.Decode(fakeservicebus.Encode(value))
			if err != nil || left != 0 {
				t.Fatalf("decode: %v, %d bytes left", err, left)
			}
			if !reflect.DeepEqual(got, value) {
				t.Errorf("got %#v, want %#v", got, value)
			}
		})
	}
}

func TestOpaqueValuesArePassedOn(t *testing.T) {
	t.Parallel()
	for name, wire := range map[string]string{
		"char":                   "7300000041",
		"decimal":                "9400000000000000000000000000000001",
		"array of symbols":       "e00602a301610162",
		"wide array":             "f000000009000000017100000001",
		"array of nothing":       "e0020340",
		"array of described":     "e00901005301" + "7100000001",
		"described by a symbol":  "00a30161a10162",
		"described by a number":  "0080000001370000000c40",
		"described in described": "00005301530240",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := hex.DecodeString(wire)
			if err != nil {
				t.Fatal(err)
			}
			value, left, err := fakeservicebus.Decode(data)
			if err != nil || left != 0 {
				t.Fatalf("decode: %v, %d bytes left", err, left)
			}
			if got := hex.EncodeToString(fakeservicebus.Encode(value)); got != wire {
				t.Errorf("encoded as %s, was %s", got, wire)
			}
		})
	}
}

func TestOtherEncodingsMeanTheSame(t *testing.T) {
	t.Parallel()
	for wire, want := range map[string]any{
		"5601":             true,
		"5600":             false,
		"7000000001":       uint32(1),
		"800000000000001f": nil, // ends too early
		"c003015301":       []any{uint64(1)},
		"b10000000161":     "a",
		"a3026162":         fakeservicebus.Symbol("ab"),
	} {
		data, err := hex.DecodeString(wire)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := fakeservicebus.Decode(data); !reflect.DeepEqual(got, want) || (err != nil) != (want == nil) {
			t.Errorf("%s is %#v, want %#v (%v)", wire, got, want, err)
		}
	}
}

func TestArraysKeepTheirItems(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1_700_000_000_000).UTC()
	for name, test := range map[string]struct {
		array any
		want  []any
	}{
		"symbols":    {fakeservicebus.Symbols("ANONYMOUS", "PLAIN"), []any{fakeservicebus.Symbol("ANONYMOUS"), fakeservicebus.Symbol("PLAIN")}},
		"timestamps": {fakeservicebus.Timestamps(at), []any{at}},
		"none":       {fakeservicebus.Timestamps(), []any{}},
	} {
		got, _, err := fakeservicebus.Decode(fakeservicebus.Encode(test.array))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if items := fakeservicebus.Items(got); !reflect.DeepEqual(items, test.want) {
			t.Errorf("%s: got %v, want %v", name, items, test.want)
		}
	}
}

func TestMalformedValuesAreErrors(t *testing.T) {
	t.Parallel()
	for name, wire := range map[string]string{
		"nothing":                         "",
		"an unknown code":                 "4f",
		"an unknown fixed code":           "3f",
		"an unknown variable code":        "a500",
		"an unknown compound":             "c50100",
		"an unknown array":                "e50100",
		"a number cut short":              "7100",
		"a string cut short":              "a10561",
		"a string of 4 GB":                "b1ffffffff61",
		"a size cut short":                "b1ff",
		"a short size cut short":          "a1",
		"a list without a count":          "c000",
		"a list of more items than bytes": "d000000004ffffffff",
		"a list with half an item":        "c003017100",
		"a map with half an entry":        "c1020140",
		"an array without constructor":    "e00100",
		"an array without descriptor":     "e0020100",
		"an array of half a descriptor":   "e003010053",
		"an array of a bare descriptor":   "e00401005301",
		"an array of more than its bytes": "f000000005ffffffff71",
		"an array of endless nothing":     "f000000005ffffffff40",
		"an array of unknown items":       "e002014f",
		"a descriptor without a value":    "005301",
		"no descriptor":                   "00",
		"a deep nest":                     strings.Repeat("00", 100),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := hex.DecodeString(wire)
			if err != nil {
				t.Fatal(err)
			}
			if v, _, err := fakeservicebus.Decode(data); err == nil {
				t.Errorf("decoded as %#v", v)
			}
		})
	}
}

func TestAnotherImplementationWritesTheSame(t *testing.T) {
	t.Parallel()
	written := &amqp.Message{
		Header:      &amqp.MessageHeader{Durable: true, TTL: time.Hour},
		Properties:  &amqp.MessageProperties{MessageID: "m-1"},
		Annotations: amqp.Annotations{"x-opt-partition-key": "p"},
		ApplicationProperties: map[string]any{
			"string": "s", "int": int32(-5), "long": int64(1 << 40), "double": 2.5, "bool": true, "time": time.UnixMilli(5), "uuid": amqp.UUID{1},
		},
		Value: []any{"a", map[string]any{"k": []byte{1}}, []string{"x"}, []int64{1, 2}},
	}
	data, err := written.MarshalBinary()
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	var again []byte
	for rest := data; len(rest) > 0; {
		v, left, err := fakeservicebus.Decode(rest)
		if err != nil {
			t.Fatalf("decode: %v", err)
		}
		again, rest = append(again, fakeservicebus.Encode(v)...), rest[len(rest)-left:]
	}
	var want, got amqp.Message
	if err := want.UnmarshalBinary(data); err != nil {
		t.Fatalf("unmarshal what it wrote: %v", err)
	}
	if err := got.UnmarshalBinary(again); err != nil {
		t.Fatalf("unmarshal what this package wrote: %v", err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(amqp.Message{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestMessageIDsOfAllTypes(t *testing.T) {
	t.Parallel()
	body := fakeservicebus.Section(0x75, []byte("body"))
	for want, id := range map[string]any{
		"text": "text", "7": uint64(7), "0aff": []byte{0x0a, 0xff}, "": nil,
		"01020300-0000-0000-0000-000000000000": fakeservicebus.UUID{1, 2, 3},
	} {
		ids, err := fakeservicebus.ParseMessages(append(fakeservicebus.Section(0x73, []any{id}), body...), false)
		if err != nil {
			t.Errorf("%v: %v", id, err)
		}
		if diff := cmp.Diff([]string{want}, ids); diff != "" {
			t.Errorf("%v (-want +got):\n%s", id, diff)
		}
	}
}

func TestMalformedMessagesAreErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data  []byte
		batch bool
	}{
		"nothing":            {nil, false},
		"no body":            {fakeservicebus.Section(0x73, []any{"id"}), false},
		"no section":         {[]byte{0x40}, false},
		"an unknown section": {fakeservicebus.Encode(fakeservicebus.Describe("data", nil)), false},
		"cut short":          {fakeservicebus.Section(0x75, []byte("body"))[:6], false},
		"a batch cut short":  {[]byte{0x00, 0x53}, true},
		"a bad one in a batch": {append(
			fakeservicebus.Section(0x75, fakeservicebus.Section(0x75, []byte("good"))),
			fakeservicebus.Section(0x75, []byte("bad"))...), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if ids, err := fakeservicebus.ParseMessages(test.data, test.batch); err == nil {
				t.Errorf("parsed as %v", ids)
			}
		})
	}
}

func TestTheEncoderKnowsItsTypes(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a type that is none of AMQP's was encoded")
		}
	}()
	fakeservicebus.Encode(struct{}{})
}

func FuzzDecode(f *testing.F) {
	for _, value := range []any{nil, uint32(300), "a", []any{int64(1), "b"}, fakeservicebus.Map("k", true), fakeservicebus.Symbols("x")} {
		f.Add(fakeservicebus.Encode(value))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		value, _, err := fakeservicebus.Decode(data)
		if err != nil {
			return
		}
		written := fakeservicebus.Encode(value)
		again, left, err := fakeservicebus.Decode(written)
		if err != nil || left != 0 {
			t.Fatalf("what was decoded from %x cannot be encoded: %v, %d bytes left", data, err, left)
		}
		if !bytes.Equal(fakeservicebus.Encode(again), written) {
			t.Errorf("%x changes on the way", data)
		}
	})
}
