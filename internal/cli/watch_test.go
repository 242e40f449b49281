package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
)

// story is a server with one job, whose stream breaks after two of its four events.
type story struct {
	mu    sync.Mutex
	state api.JobState // the last state
	seen  int          // how many events were sent
	asked []string     // the ids after which streams were requested
}

func (s *story) events() []api.Event {
	var events []api.Event
	for i, to := range []string{"DISPATCHING", "IN_PROGRESS", "IN_PROGRESS", string(s.state)} {
		events = append(events, api.Event{
			EventID: fmt.Sprint(i + 1), Rev: int64(i + 1), Type: api.EventType("job." + strings.ToLower(to)), Object: api.EventObjectJob,
			At: at(time.Duration(10-i) * time.Second), To: to, Actor: "client", Caller: "ci",
		})
	}
	return events
}

func (s *story) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.HasSuffix(r.URL.Path, "/events") {
		job := failedJob()
		if job.Rev = int64(s.seen); s.seen < 4 {
			job.State, job.CompletedAt = api.JobStateInProgress, api.Time{}
		} else {
			job.State = s.state
		}
		_ = json.NewEncoder(w).Encode(job)
		return
	}
	after := r.Header.Get("Last-Event-ID")
	s.asked = append(s.asked, after)
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, ": waiting\n\n")
	for _, e := range s.events() {
		if e.EventID <= after || len(s.asked) == 1 && s.seen == 2 {
			continue
		}
		text, _ := json.Marshal(e)
		fmt.Fprintf(w, "id: %s\nevent: %s\ndata: %s\n\n", e.EventID, e.Type, text)
		s.seen++
	}
}

func TestJobsWatch(t *testing.T) {
	t.Parallel()
	run := func(state api.JobState, terminal bool, args ...string) (string, error) {
		story := &story{state: state}
		l := newLine(t, serve(t, story.ServeHTTP))
		l.Terminal, l.Size = terminal, func() (int, int) { return 60, 10 }
		out, err := l.run(t, append([]string{"jobs", "watch", jobID}, args...)...)
		if got := strings.Join(story.asked, ","); got != ",2" {
			t.Errorf("streams were asked for after %q", got)
		}
		return out, err
	}
	out, err := run(api.JobStateSucceeded, false)
	if lines := strings.Split(strings.TrimSpace(out), "\n"); err != nil || len(lines) != 4 || !strings.HasSuffix(lines[3], " job.succeeded SUCCEEDED ci") {
		t.Errorf("line by line: %v\n%s", err, out)
	}
	out, err = run(api.JobStateFailedFinal, false, "-o", "json")
	if cli.ExitCode(err) != cli.ExitFailed || !strings.Contains(fmt.Sprint(err), "is FAILED_FINAL: lucius why") {
		t.Errorf("of a failed job: %v", err)
	}
	for line := range strings.Lines(out) {
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(new(api.Event)); err != nil {
			t.Errorf("as JSON: %v\n%s", err, line)
		}
	}
	out, err = run(api.JobStateSucceeded, true)
	last := out[strings.LastIndex(out, "\x1b[9F"):]
	if err != nil || !strings.Contains(last, "SUCCEEDED") || strings.Count(last, "\n") != 9 || strings.Contains(last, "IN_PROGRESS") {
		t.Errorf("live: %v\n%q", err, last)
	}
}

// A job may be quiet for days, while proxies and crashes of servers break its streams.
func TestJobsWatch_OutlivesTheStreamsOfAQuietJob(t *testing.T) {
	t.Parallel()
	var streams atomic.Int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/events"):
			job := failedJob()
			if job.State = api.JobStateSucceeded; streams.Load() < 20 {
				job.State, job.CompletedAt = api.JobStateInProgress, api.Time{}
			}
			_ = json.NewEncoder(w).Encode(job)
		case streams.Add(1) < 20:
			fmt.Fprint(w, ": waiting\n\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	if _, err := newLine(t, url).run(t, "jobs", "watch", jobID); err != nil || streams.Load() != 20 {
		t.Errorf("after %d streams: %v", streams.Load(), err)
	}
}

// A server that stops ends the stream before the job's last events.
func TestJobsWatch_ShowsTheEventsOfAJobThatEndsWhileItsServerStops(t *testing.T) {
	t.Parallel()
	streams := 0
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/events") {
			job := failedJob()
			if job.State, job.Rev = api.JobStateSucceeded, 2; streams < 2 {
				job.State, job.Rev, job.CompletedAt = api.JobStateInProgress, 1, api.Time{}
			}
			_ = json.NewEncoder(w).Encode(job)
			return
		}
		if streams++; streams == 2 { // The server drains.
			fmt.Fprint(w, ": waiting\n\n")
			return
		}
		fmt.Fprintf(w, "data: %s\n\n", encode(t, api.Event{EventID: fmt.Sprint(streams), Rev: int64(min(streams, 2))}))
	}))
	if out := l.must(t, "jobs", "watch", jobID, "-o", "json"); strings.Count(out, "\n") != 2 || streams != 3 {
		t.Errorf("%d streams, and it wrote\n%s", streams, out)
	}
}

// Ctrl-C ends a watch.
func TestJobsWatch_IsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			cancel()
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(waitingJob(api.JobStateInProgress, api.Waiting{}))
	})
	l := newLine(t, url)
	err := cli.Run(ctx, cli.Root(&l.Env), []string{"jobs", "watch", jobID})
	if cli.ExitCode(err) != cli.ExitInterrupted {
		t.Errorf("answered %v", errors.Unwrap(err))
	}
}

func TestJobsEvents(t *testing.T) {
	t.Parallel()
	l := newLine(t, answers(t, map[string]any{"GET /v1/jobs/" + jobID + "/events": history()}))
	golden(t, "jobs-events.txt", l.must(t, "jobs", "events", jobID))
	forPrograms(t, l, history(), "jobs", "events", jobID)
}

func TestJobsRerun(t *testing.T) {
	t.Parallel()
	receipt := api.CommandAccepted{JobID: "new", State: api.JobStateDispatching, CorrelationID: "c"}
	replayed := receipt
	replayed.Replayed = true
	failed := failedJob()
	failed.JobID = "new"
	for _, test := range []struct {
		receipt api.CommandAccepted
		args    string
		code    int
		want    string
	}{
		{receipt, "", 0, "Accepted: job new is DISPATCHING\n"},
		{replayed, "--from start --reason why", 0, "Accepted before: job new is DISPATCHING\n"},
		{receipt, "--from end", cli.ExitUsage, "must be failed or start"},
		{receipt, "--wait", cli.ExitFailed, "job new is FAILED_FINAL: lucius why new"},
	} {
		l := newLine(t, answers(t, map[string]any{"POST /v1/jobs/" + jobID + ":rerun": test.receipt, "GET /v1/jobs/new": failed}))
		out, err := l.run(t, strings.Fields("jobs rerun "+jobID+" "+test.args)...)
		if cli.ExitCode(err) != test.code || !strings.Contains(out+fmt.Sprint(err), test.want) {
			t.Errorf("%s: %v, %s", test.args, err, out)
		}
		if test.code == 0 {
			forPrograms(t, l, test.receipt, strings.Fields("jobs rerun "+jobID+" "+test.args)...)
		}
	}
}
