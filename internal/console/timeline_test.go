package console

import (
	stdflag "flag"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
	"github.com/lucius-project/lucius/internal/musttest"
)

var update = stdflag.Bool("update", false, "write the golden files")

// at returns the time that many seconds after the jobs of these tests were accepted, which
// was 100 s before now.
func at(s float64) api.Time { return api.NewTime(now.Add(diagnosis.Seconds(s) - 100*time.Second)) }

// happened returns an entry of the history.
func happened(s float64, of api.EventType, step string, no int, detail string) api.Event {
	e := api.Event{Type: of, At: at(s), Object: api.EventObjectStep, ObjectID: step, AttemptNo: no, Detail: detail, Actor: api.ActorWorker, Caller: "w-1"}
	if strings.HasPrefix(string(of), "job.") {
		e.Object, e.ObjectID, e.Caller = api.EventObjectJob, "", "ops-1"
	}
	if detail == "lease_expired" || detail == "ack_timeout" {
		e.Actor, e.Caller = api.ActorSweeper, ""
	}
	return e
}

// ran returns the history of an attempt that is queued, claimed and started.
func ran(s float64, step string, no int) []api.Event {
	return []api.Event{
		happened(s, api.EventTypeStepDispatching, step, no, ""), happened(s, api.EventTypeStepAwaitingAck, step, no, ""),
		happened(s+2, api.EventTypeStepClaimed, step, no, ""), happened(s+3, api.EventTypeStepInProgress, step, no, ""),
	}
}

// draw writes a timeline as text, 100 columns wide.
func draw(t timeline) string {
	var out strings.Builder
	axis := []byte(strings.Repeat(" ", 101))
	for _, mark := range t.Ticks {
		axis[int(mark.At)] = '|'
	}
	fmt.Fprintf(&out, "%-20s%s now %.0f\n", "", strings.TrimRight(string(axis), " "), t.Now)
	signs := map[spanKind]byte{
		spanPublish: 'p', spanQueued: '.', spanClaimed: 'c', spanRunning: '>', spanSilent: '?', spanDone: '=', spanFailed: 'x',
		spanLost: 'L', spanStopped: 's', spanBackoff: '-', spanPaused: 'P',
	}
	for i := range t.Rows {
		row := &t.Rows[i]
		bar := []byte(strings.Repeat(" ", 101))
		for _, hold := range t.Holds {
			for x := int(hold.From); x < int(hold.From+hold.Width); x++ {
				bar[x] = '_'
			}
		}
		for _, s := range row.Spans {
			for x := int(s.From); x < max(int(s.From+s.Width), int(s.From)+1); x++ {
				bar[min(x, 100)] = signs[s.Kind]
			}
		}
		if row.Deadline > 0 {
			bar[int(row.Deadline)] = '!'
			if row.Beyond {
				bar[int(row.Deadline)] = '~'
			}
		}
		line := fmt.Sprintf("%-20s%s", fmt.Sprint(row.Step, " ", row.Attempt, " ", row.Worker), bar)
		fmt.Fprintf(&out, "%s\n%20s%s\n", strings.TrimRight(line, " "), "",
			row.Note.With(func(form diagnosis.Form, at time.Time) string { return fmt.Sprintf("<%d %v>", form, at.Sub(now)) }))
	}
	return out.String()
}

func TestTimeline_ShowsTheCourse(t *testing.T) {
	t.Parallel()
	waiting := func(no int, reason api.WaitingReason, since, until float64) []api.Step {
		w := &api.Waiting{Reason: reason, Since: at(since)}
		if until > 0 {
			w.Until = at(until)
		}
		return []api.Step{{StepID: "extract"}, {StepID: "ocr", AttemptNo: no, Owner: "ocr-7", Waiting: w}}
	}
	joined := func(parts ...[]api.Event) (all []api.Event) {
		for _, part := range parts {
			all = append(all, part...)
		}
		return all
	}
	extract := append(ran(0, "extract", 1), happened(10, api.EventTypeStepSucceeded, "extract", 1, ""))
	lost := append(ran(10, "ocr", 1), happened(60, api.EventTypeStepFailedRetry, "ocr", 1, "lease_expired"))
	var text strings.Builder
	for _, c := range []struct {
		name   string
		job    api.Job
		events []api.Event
	}{
		{"a lost worker, then a failure, then a long backoff", api.Job{Steps: waiting(2, api.WaitingReasonBackoff, 76, 115)}, joined(
			extract, lost, ran(65, "ocr", 2), []api.Event{happened(76, api.EventTypeStepFailedRetry, "ocr", 2, "timeout")},
		)},
		{"running, with a lease that ends far away", api.Job{Steps: waiting(1, api.WaitingReasonRunning, 13, 900)}, joined(extract, ran(10, "ocr", 1))},
		{"silent", api.Job{Steps: waiting(1, api.WaitingReasonSilent, 50, 110)}, joined(extract, ran(10, "ocr", 1))},
		{"queued", api.Job{Steps: waiting(1, api.WaitingReasonQueued, 10, 0)}, joined(extract, ran(10, "ocr", 1)[:2])},
		{"not published", api.Job{Steps: waiting(1, api.WaitingReasonCircuitOpen, 10, 105)}, joined(extract, ran(10, "ocr", 1)[:1])},
		{"never acknowledged", api.Job{CompletedAt: at(80)}, joined(
			extract, ran(10, "ocr", 1)[:2], []api.Event{happened(80, api.EventTypeStepFailedFinal, "ocr", 1, "ack_timeout")},
		)},
		{"paused, resumed and cancelled", api.Job{CompletedAt: at(90)}, joined(extract, lost, []api.Event{
			happened(62, api.EventTypeJobPausing, "", 0, ""),
			{Type: api.EventTypeJobPaused, Object: api.EventObjectJob, From: "PAUSING", To: "PAUSED", At: at(62)},
			{Type: api.EventTypeJobInProgress, Object: api.EventObjectJob, From: "PAUSED", To: "IN_PROGRESS", At: at(70)},
		}, ran(75, "ocr", 2), []api.Event{
			happened(90, api.EventTypeStepCancelled, "ocr", 2, ""), happened(90, api.EventTypeStepCancelled, "embed", 0, ""),
		})},
		{"still paused after a withdrawn attempt", api.Job{}, joined(extract, ran(10, "ocr", 1), []api.Event{
			happened(40, api.EventTypeStepFailedRetry, "ocr", 1, ""),
			{Type: api.EventTypeJobPaused, Object: api.EventObjectJob, From: "PAUSING", To: "PAUSED", At: at(40)},
		})},
		{"a rerun from the second step", api.Job{CompletedAt: at(0.012)}, []api.Event{
			happened(0, api.EventTypeStepCarried, "extract", 0, ""), happened(0, api.EventTypeStepDispatching, "ocr", 1, ""),
			happened(0.001, api.EventTypeStepInProgress, "ocr", 1, ""), happened(0.012, api.EventTypeStepSucceeded, "ocr", 1, ""),
		}},
		{"nothing yet", api.Job{}, nil},
	} {
		c.job.CreatedAt = at(0)
		for i := range c.job.Steps {
			if w := c.job.Steps[i].Waiting; w != nil {
				c.job.Waiting = w
			}
		}
		fmt.Fprintf(&text, "--- %s\n%s\n", c.name, draw(timelineOf(&c.job, c.events, now)))
	}
	got := strings.TrimRight(text.String(), "\n") + "\n"
	musttest.Golden(t, "testdata/timeline.txt", got, *update)
}

func TestTicks_AreFewAndRound(t *testing.T) {
	t.Parallel()
	for whole, want := range map[time.Duration]string{
		time.Millisecond: "0 ms,1 ms", 90 * time.Second: "0 ms,30 s,1 min,1 min 30 s", 40 * 24 * time.Hour: "0 ms,8 d,16 d,24 d,32 d,40 d",
		59 * time.Second: "0 ms,10 s,20 s,30 s,40 s,50 s", math.MaxInt64: "0 ms,32768 d,65536 d,98304 d",
	} {
		var got []string
		for _, mark := range ticks(whole) {
			got = append(got, mark.Text)
		}
		if strings.Join(got, ",") != want {
			t.Errorf("%v: %q", whole, got)
		}
	}
}
