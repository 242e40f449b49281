package lucius

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// ScheduleFilter selects schedules of a tenant. Each field is optional, and narrows the selection.
type ScheduleFilter struct {
	State ScheduleState
	// PageSize is how many schedules are read at once, up to 1000. 0 leaves it to the server.
	PageSize int
}

// schedulePath returns the path of a schedule, or of something of it.
func schedulePath(tenantID, name, rest string) string {
	return "/v1/schedules/" + url.PathEscape(tenantID) + "/" + url.PathEscape(name) + rest
}

// Schedules lists the schedules of a tenant by name, each with its next occurrence. It reads page after page while
// the loop goes on. An error is the last that it yields.
func (c *Client) Schedules(ctx context.Context, tenantID string, filter ScheduleFilter) iter.Seq2[*Schedule, error] {
	query := url.Values{"tenant_id": {tenantID}}
	if filter.State != "" {
		query.Set("state", string(filter.State))
	}
	if filter.PageSize != 0 {
		query.Set("limit", strconv.Itoa(filter.PageSize))
	}
	return func(yield func(*Schedule, error) bool) {
		err := eachPage(ctx, c, "/v1/schedules", query, func(page *SchedulePage) (next string, more bool) {
			for i := range page.Schedules {
				if !yield(&page.Schedules[i], nil) {
					return "", false
				}
			}
			return page.NextPageToken, true
		})
		if err != nil {
			yield(nil, fmt.Errorf("list schedules: %w", err))
		}
	}
}

// Schedule reads a schedule with its next occurrences and its last. If there is none of that name, the error has the code
// schedule_not_found.
func (c *Client) Schedule(ctx context.Context, tenantID, name string) (*Schedule, error) {
	return c.schedule(ctx, "read", tenantID, name, call{method: http.MethodGet})
}

// schedule makes a call that answers with the schedule.
func (c *Client) schedule(ctx context.Context, verb, tenantID, name string, what call) (*Schedule, error) {
	var one Schedule
	what.path, what.answer = schedulePath(tenantID, name, what.path), &one
	if err := c.do(ctx, what); err != nil {
		return nil, fmt.Errorf("%s schedule %s of tenant %s: %w", verb, name, tenantID, err)
	}
	return &one, nil
}

// PutSchedule creates a schedule, or replaces its definition: then the next occurrence is the first after now. Times or a
// command that make no sense are refused with the code schedule_invalid, and with a violation for each fault. The call may be
// repeated, but not one with an ExpectedRev whose answer was lost: that has the code rev_conflict.
func (c *Client) PutSchedule(ctx context.Context, tenantID, name string, definition ScheduleRequest) (*Schedule, error) {
	return c.schedule(ctx, "put", tenantID, name, call{method: http.MethodPut, body: definition})
}

// DeleteSchedule deletes a schedule. Its jobs go on. One that does not exist is no error, so the call may be repeated.
func (c *Client) DeleteSchedule(ctx context.Context, tenantID, name string) error {
	_, err := c.schedule(ctx, "delete", tenantID, name, call{method: http.MethodDelete})
	if HasCode(err, ProblemCodeScheduleNotFound) {
		return nil
	}
	return err
}

// PauseSchedule stops a schedule; what is due until it is resumed is not caught up. The call may be repeated. The reason,
// which may be empty, is logged.
func (c *Client) PauseSchedule(ctx context.Context, tenantID, name, reason string) (*Schedule, error) {
	return c.schedule(ctx, "pause", tenantID, name, call{method: http.MethodPost, path: ":pause", body: ScheduleChange{Reason: reason}})
}

// ResumeSchedule starts a paused schedule with the first occurrence after now. The call may be repeated. The reason, which
// may be empty, is logged.
func (c *Client) ResumeSchedule(ctx context.Context, tenantID, name, reason string) (*Schedule, error) {
	return c.schedule(ctx, "resume", tenantID, name, call{method: http.MethodPost, path: ":resume", body: ScheduleChange{Reason: reason}})
}

// RunSchedule submits the command of a schedule now, also while the schedule is paused. Calls with the same key run it once,
// and return what the first one did: the job, or why there is none. Without a key, each call runs it once.
func (c *Client) RunSchedule(ctx context.Context, tenantID, name, key string) (*ScheduleFire, error) {
	var fire ScheduleFire
	err := c.do(ctx, call{
		method: http.MethodPost, path: schedulePath(tenantID, name, ":run"), header: once(key), body: ScheduleChange{}, answer: &fire,
	})
	if err != nil {
		return nil, fmt.Errorf("run schedule %s of tenant %s: %w", name, tenantID, err)
	}
	return &fire, nil
}

// once returns the header with an idempotency key: the given one, or one of this call and its repetitions.
func once(key string) http.Header {
	if key == "" {
		key = rand.Text()
	}
	return http.Header{"Idempotency-Key": {key}}
}

// PreviewSchedule returns the next times of a cron expression or an interval. It marks those that a change of clocks moves or
// repeats.
func (c *Client) PreviewSchedule(ctx context.Context, request SchedulePreviewRequest) ([]ScheduleTime, error) {
	var preview SchedulePreview
	err := c.do(ctx, call{method: http.MethodPost, path: "/v1/schedules:preview", body: request, answer: &preview})
	if err != nil {
		return nil, fmt.Errorf("preview a schedule: %w", err)
	}
	return preview.Times, nil
}

// ScheduleFires lists what became of the occurrences and runs of a schedule, newest first. It reads page after page while the
// loop goes on. An error is the last that it yields.
func (c *Client) ScheduleFires(ctx context.Context, tenantID, name string) iter.Seq2[*ScheduleFire, error] {
	return func(yield func(*ScheduleFire, error) bool) {
		path := schedulePath(tenantID, name, "/fires")
		err := eachPage(ctx, c, path, url.Values{}, func(page *ScheduleFirePage) (next string, more bool) {
			for i := range page.Fires {
				if !yield(&page.Fires[i], nil) {
					return "", false
				}
			}
			return page.NextPageToken, true
		})
		if err != nil {
			yield(nil, fmt.Errorf("history of schedule %s of tenant %s: %w", name, tenantID, err))
		}
	}
}

// BackfillSchedule begins to fire occurrences of the past, those without a job unless the request says Repeat. The server goes
// on by itself: [Client.ScheduleBackfills] has its progress. Calls with the same key begin one backfill, and return it as it is
// then; another request with that key has the code idempotency_mismatch. Without a key, each call begins one. While another
// backfill of the schedule goes on, the error has the code illegal_transition.
func (c *Client) BackfillSchedule(
	ctx context.Context, tenantID, name string, request BackfillRequest, key string,
) (*ScheduleBackfill, error) {
	var begun ScheduleBackfill
	err := c.do(ctx, call{
		method: http.MethodPost, path: schedulePath(tenantID, name, ":backfill"), header: once(key), body: request, answer: &begun,
	})
	if err != nil {
		return nil, fmt.Errorf("backfill schedule %s of tenant %s: %w", name, tenantID, err)
	}
	return &begun, nil
}

// ScheduleBackfills returns the backfills of a schedule with their progress, newest first.
func (c *Client) ScheduleBackfills(ctx context.Context, tenantID, name string) ([]ScheduleBackfill, error) {
	var list ScheduleBackfills
	err := c.do(ctx, call{method: http.MethodGet, path: schedulePath(tenantID, name, "/backfills"), answer: &list})
	if err != nil {
		return nil, fmt.Errorf("backfills of schedule %s of tenant %s: %w", name, tenantID, err)
	}
	return list.Backfills, nil
}

// CancelBackfill stops a backfill; its jobs go on. It may be cancelling for a moment. The call may be repeated, and leaves a
// backfill as it is that has ended. The reason, which may be empty, is logged.
func (c *Client) CancelBackfill(ctx context.Context, tenantID, name, backfillID, reason string) (*ScheduleBackfill, error) {
	var stopped ScheduleBackfill
	err := c.do(ctx, call{
		method: http.MethodPost, path: schedulePath(tenantID, name, "/backfills/"+url.PathEscape(backfillID)+":cancel"),
		body: ControlRequest{Reason: reason}, answer: &stopped,
	})
	if err != nil {
		return nil, fmt.Errorf("cancel backfill %s of schedule %s of tenant %s: %w", backfillID, name, tenantID, err)
	}
	return &stopped, nil
}
