package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/lucius-project/lucius/api"
)

// ErrReplayed is returned when the server answers a command as a replay, so that no
// new job was run for it.
var ErrReplayed = errors.New("a fresh command was answered as a replay")

// tenants is how many tenants the submitters spread over, so that fairness between
// tenants is at work.
const tenants = 8

// window is the measured time.
type window struct{ start, end time.Time }

// holds reports whether t lies in the window.
func (w window) holds(t time.Time) bool { return !t.Before(w.start) && t.Before(w.end) }

// submitting is the state that the submitters of a run share.
type submitting struct {
	client  *client
	tracker *tracker
	window  window
	// run distinguishes the commands of this run from those of others.
	run     string
	steps   int
	payload json.RawMessage
	// count is called for each job that ended.
	count func()
}

// samples holds the measurements of one submitter.
type samples struct {
	// endToEnd are the times from a command's submission to its job's end, of
	// the jobs that ended in the window.
	endToEnd []time.Duration
	// submit are the times until the 202 of the same commands.
	submit []time.Duration
	// jobs are ids for the audit: the first job, the second, the fourth and so on,
	// which are few but from all over the run.
	jobs []string
}

// loop submits commands until the window's end, each after the previous one's job
// has ended.
func (s *submitting) loop(ctx context.Context, submitter int) (samples, error) {
	var taken samples
	for n := uint(1); time.Now().Before(s.window.end); n++ {
		name := fmt.Sprintf("%s-%d-%d", s.run, submitter, n)
		ended := s.tracker.expect(name)
		begun := time.Now()
		jobID, err := s.submit(ctx, name, submitter)
		if err != nil {
			return taken, err
		}
		answered := time.Now()
		select {
		case at := <-ended:
			s.count()
			if s.window.holds(at) {
				taken.endToEnd = append(taken.endToEnd, at.Sub(begun))
				taken.submit = append(taken.submit, answered.Sub(begun))
			}
		case <-ctx.Done():
			return taken, fmt.Errorf("job %s: %w", jobID, context.Cause(ctx))
		}
		if bits.OnesCount(n) == 1 {
			taken.jobs = append(taken.jobs, jobID)
		}
	}
	return taken, nil
}

// submit sends one command and returns its job's id.
func (s *submitting) submit(ctx context.Context, name string, submitter int) (string, error) {
	var accepted api.CommandAccepted
	err := s.client.post(ctx, "/v1/commands", api.Command{
		TenantID:       fmt.Sprintf("bench-%d", submitter%tenants),
		RequestType:    requestType(s.steps),
		SchemaVersion:  "1",
		InputRef:       json.RawMessage(`{"uri":"bench://input"}`),
		OutputRef:      json.RawMessage(`{"uri":"bench://output"}`),
		Payload:        s.payload,
		CorrelationID:  name,
		IdempotencyKey: name,
	}, &accepted)
	if err != nil {
		return "", err
	}
	if accepted.Replayed {
		return "", fmt.Errorf("command %s: %w", name, ErrReplayed)
	}
	return accepted.JobID, nil
}

// payloadOf returns a payload of that many bytes.
func payloadOf(size int) json.RawMessage {
	filling := bytes.Repeat([]byte{'x'}, size-minPayload)
	return fmt.Appendf(nil, `{"data":"%s"}`, filling)
}
