package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
)

// Answer says what a live job waits for, or how an ended one ended.
type Answer struct {
	Headline Sentence
	// Step is the one that it waits at or failed at, nil if there is none.
	Step *api.Step
	// Detail is what the server says of the wait, empty if the headline says it, or what an end usually means.
	Detail Sentence
	// HeldBy names what has to end first.
	HeldBy string
	Next   Next
}

// Next is what helps a job on. Its zero value is nothing.
type Next struct {
	Do Deed
	// Of is what to do it to: a job's id, a service or a worker.
	Of string
}

// Deed is what a user can do for a job.
type Deed string

// The deeds.
const (
	ResumeJob   Deed = "resume"
	BeginJob    Deed = "reschedule" // begin it before its date
	RerunJob    Deed = "rerun"
	SeeRerun    Deed = "see"    // the job was rerun: see the other job
	SeeFirst    Deed = "before" // the job waits for its turn: see the first job of its line
	EndPause    Deed = "pause"
	StartWorker Deed = "start"
	SeeWorker   Deed = "worker"
)

// String returns the command that does it, or says it in words.
func (n Next) String() string {
	switch n.Do {
	case ResumeJob:
		return "lucius jobs resume " + n.Of
	case BeginJob:
		return "lucius jobs reschedule " + n.Of + " --now"
	case RerunJob:
		return "lucius jobs rerun " + n.Of
	case SeeRerun, SeeFirst:
		return "lucius why " + n.Of
	case EndPause:
		return "it continues when the pause ends"
	case StartWorker:
		return "start a worker of " + n.Of
	case SeeWorker:
		return "look at " + n.Of
	}
	return ""
}

// expired is the error code of a job that no worker had started by its not_after.
const expired = "expired"

// superseded is the error code of a job that was cancelled for a newer one of its line.
const superseded = "superseded"

// Job explains a job by its history, as of now.
func Job(job *api.Job, events []api.Event, now time.Time) Answer {
	x := explained{job, events, now}
	if job.Waiting == nil {
		return x.ended()
	}
	a := x.live()
	if detail := Relative(job.Waiting.Detail, now); !a.Headline.holds(detail) {
		a.Detail = detail
	}
	if by := job.Waiting.BlockedBy; by != nil {
		a.HeldBy = strings.ReplaceAll(string(by.Type), "_", " ") + " " + by.ID
	}
	return a
}

type explained struct {
	job    *api.Job
	events []api.Event
	now    time.Time
}

// live explains what the first step that has not ended waits for.
func (x *explained) live() Answer {
	job, w := x.job, x.job.Waiting
	detail := Relative(w.Detail, x.now)
	at := slices.IndexFunc(job.Steps, func(s api.Step) bool { return s.Waiting != nil })
	if at < 0 {
		return Answer{Headline: say(detail, ".")}
	}
	step := &job.Steps[at]
	until := say(when{In, w.Until.Time})
	if w.Until.IsZero() {
		until = nil
	}
	worker := cmp.Or(step.Owner, "a worker")
	a := Answer{Step: step}
	switch w.Reason {
	case api.WaitingReasonBackoff, api.WaitingReasonRateLimited:
		a.Headline = x.retried(step, until)
	case api.WaitingReasonAtCapacity:
		a.Headline = say(step.StepID, " waits: ", detail, ".")
	case api.WaitingReasonJobPaused:
		a.Headline = say("The job is paused", x.by(api.EventTypeJobPausing), ".")
		a.Next = Next{ResumeJob, job.JobID}
	case api.WaitingReasonScheduled:
		a.Headline = say("The job begins at ", w.Until, ", ", until, ".")
		a.Next = Next{BeginJob, job.JobID}
	case api.WaitingReasonLineBlocked, api.WaitingReasonBehind, api.WaitingReasonStarting:
		a.Headline, a.Next = inLine(w)
	case api.WaitingReasonScopePaused:
		a.Headline, a.Next = say("Dispatch to ", step.Service, " is ", detail, "."), Next{Do: EndPause}
	case api.WaitingReasonCircuitOpen:
		a.Headline = say("The bus is out of service for ", step.StepID, "; the next try is ", until, ".")
	case api.WaitingReasonPublishing:
		a.Headline = say("The directive of ", step.StepID, " is about to be published.")
	case api.WaitingReasonNoWorker:
		a.Headline = say("No worker asks for work of service ", step.Service, ", step type ", step.StepType, ".")
		a.Next = Next{StartWorker, step.Service}
	case api.WaitingReasonQueued:
		a.Headline = say(step.StepID, " waits in the queue for a worker of ", step.Service, class(job), ".")
	case api.WaitingReasonDelivered:
		a.Headline = say(step.StepID, " was handed to ", worker, ", which must start ", until, ".")
	case api.WaitingReasonRunning:
		a.Headline = say(worker, " runs ", step.StepID, progressed(step), "; its lease ends ", until, ".")
	case api.WaitingReasonSilent:
		a.Headline = say(worker, " runs ", step.StepID, ", but has not reported; unless it does, the attempt fails ", until, ".")
		a.Next = Next{SeeWorker, worker}
	case api.WaitingReasonCancelling:
		a.Headline = say("The job is cancelled when ", worker, " ends its attempt, at the latest ", until, ".")
	case api.WaitingReasonPausing:
		a.Headline = say("The job is paused when ", worker, " ends its attempt, at the latest ", until, ".")
	default: // a reason that this program does not know yet
		a.Headline = say(detail, ".")
	}
	return a
}

// progressed is the progress of a step, as the end of a clause.
func progressed(step *api.Step) string {
	if progress := Progress(step); progress != "" {
		return ", " + progress
	}
	return ""
}

// class names the class of a job whose work yields to other work.
func class(job *api.Job) string {
	if job.Priority == api.PriorityBulk {
		return ", as bulk work"
	}
	return ""
}

// retried explains the wait of a step for its next attempt.
func (x *explained) retried(step *api.Step, until Sentence) Sentence {
	if by := x.job.Waiting.BlockedBy; by != nil {
		return say(step.StepID, " waits: ", Relative(x.job.Waiting.Detail, x.now), ".")
	}
	if x.job.Waiting.Reason == api.WaitingReasonRateLimited {
		return say(step.Service, " limits its rate and put off ", step.StepID, "; the next attempt starts ", until, ".")
	}
	return say(step.StepID, " ", x.failed(step.StepID), "; the next attempt starts ", until, ".")
}

// inLine explains the wait of a job for its turn, and names the first job of its line.
func inLine(w *api.Waiting) (headline Sentence, next Next) {
	if w.BlockedBy != nil {
		next = Next{SeeFirst, w.BlockedBy.ID}
	}
	switch w.Reason {
	case api.WaitingReasonLineBlocked:
		return say("A job of the same order key before this one has failed."), next
	case api.WaitingReasonBehind:
		return say("The job waits for the jobs of its order key before it."), next
	default:
		return say("It is the job's turn, and it is about to begin."), next
	}
}

// Progress says how far a running step is, empty if that is not known.
func Progress(step *api.Step) string {
	if step.Progress == nil {
		return ""
	}
	text := fmt.Sprintf("%.0f %% done", 100*step.Progress.Fraction)
	if step.Progress.Message != "" {
		text += " (" + step.Progress.Message + ")"
	}
	return text
}

// Item describes a work item to an operator who is about to change it.
func Item(item *api.WorkItem) string {
	if item.Owner != "" {
		return fmt.Sprintf("%s by %s, rev %d", item.Status, item.Owner, item.Rev)
	}
	return fmt.Sprintf("%s, rev %d", item.Status, item.Rev)
}

// ended explains how the job ended.
func (x *explained) ended() Answer {
	job := x.job
	ago := when{Ago, job.CompletedAt.Time}
	next := Next{RerunJob, job.JobID}
	if job.SupersededBy != "" {
		next = Next{SeeRerun, job.SupersededBy}
	}
	fault := strings.TrimSuffix(Fault(job.ErrorCode, job.ErrorMessage), ".")
	switch job.State {
	case api.JobStateSucceeded:
		return Answer{Headline: say("The job succeeded ", ago, ", after ", Count(job.AttemptsTotal, "attempt"), ".")}
	case api.JobStateCancelled:
		if job.ErrorCode == superseded {
			return Answer{Headline: say("The job was cancelled ", ago, " for a newer job of its order key."), Next: next}
		}
		return Answer{Headline: say("The job was cancelled", x.by(api.EventTypeJobCancelling), "."), Next: next}
	case api.JobStateFailedFinal:
		at := slices.IndexFunc(job.Steps, func(s api.Step) bool { return s.State == api.StepStateFailedFinal })
		if at < 0 {
			return Answer{Headline: say("The job failed ", ago, ": ", fault, "."), Next: next}
		}
		step := &job.Steps[at]
		if job.ErrorCode == expired {
			return Answer{
				Step: step, Next: next,
				Headline: say("The job expired ", ago, ": no worker had started it by its not_after, ", job.NotAfter, "."),
				Detail:   say("its service has no worker, was paused or had a backlog; a rerun begins at once and does not expire"),
			}
		}
		attempts := Count(len(Failures(x.events, step.StepID)), "attempt")
		return Answer{Step: step, Headline: say(step.StepID, " failed for good ", ago, ", after ", attempts, ": ", fault, "."), Next: next}
	default: // A live job whose wait could not be read.
		return Answer{Headline: say("The job is ", job.State, ".")}
	}
}

// by names the caller of the last change of that type, with its time and reason.
func (x *explained) by(of api.EventType) Sentence {
	for i := range slices.Backward(x.events) {
		e := &x.events[i]
		if e.Type != of {
			continue
		}
		s := say(" by ", cmp.Or(e.Caller, string(e.Actor)), " ", when{Ago, e.At.Time})
		if e.Cause != "" {
			s = say(s, ": ", strings.TrimSuffix(e.Cause, "."))
		}
		return s
	}
	return nil
}

// failed says how often a step failed, and how.
func (x *explained) failed(stepID string) string {
	failures := Failures(x.events, stepID)
	if len(failures) == 0 {
		return "waits"
	}
	return fmt.Sprintf("failed %s, last with %s", Count(len(failures), "time"), failures[len(failures)-1].Detail)
}

// Failures returns the failed attempts of a step, or of all if it is empty. An attempt that
// was withdrawn has no error, and is none.
func Failures(events []api.Event, stepID string) (failures []*api.Event) {
	for i := range events {
		e := &events[i]
		failed := e.Type == api.EventTypeStepFailedRetry || e.Type == api.EventTypeStepFailedFinal
		if failed && e.Detail != "" && (stepID == "" || e.ObjectID == stepID) {
			failures = append(failures, e)
		}
	}
	return failures
}
