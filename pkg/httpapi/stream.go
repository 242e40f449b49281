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
	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/problem"
)

const (
	// maxStreams bounds the streams that one process keeps open, see shares.
	maxStreams = 1024
	// maxLooks bounds the streams that look for news at a time.
	maxLooks = 64
	// streamInterval is how often a stream looks for news: another process may
	// have changed the job.
	streamInterval = 250 * time.Millisecond
	// streamComment is how often a silent stream says that it is alive.
	streamComment = 15 * time.Second
	// streamRecheck is how often it is asked whether the caller may still follow.
	streamRecheck = 15 * time.Second
	// streamLook is how long a stream that has begun looks before it says that it is
	// alive: the store may not answer.
	streamLook = 5 * time.Second
	// streamWrite is how long a client may take to read what it is sent.
	streamWrite = 10 * time.Second
)

// atOnce is a tick that has come already.
var atOnce = func() <-chan time.Time {
	closed := make(chan time.Time)
	close(closed)
	return closed
}()

// eventStream is the media type of server-sent events.
const eventStream = "text/event-stream"

// wantsStream reports whether the client asks for server-sent events.
func wantsStream(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept") {
		for accepted := range strings.SplitSeq(header, ",") {
			if mediaType, _, err := mime.ParseMediaType(accepted); err == nil && mediaType == eventStream {
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
	place     *place
	last      string // The id of the last entry that was sent.
	begun     bool
}

// streamEvents sends the history of a job, and goes on until the job ends, the
// server drains, the client goes or another one gets its place.
func (e *endpoints) streamEvents(w http.ResponseWriter, r *http.Request, jobID string, last *string) {
	place := e.server.streams.take(access.CallerOf(r.Context()).Name())
	if place == nil {
		e.respond.problem(w, r, problem.Newf(problem.RateLimited,
			"This process has %d streams open, of which the caller has its share.", maxStreams))
		return
	}
	defer place.leave()
	s := &stream{endpoints: e, w: w, r: r, control: http.NewResponseController(w), jobID: jobID, place: place}
	if last != nil {
		s.last = *last
	}
	s.run()
}

// run sends what there is, again and again.
func (s *stream) run() {
	ticker := time.NewTicker(streamInterval)
	defer ticker.Stop()
	sent := time.Now()
	asked := sent
	for {
		events, ended, err := s.look()
		if err != nil && !s.begun {
			s.endpoints.respond.problem(s.w, s.r, err)
			return
		}
		if err != nil {
			// A store that is away for a moment does not end a stream, and does not
			// silence it: proxies cut silent ones.
			events = nil
		}
		if len(events) > 0 || !s.begun || time.Since(sent) > streamComment {
			if !s.send(events) {
				return
			}
			sent = time.Now()
		}
		if err == nil && ended {
			return
		}
		if time.Since(asked) > streamRecheck {
			if asked = time.Now(); !s.endpoints.guard.still(s.r) {
				return
			}
		}
		next := ticker.C
		if err == nil && len(events) > 0 {
			next = atOnce // There may be more.
		}
		select {
		case <-next:
		case <-s.place.ended:
			return
		case <-s.r.Context().Done():
			return
		}
	}
}

// look returns what is new of the job. Few streams look at a time: a job is read as
// a whole, and all may be of large ones.
func (s *stream) look() (events []api.Event, ended bool, err error) {
	ctx := s.r.Context()
	if s.begun {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, streamLook)
		defer end()
	}
	select {
	case s.endpoints.looks <- struct{}{}:
		defer func() { <-s.endpoints.looks }()
		return s.endpoints.jobs.Follow(ctx, s.jobID, s.last)
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

// send writes entries, or a comment where there are none. It reports whether
// the client is still there.
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
		if !s.sendOne(&events[i]) {
			return false
		}
	}
	return s.control.Flush() == nil
}

// sendOne writes one entry: a client that does not read holds no more of them in
// memory than the one.
func (s *stream) sendOne(event *api.Event) bool {
	data, err := s.endpoints.respond.encode(event)
	if err != nil {
		return false
	}
	defer s.endpoints.respond.release(data)
	// The encoder ends the value with a newline.
	if _, err := fmt.Fprintf(s.w, "id: %s\nevent: %s\ndata: %s\n", event.EventID, event.Type, data.Bytes()); err != nil {
		return false
	}
	s.last = event.EventID
	return true
}
