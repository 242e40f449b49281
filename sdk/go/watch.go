package lucius

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"
)

// Watch yields the history of a job: what has happened so far, then each entry as it
// happens, until the job has ended. It reconnects when the stream breaks, and goes on
// after the last entry. An error is the last that it yields.
func (c *Client) Watch(ctx context.Context, jobID string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := watcher{client: c, jobID: jobID, yield: yield}
		for !w.done {
			begun := time.Now()
			err := c.repeat(ctx, w.read)
			if err == nil && !w.done && !pause(ctx, minPoll-time.Since(begun)) {
				err = context.Cause(ctx)
			}
			if err != nil && !w.done {
				yield(Event{}, fmt.Errorf("watch job %s: %w", jobID, err))
				return
			}
		}
	}
}

// watcher reads the stream of one job.
type watcher struct {
	client *Client
	jobID  string
	yield  func(Event, error) bool
	// last is the id of the last entry.
	last string
	// ended is true once an entry said that the job ended.
	ended bool
	// done is true once the loop over the entries has ended, or the stream after the job.
	done bool
}

// silence is how long a stream may say nothing: the server sends a comment about every
// 15 s.
const silence = time.Minute

// read connects once and reads the stream to its end, which is no error if the server said
// anything.
func (w *watcher) read(ctx context.Context) error {
	streaming, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := time.AfterFunc(silence, func() { cancel(fmt.Errorf("the server said nothing for %s", silence)) })
	defer alive.Stop()
	what := call{method: http.MethodGet, path: jobPath(w.jobID, "/events"), header: http.Header{"Accept": {"text/event-stream"}}}
	if w.last != "" {
		what.header.Set("Last-Event-ID", w.last)
	}
	response, err := w.client.send(streaming, what)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // It was only read from.
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body) // Without its text the status says enough.
		return errorOf(response.StatusCode, response.Header, text)
	}
	heard, err := w.entries(response.Body, alive)
	_, undecoded := errors.AsType[*Error](err)
	switch {
	case w.done:
		return nil
	case w.ended && err == nil:
		w.done = true
		return nil
	case heard && !undecoded && ctx.Err() == nil:
		return nil // Whatever broke the stream, the server was there: connect again, however long ago that was.
	}
	return err
}

// entries yields the entries of the stream. It reports whether the server said anything, and
// ends when alive does because it says nothing.
func (w *watcher) entries(stream io.Reader, alive *time.Timer) (heard bool, _ error) {
	lines := bufio.NewReader(stream)
	for {
		alive.Reset(silence)
		line, err := lines.ReadBytes('\n')
		alive.Stop() // The loop over the entries may take its time.
		if err == io.EOF {
			return heard, nil
		}
		if err != nil {
			return heard, fmt.Errorf("read the stream: %w", err)
		}
		heard = true
		data, found := bytes.CutPrefix(line, []byte("data:"))
		if !found {
			continue // A comment, the end of an entry, or a field that data repeats.
		}
		var event Event
		if err := json.Unmarshal(data, &event); err != nil {
			return heard, &Error{Problem: Problem{Status: http.StatusOK, Detail: "an entry cannot be decoded: " + err.Error()}}
		}
		w.last = event.EventID
		w.ended = w.ended || event.Object == EventObjectJob && JobState(event.To).Final()
		if !w.yield(event, nil) {
			w.done = true
			return heard, nil
		}
	}
}
