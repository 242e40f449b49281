package storetest

import (
	"bytes"
	"errors"
	"fmt"
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
		"int_32_max":      tablestore.Int(math.MaxInt32),
		"int_past_32":     tablestore.Int(math.MaxInt32 + 1),
		"int_32_min":      tablestore.Int(math.MinInt32),
		"bool_true":       tablestore.Bool(true),
		"bool_false":      tablestore.Bool(false),
		"time_epoch":      tablestore.Time(time.UnixMilli(0)),
		"time_millis":     tablestore.Time(time.Date(2026, 2, 28, 23, 59, 59, 999_000_000, time.UTC)),
		"time_zone":       tablestore.Time(time.Date(2026, 1, 1, 0, 30, 0, 0, time.FixedZone("", 3600))),
		"time_old":        tablestore.Time(time.Date(1601, 1, 1, 0, 0, 0, 0, time.UTC)),
		"time_far":        tablestore.Time(time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC)),
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

// refuses commits a batch that must fail with the error want and write nothing.
func (e *env) refuses(t testing.TB, what string, want error, ops ...tablestore.Op) {
	t.Helper()
	before := e.partition(t, "p")
	if _, err := e.store.Commit(t.Context(), ops); !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
	if diff := cmp.Diff(before, e.partition(t, "p")); diff != "" {
		t.Errorf("%s changed the partition (-before +after):\n%s", what, diff)
	}
}

// with returns a put of one property.
func (e *env) with(name string, value tablestore.Value) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Put, Key: e.key("p", "r"),
		Properties: tablestore.Properties{{Name: name, Value: value}}}
}

// limitChecks test requests that break a rule other than a size limit.
var limitChecks = []check{
	{"limits/a batch has one partition of one table", func(t testing.TB, e *env) {
		other := insert(tablestore.Key{Table: e.harness.Tables[1], Partition: "p", Row: "b"}, 1)
		e.refuses(t, "two partitions", tablestore.ErrInvalid, insert(e.key("p", "a"), 1), insert(e.key("q", "b"), 1))
		e.refuses(t, "two tables", tablestore.ErrInvalid, insert(e.key("p", "a"), 1), other)
		e.refuses(t, "no ops", tablestore.ErrInvalid)
	}},
	{"limits/a batch has each key once", func(t testing.TB, e *env) {
		etag := e.commit(t, insert(e.key("p", "r"), 1))[0]
		e.refuses(t, "two puts", tablestore.ErrInvalid, put(e.key("p", "r"), 2), put(e.key("p", "r"), 3))
		e.refuses(t, "delete and insert", tablestore.ErrInvalid, remove(e.key("p", "r"), etag), insert(e.key("p", "r"), 3))
	}},
	{"limits/verbs carry what they need and no more", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		etag := e.commit(t, insert(key, 1))[0]
		for _, op := range []tablestore.Op{
			{Verb: tablestore.Replace, Key: key, Properties: number(2)},
			{Verb: tablestore.Delete, Key: key},
			{Verb: tablestore.Replace, Key: key, ETag: tablestore.Own, Properties: number(2)},
			{Verb: tablestore.Insert, Key: key, ETag: etag},
			{Verb: tablestore.Put, Key: key, ETag: etag},
			{Verb: tablestore.Discard, Key: key, ETag: etag},
			{Verb: tablestore.Delete, Key: key, ETag: etag, Properties: number(2)},
			{Verb: tablestore.Discard, Key: key, Properties: number(2)},
			{Verb: tablestore.Discard + 1, Key: key},
			{Key: key, Properties: number(2)},
		} {
			e.refuses(t, fmt.Sprintf("%+v", op), tablestore.ErrInvalid, op)
		}
	}},
	{"limits/keys and names outside the character set", func(t testing.TB, e *env) {
		for _, part := range []string{"", "a/b", `a\b`, "a#b", "a?b", "a'b", "a b", "a%b", "a\x00b", "ü", "a\nb"} {
			e.refuses(t, fmt.Sprintf("partition %q", part), tablestore.ErrInvalid, put(e.key(part, "r"), 1))
			e.refuses(t, fmt.Sprintf("row %q", part), tablestore.ErrInvalid, put(e.key("p", part), 1))
			if _, err := e.store.Get(t.Context(), e.key("p", part)); !errors.Is(err, tablestore.ErrInvalid) {
				t.Errorf("get of row %q: %v, want ErrInvalid", part, err)
			}
		}
		for _, table := range []string{"", "ab", "Table", "a_b", "1abc", "tables", strings.Repeat("a", 64)} {
			key := tablestore.Key{Table: table, Partition: "p", Row: "r"}
			e.refuses(t, fmt.Sprintf("table %q", table), tablestore.ErrInvalid, put(key, 1))
		}
		for _, name := range []string{"", "a-b", "a.b", "1a", "ä", "a b", "PartitionKey", "RowKey", "Timestamp"} {
			e.refuses(t, fmt.Sprintf("property %q", name), tablestore.ErrInvalid, e.with(name, tablestore.Int(1)))
		}
	}},
	{"limits/values that not every store can hold", func(t testing.TB, e *env) {
		for what, value := range map[string]tablestore.Value{
			"no value":         {},
			"invalid UTF-8":    tablestore.String("a\xff"),
			"a year of 1600":   tablestore.Time(time.Date(1600, 12, 31, 23, 59, 59, 0, time.UTC)),
			"a year of 10,000": tablestore.Time(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)),
		} {
			e.refuses(t, what, tablestore.ErrInvalid, e.with("v", value))
		}
		twice := e.with("v", tablestore.Int(1))
		twice.Properties = append(twice.Properties, twice.Properties[0])
		e.refuses(t, "a name that occurs twice", tablestore.ErrInvalid, twice)
	}},
}

// sizeChecks write values and batches exactly at a limit and just over it.
var sizeChecks = []check{
	{"sizes/key", func(t testing.TB, e *env) {
		long := strings.Repeat("k", tablestore.MaxKeyBytes+1)
		e.refuses(t, "long partition", tablestore.ErrTooLarge, put(e.key(long, "r"), 1))
		e.refuses(t, "long row", tablestore.ErrTooLarge, put(e.key("p", long), 1))
	}},
	{"sizes/property", func(t testing.TB, e *env) {
		for what, size := range map[string]func(n int) tablestore.Value{
			"ascii":  func(n int) tablestore.Value { return text("a", tablestore.MaxStringUnits+n) },
			"kanji":  func(n int) tablestore.Value { return text("語", tablestore.MaxStringUnits+n) },
			"emoji":  func(n int) tablestore.Value { return text("😀", tablestore.MaxStringUnits/2+n) },
			"quotes": func(n int) tablestore.Value { return text("\"", tablestore.MaxStringUnits+n) },
		} {
			e.commit(t, e.with("v", size(0)))
			if got := e.get(t, e.key("p", "r")).Properties.Get("v"); !got.Equal(size(0)) {
				t.Errorf("the largest value of %s changed", what)
			}
			e.refuses(t, what, tablestore.ErrTooLarge, e.with("v", size(1)))
		}
	}},
	{"sizes/property name", func(t testing.TB, e *env) {
		name := strings.Repeat("n", tablestore.MaxNameBytes)
		e.commit(t, e.with(name, tablestore.Int(1)))
		e.refuses(t, "long name", tablestore.ErrTooLarge, e.with(name+"n", tablestore.Int(1)))
	}},
	{"sizes/number of properties", func(t testing.TB, e *env) {
		var properties tablestore.Properties
		for i := range tablestore.MaxProperties {
			properties = append(properties, tablestore.Property{Name: fmt.Sprint("p", i), Value: tablestore.Int(int64(i))})
		}
		most := tablestore.Op{Verb: tablestore.Put, Key: e.key("p", "r"), Properties: properties}
		e.commit(t, most)
		if got := e.get(t, most.Key).Properties; !got.Equal(properties) {
			t.Errorf("the greatest number of properties changed: %d", len(got))
		}
		most.Properties = append(most.Properties, tablestore.Property{Name: "more", Value: tablestore.Int(0)})
		e.refuses(t, "one property more", tablestore.ErrTooLarge, most)
	}},
	{"sizes/row", func(t testing.TB, e *env) {
		largest := fullRow(tablestore.MaxRowBytes)
		e.commit(t, tablestore.Op{Verb: tablestore.Put, Key: e.key("p", "r"), Properties: largest})
		if got := e.get(t, e.key("p", "r")).Properties; !got.Equal(largest) {
			t.Error("the largest row changed")
		}
		e.refuses(t, "a character more", tablestore.ErrTooLarge,
			tablestore.Op{Verb: tablestore.Put, Key: e.key("p", "r"), Properties: fullRow(tablestore.MaxRowBytes + 2)})
	}},
	{"sizes/batch", func(t testing.TB, e *env) {
		batch := e.fullBatch(tablestore.MaxBatchBytes)
		e.commit(t, batch...)
		if rows := e.partition(t, "p"); len(rows) != len(batch) {
			t.Errorf("%d rows of the largest batch, want %d", len(rows), len(batch))
		}
		e.refuses(t, "a byte more", tablestore.ErrTooLarge, e.fullBatch(tablestore.MaxBatchBytes+1)...)
	}},
	{"sizes/number of ops", func(t testing.TB, e *env) {
		var ops []tablestore.Op
		for i := range tablestore.MaxBatchOps + 1 {
			ops = append(ops, put(e.key("p", fmt.Sprint(i)), 1))
		}
		e.refuses(t, "one op more", tablestore.ErrTooLarge, ops...)
	}},
}

func text(character string, n int) tablestore.Value {
	return tablestore.String(strings.Repeat(character, n))
}

// fullRow returns properties whose RowBytes is exactly size, which must be even.
func fullRow(size int) tablestore.Properties {
	var properties tablestore.Properties
	for i := 0; ; i++ {
		properties = append(properties, tablestore.Property{
			Name: fmt.Sprintf("chunk_%02d", i), Value: tablestore.String("")})
		n := min((size-tablestore.RowBytes(properties))/2, tablestore.MaxStringUnits)
		properties[i].Value = text("a", n)
		if n < tablestore.MaxStringUnits {
			return properties
		}
	}
}

// fullBatch returns puts whose BatchBytes is exactly size. Kanji take three bytes
// each, so that fewer ops than the limit fill it.
func (e *env) fullBatch(size int) tablestore.Batch {
	var batch tablestore.Batch
	for i := 0; ; i++ {
		op := tablestore.Op{Verb: tablestore.Put, Key: e.key("p", tablestore.Pad(i, 3)), Properties: tablestore.Properties{
			{Name: "data", Value: tablestore.String("")}, {Name: "pad", Value: tablestore.String("")}}}
		batch = append(batch, op)
		left := size - tablestore.BatchBytes(batch)
		n := min(left/3, tablestore.MaxStringUnits)
		op.Properties[0].Value = text("語", n)
		if n < tablestore.MaxStringUnits {
			op.Properties[1].Value = text("a", left%3)
			return batch
		}
	}
}
