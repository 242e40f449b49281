package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

func (t *tool) jobsEvents() *cobra.Command {
	var limit int
	cmd := t.command(spec{
		use: "events JOB", short: "Show the history of a job", args: 1, completes: jobIDs,
		example: "  lucius jobs events JOB\n  lucius jobs events JOB -o json | jq '.events[] | select(.caller)'",
	}, func(ctx context.Context, s *session, args []string) error {
		history, err := s.history(ctx, args[0], limit)
		if err != nil {
			return err
		}
		return show(s, history, showEvents)
	})
	cmd.Flags().IntVar(&limit, "limit", 1000, "maximum number of entries to show, from the first")
	return cmd
}

// showEvents writes entries of a history.
func showEvents(p *page, history api.EventPage) {
	rows := make([][]string, len(history.Events))
	for i := range history.Events {
		rows[i] = p.event(&history.Events[i])
	}
	p.table([]string{"AT", "EVENT", "OF", "STATE", "ATTEMPT", "BY", "CAUSE"}, rows)
	p.more(history.NextPageToken != "", len(rows))
}

// event returns the cells of an entry.
func (p *page) event(e *api.Event) []string {
	by, attempt := cmp.Or(e.Caller, string(e.Actor)), ""
	if e.AttemptNo > 0 {
		attempt = fmt.Sprint(e.AttemptNo)
	}
	cause := strings.TrimSuffix(e.Cause+": "+e.Detail, ": ")
	if e.Owner != "" {
		cause += " (" + e.Owner + ")"
	}
	return []string{p.ago(e.At.Time), string(e.Type), e.ObjectID, p.state(e.To), attempt, by, strings.TrimPrefix(cause, ": ")}
}

func (t *tool) jobsWatch() *cobra.Command {
	return t.command(spec{
		use: "watch JOB", short: "Follow a job until it ends", args: 1, completes: jobIDs,
		long: "Follows a job until it ends: as a live view on a terminal, otherwise with a line per event, or with\n" +
			"-o json each event as a line of JSON. Exits with 1 if the job does not succeed.",
		example: "  lucius jobs watch JOB",
	}, func(ctx context.Context, s *session, args []string) error { return s.watch(ctx, args[0]) })
}

// reconnects is how often in a row a request is repeated without progress.
const reconnects = 5

// watch follows a job until it ends.
func (s *session) watch(ctx context.Context, jobID string) error {
	job, err := call[api.Job](s.GetJob(ctx, jobID, nil))
	if err != nil {
		return err
	}
	handle, view := s.printEvent, s.live()
	if s.output != "table" {
		view = nil
	}
	if view != nil {
		view.draw(render(s, job, showJob))
		handle = func(e *api.Event) (err error) {
			if e.Rev <= job.Rev { // The view already shows the event.
				return nil
			}
			if job, err = call[api.Job](s.GetJob(ctx, jobID, nil)); err == nil {
				view.draw(render(s, job, showJob))
			}
			return err
		}
	}
	if job, err = s.followToEnd(ctx, jobID, handle); err != nil {
		return err
	}
	if view != nil {
		view.draw(render(s, job, showJob))
	}
	return outcome(&job)
}

// followToEnd calls handle with each event of a job until the job has ended, and returns the
// job. If the stream ends before that, for instance because its server stops, followToEnd opens
// it again, also if the job has ended in the meantime: its last events may be missing.
func (s *session) followToEnd(ctx context.Context, jobID string, handle func(*api.Event) error) (job api.Job, err error) {
	last, rev := "", int64(0)
	note := func(e *api.Event) error {
		rev = e.Rev
		return handle(e)
	}
	for failures := 0; ; {
		var heard bool
		before, hadEnded := last, !job.CompletedAt.IsZero()
		if heard, err = s.follow(ctx, jobID, &last, note); err == nil {
			job, err = call[api.Job](s.GetJob(ctx, jobID, nil))
		}
		switch {
		case last != before:
			failures = 0
		case heard: // The job may be quiet for days, and the server was there.
			failures = 1
		default:
			failures++
		}
		switch {
		case err == nil && !job.CompletedAt.IsZero() && (hadEnded || rev >= job.Rev):
			return job, nil
		case err != nil && (ExitCode(err) != ExitUnavailable || failures > reconnects):
			return job, err
		}
		if err := s.pause(ctx, time.Duration(failures)*time.Second); err != nil {
			return job, err
		}
	}
}

// outcome returns an error if a job that has ended did not succeed.
func outcome(job *api.Job) error {
	if job.State == api.JobStateSucceeded {
		return nil
	}
	return &Error{Code: ExitFailed, Err: fmt.Errorf("job %s is %s: lucius why %s", job.JobID, job.State, job.JobID)}
}

// printEvent prints an entry on a line of its own.
func (s *session) printEvent(e *api.Event) error {
	if s.output == "json" {
		if err := json.NewEncoder(SafeJSON{s.Stdout}).Encode(e); err != nil {
			return fmt.Errorf("print the event: %w", err)
		}
		return nil
	}
	if s.output == "yaml" {
		return s.encode([]api.Event{*e})
	}
	sanitize(reflect.ValueOf(e).Elem())
	p := s.page()
	cells := p.event(e)
	cells[0] = e.At.Local().Format(time.TimeOnly)
	p.line("%s", strings.Join(strings.Fields(strings.Join(cells, " ")), " "))
	return s.write(p.String())
}

// longestEvent is the most bytes of an event.
const longestEvent = 4 << 20

// follow reads a job's stream, after the event last, until the stream ends. It calls handle with
// each event, and updates last. It reports whether the server said anything, if only that there
// is no event.
func (s *session) follow(ctx context.Context, jobID string, last *string, handle func(*api.Event) error) (heard bool, _ error) {
	params := &api.ListJobEventsParams{LastEventID: optional(*last)}
	response, err := s.ListJobEvents(ctx, jobID, params, func(_ context.Context, r *http.Request) error {
		r.Header.Set("Accept", "text/event-stream")
		return nil
	})
	if err != nil {
		return false, unreachable(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		return false, errors.Join(refusal(response, body), err)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, longestEvent)
	for lines.Scan() {
		heard = true
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e api.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return false, notLucius(response)
		}
		*last = e.EventID
		if err := handle(&e); err != nil {
			return heard, err
		}
	}
	if err := lines.Err(); err != nil {
		return heard, unreachable(err)
	}
	return heard, nil
}

// accepted prints the receipt of a command or, if wait is set, the job once it has ended.
func (s *session) accepted(ctx context.Context, receipt *api.CommandAccepted, wait bool, timeout time.Duration) error {
	if !wait {
		return show(s, *receipt, func(p *page, r api.CommandAccepted) {
			verb := "Accepted"
			if r.Replayed {
				verb = "Accepted before"
			}
			p.line("%s: job %s is %s", verb, r.JobID, p.state(string(r.State)))
		})
	}
	job, err := s.end(ctx, receipt.JobID, timeout)
	switch {
	case errors.Is(err, errLate):
		return &Error{Code: ExitFailed, Err: fmt.Errorf("job %s has not ended within %s: lucius why %[1]s", receipt.JobID, timeout)}
	case err != nil:
		return &Error{Code: ExitCode(err), Err: fmt.Errorf("%w; job %s was accepted: lucius jobs watch %[2]s", err, receipt.JobID)}
	}
	return cmp.Or(show(s, *job, showJob), outcome(job))
}

// end waits until a job has ended, for at most timeout unless that is 0: then it returns errLate.
func (s *session) end(ctx context.Context, jobID string, timeout time.Duration) (*api.Job, error) {
	if timeout > 0 {
		waiting, cancel := context.WithTimeoutCause(ctx, timeout, errLate)
		defer cancel()
		ctx = waiting
	}
	for failures := 0; ; {
		job, err := call[api.Job](s.GetJob(ctx, jobID, &api.GetJobParams{Wait: new("30s")}))
		switch {
		case errors.Is(context.Cause(ctx), errLate):
			return nil, errLate
		case err == nil && !job.CompletedAt.IsZero():
			return &job, nil
		case err == nil:
			failures = 0
			continue
		}
		if failures++; ExitCode(err) != ExitUnavailable || failures > reconnects {
			return nil, err
		}
		err = s.pause(ctx, time.Duration(failures)*time.Second)
		if err != nil && !errors.Is(context.Cause(ctx), errLate) { // If it is late, the next request fails at once.
			return nil, err
		}
	}
}

// errLate is the error of a wait for a job that has not ended in time, and the cause of its context.
var errLate = errors.New("the job has not ended in time")
