package ledger

import (
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// outboxCodec holds the columns of an OUTBOX row. Its directive has a row of its
// own, which loading a job does not read.
//
// Source: Ledger and state model, Outbox table.
var outboxCodec = newCodec(slices.Concat([]column[statemachine.Outbox]{
	text("outbox_id", func(o *statemachine.Outbox) *string { return &o.ID }),
	text("step_id", func(o *statemachine.Outbox) *string { return &o.StepID }),
	integer("step_index", func(o *statemachine.Outbox) *int { return &o.StepIndex }),
	integer("attempt_no", func(o *statemachine.Outbox) *int { return &o.AttemptNo }),
	text("lease_id", func(o *statemachine.Outbox) *string { return &o.LeaseID }),
	text("state", func(o *statemachine.Outbox) *statemachine.OutboxState { return &o.State }),
	text("bus", func(o *statemachine.Outbox) *statemachine.Bus { return &o.Bus }),
	instant("next_attempt_at", func(o *statemachine.Outbox) *time.Time { return &o.DueAt }),
	flag("rejected", func(o *statemachine.Outbox) *bool { return &o.Rejected }),
	integer("failures", func(o *statemachine.Outbox) *int { return &o.Failures }),
	text("last_error", func(o *statemachine.Outbox) *string { return &o.LastError }),
	instant("created_at", func(o *statemachine.Outbox) *time.Time { return &o.CreatedAt }),
	instant("sent_at", func(o *statemachine.Outbox) *time.Time { return &o.SentAt }),
	instant("updated_at", func(o *statemachine.Outbox) *time.Time { return &o.UpdatedAt }),
}, within(func(o *statemachine.Outbox) *statemachine.Routing { return &o.Routing }, routingColumns))...)

// OutboxColumns are the properties of an outbox row. stored are those of the row
// that is written over, of which unknown ones are kept.
func OutboxColumns(row *statemachine.Outbox, stored tablestore.Properties) tablestore.Properties {
	return outboxCodec.encode(row, stored)
}
