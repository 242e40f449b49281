package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The types of events.
const (
	JobSucceeded = "job.succeeded"
	JobFailed    = "job.failed"
	JobCancelled = "job.cancelled"
)

// ErrNotEnded is returned for the announcement of a job that has not ended.
var ErrNotEnded = errors.New("webhook: the job has not ended")

// EventType returns the type of the event that announces the end. It returns
// [ErrNotEnded] for a state that is not terminal.
func EventType(state statemachine.JobState) (string, error) {
	switch state {
	case statemachine.JobSucceeded:
		return JobSucceeded, nil
	case statemachine.JobFailedFinal:
		return JobFailed, nil
	case statemachine.JobCancelled:
		return JobCancelled, nil
	default:
		return "", fmt.Errorf("%w: it is %s", ErrNotEnded, state)
	}
}

// End is the announcement of a job's end. It has the field names of
// GET /v1/jobs/{jobId} and leaves out empty fields.
type End struct {
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
	CreatedAt      Time                  `json:"created_at"`
	CompletedAt    Time                  `json:"completed_at"`
}

// Time is a time that is written in UTC with milliseconds.
type Time time.Time

// timeLayout is RFC 3339 in UTC, cut to milliseconds.
const timeLayout = "2006-01-02T15:04:05.000Z"

// MarshalText returns the time in its wire form. It returns no error.
func (t Time) MarshalText() ([]byte, error) {
	return time.Time(t).UTC().AppendFormat(nil, timeLayout), nil
}

// EndOf returns the end of a job, which must be terminal. The result shares the job's
// bytes.
func EndOf(job *statemachine.Job) End {
	return End{
		JobID: job.ID, TenantID: job.TenantID, RequestType: job.RequestType, ProtocolID: job.ProtocolID,
		DocID: job.DocID, State: job.State, IdempotencyKey: job.IdempotencyKey, CorrelationID: job.CorrelationID,
		RerunOf: job.RerunOf, FinalOutput: job.FinalOutput, ErrorCode: job.ErrorCode, ErrorMessage: job.ErrorMessage,
		CreatedAt: Time(job.CreatedAt), CompletedAt: Time(job.CompletedAt),
	}
}

// event is the payload that Standard Webhooks recommends.
type event struct {
	Type      string `json:"type"`
	Timestamp Time   `json:"timestamp"`
	Data      *End   `json:"data"`
}

// Body returns the bytes that announce the end. They need not be stored: the same end
// gives the same bytes, and a job that has ended does not change. It returns
// [ErrNotEnded], or an error if FinalOutput is not JSON.
func (e *End) Body() ([]byte, error) {
	name, err := EventType(e.State)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // a URL stays readable
	if err := encoder.Encode(event{Type: name, Timestamp: e.CompletedAt, Data: e}); err != nil {
		return nil, fmt.Errorf("webhook: write the end of job %s: %w", e.JobID, err)
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}
