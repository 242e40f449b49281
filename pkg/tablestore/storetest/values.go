package storetest

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// everyByte holds each byte once.
func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

// values returns the values that a store might corrupt, by name.
func values() map[string]tablestore.Value {
	return map[string]tablestore.Value{
		"string_empty":    tablestore.String(""),
		"string_ascii":    tablestore.String("IN_PROGRESS"),
		"string_unicode":  tablestore.String("Zürich 東京 😀 \u2028\u2029 é \uFFFD"),
		"string_markup":   tablestore.String(`<a href="x">'&\</a>` + "\r\n\t"),
		"string_controls": tablestore.String("\x01\x1f\x7f\u0085"),
		"string_number":   tablestore.String("9007199254740993"),
		"string_spaces":   tablestore.String("  both ends  "),
		"int_zero":        tablestore.Int(0),
		"int_min":         tablestore.Int(math.MinInt64),
		"int_max":         tablestore.Int(math.MaxInt64),
		"int_past_float":  tablestore.Int(1<<53 + 1),
		"int_small":       tablestore.Int(-1),
		"bool_true":       tablestore.Bool(true),
		"bool_false":      tablestore.Bool(false),
		"time_epoch":      tablestore.Time(time.UnixMilli(0)),
		"time_millis":     tablestore.Time(time.Date(2026, 2, 28, 23, 59, 59, 999_000_000, time.UTC)),
		"time_zone":       tablestore.Time(time.Date(2026, 1, 1, 0, 30, 0, 0, time.FixedZone("", 3600))),
		"time_old":        tablestore.Time(time.Date(1601, 1, 1, 0, 0, 0, 0, time.UTC)),
		"time_far":        tablestore.Time(time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)),
		"bytes_empty":     tablestore.Bytes([]byte{}),
		"bytes_every":     tablestore.Bytes(everyByte()),
		"string_json":     tablestore.String(`{"a":[1,2.50,null],"b":"<&>\u003c"}`),
	}
}

var valueChecks = []check{
	{"values/every kind is exact", func(t testing.TB, e *env) {
		for name, value := range values() {
			key := e.key("p", name)
			want := tablestore.Properties{{Name: name, Value: value}}
			e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: want})
			got := e.get(t, key).Properties
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
			if kind := got.Get(name).Kind(); kind != value.Kind() {
				t.Errorf("%s: kind %d, want %d", name, kind, value.Kind())
			}
		}
	}},
	{"values/a row of all kinds is exact in get and scan", func(t testing.TB, e *env) {
		var want tablestore.Properties
		for name, value := range values() {
			want = append(want, tablestore.Property{Name: name, Value: value})
		}
		e.commit(t, tablestore.Op{Verb: tablestore.Put, Key: e.key("p", "r"), Properties: want})
		if diff := cmp.Diff(want, e.get(t, e.key("p", "r")).Properties); diff != "" {
			t.Errorf("get (-want +got):\n%s", diff)
		}
		for _, row := range e.partition(t, "p") {
			if diff := cmp.Diff(want, row.Properties); diff != "" {
				t.Errorf("scan (-want +got):\n%s", diff)
			}
		}
	}},
	{"values/large text is split and joined", func(t testing.TB, e *env) {
		for _, character := range []string{"a", "é", "語", "😀"} {
			for _, size := range []int{0, 1, 16_384, 16_385, 32_768, 32_769, 65_537} {
				key := e.key("p", tablestore.Join(character, tablestore.Pad(size, 7)))
				data := bytes.Repeat([]byte(character), size)
				properties := tablestore.AppendLarge(number(1), "payload", data)
				e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: properties})
				if got := tablestore.Large(e.get(t, key).Properties, "payload"); got == nil || !bytes.Equal(got, data) {
					t.Errorf("%d times %q came back as %d bytes", size, character, len(got))
				}
			}
		}
	}},
	{"values/text of more than one byte a character", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		text := strings.Repeat("日本語テキスト😀", 2000)
		e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: tablestore.Properties{
			{Name: "text", Value: tablestore.String(text)}}})
		if got := e.get(t, key).Properties.Get("text").String(); got != text {
			t.Errorf("%d bytes of text were read as %d different ones", len(text), len(got))
		}
	}},
}

var keyChecks = []check{
	{"keys/every byte survives as an escaped key", func(t testing.TB, e *env) {
		for _, b := range everyByte() {
			raw := "a" + string([]byte{b}) + "b"
			key := e.key(tablestore.Join("k", raw), tablestore.Escape(raw))
			e.commit(t, insert(key, int64(b)))
			rows := e.partition(t, key.Partition)
			if len(rows) != 1 || rows[0].Properties.Get("n").Int() != int64(b) {
				t.Errorf("byte %#02x: read back %v", b, rows)
				continue
			}
			if got, err := tablestore.Unescape(rows[0].Key.Row); err != nil || got != raw {
				t.Errorf("byte %#02x: unescaped to %q, %v", b, got, err)
			}
		}
	}},
	{"keys/case is kept", func(t testing.TB, e *env) {
		e.commit(t, insert(e.key("p", "Row"), 1), insert(e.key("p", "row"), 2))
		e.commit(t, insert(e.key("P", "row"), 3))
		for key, want := range map[tablestore.Key]int64{e.key("p", "Row"): 1, e.key("p", "row"): 2, e.key("P", "row"): 3} {
			if got := e.get(t, key).Properties.Get("n").Int(); got != want {
				t.Errorf("%s holds %d, want %d", key, got, want)
			}
		}
	}},
	{"keys/the longest keys", func(t testing.TB, e *env) {
		long := strings.Repeat("k", tablestore.MaxKeyBytes)
		first := e.commit(t, insert(e.key(long, long), 1))
		e.commit(t, replace(e.key(long, long), first[0], 2))
		if rows := e.partition(t, long); len(rows) != 1 || rows[0].Key != e.key(long, long) {
			t.Errorf("the partition holds %d rows", len(rows))
		}
	}},
}
