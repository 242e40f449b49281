package storetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// twoKinds returns properties of the kinds whose memory could be shared.
func twoKinds() tablestore.Properties {
	return tablestore.Properties{
		{Name: "bytes", Value: tablestore.Bytes([]byte("bytes"))},
		{Name: "text", Value: tablestore.String("text")},
	}
}

// scribble overwrites the properties in place.
func scribble(properties tablestore.Properties) {
	for i := range properties {
		copy(properties[i].Value.Bytes(), "XXXXXXXX")
		properties[i] = tablestore.Property{Name: "scribbled", Value: tablestore.Int(1)}
	}
}

var ownershipChecks = []check{
	{"ownership/a row that was passed in is not kept", func(t testing.TB, e *env) {
		for _, verb := range []tablestore.Verb{tablestore.Insert, tablestore.Put} {
			key := e.key("p", verb.String())
			properties := twoKinds()
			batch := tablestore.Batch{{Verb: verb, Key: key, Properties: properties}}
			e.commit(t, batch...)
			scribble(properties)
			batch[0] = tablestore.Op{}
			if diff := cmp.Diff(twoKinds(), e.get(t, key).Properties); diff != "" {
				t.Errorf("%s (-want +got):\n%s", verb, diff)
			}
		}
	}},
	{"ownership/a batch that was passed in is not changed", func(t testing.TB, e *env) {
		batch := tablestore.Batch{{Verb: tablestore.Insert, Key: e.key("p", "r"), Properties: twoKinds()}}
		want := tablestore.Batch{{Verb: tablestore.Insert, Key: e.key("p", "r"), Properties: twoKinds()}}
		e.commit(t, batch...)
		if diff := cmp.Diff(want, batch); diff != "" {
			t.Errorf("batch (-want +got):\n%s", diff)
		}
	}},
	{"ownership/a row that was returned belongs to the caller", func(t testing.TB, e *env) {
		key := e.key("p", "r")
		e.commit(t, tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: twoKinds()})
		scribble(e.get(t, key).Properties)
		for _, row := range e.partition(t, "p") {
			scribble(row.Properties)
		}
		if diff := cmp.Diff(twoKinds(), e.get(t, key).Properties); diff != "" {
			t.Errorf("get after scribbling (-want +got):\n%s", diff)
		}
		for _, row := range e.partition(t, "p") {
			if diff := cmp.Diff(twoKinds(), row.Properties); diff != "" {
				t.Errorf("scan after scribbling (-want +got):\n%s", diff)
			}
		}
	}},
}
