package commands_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/commands"
)

func TestMembersKeepsTheTextOfEachMember(t *testing.T) {
	t.Parallel()
	got, ok := commands.Members(json.RawMessage("\n{ \"a\" : {\"n\": 1.50 } , \"\\u0062\":[ ],\"c\":\"x\" } "))
	want := map[string]json.RawMessage{"a": json.RawMessage(`{"n": 1.50 }`), "b": json.RawMessage(`[ ]`), "c": json.RawMessage(`"x"`)}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("Members: %t (-want +got):\n%s", ok, diff)
	}
	if got, ok := commands.Members(json.RawMessage(`{}`)); !ok || len(got) != 0 {
		t.Errorf("Members({}) = %v, %t, want none, true", got, ok)
	}
}

func TestMembersOfOtherValues(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "null", "1", `"{}"`, "[]", "{", `{"a"`, `{"a":`, `{"a":1`, `{"a":x}`} {
		if got, ok := commands.Members(json.RawMessage(text)); ok {
			t.Errorf("Members(%s) = %v", text, got)
		}
	}
}
