package lucius

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Delay is a duration that the server adds to the time at which it gets a request: its clock decides, not
// that of the caller. It is sent in whole seconds, rounded up.
type Delay time.Duration

// seconds returns the delay as it is sent.
func (d Delay) seconds() int64 { return int64((time.Duration(d) + time.Second - 1) / time.Second) }

// MarshalJSON implements [json.Marshaler].
func (d Delay) MarshalJSON() ([]byte, error) { return json.Marshal(d.seconds()) }

// UnmarshalJSON implements [json.Unmarshaler].
func (d *Delay) UnmarshalJSON(text []byte) error {
	var seconds int64
	if err := json.Unmarshal(text, &seconds); err != nil {
		return err
	}
	*d = Delay(time.Duration(seconds) * time.Second)
	return nil
}

// Dates say when a job begins and when it expires. A field that is zero changes nothing.
type Dates struct {
	// NotBefore is when the job may begin, Delay how long after the request; Now begins it at once. A
	// request has one of the three.
	NotBefore time.Time
	Delay     Delay
	Now       bool
	// NotAfter is when the job expires unless a worker has started it; NeverExpires removes that date.
	NotAfter     time.Time
	NeverExpires bool
}

// Reschedule changes the dates of a job that has not begun: one that waits for its date or its line, or was paused
// before it began. For any other job the error has the code illegal_transition. The call may be repeated. The
// reason, which may be empty, is kept in the job's history.
func (c *Client) Reschedule(ctx context.Context, jobID string, dates Dates, reason string) (*Job, error) {
	body := struct {
		NotBefore    time.Time `json:"not_before,omitzero"`
		DelaySeconds *int64    `json:"delay_seconds,omitempty"`
		NotAfter     time.Time `json:"not_after,omitzero"`
		NeverExpires bool      `json:"never_expires,omitzero"`
		Reason       string    `json:"reason,omitzero"`
	}{NotBefore: dates.NotBefore, NotAfter: dates.NotAfter, NeverExpires: dates.NeverExpires, Reason: reason}
	if dates.Now || dates.Delay != 0 {
		body.DelaySeconds = new(dates.Delay.seconds())
	}
	var job Job
	err := c.do(ctx, call{method: http.MethodPost, path: jobPath(jobID, ":reschedule"), body: body, answer: &job})
	if err != nil {
		return nil, fmt.Errorf("reschedule job %s: %w", jobID, err)
	}
	return &job, nil
}
