package ledger

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// itemCodec holds the columns of a work item's row, of an open item as of one that
// has ended.
//
// Source: Job lifecycle plan 02, Required invariants per status.
var itemCodec = newCodec(
	text("work_id", func(r *workitem.Record) *string { return &r.WorkID }),
	text("dedupe_key", func(r *workitem.Record) *string { return &r.DedupeKey }),
	integer("step_index", func(r *workitem.Record) *int { return &r.StepIndex }),
	integer("attempt_no", func(r *workitem.Record) *int { return &r.AttemptNo }),
	text("message_id", func(r *workitem.Record) *string { return &r.MessageID }),
	text("owner", func(r *workitem.Record) *string { return &r.Owner }),
	integer("claims", func(r *workitem.Record) *int { return &r.Claims }),
	integer("rev", func(r *workitem.Record) *int64 { return &r.Rev }),
	millis("claim_lease_ms", func(r *workitem.Record) *time.Duration { return &r.ClaimLease }),
	instant("ready_since", func(r *workitem.Record) *time.Time { return &r.ReadySince }),
	integer("ready_rev", func(r *workitem.Record) *int64 { return &r.ReadyRev }),
	text("requeue_actor", func(r *workitem.Record) *string { return &r.RequeuedBy.Actor }),
	text("requeue_id", func(r *workitem.Record) *string { return &r.RequeuedBy.RequestID }),
	list("requests", func(r *workitem.Record) *[]lifecycle.Remembered { return &r.Requests }, formatRequests, parseRequests),
	text("ended", func(r *workitem.Record) *lifecycle.Status { return &r.Ended }),
	flag("removed", func(r *workitem.Record) *bool { return &r.Removed }),
	text("error_code", func(r *workitem.Record) *string { return &r.Failure.Code }),
	text("error_message", func(r *workitem.Record) *string { return &r.Failure.Message }),
	flag("gave_output", func(r *workitem.Record) *bool { return &r.GaveOutput }),
	flag("gave_result", func(r *workitem.Record) *bool { return &r.GaveResult }),
	instant("created_at", func(r *workitem.Record) *time.Time { return &r.CreatedAt }),
	instant("updated_at", func(r *workitem.Record) *time.Time { return &r.UpdatedAt }),
)

// storedRequest is a remembered request as it is stored.
type storedRequest struct {
	Actor     string `json:"a"`
	ID        string `json:"i"`
	Operation string `json:"o"`
	Rev       int64  `json:"r"`
	Attempt   int    `json:"n"`
	ExpiresMS int64  `json:"e"`
}

// formatRequests writes remembered requests as JSON.
func formatRequests(list []lifecycle.Remembered) string {
	out := make([]storedRequest, len(list))
	for i, r := range list {
		out[i] = storedRequest{r.Actor, r.RequestID, string(r.Operation), r.Rev, r.Attempt, r.ExpiresAt.UnixMilli()}
	}
	data, err := json.Marshal(out)
	if err != nil {
		return "" // Texts and numbers can be encoded.
	}
	return string(data)
}

// parseRequests reads what formatRequests wrote.
func parseRequests(s string) ([]lifecycle.Remembered, error) {
	var stored []storedRequest
	if err := json.Unmarshal([]byte(s), &stored); err != nil {
		return nil, fmt.Errorf("remembered requests: %w", err)
	}
	out := make([]lifecycle.Remembered, len(stored))
	for i, r := range stored {
		out[i] = lifecycle.Remembered{
			Actor: r.Actor, RequestID: r.ID, Operation: lifecycle.Operation(r.Operation), Rev: r.Rev, Attempt: r.Attempt,
			ExpiresAt: time.UnixMilli(r.ExpiresMS).UTC(),
		}
	}
	return out, nil
}

// storedMove is a move of a work item as the journal row, or the row of a
// heartbeat, stores it.
type storedMove struct {
	WorkID    string `json:"w"`
	Rev       int64  `json:"v"`
	Type      string `json:"t"`
	From      string `json:"f,omitempty"`
	To        string `json:"to,omitempty"`
	AtMS      int64  `json:"at"`
	Actor     string `json:"a"`
	RequestID string `json:"r,omitempty"`
	Attempt   int    `json:"n"`
}

// encodeMoves writes moves of work items.
func encodeMoves(events []lifecycle.Event) ([]byte, error) {
	moves := make([]storedMove, len(events))
	for i, e := range events {
		moves[i] = storedMove{
			WorkID: e.WorkID, Rev: e.Rev, Type: string(e.Type), From: string(e.From), To: string(e.To),
			AtMS: e.At.UnixMilli(), Actor: e.Actor, RequestID: e.RequestID, Attempt: e.Attempt,
		}
	}
	return json.Marshal(moves)
}

// decodeMoves reads what encodeMoves wrote from a row, those of one item alone.
func decodeMoves(row *tablestore.Row, workID string) ([]lifecycle.Event, error) {
	stored := tablestore.Large(row.Properties, "moves")
	if len(stored) == 0 {
		return nil, nil
	}
	var moves []storedMove
	if err := json.Unmarshal(stored, &moves); err != nil {
		return nil, fmt.Errorf("row %s of job %s: moves of work items: %w", row.Key.Row, row.Key.Partition, err)
	}
	var events []lifecycle.Event
	for _, m := range moves {
		if m.WorkID == workID {
			events = append(events, lifecycle.Event{
				WorkID: m.WorkID, Rev: m.Rev, Type: lifecycle.EventType(m.Type), From: lifecycle.Status(m.From),
				To: lifecycle.Status(m.To), At: time.UnixMilli(m.AtMS).UTC(), Actor: m.Actor, RequestID: m.RequestID,
				Attempt: m.Attempt,
			})
		}
	}
	return events, nil
}
