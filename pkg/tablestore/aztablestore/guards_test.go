package aztablestore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// TestGuards checks that batches that Azure refuses, and Azurite mostly
// accepts, are refused before a request is sent.
func TestGuards(t *testing.T) {
	t.Parallel()
	at := func(table, partition, row string) tablestore.Op {
		return tablestore.Op{Verb: tablestore.Put, Key: tablestore.Key{Table: table, Partition: partition, Row: row}}
	}
	with := func(name string, value tablestore.Value) tablestore.Op {
		op := put("a")
		op.Properties = tablestore.Properties{{Name: name, Value: value}}
		return op
	}
	many := func(n int, properties func(i int) tablestore.Properties) (batch tablestore.Batch) {
		for i := range n {
			op := put(tablestore.Pad(i, 3))
			op.Properties = properties(i)
			batch = append(batch, op)
		}
		return batch
	}
	// wide returns n texts of that many characters.
	wide := func(n, characters int) (properties tablestore.Properties) {
		for i := range n {
			properties = append(properties, tablestore.Property{Name: fmt.Sprint("p", i), Value: tablestore.String(strings.Repeat("a", characters))})
		}
		return properties
	}
	etag := func(op tablestore.Op, etag tablestore.ETag) tablestore.Op {
		op.ETag = etag
		return op
	}
	invalid, tooLarge := tablestore.ErrInvalid, tablestore.ErrTooLarge
	for name, test := range map[string]struct {
		batch tablestore.Batch
		want  error
	}{
		"two partitions":               {tablestore.Batch{at(table, "p", "a"), at(table, "q", "b")}, invalid},
		"two tables":                   {tablestore.Batch{at(table, "p", "a"), at("other", "p", "b")}, invalid},
		"a row twice":                  {tablestore.Batch{insert("a"), put("a")}, invalid},
		"no ops":                       {nil, invalid},
		"101 ops":                      {many(101, func(int) tablestore.Properties { return nil }), tooLarge},
		"more than 4 MiB":              {many(66, func(int) tablestore.Properties { return wide(2, 32<<10) }), tooLarge},
		"a row of more than 1 MiB":     {tablestore.Batch{{Verb: tablestore.Insert, Key: key("a"), Properties: wide(17, 32<<10)}}, tooLarge},
		"253 properties":               {tablestore.Batch{{Verb: tablestore.Insert, Key: key("a"), Properties: wide(253, 1)}}, tooLarge},
		"text over 64 KiB of UTF-16":   {tablestore.Batch{with("v", tablestore.String(strings.Repeat("é", 32<<10+1)))}, tooLarge},
		"a property with a dash":       {tablestore.Batch{with("a-b", tablestore.Int(1))}, invalid},
		"a property with a dot":        {tablestore.Batch{with("odata.etag", tablestore.Int(1))}, invalid},
		"a property of the service":    {tablestore.Batch{with("Timestamp", tablestore.Int(1))}, invalid},
		"a year before 1601":           {tablestore.Batch{with("v", tablestore.Time(time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC)))}, invalid},
		"a table with an underscore":   {tablestore.Batch{at("lucius_ledger", "p", "a")}, invalid},
		"a table with a dash":          {tablestore.Batch{at("job-idempotency", "p", "a")}, invalid},
		"a table in upper case":        {tablestore.Batch{at("LuciusLedger", "p", "a")}, invalid},
		"a table of two letters":       {tablestore.Batch{at("ab", "p", "a")}, invalid},
		"a table of 64 letters":        {tablestore.Batch{at(strings.Repeat("a", 64), "p", "a")}, invalid},
		"a reserved table":             {tablestore.Batch{at("tables", "p", "a")}, invalid},
		"a key with #":                 {tablestore.Batch{at(table, "tenant#202601", "a")}, invalid},
		"a key with /":                 {tablestore.Batch{at(table, "p", "a/b")}, invalid},
		"a key with \\":                {tablestore.Batch{at(table, "p", `a\b`)}, invalid},
		"a key with ?":                 {tablestore.Batch{at(table, "p", "a?b")}, invalid},
		"a key with '":                 {tablestore.Batch{at(table, "p", "q'q")}, invalid},
		"a key with %":                 {tablestore.Batch{at(table, "p", "a%41")}, invalid},
		"a key with a control":         {tablestore.Batch{at(table, "p", "a\x85b")}, invalid},
		"an empty key":                 {tablestore.Batch{at(table, "p", "")}, invalid},
		"a key of 513 bytes":           {tablestore.Batch{at(table, "p", strings.Repeat("k", 513))}, tooLarge},
		"a replacement of no version":  {tablestore.Batch{etag(replace("a"), "")}, invalid},
		"a replacement of any version": {tablestore.Batch{etag(replace("a"), "*")}, invalid},
		"a deletion of any version":    {tablestore.Batch{put("x"), etag(remove("a"), "*")}, invalid},
		"a version of another store":   {tablestore.Batch{etag(replace("a"), "2a")}, invalid},
		"a version of two lines":       {tablestore.Batch{etag(replace("a"), "W/\"1\r\nX-Evil: \"")}, invalid},
		"a version without its end":    {tablestore.Batch{etag(replace("a"), `W/"`)}, invalid},
		"an unresolved version":        {tablestore.Batch{etag(replace("a"), tablestore.Own)}, invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, service := scripted(t, once, inside(done(one)))
			_, err := store.Commit(t.Context(), test.batch)
			expectError(t, err, test.want)
			if service.requests() != 0 {
				t.Errorf("%d requests were sent", service.requests())
			}
		})
	}
}

func TestGuardsOfReads(t *testing.T) {
	t.Parallel()
	store, service := scripted(t, once, row())
	for _, bad := range []tablestore.Key{{Table: "No", Partition: "p", Row: "a"}, key("a/b"), key(""), {Table: table, Partition: "q'q", Row: "a"}} {
		_, err := store.Get(t.Context(), bad)
		expectError(t, err, tablestore.ErrInvalid)
	}
	for _, bad := range []tablestore.Query{{Table: "No", Partition: "p"}, {Table: table}, {Table: table, Partition: "p' or 1 eq 1"}, {Table: table, Partition: "p", Limit: -1}} {
		_, err := store.Scan(t.Context(), bad)
		expectError(t, err, tablestore.ErrInvalid)
	}
	if service.requests() != 0 {
		t.Errorf("%d requests were sent", service.requests())
	}
}
