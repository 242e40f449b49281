package tablestore_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestRowBytes(t *testing.T) {
	t.Parallel()
	empty := tablestore.RowBytes(nil)
	if want := 4 + 2*2*tablestore.MaxKeyBytes; empty != want {
		t.Errorf("a row without properties counts %d, want %d", empty, want)
	}
	for name, test := range map[string]struct {
		value tablestore.Value
		want  int // Without 8 and twice the name's length.
	}{
		"int":          {tablestore.Int(1), 8},
		"time":         {tablestore.Time(time.UnixMilli(0)), 8},
		"bool":         {tablestore.Bool(true), 1},
		"empty string": {tablestore.String(""), 4},
		"ascii":        {tablestore.String("abc"), 4 + 6},
		"kanji":        {tablestore.String("語"), 4 + 2},
		"emoji":        {tablestore.String("😀"), 4 + 4},
		"bytes":        {tablestore.Bytes([]byte("abc")), 4 + 3},
	} {
		if got := tablestore.RowBytes(one("name", test.value)) - empty - 8 - 8; got != test.want {
			t.Errorf("%s counts %d, want %d", name, got, test.want)
		}
	}
}

// TestBatchBytesIsAnUpperBound compares the size of an op with that of its
// parts in a request.
func TestBatchBytesIsAnUpperBound(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "plain", `"quoted\"`, "<a href='x'>&</a>", "\x00\x01\n\t\r\u2028\u2029", "Zürich 東京 😀"} {
		encoded, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := added("v", tablestore.String(text)); got < len(encoded) {
			t.Errorf("%q counts %d, and takes %d as JSON", text, got, len(encoded))
		}
	}
	for _, n := range []int{0, 1, 2, 3, 1000} {
		if got, want := added("v", tablestore.Bytes(make([]byte, n))), base64.StdEncoding.EncodedLen(n)+2; got < want {
			t.Errorf("%d bytes count %d, and take %d as base64", n, got, want)
		}
	}
	if got, want := added("v", tablestore.Int(-1<<63)), len(`"-9223372036854775808"`); got < want {
		t.Errorf("the least number counts %d, and takes %d", got, want)
	}
}

// added returns the bytes that a property adds to its batch, without name and
// annotation.
func added(name string, value tablestore.Value) int {
	without := tablestore.Batch{{Verb: put, Key: key("r")}}
	with := tablestore.Batch{{Verb: put, Key: key("r"), Properties: one(name, value)}}
	return tablestore.BatchBytes(with) - tablestore.BatchBytes(without) - 2*len(name) - 40
}

func TestSizesComputedInAdvanceAreThoseChecked(t *testing.T) {
	t.Parallel()
	for _, size := range []int{tablestore.MaxRowBytes, tablestore.MaxRowBytes + 1} {
		properties := tablestore.AppendLarge(nil, "data", make([]byte, 15*tablestore.MaxStringUnits))
		properties = append(properties, tablestore.Property{Name: "rest", Value: tablestore.Bytes(nil)})
		rest := size - tablestore.RowBytes(properties)
		properties[len(properties)-1].Value = tablestore.Bytes(make([]byte, rest))
		err := tablestore.Batch{{Verb: put, Key: key("r"), Properties: properties}}.Validate()
		if fits := tablestore.RowBytes(properties) <= tablestore.MaxRowBytes; fits != (err == nil) {
			t.Errorf("a row of %d bytes: %v", size, err)
		}
		if err != nil && !errors.Is(err, tablestore.ErrTooLarge) {
			t.Errorf("a row of %d bytes: %v, want ErrTooLarge", size, err)
		}
	}
}

func TestBatchOverTheLimitSaysItsSize(t *testing.T) {
	t.Parallel()
	var batch tablestore.Batch
	for i := range 50 {
		text := tablestore.String(strings.Repeat("\x01", 20_000))
		batch = append(batch, tablestore.Op{Verb: put, Key: key(tablestore.Pad(i, 2)), Properties: one("v", text)})
	}
	err := batch.Validate()
	if !errors.Is(err, tablestore.ErrTooLarge) || !strings.Contains(err.Error(), "batch on table/p counts 60") {
		t.Errorf("Validate: %v, want ErrTooLarge with the batch's size", err)
	}
}
