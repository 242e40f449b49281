package storetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

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
