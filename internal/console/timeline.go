package console

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// timeline shows the course of a job to scale, with a row for each attempt of a step.
// Positions and widths are percentages of the whole.
type timeline struct {
	Begin api.Time
	Ticks []tick
	Now   float64 // 100 if the job has ended.
	Holds []span  // While the job was paused.
	Rows  []course
}

// tick is a mark of the axis.
type tick struct {
	At   float64
	Text string
}

// course is one attempt, and the delay after it.
type course struct {
	Step    string
	Attempt int
	Worker  string
	Spans   []span
	// Deadline is the position at which the wait ends by itself, 0 for none. Beyond says that
	// it is later than the timeline shows.
	Deadline float64
	Beyond   bool
	Note     diagnosis.Sentence // the spans in words
	Final    bool               // The attempt failed for good.
}

// span is a part of an attempt.
type span struct {
	Kind        spanKind
	From, Width float64
	Text        string

	begin, end time.Time
	fault      string
}

// spanKind is what happens in a span, and its class in the style sheet.
type spanKind string

const (
	spanPublish  spanKind = "publish" // The directive waits to be published.
	spanQueued   spanKind = "queued"  // It waits for a worker.
	spanClaimed  spanKind = "claimed" // A worker has it, and has not started.
	spanRunning  spanKind = "running"
	spanSilent   spanKind = "silent" // It was started, but its worker sends no heartbeats.
	spanDone     spanKind = "done"
	spanFailed   spanKind = "failed"
	spanLost     spanKind = "lost" // A deadline passed without a word from the worker.
	spanStopped  spanKind = "stopped"
	spanBackoff  spanKind = "backoff"
	spanPaused   spanKind = "paused"
	spanTooShort          = 0.4 // The least width in percent: a narrower span would be invisible.
)

var spanWords = map[spanKind]string{
	spanPublish: "publishing", spanQueued: "queued", spanClaimed: "claimed", spanRunning: "running", spanSilent: "silent",
	spanDone: "ran", spanFailed: "failed after", spanLost: "lost after", spanStopped: "stopped after", spanBackoff: "backoff",
	spanPaused: "paused",
}

// deadlineWords say what happens at the deadline of a span.
var deadlineWords = map[spanKind]string{
	spanPublish: "; due ", spanQueued: "; continues ", spanClaimed: "; must start ", spanRunning: "; the lease ends ",
	spanSilent: "; the attempt fails ", spanBackoff: "; due ",
}

// timelineOf draws the course of a job as of now.
func timelineOf(job *api.Job, events []api.Event, now time.Time) timeline {
	end := now
	if !job.CompletedAt.IsZero() {
		end = job.CompletedAt.Time
	}
	d := &drawing{job: job, begin: job.CreatedAt.Time, end: end, rows: map[attempt]*course{}}
	for i := range events {
		e := &events[i]
		switch e.Object {
		case api.EventObjectStep:
			d.step(e)
		case api.EventObjectJob:
			d.hold(e)
		case api.EventObjectOutbox: // The step changes with it, and has an entry of its own.
		}
	}
	return d.finish()
}

// drawing is a timeline under construction.
type drawing struct {
	job        *api.Job
	begin, end time.Time
	order      []attempt
	rows       map[attempt]*course
	holds      []span
}

type attempt struct {
	step string
	no   int
}

// row returns the row of the entry's attempt, and notes the worker.
func (d *drawing) row(e *api.Event) *course {
	key := attempt{e.ObjectID, e.AttemptNo}
	row := d.rows[key]
	if row == nil {
		row = &course{Step: e.ObjectID, Attempt: e.AttemptNo}
		d.rows[key] = row
		d.order = append(d.order, key)
	}
	if (e.Actor == api.ActorWorker || e.Actor == api.ActorPlatform) && e.Caller != "local" { // "local" names no worker.
		row.Worker = e.Caller
	}
	row.Worker = cmp.Or(e.Owner, row.Worker)
	return row
}

// begins ends the open span and starts one of the given kind, unless that is empty. The span
// that ends becomes one of the kind was, if it was running or its worker was lost.
func (c *course) begins(at time.Time, was, kind spanKind) {
	if n := len(c.Spans); n > 0 && c.Spans[n-1].end.IsZero() {
		last := &c.Spans[n-1]
		last.end = at
		if was != "" && (last.Kind == spanRunning || was == spanLost) {
			last.Kind = was
		}
	}
	if kind != "" {
		c.Spans = append(c.Spans, span{Kind: kind, begin: at})
	}
}

// step applies an entry of the history to the row of its attempt.
func (d *drawing) step(e *api.Event) {
	at := e.At.Time
	switch e.Type {
	case api.EventTypeStepDispatching:
		if before := d.rows[attempt{e.ObjectID, e.AttemptNo - 1}]; before != nil {
			before.begins(at, "", "")
		}
		d.row(e).begins(at, "", spanPublish)
	case api.EventTypeStepAwaitingAck:
		d.row(e).begins(at, "", spanQueued)
	case api.EventTypeStepClaimed:
		d.row(e).begins(at, "", spanClaimed)
	case api.EventTypeStepInProgress:
		d.row(e).begins(at, "", spanRunning)
	case api.EventTypeStepSucceeded:
		d.row(e).begins(at, spanDone, "")
	case api.EventTypeStepCancelled:
		if d.rows[attempt{e.ObjectID, e.AttemptNo}] != nil { // Otherwise the step had not started.
			d.row(e).begins(at, spanStopped, "")
		}
	case api.EventTypeStepFailedRetry, api.EventTypeStepFailedFinal:
		row, was, after := d.row(e), spanFailed, spanBackoff
		if row.Final = e.Type == api.EventTypeStepFailedFinal; row.Final {
			after = ""
		}
		switch e.Detail {
		case "":
			was = spanStopped // The attempt was withdrawn.
		case "lease_expired", "ack_timeout":
			was = spanLost
		}
		row.begins(at, was, "")
		if n := len(row.Spans); n > 0 {
			row.Spans[n-1].fault = e.Detail
		}
		row.begins(at, "", after)
	case api.EventTypeStepCarried:
		d.row(e).Note = diagnosis.Sentence{{Text: "done by the job that this one reruns"}}
	default: // The other entries do not change an attempt.
	}
}

// hold notes when the job was paused and when it went on.
func (d *drawing) hold(e *api.Event) {
	if e.From == string(api.JobStatePaused) && e.To != e.From && len(d.holds) > 0 {
		d.holds[len(d.holds)-1].end = e.At.Time
		d.turns(e.At.Time, spanPaused, spanBackoff)
	}
	if e.Type == api.EventTypeJobPaused {
		d.holds = append(d.holds, span{Kind: spanPaused, begin: e.At.Time})
		d.turns(e.At.Time, spanBackoff, spanPaused)
	}
}

// turns ends the open span of the last attempt and starts another one, if it is of that kind.
func (d *drawing) turns(at time.Time, was, kind spanKind) {
	if len(d.order) == 0 {
		return
	}
	row := d.rows[d.order[len(d.order)-1]]
	if n := len(row.Spans); n > 0 && row.Spans[n-1].end.IsZero() && row.Spans[n-1].Kind == was {
		row.begins(at, "", kind)
	}
}

// finish computes the positions of all spans. Those still open extend to the end of the
// job, or to now.
func (d *drawing) finish() timeline {
	current, until := d.current(), time.Time{}
	if current != nil && d.job.Waiting != nil {
		until = d.job.Waiting.Until.Time
	}
	// Show at most a third as much future as past.
	last := d.end
	if until.After(last) {
		last = last.Add(min(until.Sub(last), max(last.Sub(d.begin)/3, time.Second)))
	}
	whole := max(last.Sub(d.begin), time.Millisecond)
	place := func(at time.Time) float64 {
		return math.Min(100, math.Max(0, 100*float64(at.Sub(d.begin))/float64(whole)))
	}
	measure := func(spans []span) {
		for i := range spans {
			s := &spans[i]
			end := s.end
			if end.IsZero() {
				end = d.end
			}
			s.From = place(s.begin)
			s.Width = math.Max(place(end)-s.From, spanTooShort)
			s.Text = spanWords[s.Kind] + " " + diagnosis.Duration(end.Sub(s.begin))
			if s.fault != "" {
				s.Text += ": " + s.fault
			}
		}
	}
	t := timeline{Begin: api.NewTime(d.begin), Now: place(d.end), Holds: d.holds, Ticks: ticks(whole)}
	measure(t.Holds)
	for _, key := range d.order {
		row := d.rows[key]
		row.Spans = slices.DeleteFunc(row.Spans, func(s span) bool { // With the pull queue a publish takes no time.
			return s.end.Equal(s.begin) && (s.Kind == spanPublish || s.Kind == spanBackoff)
		})
		measure(row.Spans)
		if row == current && !until.IsZero() {
			row.Deadline, row.Beyond = place(until), until.After(last)
		}
		row.say(until)
		t.Rows = append(t.Rows, *row)
	}
	return t
}

// say puts the spans in words.
func (c *course) say(until time.Time) {
	for i := range c.Spans {
		s := &c.Spans[i]
		if i > 0 {
			c.Note = append(c.Note, diagnosis.Piece{Text: ", "})
		}
		if !s.end.IsZero() {
			c.Note = append(c.Note, diagnosis.Piece{Text: s.Text})
			continue
		}
		c.Note = append(c.Note, diagnosis.Piece{Text: spanWords[s.Kind] + " "}, diagnosis.Piece{At: s.begin, Form: diagnosis.For})
		if c.Deadline > 0 {
			c.Note = append(c.Note, diagnosis.Piece{Text: deadlineWords[s.Kind]}, diagnosis.Piece{At: until, Form: diagnosis.In})
		}
	}
}

// current returns the row of the attempt that a live job waits for.
func (d *drawing) current() *course {
	i := slices.IndexFunc(d.job.Steps, func(s api.Step) bool { return s.Waiting != nil })
	if i < 0 {
		return nil
	}
	step := &d.job.Steps[i]
	row := d.rows[attempt{step.StepID, step.AttemptNo}]
	if row == nil || len(row.Spans) == 0 {
		return nil
	}
	row.Worker = cmp.Or(step.Owner, row.Worker)
	if w := step.Waiting; w.Reason == api.WaitingReasonSilent && w.Since.After(row.Spans[len(row.Spans)-1].begin) {
		row.begins(w.Since.Time, "", spanSilent)
	}
	return row
}

// roundSteps are the distances between the marks of an axis.
var roundSteps = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 12 * time.Hour, 24 * time.Hour,
}

// ticks returns marks at round distances from the beginning.
func ticks(whole time.Duration) (marks []tick) {
	const most = 5
	i := slices.IndexFunc(roundSteps, func(step time.Duration) bool { return whole/step <= most })
	step := roundSteps[len(roundSteps)-1]
	if i >= 0 {
		step = roundSteps[i]
	}
	for whole/step > most {
		step *= 2
	}
	for at := time.Duration(0); len(marks) <= int(whole/step); at += step { // After the last one it may overflow.
		marks = append(marks, tick{At: 100 * float64(at) / float64(whole), Text: diagnosis.Duration(at)})
	}
	return marks
}
