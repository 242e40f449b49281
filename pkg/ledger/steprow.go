package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// stepCodec holds the columns of a STEP row.
//
// Source: Ledger and state model, Steps table; Option B spec, 12.3.
var stepCodec = newCodec(slices.Concat([]column[statemachine.Step]{
	text("step_id", func(s *statemachine.Step) *string { return &s.ID }),
	integer("step_index", func(s *statemachine.Step) *int { return &s.Index }),
	text("step_type", func(s *statemachine.Step) *string { return &s.Type }),
	text("service", func(s *statemachine.Step) *string { return &s.Service }),
	text("input", func(s *statemachine.Step) *statemachine.InputSource { return &s.Input }),
	text("payload_pointer", func(s *statemachine.Step) *string { return &s.PayloadPointer }),
	text("state", func(s *statemachine.Step) *statemachine.StepState { return &s.State }),
	integer("attempt_no", func(s *statemachine.Step) *int { return &s.AttemptNo }),
	text("lease_id", func(s *statemachine.Step) *string { return &s.LeaseID }),
	instant("lease_expires_at", func(s *statemachine.Step) *time.Time { return &s.LeaseExpiresAt }),
	instant("timeout_at", func(s *statemachine.Step) *time.Time { return &s.TimeoutAt }),
	instant("next_attempt_at", func(s *statemachine.Step) *time.Time { return &s.NextAttemptAt }),
	text("outbox_id", func(s *statemachine.Step) *string { return &s.OutboxID }),
	document("input_ref", func(s *statemachine.Step) *json.RawMessage { return &s.InputRef }),
	document("output_ref", func(s *statemachine.Step) *json.RawMessage { return &s.OutputRef }),
	document("result_ref", func(s *statemachine.Step) *json.RawMessage { return &s.ResultRef }),
	text("last_error_code", func(s *statemachine.Step) *string { return &s.LastErrorCode }),
	text("last_error_message", func(s *statemachine.Step) *string { return &s.LastErrorMessage }),
	instant("created_at", func(s *statemachine.Step) *time.Time { return &s.CreatedAt }),
	instant("updated_at", func(s *statemachine.Step) *time.Time { return &s.UpdatedAt }),
	instant("completed_at", func(s *statemachine.Step) *time.Time { return &s.CompletedAt }),
	list("attempts", func(s *statemachine.Step) *[]statemachine.Attempt { return &s.Attempts }, formatAttempts, parseAttempts),
	integer("spent_dispatch", func(s *statemachine.Step) *int { return &s.Spent.Dispatch }),
	integer("spent_ack", func(s *statemachine.Step) *int { return &s.Spent.Ack }),
	integer("spent_execution", func(s *statemachine.Step) *int { return &s.Spent.Execution }),
	millis("ack_timeout_ms", func(s *statemachine.Step) *time.Duration { return &s.Policy.AckTimeout }),
	millis("lease_ms", func(s *statemachine.Step) *time.Duration { return &s.Policy.Lease }),
	millis("timeout_ms", func(s *statemachine.Step) *time.Duration { return &s.Policy.Timeout }),
	list("retry_dispatch", func(s *statemachine.Step) *[]time.Duration { return &s.Policy.Dispatch }, formatDelays, parseDelays),
	list("retry_ack", func(s *statemachine.Step) *[]time.Duration { return &s.Policy.Ack }, formatDelays, parseDelays),
	list("retry_execution", func(s *statemachine.Step) *[]time.Duration { return &s.Policy.Execution }, formatDelays, parseDelays),
	integer("max_attempts", func(s *statemachine.Step) *int { return &s.Policy.MaxAttempts }),
}, within(func(s *statemachine.Step) *statemachine.Routing { return &s.Routing }, routingColumns))...)

// routingColumns are the columns of a routing decision.
var routingColumns = []column[statemachine.Routing]{
	text("resolved_mode", func(r *statemachine.Routing) *statemachine.Mode { return &r.ResolvedMode }),
	integer("lane", func(r *statemachine.Routing) *int { return &r.Lane }),
	text("topic", func(r *statemachine.Routing) *string { return &r.Topic }),
	text("routing_key_used", func(r *statemachine.Routing) *string { return &r.RoutingKeyUsed }),
	text("decision_source", func(r *statemachine.Routing) *string { return &r.DecisionSource }),
	text("decision_reason", func(r *statemachine.Routing) *string { return &r.DecisionReason }),
}

// formatAttempts writes "no:digest:acked:result" for each attempt, joined by
// semicolons; digests are hex and results upper-case names.
func formatAttempts(attempts []statemachine.Attempt) string {
	b := make([]byte, 0, 64)
	for i, a := range attempts {
		if i > 0 {
			b = append(b, ';')
		}
		b = strconv.AppendInt(b, int64(a.No), 10)
		b = append(append(b, ':'), a.LeaseDigest...)
		if a.Acked {
			b = append(b, ":acked:"...)
		} else {
			b = append(b, "::"...)
		}
		b = append(b, a.Result...)
	}
	return string(b)
}

// parseAttempts reads what formatAttempts wrote.
func parseAttempts(s string) ([]statemachine.Attempt, error) {
	attempts := make([]statemachine.Attempt, 0, strings.Count(s, ";")+1)
	for part := range strings.SplitSeq(s, ";") {
		no, rest, _ := strings.Cut(part, ":")
		digest, rest, _ := strings.Cut(rest, ":")
		acked, result, ok := strings.Cut(rest, ":")
		n, err := strconv.Atoi(no)
		if err != nil || !ok {
			return nil, fmt.Errorf("bad memory of attempts %q", part)
		}
		attempts = append(attempts, statemachine.Attempt{
			No: n, LeaseDigest: digest, Acked: acked != "", Result: statemachine.ResultStatus(result),
		})
	}
	return attempts, nil
}
