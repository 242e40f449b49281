package tablestore_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

func everyKind() tablestore.Properties {
	return tablestore.Properties{
		{Name: "text", Value: tablestore.String("Zürich 😀\x00")},
		{Name: "empty", Value: tablestore.String("")},
		{Name: "least", Value: tablestore.Int(math.MinInt64)},
		{Name: "greatest", Value: tablestore.Int(math.MaxInt64)},
		{Name: "yes", Value: tablestore.Bool(true)},
		{Name: "no", Value: tablestore.Bool(false)},
		{Name: "at", Value: tablestore.Time(time.UnixMilli(1_767_225_599_999))},
	}
}

// encode encodes properties whose names have no numbers.
func encode(properties tablestore.Properties) []byte {
	data, _ := tablestore.EncodeProperties(nil, properties, nil)
	return data
}

func TestNamesWithNumbersAreNotSpelled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		known   []string
		spelled bool
	}{
		{nil, true},
		{[]string{"text", "least"}, true},
		{[]string{"x", "text", "empty", "least", "greatest", "yes", "no", "at"}, false},
	} {
		names, err := tablestore.NewNames(c.known)
		if err != nil {
			t.Fatal(err)
		}
		data, spelled := tablestore.EncodeProperties(nil, everyKind(), names)
		if spelled != c.spelled {
			t.Errorf("with %q known: a name is spelled: %v, want %v", c.known, spelled, c.spelled)
		}
		if shown := bytes.Contains(data, []byte("least")); shown != (len(c.known) == 0) {
			t.Errorf("with %q known, the rows spell a known name: %v", c.known, shown)
		}
		// A reader may know more names than the writer did.
		more, err := tablestore.NewNames(append(slices.Clone(c.known), "later"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tablestore.DecodeProperties(data, more); err != nil || !got.Equal(everyKind()) {
			t.Errorf("with %q known: decoded %+v, %v", c.known, got, err)
		}
	}
	if _, err := tablestore.NewNames([]string{"a", "a"}); !errors.Is(err, tablestore.ErrCorrupt) {
		t.Errorf("a name with two numbers: %v, want ErrCorrupt", err)
	}
}

func TestCodecIsExact(t *testing.T) {
	t.Parallel()
	for _, want := range []tablestore.Properties{nil, everyKind()} {
		got, err := tablestore.DecodeProperties(encode(want), nil)
		if err != nil || len(got) != len(want) {
			t.Fatalf("decode: %d properties, %v", len(got), err)
		}
		for i := range want {
			if got[i].Name != want[i].Name || !got[i].Value.Equal(want[i].Value) || got[i].Value.Kind() != want[i].Value.Kind() {
				t.Errorf("property %d is %+v, want %+v", i, got[i], want[i])
			}
		}
	}
}

func TestEncodeAppends(t *testing.T) {
	t.Parallel()
	got, _ := tablestore.EncodeProperties([]byte("before"), everyKind(), nil)
	if want := append([]byte("before"), encode(everyKind())...); !bytes.Equal(got, want) {
		t.Errorf("encoded %q, want %q", got, want)
	}
}

func TestDecodedPropertiesShareNoMemory(t *testing.T) {
	t.Parallel()
	data := encode(everyKind())
	got, err := tablestore.DecodeProperties(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		data[i] = 'X'
	}
	if diff := cmp.Diff(everyKind(), got); diff != "" {
		t.Errorf("after overwriting the input (-want +got):\n%s", diff)
	}
}

func TestDecodeRefusesDamage(t *testing.T) {
	t.Parallel()
	good := encode(everyKind())
	for n := range good {
		if _, err := tablestore.DecodeProperties(good[:n], nil); !errors.Is(err, tablestore.ErrCorrupt) {
			t.Errorf("the first %d of %d bytes: %v, want ErrCorrupt", n, len(good), err)
		}
	}
	for what, data := range map[string][]byte{
		"another version": {1, 0},
		"trailing bytes":  {2, 0, 0},
		"huge count":      {2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"huge length":     {2, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"unknown name":    {2, 1, 2, 1, 0},
		"unknown kind":    {2, 1, 5, 0, 1, 'n', 0},
		"no kind":         {2, 1, 0, 0, 1, 'n', 0},
		"bool of two":     {2, 1, 3, 0, 1, 'n', 4},
		"invalid UTF-8":   {2, 1, 1, 0, 1, 'n', 1, 0xff},
		"endless varint":  {2, 1, 2, 0, 1, 'n', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		if got, err := tablestore.DecodeProperties(data, nil); !errors.Is(err, tablestore.ErrCorrupt) {
			t.Errorf("%s: %v, %v, want ErrCorrupt", what, got, err)
		}
	}
}

// FuzzDecode checks that no input causes a panic, and that decoded properties
// survive encoding and decoding again.
func FuzzDecode(f *testing.F) {
	f.Add(encode(everyKind()))
	f.Add(encode(nil))
	f.Add([]byte{2, 1, 2, 0, 1, 'n', 0x80, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := tablestore.DecodeProperties(data, nil)
		if err != nil {
			if !errors.Is(err, tablestore.ErrCorrupt) {
				t.Errorf("decode: %v, want ErrCorrupt", err)
			}
			return
		}
		again, err := tablestore.DecodeProperties(encode(first), nil)
		if err != nil || len(again) != len(first) {
			t.Fatalf("%d properties became %d, %v", len(first), len(again), err)
		}
		for i := range first {
			if first[i].Name != again[i].Name || !first[i].Value.Equal(again[i].Value) {
				t.Errorf("property %d: %+v became %+v", i, first[i], again[i])
			}
		}
	})
}

func FuzzCodec(f *testing.F) {
	f.Add("name", "text", int64(-1), true)
	f.Fuzz(func(t *testing.T, name, text string, n int64, b bool) {
		want := tablestore.Properties{
			{Name: "text_" + name, Value: tablestore.String(string([]rune(text)))},
			{Name: "int_" + name, Value: tablestore.Int(n)},
			{Name: "bool_" + name, Value: tablestore.Bool(b)},
			{Name: "time_" + name, Value: tablestore.Time(time.UnixMilli(n))},
		}
		got, err := tablestore.DecodeProperties(encode(want), nil)
		if err != nil || !got.Equal(want) {
			t.Errorf("decoded %+v, %v, want %+v", got, err, want)
		}
	})
}
