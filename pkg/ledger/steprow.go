package ledger

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// stepColumns are the names that encodeStep writes.
var stepColumns = nameSet(columnVersion, "step_id", "step_index", "step_type", "service", "input", "payload_pointer",
	"state", "attempt_no", "lease_id", "lease_expires_at", "timeout_at", "next_attempt_at", "outbox_id", "input_ref",
	"output_ref", "result_ref", "last_error_code", "last_error_message", "created_at", "updated_at", "completed_at",
	"attempts", "spent_dispatch", "spent_ack", "spent_execution", "ack_timeout_ms", "lease_ms", "timeout_ms",
	"retry_dispatch", "retry_ack", "retry_execution", "max_attempts", "resolved_mode", "lane", "topic",
	"routing_key_used", "decision_source", "decision_reason")

// encodeStep makes a Step row's properties.
func encodeStep(s *statemachine.Step, loaded tablestore.Properties) tablestore.Properties {
	c := newColumns(40)
	c.str("step_id", s.ID)
	c.int("step_index", int64(s.Index))
	c.str("step_type", s.Type)
	c.str("service", s.Service)
	c.str("input", string(s.Input))
	c.str("payload_pointer", s.PayloadPointer)
	c.str("state", string(s.State))
	c.int("attempt_no", int64(s.AttemptNo))
	c.str("lease_id", s.LeaseID)
	c.time("lease_expires_at", s.LeaseExpiresAt)
	c.time("timeout_at", s.TimeoutAt)
	c.time("next_attempt_at", s.NextAttemptAt)
	c.str("outbox_id", s.OutboxID)
	c.bytes("input_ref", s.InputRef)
	c.bytes("output_ref", s.OutputRef)
	c.bytes("result_ref", s.ResultRef)
	c.str("last_error_code", s.LastErrorCode)
	c.str("last_error_message", s.LastErrorMessage)
	c.time("created_at", s.CreatedAt)
	c.time("updated_at", s.UpdatedAt)
	c.time("completed_at", s.CompletedAt)
	c.str("attempts", formatAttempts(s.Attempts))
	c.int("spent_dispatch", int64(s.Spent.Dispatch))
	c.int("spent_ack", int64(s.Spent.Ack))
	c.int("spent_execution", int64(s.Spent.Execution))
	encodePolicy(c, &s.Policy)
	encodeRouting(c, &s.Routing)
	return c.carry(loaded, stepColumns)
}

func encodePolicy(c *columns, p *statemachine.Policy) {
	c.int("ack_timeout_ms", p.AckTimeout.Milliseconds())
	c.int("lease_ms", p.Lease.Milliseconds())
	c.int("timeout_ms", p.Timeout.Milliseconds())
	c.str("retry_dispatch", formatDelays(p.Dispatch))
	c.str("retry_ack", formatDelays(p.Ack))
	c.str("retry_execution", formatDelays(p.Execution))
	c.int("max_attempts", int64(p.MaxAttempts))
}

func encodeRouting(c *columns, r *statemachine.Routing) {
	c.str("resolved_mode", string(r.ResolvedMode))
	c.int("lane", int64(r.Lane))
	c.str("topic", r.Topic)
	c.str("routing_key_used", r.RoutingKeyUsed)
	c.str("decision_source", r.DecisionSource)
	c.str("decision_reason", r.DecisionReason)
}

// decodeStep reads a Step row.
func decodeStep(row *tablestore.Row) (statemachine.Step, error) {
	var s statemachine.Step
	if err := checkVersion(row); err != nil {
		return s, err
	}
	for i := range row.Properties {
		p := &row.Properties[i]
		if decodeStepText(&s, p.Name, p.Value) || decodeStepRest(&s, p.Name, p.Value) ||
			decodeRouting(&s.Routing, p.Name, p.Value) {
			continue
		}
		if err := decodePolicy(&s, p.Name, p.Value); err != nil {
			return s, fmt.Errorf("row %s of job %s: %w", row.Key.Row, row.Key.Partition, err)
		}
	}
	return s, nil
}

func decodeStepText(s *statemachine.Step, name string, v tablestore.Value) bool {
	switch name {
	case "step_id":
		s.ID = v.String()
	case "step_type":
		s.Type = v.String()
	case "service":
		s.Service = v.String()
	case "input":
		s.Input = statemachine.InputSource(v.String())
	case "payload_pointer":
		s.PayloadPointer = v.String()
	case "state":
		s.State = statemachine.StepState(v.String())
	case "lease_id":
		s.LeaseID = v.String()
	case "outbox_id":
		s.OutboxID = v.String()
	case "last_error_code":
		s.LastErrorCode = v.String()
	case "last_error_message":
		s.LastErrorMessage = v.String()
	default:
		return false
	}
	return true
}

func decodeStepRest(s *statemachine.Step, name string, v tablestore.Value) bool {
	switch name {
	case "step_index":
		s.Index = int(v.Int())
	case "attempt_no":
		s.AttemptNo = int(v.Int())
	case "lease_expires_at":
		s.LeaseExpiresAt = v.Time()
	case "timeout_at":
		s.TimeoutAt = v.Time()
	case "next_attempt_at":
		s.NextAttemptAt = v.Time()
	case "input_ref":
		s.InputRef = v.Bytes()
	case "output_ref":
		s.OutputRef = v.Bytes()
	case "result_ref":
		s.ResultRef = v.Bytes()
	case "created_at":
		s.CreatedAt = v.Time()
	case "updated_at":
		s.UpdatedAt = v.Time()
	case "completed_at":
		s.CompletedAt = v.Time()
	case "spent_dispatch":
		s.Spent.Dispatch = int(v.Int())
	case "spent_ack":
		s.Spent.Ack = int(v.Int())
	case "spent_execution":
		s.Spent.Execution = int(v.Int())
	default:
		return false
	}
	return true
}

func decodePolicy(s *statemachine.Step, name string, v tablestore.Value) (err error) {
	switch name {
	case "attempts":
		s.Attempts, err = parseAttempts(v.String())
	case "ack_timeout_ms":
		s.Policy.AckTimeout = time.Duration(v.Int()) * time.Millisecond
	case "lease_ms":
		s.Policy.Lease = time.Duration(v.Int()) * time.Millisecond
	case "timeout_ms":
		s.Policy.Timeout = time.Duration(v.Int()) * time.Millisecond
	case "retry_dispatch":
		s.Policy.Dispatch, err = parseDelays(v.String())
	case "retry_ack":
		s.Policy.Ack, err = parseDelays(v.String())
	case "retry_execution":
		s.Policy.Execution, err = parseDelays(v.String())
	case "max_attempts":
		s.Policy.MaxAttempts = int(v.Int())
	}
	return err
}

func decodeRouting(r *statemachine.Routing, name string, v tablestore.Value) bool {
	switch name {
	case "resolved_mode":
		r.ResolvedMode = statemachine.Mode(v.String())
	case "lane":
		r.Lane = int(v.Int())
	case "topic":
		r.Topic = v.String()
	case "routing_key_used":
		r.RoutingKeyUsed = v.String()
	case "decision_source":
		r.DecisionSource = v.String()
	case "decision_reason":
		r.DecisionReason = v.String()
	default:
		return false
	}
	return true
}

// formatAttempts writes "no:digest:acked:result" for each attempt, joined by
// semicolons; digests are hex and results upper-case names.
func formatAttempts(attempts []statemachine.Attempt) string {
	var b strings.Builder
	for i, a := range attempts {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(strconv.Itoa(a.No))
		b.WriteByte(':')
		b.WriteString(a.LeaseDigest)
		if a.Acked {
			b.WriteString(":acked:")
		} else {
			b.WriteString("::")
		}
		b.WriteString(string(a.Result))
	}
	return b.String()
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
