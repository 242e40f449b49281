package tablestore_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	insert  = tablestore.Insert
	replace = tablestore.Replace
	remove  = tablestore.Delete
	put     = tablestore.Put
	discard = tablestore.Discard
)

func key(row string) tablestore.Key {
	return tablestore.Key{Table: "table", Partition: "p", Row: row}
}

func keyOf(table, partition, row string) tablestore.Key {
	return tablestore.Key{Table: table, Partition: partition, Row: row}
}

// one returns properties with one value.
func one(name string, value tablestore.Value) tablestore.Properties {
	return tablestore.Properties{{Name: name, Value: value}}
}

// many returns n properties, and manyOps n ops.
func many(n int) (properties tablestore.Properties) {
	for i := range n {
		properties = append(properties, tablestore.Property{Name: fmt.Sprint("p", i), Value: tablestore.Int(1)})
	}
	return properties
}

func manyOps(n int) (batch tablestore.Batch) {
	for i := range n {
		batch = append(batch, tablestore.Op{Verb: discard, Key: key(fmt.Sprint(i))})
	}
	return batch
}

func TestBatchValidate(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", tablestore.MaxKeyBytes+1)
	n := one("n", tablestore.Int(1))
	invalid, tooLarge := tablestore.ErrInvalid, tablestore.ErrTooLarge
	for name, test := range map[string]struct {
		batch tablestore.Batch
		want  error
		text  string // Part of the message.
	}{
		"all verbs": {tablestore.Batch{{Verb: insert, Key: key("a"), Properties: n}, {Verb: replace, Key: key("b"), ETag: "1"},
			{Verb: remove, Key: key("c"), ETag: "1"}, {Verb: put, Key: key("d"), Properties: n}, {Verb: discard, Key: key("e")}}, nil, ""},
		"longest keys":           {tablestore.Batch{{Verb: discard, Key: keyOf(strings.Repeat("t", 63), long[1:], long[1:])}}, nil, ""},
		"most ops":               {manyOps(tablestore.MaxBatchOps), nil, ""},
		"most properties":        {tablestore.Batch{{Verb: put, Key: key("a"), Properties: many(tablestore.MaxProperties)}}, nil, ""},
		"empty":                  {nil, invalid, "empty batch"},
		"too many ops":           {manyOps(tablestore.MaxBatchOps + 1), tooLarge, "101 ops on table/p, limit 100"},
		"two partitions":         {tablestore.Batch{{Verb: discard, Key: key("a")}, {Verb: discard, Key: keyOf("table", "q", "a")}}, invalid, "discard table/q/a: batch began on partition table/p"},
		"two tables":             {tablestore.Batch{{Verb: discard, Key: key("a")}, {Verb: discard, Key: keyOf("other", "p", "b")}}, invalid, "discard other/p/b"},
		"a row twice":            {tablestore.Batch{{Verb: discard, Key: key("a")}, {Verb: put, Key: key("a")}}, invalid, "put table/p/a: row is twice in one batch"},
		"no verb":                {tablestore.Batch{{Key: key("a")}}, invalid, "verb(0) table/p/a"},
		"unknown verb":           {tablestore.Batch{{Verb: 7, Key: key("a")}}, invalid, "verb(7) table/p/a"},
		"a clear of a partition": {tablestore.Batch{{Verb: tablestore.Clear, Key: key("")}}, invalid, "only an AtomicStore clears"},
		"a clear of a row":       {tablestore.Batch{{Verb: tablestore.Clear, Key: key("a")}}, invalid, "clear table/p/a: unknown verb"},
		"replace without ETag":   {tablestore.Batch{{Verb: replace, Key: key("a")}}, invalid, "replace table/p/a: needs an ETag"},
		"delete without ETag":    {tablestore.Batch{{Verb: remove, Key: key("a")}}, invalid, "delete table/p/a: needs an ETag"},
		"insert with ETag":       {tablestore.Batch{{Verb: insert, Key: key("a"), ETag: "1"}}, invalid, "insert table/p/a: takes no ETag"},
		"put with ETag":          {tablestore.Batch{{Verb: put, Key: key("a"), ETag: "1"}}, invalid, "takes no ETag"},
		"discard with ETag":      {tablestore.Batch{{Verb: discard, Key: key("a"), ETag: "1"}}, invalid, "takes no ETag"},
		"own":                    {tablestore.Batch{{Verb: remove, Key: key("a"), ETag: tablestore.Own}}, invalid, "delete table/p/a: no earlier stage wrote this row"},
		"delete with content":    {tablestore.Batch{{Verb: remove, Key: key("a"), ETag: "1", Properties: n}}, invalid, "takes no properties"},
		"discard with content":   {tablestore.Batch{{Verb: discard, Key: key("a"), Properties: n}}, invalid, "takes no properties"},
		"table too short":        {tablestore.Batch{{Verb: discard, Key: keyOf("ab", "p", "r")}}, invalid, `table name "ab"`},
		"table too long":         {tablestore.Batch{{Verb: discard, Key: keyOf(strings.Repeat("t", 64), "p", "r")}}, invalid, "table name"},
		"table in upper case":    {tablestore.Batch{{Verb: discard, Key: keyOf("Table", "p", "r")}}, invalid, `table name "Table"`},
		"table with underscore":  {tablestore.Batch{{Verb: discard, Key: keyOf("a_b", "p", "r")}}, invalid, `table name "a_b"`},
		"table begins by digit":  {tablestore.Batch{{Verb: discard, Key: keyOf("1ab", "p", "r")}}, invalid, `table name "1ab"`},
		"reserved table":         {tablestore.Batch{{Verb: discard, Key: keyOf("tables", "p", "r")}}, invalid, `table name "tables"`},
		"empty partition":        {tablestore.Batch{{Verb: discard, Key: keyOf("table", "", "r")}}, invalid, "empty partition key"},
		"empty row":              {tablestore.Batch{{Verb: discard, Key: key("")}}, invalid, "empty row key"},
		"partition with slash":   {tablestore.Batch{{Verb: discard, Key: keyOf("table", "a/b", "r")}}, invalid, `byte 0x2f in the partition key "a/b"`},
		"row with zero byte":     {tablestore.Batch{{Verb: discard, Key: key("a\x00")}}, invalid, "byte 0x00 in the row key"},
		"row outside ASCII":      {tablestore.Batch{{Verb: discard, Key: key("ü")}}, invalid, "byte 0xc3 in the row key"},
		"partition too long":     {tablestore.Batch{{Verb: discard, Key: keyOf("table", long, "r")}}, tooLarge, "partition key of 513 bytes, limit 512"},
		"row too long":           {tablestore.Batch{{Verb: discard, Key: key(long)}}, tooLarge, "row key of 513 bytes, limit 512"},
		"too many properties":    {tablestore.Batch{{Verb: put, Key: key("a"), Properties: many(253)}}, tooLarge, "put table/p/a: 253 properties, limit 252"},
		"a property twice":       {tablestore.Batch{{Verb: put, Key: key("a"), Properties: append(n, n...)}}, invalid, `put table/p/a: property "n" occurs twice`},
		"property without name":  {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one("", tablestore.Int(1))}}, invalid, `property "" has a name`},
		"property with dash":     {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one("a-b", tablestore.Int(1))}}, invalid, `property "a-b" has a name`},
		"property begins digit":  {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one("1a", tablestore.Int(1))}}, invalid, `property "1a" has a name`},
		"reserved property":      {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one("RowKey", tablestore.Int(1))}}, invalid, `property "RowKey" has a reserved name`},
		"long property name":     {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one(strings.Repeat("n", 256), tablestore.Int(1))}}, tooLarge, "has a name of 256 bytes, limit 255"},
		"property without value": {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one("v", tablestore.Value{})}}, invalid, `property "v" has no value`},
		"invalid UTF-8":          {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one("v", tablestore.String("\xff"))}}, invalid, `property "v" is not valid UTF-8`},
		"long string":            {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one("v", tablestore.String(strings.Repeat("😀", 16_385)))}}, tooLarge, `property "v" is a string of 32770 UTF-16 units, limit 32768`},
		"time too early":         {tablestore.Batch{{Verb: put, Key: key("a"), Properties: one("v", tablestore.Time(time.Time{}))}}, invalid, `property "v" is a time outside`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := test.batch.Validate()
			if !errors.Is(err, test.want) || test.want == nil && err != nil {
				t.Fatalf("Validate: %v, want %v", err, test.want)
			}
			if err != nil && !strings.Contains(err.Error(), test.text) {
				t.Errorf("Validate: %q does not say %q", err, test.text)
			}
		})
	}
}

func TestQueryValidate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		query tablestore.Query
		want  error
	}{
		"plain":           {tablestore.Query{Table: "table", Partition: "p"}, nil},
		"any bounds":      {tablestore.Query{Table: "table", Partition: "p", From: "\xff", To: "\x00", Limit: 1}, nil},
		"empty partition": {tablestore.Query{Table: "table"}, tablestore.ErrInvalid},
		"bad table":       {tablestore.Query{Table: "T", Partition: "p"}, tablestore.ErrInvalid},
		"negative limit":  {tablestore.Query{Table: "table", Partition: "p", Limit: -1}, tablestore.ErrInvalid},
	} {
		if err := test.query.Validate(); !errors.Is(err, test.want) || test.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func TestValidateAllFollowsOwn(t *testing.T) {
	t.Parallel()
	write := tablestore.Batch{{Verb: insert, Key: key("a")}, {Verb: put, Key: key("b")}}
	own := tablestore.Batch{{Verb: replace, Key: key("a"), ETag: tablestore.Own}}
	for name, test := range map[string]struct {
		batches []tablestore.Batch
		want    error
	}{
		"nothing":              {nil, nil},
		"own after its write":  {[]tablestore.Batch{write, own, own}, nil},
		"own before its write": {[]tablestore.Batch{own, write}, tablestore.ErrInvalid},
		"own after a discard":  {[]tablestore.Batch{write, {{Verb: discard, Key: key("a")}}, own}, tablestore.ErrInvalid},
		"own of another row":   {[]tablestore.Batch{{{Verb: put, Key: key("c")}}, own}, tablestore.ErrInvalid},
		"a bad batch":          {[]tablestore.Batch{write, {}}, tablestore.ErrInvalid},
	} {
		if err := tablestore.ValidateAll(test.batches); !errors.Is(err, test.want) || test.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

func TestConflictError(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("accept: %w", &tablestore.ConflictError{Key: key("r"), Verb: insert})
	if conflict, ok := errors.AsType[*tablestore.ConflictError](err); !ok || conflict.Key != key("r") || !errors.Is(err, tablestore.ErrConflict) {
		t.Errorf("%#v is not a conflict on row r", err)
	}
	if want := "accept: conflict: insert table/p/r"; err.Error() != want {
		t.Errorf("message %q, want %q", err, want)
	}
	if got := (&tablestore.ConflictError{}).Error(); got != "conflict on a row of the batch" {
		t.Errorf("message without a key: %q", got)
	}
	if errors.Is(tablestore.ErrUnknown, tablestore.ErrConflict) {
		t.Error("an unknown outcome passes for a conflict")
	}
}

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
	for _, size := range []int{tablestore.MaxRowBytes, tablestore.MaxRowBytes + 2} {
		properties := tablestore.AppendLarge(nil, "data", make([]byte, 15*tablestore.MaxStringUnits))
		properties = append(properties, tablestore.Property{Name: "rest", Value: tablestore.String("")})
		rest := size - tablestore.RowBytes(properties)
		properties[len(properties)-1].Value = tablestore.String(strings.Repeat("a", rest/2))
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
