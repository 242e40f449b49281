package console

import (
	"cmp"
	"fmt"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// jobCanvas draws the way of one job through the flow, and lights the box where it is. links
// says whether the user may see the services.
func jobCanvas(found *api.Job, events []api.Event, links bool) canvas {
	passed := map[api.EventType]int{} // how many entries of each type the history has
	for i := range events {
		if e := &events[i]; e.Type != api.EventTypeStepFailedRetry || e.Detail != "" { // Otherwise the attempt was withdrawn.
			passed[e.Type]++
		}
	}
	step := currentStep(found)
	if step == nil {
		step = &api.Step{}
	}
	done := 0
	for i := range found.Steps {
		if found.Steps[i].State == api.StepStateSucceeded {
			done++
		}
	}
	failed := passed[api.EventTypeStepFailedRetry]
	ended := done + failed + passed[api.EventTypeStepFailedFinal]
	at := func(times int, title, text, more string) flowing {
		moved := float64(min(times, 1))
		return flowing{arrives: moved, ends: moved, flowNode: flowNode{Title: title, Text: text, More: more}}
	}
	p := places{
		commands: at(1, "Command", found.RequestType, ""),
		checks:   at(1, "Checks", "passed", cut(found.ProtocolID)),
		ledger: at(1, "Ledger", fmt.Sprintf("step %d of %d", min(found.CurrentStepIndex+1, len(found.Steps)), len(found.Steps)),
			cut(found.CurrentStepID)),
		outbox:  at(passed[api.EventTypeOutboxPending], "Outbox", often(passed[api.EventTypeOutboxPending], "directive"), ""),
		publish: at(passed[api.EventTypeOutboxSent], "Published", often(passed[api.EventTypeOutboxSent], "directive"), ""),
		ack:     at(passed[api.EventTypeStepAwaitingAck], "AWAITING_ACK", "", ""),
		running: at(passed[api.EventTypeStepInProgress], "IN_PROGRESS", often(passed[api.EventTypeStepInProgress], "start"), ""),
		result:  at(ended, "RESULT", diagnosis.Counted(done, "step done", "steps done"), often(ended-done, "failed attempt")),
		retries: at(failed, "Waiting for a retry", often(failed, "time"), ""),
		next:    float64(min(max(found.CurrentStepIndex, 0), 1)), onward: "next step", lanes: "Its service",
	}
	p.services = []flowing{at(passed[api.EventTypeOutboxSent], cut(step.Service), often(step.AttemptNo, "attempt"), "")}
	p.services[0].ends = float64(min(passed[api.EventTypeStepClaimed]+passed[api.EventTypeStepInProgress], 1))
	if links && step.Service != "" {
		p.services[0].URL = pathOf("services", step.Service)
	}
	for _, end := range []struct {
		title string
		in    bool
	}{
		{"Succeeded", found.State == api.JobStateSucceeded},
		{"Failed for good", found.State == api.JobStateFailedFinal},
		{"Cancelled, paused", found.State == api.JobStateCancelled || found.State == api.JobStatePaused},
	} {
		times := 0
		if end.in && ended > 0 { // Otherwise it left the way before its first RESULT.
			times = 1
		}
		p.ends = append(p.ends, at(times, end.title, "", ""))
	}
	p.token(found, step)
	return p.draw()
}

// often says how often something happened, and nothing for never.
func often(n int, one string) string {
	if n == 0 {
		return ""
	}
	return diagnosis.Counted(n, one, one+"s")
}

// jobLevel returns the level of the box and of the step where the job is.
func jobLevel(found *api.Job) string {
	switch found.State {
	case api.JobStateSucceeded:
		return levelWell
	case api.JobStateFailedFinal:
		return diagnosis.LevelBad
	case api.JobStateCancelled:
		return levelEnded
	case api.JobStatePaused, api.JobStatePausing:
		return diagnosis.LevelWarn
	default:
		switch reasonOf(found) {
		case api.WaitingReasonScopePaused, api.WaitingReasonScheduled:
			return diagnosis.LevelWarn
		case api.WaitingReasonNoWorker, api.WaitingReasonCircuitOpen, api.WaitingReasonLineBlocked:
			return diagnosis.LevelBad
		default:
			return levelHere
		}
	}
}

// reasonOf returns why the job waits, empty if it does not.
func reasonOf(found *api.Job) api.WaitingReason {
	if found.Waiting == nil {
		return ""
	}
	return found.Waiting.Reason
}

// reasonWords say why a job waits, where its box alone does not.
var reasonWords = map[api.WaitingReason]string{
	api.WaitingReasonScheduled: "scheduled", api.WaitingReasonLineBlocked: "line blocked", api.WaitingReasonBehind: "waits for its turn",
	api.WaitingReasonScopePaused: "held by a pause", api.WaitingReasonNoWorker: "no worker", api.WaitingReasonCircuitOpen: "circuit open",
	api.WaitingReasonCancelling: "cancelling", api.WaitingReasonPausing: "pausing", api.WaitingReasonSilent: "silent",
}

// token lights the box where the job is.
func (p *places) token(found *api.Job, step *api.Step) {
	lit, says := &p.ledger, "here"
	switch ended := !found.CompletedAt.IsZero(); {
	case found.State == api.JobStateSucceeded:
		lit = &p.ends[0]
	case found.State == api.JobStateFailedFinal:
		lit, says = &p.ends[1], cmp.Or(diagnosis.Brief(found.ErrorCode, nameLength), "here")
	case ended, found.State == api.JobStatePaused:
		lit, says = &p.ends[2], string(found.State)
	case step.State == api.StepStateDispatching:
		lit = &p.outbox
	case step.State == api.StepStateAwaitingAck && step.WorkID != "" && step.Owner == "":
		lit, says = &p.services[0], "waits for a worker"
	case step.State == api.StepStateAwaitingAck:
		lit, says = &p.ack, cmp.Or(cut(step.Owner), "no ACK yet")
	case step.State == api.StepStateInProgress:
		lit, says = &p.running, cmp.Or(cut(step.Owner), "here")
	case step.State == api.StepStateFailedRetry:
		lit, says = &p.retries, cmp.Or(diagnosis.Brief(step.LastErrorCode, nameLength), "here")
	}
	lit.Level, lit.Text = jobLevel(found), "● "+cmp.Or(reasonWords[reasonOf(found)], says)
}
