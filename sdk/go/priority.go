package lucius

import (
	"context"
	"fmt"
	"net/http"
)

// Prioritize makes a job that has not ended normal or bulk. Bulk work yields to all other work of its
// service and step type. For a job that has ended the error has the code illegal_transition. The call
// may be repeated. The reason, which may be empty, is kept in the job's history.
func (c *Client) Prioritize(ctx context.Context, jobID string, priority Priority, reason string) (*Job, error) {
	body := struct {
		Priority Priority `json:"priority"`
		Reason   string   `json:"reason,omitzero"`
	}{priority, reason}
	var job Job
	err := c.do(ctx, call{method: http.MethodPost, path: jobPath(jobID, ":prioritize"), body: body, answer: &job})
	if err != nil {
		return nil, fmt.Errorf("prioritize job %s: %w", jobID, err)
	}
	return &job, nil
}
