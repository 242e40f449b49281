package statemachine_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// row is one line of an event's effects: a label and a text.
func row(label string, parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return fmt.Sprintf("%-10s %s", label, strings.Join(parts, ", "))
}

// outcomeRow returns the outcome of an event.
func outcomeRow(d *statemachine.Decision) string {
	switch {
	case d.Outcome == statemachine.Duplicate:
		return "duplicate: " + d.Reason
	case d.Outcome == statemachine.Refused:
		return fmt.Sprintf("refused %s: %s", d.Code, d.Reason)
	case d.Light:
		return fmt.Sprintf("applied, rev stays %d", d.After.Job.Rev)
	}
	return fmt.Sprintf("applied, rev %d", d.After.Job.Rev)
}

// appliedRows returns what an applied event changed: always the job, and of the other
// objects those that it touched. A PENDING step has no row.
func appliedRows(d *statemachine.Decision) []string {
	rows := []string{outcomeRow(d), row("job", walk(d, statemachine.ObjectJob, "", string(d.After.Job.State)))}
	for _, i := range d.Steps {
		if d.After.Steps[i].State != pending {
			rows = append(rows, stepRow(d, &d.After.Steps[i]))
		}
	}
	if d.Added != nil || d.Replaced != nil {
		rows = append(rows, outboxRow(d, d.After.Outbox))
	}
	if at := d.Dispatch; at != nil {
		input := string(d.After.Steps[at.StepIndex].InputRef)
		rows = append(rows, row("directive", fmt.Sprintf("%s#%d", at.StepID, at.AttemptNo), "input "+input))
	}
	if d.Ended {
		rows = append(rows, endedRow(&d.After))
	}
	if d.Light {
		return rows
	}
	var types []string
	for i := range d.History {
		types = append(types, d.History[i].Type)
	}
	next := [...]string{statemachine.WakeNone: "nobody", statemachine.WakeTimer: "timer", statemachine.WakeDispatch: "dispatch", statemachine.WakeDate: "date"}
	return append(rows, row("next", next[d.Wake.Kind]+clock("", d.Wake.At)), row("history", types...))
}

// stepRow returns a step with the numbers that matter in its state.
func stepRow(d *statemachine.Decision, step *statemachine.Step) string {
	parts := []string{walk(d, statemachine.ObjectStep, step.ID, string(step.State))}
	if step.AttemptNo > 0 {
		parts = append(parts, fmt.Sprint("attempt ", step.AttemptNo))
	}
	switch {
	case step.State == dispatching:
		parts = append(parts, clock("estimate", step.LeaseExpiresAt))
	case step.State == awaiting && step.LeaseExpiresAt.IsZero():
		parts = append(parts, "no deadline")
	case step.State == waiting && step.LeaseID == "":
		parts = append(parts, "withdrawn")
	default:
		parts = append(parts, clock("deadline", step.LeaseExpiresAt))
	}
	if step.State == running {
		parts = append(parts, clock("timeout", step.TimeoutAt))
	}
	parts = append(parts, clock("retry", step.NextAttemptAt), spentText(step.Spent))
	if step.Throttled {
		parts = append(parts, "throttled")
	}
	if step.LastErrorCode != "" && (step.State == waiting || step.State == failed) {
		parts = append(parts, "error "+step.LastErrorCode)
	}
	return row(step.ID, parts...)
}

// outboxRow returns the outbox row, with its due time while it is PENDING. The bus is named
// for a row of the pull queue, and for any row that got a new pair.
func outboxRow(d *statemachine.Decision, outbox *statemachine.Outbox) string {
	parts := []string{walk(d, statemachine.ObjectOutbox, outbox.ID, string(outbox.State))}
	if d.Added != nil {
		parts[0] = "new, " + parts[0]
	}
	refenced := d.Added == nil && d.Dispatch != nil
	if refenced || outbox.Bus == statemachine.BusQueue {
		parts = append(parts, string(outbox.Bus))
	}
	if outbox.State == statemachine.OutboxPending {
		parts = append(parts, clock("due", outbox.DueAt))
		if outbox.Rejected {
			parts = append(parts, "rejected")
		}
	}
	return row("outbox", parts...)
}

// endedRow sums up a job that has ended.
func endedRow(agg *statemachine.Aggregate) string {
	var parts []string
	for i := range agg.Steps {
		parts = append(parts, agg.Steps[i].ID+" "+string(agg.Steps[i].State))
	}
	if agg.Job.ErrorCode != "" {
		parts = append(parts, "error "+agg.Job.ErrorCode)
	}
	if agg.Job.FinalOutput != nil {
		parts = append(parts, "final output "+string(agg.Job.FinalOutput))
	}
	return row("ended", parts...)
}

// walk returns the path of an object through its states, or the state that it keeps.
func walk(d *statemachine.Decision, object statemachine.Object, id, stays string) string {
	way := ""
	for i := range d.History {
		t := &d.History[i]
		if t.Object != object || t.ID != id || !walked(t) {
			continue
		}
		if way == "" {
			way = t.From
		}
		way += " → " + t.To
	}
	if way == "" {
		return stays
	}
	return way
}

// walked reports whether a history entry is a transition along an edge.
func walked(t *statemachine.Transition) bool {
	return t.From != "" && (t.From != t.To || t.Object == statemachine.ObjectOutbox ||
		t.Type == statemachine.EventJobAdvanced || t.Type == statemachine.EventStepRefenced)
}

// spentText lists the counters that are not 0.
func spentText(spent statemachine.Spent) string {
	if spent == (statemachine.Spent{}) {
		return "spent nothing"
	}
	text := fmt.Sprintf("spent dispatch %d ack %d execution %d free %d", spent.Dispatch, spent.Ack, spent.Execution, spent.Free)
	return unspent.ReplaceAllString(text, "")
}

// unspent matches counters that are 0, and zeros the ends of durations.
var (
	unspent = regexp.MustCompile(` [a-z]+ 0\b`)
	zeros   = regexp.MustCompile(`([hm])(0m)?0s$`)
)

// clock formats a time with its name, relative to the start; "" for the zero time.
func clock(name string, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return name + " +" + zeros.ReplaceAllString(at.Sub(start).String(), "$1")
}
