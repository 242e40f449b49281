package workqueue_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// FuzzDirective checks that any stored directive can be shown without its lease: only the
// lease is removed, and text that is not a directive is an error.
func FuzzDirective(f *testing.F) {
	whole, err := (&statemachine.Directive{
		Type: "DIRECTIVE", JobID: "job", StepID: "step", AttemptNo: 1, LeaseID: "lease",
		InputRef: json.RawMessage(`{"uri":"s3://in"}`), Payload: json.RawMessage(`{"n":9007199254740993}`),
	}).Bytes()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		string(whole), `{}`, `[]`, `null`, ``, `{`, `{"lease_id":1}`, `{"lease_id":"a","LEASE_ID":"b"}`, `{"a":{"lease_id":"x"}}`,
		`{"n":1e400}`, "{\"a\":\"\xff\"}", `{"lease_id":"a","lease_id":"b"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		shown, err := workqueue.WithoutLease(stored)
		var was map[string]json.RawMessage
		if object := jsontext.Value(stored); object.Kind() != '{' || !object.IsValid() || json.Unmarshal(stored, &was) != nil {
			if err == nil {
				t.Errorf("%q was shown as %q", stored, shown)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", stored, err)
		}
		var is map[string]json.RawMessage
		if err := json.Unmarshal(shown, &is); err != nil {
			t.Fatalf("%q is shown as %q: %v", stored, shown, err)
		}
		if _, there := is["lease_id"]; there {
			t.Errorf("%q is shown with its lease: %q", stored, shown)
		}
		delete(was, "lease_id")
		if len(was) != len(is) {
			t.Errorf("%q is shown as %q", stored, shown)
		}
		for name, value := range was {
			var before, after any
			if decodeNumbers(value, &before) == nil && (decodeNumbers(is[name], &after) != nil || !reflect.DeepEqual(before, after)) {
				t.Errorf("%s of %q is shown as %q", name, stored, is[name])
			}
		}
	})
}

// decode reads a value, with numbers as text.
func decodeNumbers(value json.RawMessage, into *any) error {
	decoder := json.NewDecoder(strings.NewReader(string(value)))
	decoder.UseNumber()
	return decoder.Decode(into)
}
