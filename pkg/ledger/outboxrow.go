package ledger

import (
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// outboxColumns are the names that encodeOutbox writes.
var outboxColumns = nameSet(columnVersion, "outbox_id", "step_id", "step_index", "attempt_no", "lease_id", "state",
	"due_at", "rejected", "failures", "last_error", "created_at", "sent_at", "updated_at", "resolved_mode", "lane",
	"topic", "routing_key_used", "decision_source", "decision_reason")

// encodeOutbox makes an outbox row's properties. Its directive has a row of
// its own, which loading a job does not read.
func encodeOutbox(o *statemachine.Outbox, loaded tablestore.Properties) tablestore.Properties {
	c := newColumns(20)
	c.str("outbox_id", o.ID)
	c.str("step_id", o.StepID)
	c.int("step_index", int64(o.StepIndex))
	c.int("attempt_no", int64(o.AttemptNo))
	c.str("lease_id", o.LeaseID)
	c.str("state", string(o.State))
	c.time("due_at", o.DueAt)
	c.bool("rejected", o.Rejected)
	c.int("failures", int64(o.Failures))
	c.str("last_error", o.LastError)
	c.time("created_at", o.CreatedAt)
	c.time("sent_at", o.SentAt)
	c.time("updated_at", o.UpdatedAt)
	encodeRouting(c, &o.Routing)
	return c.carry(loaded, outboxColumns)
}

// decodeOutbox reads an outbox row.
func decodeOutbox(row *tablestore.Row) (statemachine.Outbox, error) {
	var o statemachine.Outbox
	if err := checkVersion(row); err != nil {
		return o, err
	}
	for i := range row.Properties {
		p := &row.Properties[i]
		if !decodeRouting(&o.Routing, p.Name, p.Value) {
			decodeOutboxColumn(&o, p.Name, p.Value)
		}
	}
	return o, nil
}

func decodeOutboxColumn(o *statemachine.Outbox, name string, v tablestore.Value) {
	switch name {
	case "outbox_id":
		o.ID = v.String()
	case "step_id":
		o.StepID = v.String()
	case "step_index":
		o.StepIndex = int(v.Int())
	case "attempt_no":
		o.AttemptNo = int(v.Int())
	case "lease_id":
		o.LeaseID = v.String()
	case "state":
		o.State = statemachine.OutboxState(v.String())
	case "due_at":
		o.DueAt = v.Time()
	case "rejected":
		o.Rejected = v.Bool()
	case "failures":
		o.Failures = int(v.Int())
	case "last_error":
		o.LastError = v.String()
	case "created_at":
		o.CreatedAt = v.Time()
	case "sent_at":
		o.SentAt = v.Time()
	case "updated_at":
		o.UpdatedAt = v.Time()
	}
}
