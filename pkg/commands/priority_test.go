package commands_test

import (
	"testing"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// What the command names replaces what its protocol says.
func TestPriorityOfACommand(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		protocol, field string
		want            statemachine.Class
	}{
		{"", "", statemachine.ClassNormal},
		{"", `"priority":"bulk",`, statemachine.ClassBulk},
		{"", `"priority":"normal",`, statemachine.ClassNormal},
		{"priority: bulk", "", statemachine.ClassBulk},
		{"priority: bulk", `"priority":null,`, statemachine.ClassBulk},
		{"priority: bulk", `"priority":"normal",`, statemachine.ClassNormal},
		{"priority: normal", `"priority":"bulk",`, statemachine.ClassBulk},
	} {
		b := orderedBy(t, test.protocol)
		accepted, err := b.Submit(t.Context(), ingest(`"tenant_id"`, test.field+`"tenant_id"`), commands.Headers{}, anyone)
		if err != nil || accepted.Job.Class != test.want {
			t.Errorf("%q and %s make %q (%v)", test.protocol, test.field, accepted.Job.Class, err)
		}
	}
}

// A class is no part of the idempotency hash.
func TestSubmit_AnotherPriorityIsTheSameCommand(t *testing.T) {
	t.Parallel()
	b := setup(t, 0)
	first, err := b.Submit(t.Context(), ingest(`"tenant_id"`, `"priority":"bulk","tenant_id"`), commands.Headers{}, anyone)
	musttest.NoError(t, err)
	for _, field := range []string{"", `"priority":"normal",`} {
		again, err := b.Submit(t.Context(), ingest(`"tenant_id"`, field+`"tenant_id"`), commands.Headers{}, anyone)
		if err != nil || !again.Replayed || again.Job.ID != first.Job.ID || again.Job.Class != statemachine.ClassBulk {
			t.Errorf("%s: %+v, %v", field, again, err)
		}
	}
}
