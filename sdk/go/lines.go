package lucius

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// LineFilter selects lines. Each field is optional, and narrows the selection.
type LineFilter struct {
	TenantID string
	// OrderKey selects the line of the TenantID and this key, also if no job waits in it.
	OrderKey string
	State    LineState
	// PageSize is how many lines are read at once, up to 1000. 0 leaves it to the server.
	PageSize int
}

// query returns the filter as the parameters of a list.
func (f LineFilter) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"tenant_id": f.TenantID, "order_key": f.OrderKey, "state": string(f.State)} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if f.PageSize != 0 {
		query.Set("limit", strconv.Itoa(f.PageSize))
	}
	return query
}

// linePath returns the path of a line, or of a verb on it.
func linePath(lineID, verb string) string { return "/v1/lines/" + url.PathEscape(lineID) + verb }

// Lines lists the lines in which a job waits or that a failed job blocks, in no particular order. A line is
// the jobs of one tenant and order key, which run one after the other. It reads page after page while the
// loop goes on. An error is the last that it yields.
func (c *Client) Lines(ctx context.Context, filter LineFilter) iter.Seq2[*Line, error] {
	return func(yield func(*Line, error) bool) {
		err := eachPage(ctx, c, "/v1/lines", filter.query(), func(page *LinePage) (next string, more bool) {
			for i := range page.Lines {
				if !yield(&page.Lines[i], nil) {
					return "", false
				}
			}
			return page.NextPageToken, true
		})
		if err != nil {
			yield(nil, fmt.Errorf("list lines: %w", err))
		}
	}
}

// Line reads a line: a job's LineID names it. If no job is in it, the error has the code line_not_found.
func (c *Client) Line(ctx context.Context, lineID string) (*Line, error) {
	var line Line
	if err := c.do(ctx, call{method: http.MethodGet, path: linePath(lineID, ""), answer: &line}); err != nil {
		return nil, fmt.Errorf("line %s: %w", lineID, err)
	}
	return &line, nil
}

// LineJobs lists the jobs of a line in the order in which they run, without the payloads of their steps. A
// failed job that blocks the line is the first. An error is the last that it yields.
func (c *Client) LineJobs(ctx context.Context, lineID string) iter.Seq2[*Job, error] {
	return func(yield func(*Job, error) bool) {
		err := eachPage(ctx, c, linePath(lineID, "/jobs"), url.Values{}, func(page *LineJobPage) (next string, more bool) {
			for i := range page.Jobs {
				if !yield(&page.Jobs[i], nil) {
					return "", false
				}
			}
			return page.NextPageToken, true
		})
		if err != nil {
			yield(nil, fmt.Errorf("jobs of line %s: %w", lineID, err))
		}
	}
}

// ReleaseLine lets a line go on past the failed job that blocks it, without a rerun: its next job begins. The
// job is the Head of the line. If it does not block the line, as when its rerun took its place, the error has
// the code not_blocking. The call may be repeated: then it returns the line as it is. The reason, which may be
// empty, is kept in the histories of both jobs.
func (c *Client) ReleaseLine(ctx context.Context, lineID, jobID, reason string) (*Line, error) {
	var line Line
	err := c.do(ctx, call{
		method: http.MethodPost, path: linePath(lineID, ":release"), body: ReleaseRequest{JobID: jobID, Reason: reason}, answer: &line,
	})
	if err != nil {
		return nil, fmt.Errorf("release line %s: %w", lineID, err)
	}
	return &line, nil
}

// cancelLineTimeout is longer than the server works on one request.
const cancelLineTimeout = 30 * time.Second

// CancelLine cancels the jobs of a line that have not begun, the last first, and returns how many. A job that
// has begun and a failed job that blocks the line stay. The reason, which must not be empty, is kept in the
// histories of the jobs. The call may be repeated. Not counted are jobs that a request without an answer
// cancelled; if these were all jobs of the line, the error has the code line_not_found.
func (c *Client) CancelLine(ctx context.Context, lineID, reason string) (cancelled int, err error) {
	for {
		var some LineCancellation
		err := c.do(ctx, call{
			method: http.MethodPost, path: linePath(lineID, ":cancel"), body: LineCancelRequest{Reason: reason},
			timeout: cancelLineTimeout, answer: &some,
		})
		var refused *Error
		if cancelled > 0 && errors.As(err, &refused) && refused.Code == ProblemCodeLineNotFound {
			return cancelled, nil // The jobs before have ended.
		}
		if err != nil {
			return cancelled, fmt.Errorf("cancel line %s: %w", lineID, err)
		}
		if cancelled += some.Cancelled; !some.More || some.Cancelled == 0 {
			return cancelled, nil
		}
	}
}
