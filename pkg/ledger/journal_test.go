package ledger_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

func TestHistory_NamesTheEventOfEachChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.mustAccept(t, command("h")).Job.ID
	m := b.inbox.last()
	b.mustChange(t, id, statemachine.PublishRejected{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo, Reason: "malformed"})
	b.mustChange(t, id, statemachine.Cancel{})
	history, _, err := b.History(t.Context(), id, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for _, entry := range history {
		events = append(events, entry.Event)
	}
	if diff := cmp.Diff([]string{"accept", "publish_rejected", "cancel"}, slices.Compact(events)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
