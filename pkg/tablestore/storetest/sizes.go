package storetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// sizeChecks write values and batches exactly at a limit and just over it.
var sizeChecks = []check{
	{"sizes/key", func(t testing.TB, e *env) {
		long := strings.Repeat("k", tablestore.MaxKeyBytes+1)
		e.refuses(t, "long partition", tablestore.ErrTooLarge, put(e.key(long, "r"), 1))
		e.refuses(t, "long row", tablestore.ErrTooLarge, put(e.key("p", long), 1))
	}},
	{"sizes/property", func(t testing.TB, e *env) {
		for what, size := range map[string]func(n int) tablestore.Value{
			"bytes":  func(n int) tablestore.Value { return tablestore.Bytes(make([]byte, tablestore.MaxPropertyBytes+n)) },
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
		e.refuses(t, "a byte more", tablestore.ErrTooLarge,
			tablestore.Op{Verb: tablestore.Put, Key: e.key("p", "r"), Properties: fullRow(tablestore.MaxRowBytes + 1)})
	}},
	{"sizes/batch", func(t testing.TB, e *env) {
		batch := e.fullBatch(tablestore.MaxBatchBytes)
		e.commit(t, batch...)
		if rows := e.partition(t, "p"); len(rows) != len(batch) {
			t.Errorf("%d rows of the largest batch, want %d", len(rows), len(batch))
		}
		e.refuses(t, "a little more", tablestore.ErrTooLarge, e.fullBatch(tablestore.MaxBatchBytes+4)...)
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

// fullRow returns properties whose RowBytes is exactly size.
func fullRow(size int) tablestore.Properties {
	var properties tablestore.Properties
	for i := 0; ; i++ {
		properties = append(properties, tablestore.Property{
			Name: fmt.Sprintf("chunk_%02d", i), Value: tablestore.Bytes(nil)})
		n := min(size-tablestore.RowBytes(properties), tablestore.MaxPropertyBytes)
		properties[i].Value = tablestore.Bytes(make([]byte, n))
		if n < tablestore.MaxPropertyBytes {
			return properties
		}
	}
}

// fullBatch returns puts whose BatchBytes is exactly size, which must be a
// multiple of four.
func (e *env) fullBatch(size int) tablestore.Batch {
	var batch tablestore.Batch
	for i := 0; ; i++ {
		op := tablestore.Op{Verb: tablestore.Put, Key: e.key("p", tablestore.Pad(i, 3)), Properties: tablestore.Properties{
			{Name: "data", Value: tablestore.Bytes(nil)}, {Name: "pad", Value: tablestore.String("")}}}
		batch = append(batch, op)
		left := size - tablestore.BatchBytes(batch)
		n := min(left/4*3, tablestore.MaxPropertyBytes/3*3)
		op.Properties[0].Value = tablestore.Bytes(make([]byte, n))
		if n < tablestore.MaxPropertyBytes/3*3 {
			op.Properties[1].Value = text("a", left%4)
			return batch
		}
	}
}
