package aztablestore_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// TestValuesOnTheWire checks how values are sent: small integers as numbers, large ones as
// text with their type, times in UTC.
func TestValuesOnTheWire(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", 3600)
	for name, test := range map[string]struct {
		value tablestore.Value
		want  map[string]any
	}{
		"string":            {tablestore.String("it's"), map[string]any{"v": "it's"}},
		"bool":              {tablestore.Bool(true), map[string]any{"v": true}},
		"integer past 2^53": {tablestore.Int(1<<62 + 1), map[string]any{"v": "4611686018427387905", "v@odata.type": "Edm.Int64"}},
		"integer past 2^31": {tablestore.Int(1 << 31), map[string]any{"v": "2147483648", "v@odata.type": "Edm.Int64"}},
		"least of 32 bits":  {tablestore.Int(-1 << 31), map[string]any{"v": -2147483648.0}},
		"small integer":     {tablestore.Int(2), map[string]any{"v": 2.0}},
		"time in a zone":    {tablestore.Time(time.Date(2026, 1, 1, 3, 4, 5, 6_789_000, zone)), map[string]any{"v": "2026-01-01T02:04:05.006Z", "v@odata.type": "Edm.DateTime"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, service := scripted(t, once, inside(done(one)))
			op := put("a")
			op.Properties = tablestore.Properties{{Name: "v", Value: test.value}}
			if _, err := store.Commit(t.Context(), tablestore.Batch{op}); err != nil {
				t.Fatal(err)
			}
			_, body, _ := strings.Cut(service.seen[0], "\r\n\r\n{")
			body, _, _ = strings.Cut(body, "\r\n")
			var got map[string]any
			if err := json.Unmarshal([]byte("{"+body), &got); err != nil {
				t.Fatalf("no entity in:\n%s", service.seen[0])
			}
			test.want["PartitionKey"], test.want["RowKey"] = "p", "a"
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("entity (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEntitiesThatAreRead includes entities that another program may have
// written.
func TestEntitiesThatAreRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fields string
		want   tablestore.Properties
		err    error
	}{
		"no properties":      {`"Timestamp":"2026-01-01T00:00:00Z","odata.metadata":"x"`, nil, nil},
		"text by name":       {`"v":"x","v@odata.type":"Edm.String"`, tablestore.Properties{{Name: "v", Value: tablestore.String("x")}}, nil},
		"an Edm.Int32":       {`"v":7`, tablestore.Properties{{Name: "v", Value: tablestore.Int(7)}}, nil},
		"a time to 100 ns":   {`"v":"2026-01-01T00:00:00.1234567Z","v@odata.type":"Edm.DateTime"`, tablestore.Properties{{Name: "v", Value: tablestore.Time(time.UnixMilli(1_767_225_600_123))}}, nil},
		"an Edm.Double":      {`"v":7.5`, nil, tablestore.ErrCorrupt},
		"a double, by name":  {`"v":7.0,"v@odata.type":"Edm.Double"`, nil, tablestore.ErrCorrupt},
		"a number past 2^31": {`"v":4294967296`, nil, tablestore.ErrCorrupt},
		"an Edm.Guid":        {`"v":"00000000-0000-0000-0000-000000000000","v@odata.type":"Edm.Guid"`, nil, tablestore.ErrCorrupt},
		"a bad integer":      {`"v":"7.5","v@odata.type":"Edm.Int64"`, nil, tablestore.ErrCorrupt},
		"a bad time":         {`"v":"noon","v@odata.type":"Edm.DateTime"`, nil, tablestore.ErrCorrupt},
		"an Edm.Binary":      {`"v":"AP8=","v@odata.type":"Edm.Binary"`, nil, tablestore.ErrCorrupt},
		"a list":             {`"v":[1]`, nil, tablestore.ErrCorrupt},
		"nothing":            {`"v":null`, nil, tablestore.ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := `{"odata.etag":"W/\"1\"","PartitionKey":"p","RowKey":"a",` + test.fields + `}`
			store, _ := scripted(t, once, reply(200, body, "Content-Type", "application/json"))
			got, err := store.Get(t.Context(), key("a"))
			expectError(t, err, test.err)
			if err == nil {
				want := tablestore.Row{Key: key("a"), ETag: `W/"1"`, Properties: test.want}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("row (-want +got):\n%s", diff)
				}
			} else if !strings.Contains(err.Error(), `"v"`) || !strings.Contains(err.Error(), "table/p/a") {
				t.Errorf("error %q does not name property and row", err)
			}
		})
	}
}

func TestEntityThatIsNotJSON(t *testing.T) {
	t.Parallel()
	_, err := aztablestore.DecodeRow(table, []byte(`{"PartitionKey"`))
	expectError(t, err, tablestore.ErrCorrupt)
}

func TestEntitiesThatAreNotRows(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"no ETag":     `{"PartitionKey":"p","RowKey":"a"}`,
		"no keys":     `{"odata.etag":"W/\"1\""}`,
		"a key of ??": `{"odata.etag":"W/\"1\"","PartitionKey":"p","RowKey":"??"}`,
		"another row": `{"odata.etag":"W/\"1\"","PartitionKey":"p","RowKey":"b"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, _ := scripted(t, once, reply(200, body, "Content-Type", "application/json"))
			got, err := store.Get(t.Context(), key("a"))
			expectError(t, err, tablestore.ErrCorrupt)
			if diff := cmp.Diff(tablestore.Row{}, got); diff != "" {
				t.Errorf("a failed read returned %s", fmt.Sprint(got))
			}
		})
	}
}
