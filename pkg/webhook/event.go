package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// eventTypes maps the state in which a job ended to the type of its event.
var eventTypes = map[statemachine.JobState]string{
	statemachine.JobSucceeded:   "job.succeeded",
	statemachine.JobFailedFinal: "job.failed",
	statemachine.JobCancelled:   "job.cancelled",
}

// EventType returns the type of the event of a job that ended in the state. It is empty if the
// state is not terminal.
func EventType(state statemachine.JobState) string { return eventTypes[state] }

// instant is a time whose text form is in UTC, to the millisecond.
type instant time.Time

// MarshalText returns the time in its wire form. It returns no error.
func (t instant) MarshalText() ([]byte, error) {
	return time.Time(t).UTC().AppendFormat(nil, "2006-01-02T15:04:05.000Z"), nil
}

// event is the payload that Standard Webhooks recommends.
type event struct {
	Type      string  `json:"type"`
	Timestamp instant `json:"timestamp"`
	Data      end     `json:"data"`
}

// end is the end of a job. It has the field names of GET /v1/jobs/{jobId} and leaves
// out empty fields.
type end struct {
	JobID          string                `json:"jobId"`
	TenantID       string                `json:"tenant_id"`
	RequestType    string                `json:"request_type"`
	ProtocolID     string                `json:"protocol_id,omitempty"`
	DocID          string                `json:"doc_id,omitempty"`
	State          statemachine.JobState `json:"state"`
	IdempotencyKey string                `json:"idempotency_key,omitempty"`
	CorrelationID  string                `json:"correlation_id,omitempty"`
	RerunOf        string                `json:"rerun_of,omitempty"`
	FinalOutput    json.RawMessage       `json:"final_output,omitempty"`
	ErrorCode      string                `json:"error_code,omitempty"`
	ErrorMessage   string                `json:"error_message,omitempty"`
	CreatedAt      instant               `json:"created_at"`
	CompletedAt    instant               `json:"completed_at"`
}

// Body returns the body of the webhook for the end of a job. It need not be stored: a job
// that has ended does not change, so each call returns the same bytes. Body fails if the
// job has not ended, or if its FinalOutput is not JSON.
func Body(job *statemachine.Job) ([]byte, error) {
	eventType, ended := eventTypes[job.State]
	if !ended {
		return nil, fmt.Errorf("webhook: job %s has not ended: it is %s", job.ID, job.State)
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // Keep URLs readable.
	err := encoder.Encode(event{Type: eventType, Timestamp: instant(job.CompletedAt), Data: end{
		JobID: job.ID, TenantID: job.TenantID, RequestType: job.RequestType, ProtocolID: job.ProtocolID,
		DocID: job.DocID, State: job.State, IdempotencyKey: job.IdempotencyKey, CorrelationID: job.CorrelationID,
		RerunOf: job.RerunOf, FinalOutput: job.FinalOutput, ErrorCode: job.ErrorCode, ErrorMessage: job.ErrorMessage,
		CreatedAt: instant(job.CreatedAt), CompletedAt: instant(job.CompletedAt),
	}})
	if err != nil {
		return nil, fmt.Errorf("webhook: encode the end of job %s: %w", job.ID, err)
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}
