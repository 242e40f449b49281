package tablestore_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// versions returns the function that reads the stored versions of rows.
func versions(stored map[string]tablestore.ETag) func(tablestore.Key) (tablestore.ETag, error) {
	return func(k tablestore.Key) (tablestore.ETag, error) { return stored[k.Row], nil }
}

// newETags returns a function that returns new1, new2 and so on.
func newETags() func() tablestore.ETag {
	count := 0
	return func() tablestore.ETag {
		count++
		return tablestore.ETag(fmt.Sprint("new", count))
	}
}

func op(verb tablestore.Verb, row string, etag tablestore.ETag) tablestore.Batch {
	return tablestore.Batch{{Verb: verb, Key: key(row), ETag: etag}}
}

const own = tablestore.Own

func TestFold(t *testing.T) {
	t.Parallel()
	stored := map[string]tablestore.ETag{"old": "v1"}
	for name, test := range map[string]struct {
		batches  []tablestore.Batch
		writes   map[string]tablestore.ETag // New version, or "" for removed.
		conflict string                     // The row and verb that conflict.
	}{
		"insert of an absent row":        {[]tablestore.Batch{op(insert, "a", "")}, map[string]tablestore.ETag{"a": "new1"}, ""},
		"insert of a stored row":         {[]tablestore.Batch{op(insert, "old", "")}, nil, "insert old"},
		"replace":                        {[]tablestore.Batch{op(replace, "old", "v1")}, map[string]tablestore.ETag{"old": "new1"}, ""},
		"replace of a stale version":     {[]tablestore.Batch{op(replace, "old", "v0")}, nil, "replace old"},
		"replace of an absent row":       {[]tablestore.Batch{op(replace, "a", "v1")}, nil, "replace a"},
		"delete":                         {[]tablestore.Batch{op(remove, "old", "v1")}, map[string]tablestore.ETag{"old": ""}, ""},
		"delete of a stale version":      {[]tablestore.Batch{op(remove, "old", "v0")}, nil, "delete old"},
		"put over a stored row":          {[]tablestore.Batch{op(put, "old", "")}, map[string]tablestore.ETag{"old": "new1"}, ""},
		"discard of a stored row":        {[]tablestore.Batch{op(discard, "old", "")}, map[string]tablestore.ETag{"old": ""}, ""},
		"discard of an absent row":       {[]tablestore.Batch{op(discard, "a", "")}, map[string]tablestore.ETag{"a": ""}, ""},
		"insert, discard":                {[]tablestore.Batch{op(insert, "a", ""), op(discard, "a", "")}, map[string]tablestore.ETag{}, ""},
		"insert, replace own":            {[]tablestore.Batch{op(insert, "a", ""), op(replace, "a", own)}, map[string]tablestore.ETag{"a": "new2"}, ""},
		"insert, delete own, insert":     {[]tablestore.Batch{op(insert, "a", ""), op(remove, "a", own), op(insert, "a", "")}, map[string]tablestore.ETag{"a": "new2"}, ""},
		"delete, insert":                 {[]tablestore.Batch{op(remove, "old", "v1"), op(insert, "old", "")}, map[string]tablestore.ETag{"old": "new1"}, ""},
		"replace, replace old version":   {[]tablestore.Batch{op(replace, "old", "v1"), op(replace, "old", "v1")}, nil, "replace old"},
		"own of a row not written":       {[]tablestore.Batch{op(remove, "old", own)}, nil, "delete old"},
		"own after a discard":            {[]tablestore.Batch{op(put, "a", ""), op(discard, "a", ""), op(replace, "a", own)}, nil, "replace a"},
		"conflict after good ones":       {[]tablestore.Batch{op(put, "a", ""), op(insert, "old", "")}, nil, "insert old"},
		"discard, then delete of stored": {[]tablestore.Batch{op(discard, "old", ""), op(remove, "old", "v1")}, nil, "delete old"},
	} {
		writes, etags, err := tablestore.Fold(test.batches, versions(stored), newETags())
		var conflict *tablestore.ConflictError
		if errors.As(err, &conflict); test.conflict != "" {
			if conflict == nil || fmt.Sprint(conflict.Verb, " ", conflict.Key.Row) != test.conflict || writes != nil || etags != nil {
				t.Errorf("%s: %v with %v, want a conflict on %s", name, err, writes, test.conflict)
			}
			continue
		}
		got := map[string]tablestore.ETag{}
		for _, write := range writes {
			got[write.Key.Row] = write.ETag
			if write.Removed() != (write.ETag == "") {
				t.Errorf("%s: %+v removed %t", name, write, write.Removed())
			}
		}
		if diff := cmp.Diff(test.writes, got); diff != "" || err != nil {
			t.Errorf("%s: %v, writes (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestFoldReturnsTheETagOfEveryOp(t *testing.T) {
	t.Parallel()
	batches := []tablestore.Batch{
		{{Verb: put, Key: key("a")}, {Verb: discard, Key: key("b")}, {Verb: insert, Key: key("c")}}, op(replace, "a", own)}
	_, etags, err := tablestore.Fold(batches, versions(nil), newETags())
	want := [][]tablestore.ETag{{"new1", "", "new2"}, {"new3"}}
	if diff := cmp.Diff(want, etags); diff != "" || err != nil {
		t.Errorf("ETags: %v (-want +got):\n%s", err, diff)
	}
}

func TestFoldReadsEachRowOnceAndReturnsItsErrors(t *testing.T) {
	t.Parallel()
	reads := 0
	absent := func(tablestore.Key) (tablestore.ETag, error) { reads++; return "", nil }
	batches := []tablestore.Batch{op(insert, "a", ""), op(put, "a", ""), op(discard, "a", "")}
	if _, _, err := tablestore.Fold(batches, absent, newETags()); err != nil || reads != 1 {
		t.Errorf("%d reads, %v, want one", reads, err)
	}
	failure := errors.New("disk")
	broken := func(tablestore.Key) (tablestore.ETag, error) { return "", failure }
	if _, _, err := tablestore.Fold(batches[:1], broken, newETags()); !errors.Is(err, failure) {
		t.Errorf("fold: %v, want the error of the read", err)
	}
}

func TestFoldReadsNoRowWithoutNeed(t *testing.T) {
	t.Parallel()
	refuse := func(key tablestore.Key) (tablestore.ETag, error) { return "", fmt.Errorf("read of %s", key) }
	batches := []tablestore.Batch{op(put, "a", ""), op(replace, "a", own), op(discard, "b", ""), op(insert, "b", "")}
	writes, _, err := tablestore.Fold(batches, refuse, newETags())
	if err != nil || len(writes) != 2 {
		t.Errorf("%v, %v, want two writes and no read", writes, err)
	}
}
