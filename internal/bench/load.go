package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

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

const (
	// claimMax is the most items that one claim takes.
	claimMax = 32
	// claimWait is how long a claim waits for a first item.
	claimWait = 20 * time.Second
)

// pulling is the state that the pullers of a run share.
type pulling struct {
	client  *client
	tracker *tracker
	// owner is the worker's name: all pullers are one worker.
	owner string
	// last is the id of a job's last step.
	last     string
	requests atomic.Int64
}

// item is the part of a claimed item that a puller reads.
type item struct {
	WorkID    string `json:"work_id"`
	Rev       int64  `json:"rev"`
	Directive struct {
		StepID        string `json:"stepId"`
		CorrelationID string `json:"correlation_id"`
	} `json:"directive"`
}

// loop claims and starts items until the context ends, and completes each in a
// goroutine of the group, so that a slow completion does not block further claims.
// There are never more completions than jobs in flight. finish is the context of the
// completions, which outlives the claims.
func (p *pulling) loop(ctx, finish context.Context, group *errgroup.Group) error {
	for ctx.Err() == nil {
		var claimed struct {
			Items []item `json:"items"`
		}
		err := p.client.post(ctx, "/v1/work:claim", api.ClaimRequest{
			Owner: p.owner, Services: []string{service}, Max: claimMax, WaitSeconds: claimWait.Seconds(), Start: true,
			RequestID: p.requestID(),
		}, &claimed)
		if err != nil && ctx.Err() == nil {
			return err
		}
		for i := range claimed.Items {
			group.Go(func() error { return p.complete(finish, &claimed.Items[i]) })
		}
	}
	return nil
}

// complete reports success, and notifies the submitter if that ended its job.
func (p *pulling) complete(ctx context.Context, work *item) error {
	err := p.client.post(ctx, "/v1/work/"+work.WorkID+":complete", api.WorkCompletion{
		Owner: p.owner, ExpectedRev: work.Rev, RequestID: p.requestID(),
		ResultRef: json.RawMessage(`{"uri":"bench://result"}`),
	}, nil)
	if err != nil {
		return err
	}
	if work.Directive.StepID == p.last {
		p.tracker.end(work.Directive.CorrelationID, time.Now())
	}
	return nil
}

// requestID returns a fresh request id.
func (p *pulling) requestID() string { return fmt.Sprintf("%s-%d", p.owner, p.requests.Add(1)) }

// tracker notifies each submitter when its job has ended. It knows jobs by the
// correlation id, which the submitter chose: a job may end before its submitter has
// read the job id. It is safe for concurrent use.
type tracker struct {
	mu      sync.Mutex
	waiting map[string]chan time.Time
}

func newTracker() *tracker { return &tracker{waiting: map[string]chan time.Time{}} }

// expect returns a channel that receives the time of the job's end.
func (t *tracker) expect(correlationID string) <-chan time.Time {
	ended := make(chan time.Time, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[correlationID] = ended
	return ended
}

// end records that a job ended. It ignores repetitions, and jobs left over from an
// earlier run.
func (t *tracker) end(correlationID string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended, ok := t.waiting[correlationID]; ok {
		ended <- at // The channel has room for it, and gets no other.
		delete(t.waiting, correlationID)
	}
}

// service does the steps of the benchmark's jobs.
const service = "bench"

// stepWords are the words for the numbers of steps that have a protocol.
var stepWords = map[int]string{1: "one", 3: "three"}

// requestType returns the request_type of commands whose jobs have that many steps.
func requestType(steps int) string { return "bench." + stepWords[steps] }

// title returns the heading for jobs with that many steps.
func title(steps int) string {
	if steps == 1 {
		return stepWords[steps] + " step"
	}
	return stepWords[steps] + " steps"
}

// stepID returns the id of a job's nth step, from 1.
func stepID(n int) string { return fmt.Sprintf("step_%d", n) }

// WriteProtocols writes the protocol files of the benchmark, for the request
// types bench.one and bench.three, into the folder, which must exist. The measured
// server must load its protocols from there.
func WriteProtocols(dir string) error {
	for steps, name := range stepWords {
		path := filepath.Join(dir, "bench_"+name+".yaml")
		if err := os.WriteFile(path, []byte(protocolFile(steps)), 0o600); err != nil {
			return fmt.Errorf("write the protocols of the benchmark: %w", err)
		}
	}
	return nil
}

// protocolFile returns the protocol of jobs with that many steps.
func protocolFile(steps int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "protocol_id: bench_%s\nrequest_types: [%s]\nsteps:\n", stepWords[steps], requestType(steps))
	for n := 1; n <= steps; n++ {
		input := "previous"
		if n == 1 {
			input = "job"
		}
		fmt.Fprintf(&b, "  - step_id: %s\n    step_type: BENCH\n    service: %s\n    input: %s\n", stepID(n), service, input)
	}
	return b.String()
}
