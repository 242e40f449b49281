package httpapi

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/problem"
)

const (
	// maxStreams bounds the streams that one process keeps open.
	maxStreams = 1024
	// streamInterval is how often a stream looks for news: another process may
	// have changed the job.
	streamInterval = 250 * time.Millisecond
	// streamComment is how often a silent stream says that it is alive.
	streamComment = 15 * time.Second
	// streamRecheck is how often it is asked whether the caller may still follow.
	streamRecheck = 15 * time.Second
	// streamWrite is how long a client may take to read what it is sent.
	streamWrite = 10 * time.Second
)

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
	last      string // The id of the last entry that was sent.
	begun     bool
}

// streamEvents sends the history of a job, and goes on until the job ends, the
// server drains or the client goes.
func (e *endpoints) streamEvents(w http.ResponseWriter, r *http.Request, jobID string, last *string) {
	select {
	case e.streams <- struct{}{}:
		defer func() { <-e.streams }()
	default:
		e.respond.problem(w, r, problem.Newf(problem.RateLimited, "This process has %d streams open.", maxStreams))
		return
	}
	s := &stream{endpoints: e, w: w, r: r, control: http.NewResponseController(w), jobID: jobID}
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
		events, ended, err := s.endpoints.jobs.Follow(s.r.Context(), s.jobID, s.last)
		if err != nil && !s.begun {
			s.endpoints.respond.problem(s.w, s.r, err)
			return
		}
		// A store that is away for a moment does not end a stream.
		if err == nil && (len(events) > 0 || !s.begun || time.Since(sent) > streamComment) {
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
		select {
		case <-ticker.C:
		case <-s.endpoints.server.ended:
			return
		case <-s.r.Context().Done():
			return
		}
	}
}

// send writes entries, or a comment where there are none. It reports whether
// the client is still there.
func (s *stream) send(events []api.Event) bool {
	var out bytes.Buffer
	if len(events) == 0 {
		out.WriteString(": waiting\n\n")
	}
	for i := range events {
		data, err := s.endpoints.respond.encode(&events[i])
		if err != nil {
			return false
		}
		// The encoder ends the value with a newline.
		fmt.Fprintf(&out, "id: %s\nevent: %s\ndata: %s\n", events[i].EventID, events[i].Type, data.Bytes())
		s.endpoints.respond.release(data)
		s.last = events[i].EventID
	}
	if !s.begun {
		s.begun = true
		header := s.w.Header()
		header.Set("Content-Type", eventStream)
		header.Set("Cache-Control", "no-store")
		s.w.WriteHeader(http.StatusOK)
	}
	// A writer without a connection has no deadlines, and needs none.
	_ = s.control.SetWriteDeadline(time.Now().Add(streamWrite))
	if _, err := s.w.Write(out.Bytes()); err != nil {
		return false
	}
	return s.control.Flush() == nil
}
