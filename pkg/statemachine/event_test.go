package statemachine_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Journals hold these names: names may be added, but none may change, even if its Go type
// is renamed.
func TestEvent_NamesArePinned(t *testing.T) {
	t.Parallel()
	pinned := map[string]statemachine.Event{
		"accept":           statemachine.Accept{},
		"taken":            statemachine.DispatchClaimed{},
		"published":        statemachine.Published{},
		"publish_rejected": statemachine.PublishRejected{},
		"claimed":          statemachine.Claimed{},
		"claim_extended":   statemachine.ClaimExtended{},
		"ack":              statemachine.Ack{},
		"heartbeat":        statemachine.Heartbeat{},
		"result":           statemachine.Result{},
		"deadline_passed":  statemachine.DeadlinePassed{},
		"cancel":           statemachine.Cancel{},
		"pause":            statemachine.Pause{},
		"resume":           statemachine.Resume{},
		"reschedule":       statemachine.Reschedule{},
		"prioritize":       statemachine.Prioritize{},
		"retry":            statemachine.Retry{},
		"stall":            statemachine.Stall{},
		"turn":             statemachine.Turn{},
	}
	types := map[string]bool{}
	for name, event := range pinned {
		types[reflect.TypeOf(event).Name()] = true
		if got := event.Name(); got != name {
			t.Errorf("%T is named %q, and journals hold %q", event, got, name)
		}
	}
	if diff := cmp.Diff(eventTypes(t), types); diff != "" {
		t.Errorf("the events of event.go and those pinned here (-want +got):\n%s", diff)
	}
}

// eventTypes returns the types that have a Name.
func eventTypes(t *testing.T) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "event.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]bool{}
	for _, decl := range file.Decls {
		if method, ok := decl.(*ast.FuncDecl); ok && method.Name.Name == "Name" && method.Recv != nil {
			types[method.Recv.List[0].Type.(*ast.Ident).Name] = true
		}
	}
	return types
}
