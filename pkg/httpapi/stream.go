package httpapi

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
)

const (
	maxStreams     = 1024                   // How many streams one process keeps open, see limiter.
	streamInterval = 250 * time.Millisecond // How often a stream reads its job: another process may have changed it.
	streamComment  = 15 * time.Second       // how often an idle stream sends a comment
	streamRecheck  = 15 * time.Second       // How often a stream checks that the caller may still follow.
	streamWrite    = 10 * time.Second       // How long a client may take to read one entry.
	// streamRead bounds one read of a stream that has begun, so that it can send a comment
	// while the store does not answer.
	streamRead = 5 * time.Second
	// eventStream is the media type of server-sent events.
	eventStream = "text/event-stream"
)

// accepts reports whether the client asks for that media type by name.
func accepts(r *http.Request, wanted string) bool {
	for _, header := range r.Header.Values("Accept") {
		for accepted := range strings.SplitSeq(header, ",") {
			if mediaType, _, err := mime.ParseMediaType(accepted); err == nil && mediaType == wanted {
				return true
			}
		}
	}
	return false
}

// stream is one client that follows a job.
type stream struct {
	endpoints *endpoints
	w         http.ResponseWriter
	r         *http.Request
	control   *http.ResponseController
	jobID     string
	last      string // The id of the last entry that was sent.
	begun     bool
}

// streamEvents sends new entries of a job's history, and comments while there are none,
// until the job ends, the server drains or the client disconnects. After an error nothing was
// sent.
func (e *endpoints) streamEvents(w http.ResponseWriter, r *http.Request, jobID, last string) error {
	requestStateOf(r.Context()).long = true
	release, err := e.streams.acquire(r.Context(), auth.CallerOf(r.Context()).Name(), 1)
	if err != nil {
		return err
	}
	defer release()
	s := &stream{endpoints: e, w: w, r: r, control: http.NewResponseController(w), jobID: jobID, last: last}
	ticker := time.NewTicker(streamInterval)
	defer ticker.Stop()
	sent := time.Now()
	checked := sent
	for {
		events, ended, err := s.read()
		if err != nil && !s.begun {
			return err
		}
		if err != nil {
			// While the store is unavailable, the stream continues and sends comments,
			// since proxies cut silent streams.
			events, ended = nil, false
		}
		if len(events) > 0 || !s.begun || time.Since(sent) > streamComment {
			if !s.send(events) {
				return nil
			}
			sent = time.Now()
		}
		if !ended && time.Since(checked) > streamRecheck {
			checked = time.Now()
			ended = !e.guard.stillAuthorized(r)
		}
		if ended {
			return nil
		}
		if len(events) == 0 { // Otherwise there may be more entries.
			select {
			case <-ticker.C:
			case <-e.ended:
			case <-r.Context().Done():
			}
		}
		// After a slow read a tick is pending, so that select may choose it each time.
		if s.over() {
			return nil
		}
	}
}

// over reports whether the server drains or the client has gone.
func (s *stream) over() bool { return s.endpoints.draining() || s.r.Context().Err() != nil }

// read returns the job's new entries. Only a few streams read at a time, because
// each reads a whole job, which may be large.
func (s *stream) read() (events []api.Event, ended bool, err error) {
	ctx := s.r.Context()
	if s.begun {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, streamRead)
		defer end()
	}
	release, err := s.endpoints.reads.acquire(ctx, auth.CallerOf(ctx).Name(), jobWeight)
	if err != nil {
		return nil, false, err
	}
	defer release()
	var rev int64
	var index int
	if s.last != "" {
		if _, err := fmt.Sscanf(s.last+"\n", "%d-%d\n", &rev, &index); err != nil || rev < 1 || index < 0 {
			return nil, false, invalid("header Last-Event-ID is not the id of an event", nil)
		}
	}
	entries, ended, err := s.endpoints.Jobs.Follow(ctx, s.jobID, rev, index)
	return EventsOf(entries), ended, err
}

// send writes entries, or a comment if there are none. It reports whether the client
// is still connected.
func (s *stream) send(events []api.Event) bool {
	if !s.begun {
		s.begun = true
		header := s.w.Header()
		header.Set("Content-Type", eventStream)
		header.Set("Cache-Control", "no-store")
		s.w.WriteHeader(http.StatusOK)
	}
	// A writer without a connection has no deadlines, and needs none.
	_ = s.control.SetWriteDeadline(time.Now().Add(streamWrite))
	if len(events) == 0 {
		if _, err := io.WriteString(s.w, ": waiting\n\n"); err != nil {
			return false
		}
	}
	for i := range events {
		// A client that does not read keeps at most one entry in memory.
		event := &events[i]
		data, err := encode(event)
		if err != nil {
			return false
		}
		if _, err := fmt.Fprintf(s.w, "id: %s\nevent: %s\ndata: %s\n", event.EventID, event.Type, data); err != nil {
			return false
		}
		s.last = event.EventID
	}
	if s.control.Flush() != nil {
		return false
	}
	_ = s.control.SetWriteDeadline(time.Time{}) // With HTTP/2 it would end a stream that is silent.
	return true
}
