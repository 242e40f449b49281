package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// RerunFrom is the starting point of a rerun.
type RerunFrom string

// The starting points of a rerun.
const (
	// FromFailed keeps the results of the steps before the first that did not
	// succeed.
	FromFailed RerunFrom = "failed"
	// FromStart repeats every step.
	FromStart RerunFrom = "start"
)

// Rerun is a request to execute an ended job again, as a new one.
type Rerun struct {
	JobID string
	From  RerunFrom
	// FromStep is the id of the step to start at, in place of From. Optional.
	FromStep string
	// Resolved are the outputs of steps that were done by hand, by the ids of the steps. Optional.
	Resolved map[string]json.RawMessage
	// Newest reruns the last job of the chain of reruns of this one.
	Newest bool
	// Digest is one of all that makes this rerun another one than that from the same starting
	// point: of the edits, FromStep and Resolved. It is empty if there are none.
	Digest string
	// Edit changes the command of the new job, which is that of the old one, before its steps are
	// taken over. It may be called more than once. Optional.
	Edit func(old *statemachine.Aggregate, command *Command) error
	// Tags are added to those of the old job.
	Tags statemachine.Tags
	// Class, unless it is nil, replaces the old job's.
	Class *statemachine.Class
	// NoCallbacks leaves out the callback URLs of the old job.
	NoCallbacks bool
	Actor       string
	RequestID   string
	Reason      string
}

// start returns where the rerun starts.
func (r *Rerun) start() statemachine.RerunStart {
	return statemachine.RerunStart{AtFirst: r.From == FromStart, At: r.FromStep, Resolved: r.Resolved}
}

// Start returns the index of the first step that the rerun of the old job executes, if it has
// these steps. The error is a [*statemachine.NotRerunnableError].
func (r *Rerun) Start(old *statemachine.Aggregate, steps []statemachine.Step) (int, error) {
	return statemachine.RerunSteps(old, nil, slices.Clone(steps), r.start())
}

// Rerun creates a new job from one that has ended, with the steps, policies and payload that the
// old one was accepted with, as far as Edit does not change them. There is one new job for each old
// job, starting point and digest: a repeat is a replay. With Newest, a live job at the end of the
// chain is the answer. If it waits in a line whose first job is an older one of the chain, that one is
// the answer if it is live, and is rerun if it blocks the line. A rerun that was cancelled is rerun
// itself in place of its replay. It returns [ErrJobNotFound], a [*statemachine.NotRerunnableError], the
// errors of Edit, and those of [Ledger.Accept].
func (l *Ledger) Rerun(ctx context.Context, r Rerun) (Accepted, error) {
	plan, err := l.PlanRerun(ctx, r)
	if err != nil {
		return Accepted{}, err
	}
	if plan.Command == nil {
		return Accepted{Job: plan.Old.Job, Replayed: true}, nil
	}
	last, err := l.newest(ctx, plan.Old)
	if err != nil {
		return Accepted{}, err
	}
	plan.Command.Job.Supersedes = supersedable(&last.Job)
	accepted, err := l.Accept(ctx, *plan.Command)
	if err != nil {
		return Accepted{}, fmt.Errorf("rerun job %s: %w", plan.Old.Job.ID, err)
	}
	return accepted, nil
}

// RerunPlan is what a rerun does.
type RerunPlan struct {
	// Old is the job that is repeated, with the payload that it was accepted with.
	Old     *statemachine.Aggregate
	Payload json.RawMessage
	// Command is that of the new job. It is nil if Old is live, and the answer.
	Command *Command
	// First is the index of the first step that the new job executes.
	First int
}

// PlanRerun returns what [Ledger.Rerun] would do, and does nothing. Its errors are those of Rerun,
// and those of Accept only as far as [Ledger.Replay] returns them.
func (l *Ledger) PlanRerun(ctx context.Context, r Rerun) (plan RerunPlan, err error) {
	agg, err := l.Job(ctx, r.JobID)
	if err == nil && r.Newest {
		agg, err = l.newest(ctx, agg)
	}
	if err != nil {
		return plan, err
	}
	old := &agg.Job
	if plan.Old = agg; r.Newest && !old.State.Terminal() {
		if plan.Old, err = l.firstOfChain(ctx, agg); err != nil || !plan.Old.Job.State.Terminal() {
			return plan, err
		}
		r.JobID, r.Newest = plan.Old.Job.ID, false // It blocks the line: only its own rerun takes its place.
		return l.PlanRerun(ctx, r)
	}
	command := &Command{
		Job: statemachine.Job{
			TenantID: old.TenantID, RequestType: old.RequestType, SchemaVersion: old.SchemaVersion,
			ProtocolID: old.ProtocolID, ProtocolVersion: old.ProtocolVersion, Mode: old.Mode, DocID: old.DocID,
			IdempotencyHash: old.IdempotencyHash, InputRef: old.InputRef, OutputRef: old.OutputRef,
			WorkspaceRef: old.WorkspaceRef, CallbackURLs: old.CallbackURLs, CorrelationID: old.CorrelationID,
			Traceparent: old.Traceparent, RerunOf: old.ID, Order: old.Order,
		},
		Steps: make([]statemachine.Step, len(agg.Steps)),
		Actor: r.Actor, RequestID: r.RequestID, Reason: r.Reason,
		Origin: string(r.From) + " " + old.ID,
	}
	if old.Place.Line != "" {
		// What the rerun repeats was promised to run: it neither supersedes nor is refused.
		command.Job.Order.Mode, command.Job.Order.CancelsRunning = statemachine.OrderFIFO, false
		command.Blocker, command.MaxWaiting = old, MaxMaxWaiting
	}
	if r.Digest != "" {
		command.Origin += " " + r.Digest
	}
	if r.NoCallbacks {
		command.Job.CallbackURLs = nil
	}
	if command.Job.Class = old.Class; r.Class != nil {
		command.Job.Class = *r.Class
	}
	if command.Job.Tags, err = old.Tags.Own().With(r.Tags); err != nil {
		return plan, &statemachine.NotRerunnableError{Reason: "with the tags of the request, " + err.Error()}
	}
	for i := range agg.Steps {
		was := &agg.Steps[i]
		command.Steps[i] = statemachine.Step{
			ID: was.ID, Type: was.Type, Service: was.Service, Input: was.Input, PayloadPointer: was.PayloadPointer,
			Policy: was.Policy, Routing: was.Routing,
		}
	}
	if _, err := r.Start(agg, command.Steps); err != nil && r.Edit == nil {
		return plan, err // Without a read of the payload.
	}
	if plan.Payload, err = l.Payload(ctx, old.ID); err != nil {
		return plan, err
	}
	command.Payload = plan.Payload
	if r.Edit != nil {
		if err := r.Edit(agg, command); err != nil {
			return plan, err
		}
	}
	plan.Command = command
	plan.First, err = statemachine.RerunSteps(agg, command.Job.OutputRef, command.Steps, r.start())
	if err != nil || !r.Newest {
		return plan, err
	}
	// newest skips cancelled reruns. If this rerun was cancelled, each repeat would get its replay.
	same, found, err := l.Replay(ctx, *command)
	if err != nil || !found || same.Job.State != statemachine.JobCancelled {
		return plan, err
	}
	r.JobID = same.Job.ID
	return l.PlanRerun(ctx, r)
}

// newest returns the last job in the chain of reruns that begins with this one. A job with several
// reruns has them in one chain, so that of all of them the last one shows how the command ended.
func (l *Ledger) newest(ctx context.Context, agg *statemachine.Aggregate) (*statemachine.Aggregate, error) {
	for {
		next, err := l.SupersededBy(ctx, &agg.Job)
		if err != nil || next == "" {
			return agg, err
		}
		if agg, err = l.Job(ctx, next); err != nil {
			return nil, err
		}
	}
}

// firstOfChain returns the job that has the first place of the line in which this job waits, if both are in
// one chain of reruns; else this job. The job at the first place is live, or blocks the line.
func (l *Ledger) firstOfChain(ctx context.Context, agg *statemachine.Aggregate) (*statemachine.Aggregate, error) {
	if agg.Job.Place.Line == "" || !agg.Job.Waits() {
		return agg, nil
	}
	first, err := l.FirstInLine(ctx, agg.Job.Place.Line)
	if err != nil || first == nil || first.Job.ID == agg.Job.ID {
		return agg, err
	}
	chain, _, err := l.Lineage(ctx, agg.Job.ID, 1000)
	for _, of := range chain {
		if of.Job.ID == first.Job.ID && of.Job.Standing() != statemachine.PlaceGone {
			return of, err
		}
	}
	return agg, err
}

// Lineage returns the jobs that repeat each other with this one, oldest first, at most that many, and
// whether there are more. Of a job that was purged it knows the id alone: the job has no state. It
// returns [ErrJobNotFound].
func (l *Ledger) Lineage(ctx context.Context, jobID string, most int) (chain []*statemachine.Aggregate, truncated bool, err error) {
	first, err := l.Job(ctx, jobID)
	if err != nil {
		return nil, false, err
	}
	tenantID := first.Job.TenantID
	for range most {
		if first.Job.Supersedes == "" {
			break
		}
		older, err := l.Job(ctx, first.Job.Supersedes)
		if errors.Is(err, ErrJobNotFound) {
			older, err = &statemachine.Aggregate{Job: statemachine.Job{ID: first.Job.Supersedes}}, nil
		}
		if err != nil {
			return nil, false, err
		}
		first = older
	}
	chain = []*statemachine.Aggregate{first}
	for i := 0; i < len(chain); i++ {
		rows, err := rerunCodec.ScanAll(ctx, l.store, l.rerunsOf(tenantID, chain[i].Job.ID))
		if err != nil {
			return nil, false, fmt.Errorf("read the reruns of job %s: %w", chain[i].Job.ID, err)
		}
		for _, row := range rows {
			if len(chain) == most {
				truncated = true
				break
			}
			rerun, err := l.Job(ctx, row.JobID)
			if errors.Is(err, ErrJobNotFound) {
				continue // Its accept is under way, or was lost.
			}
			if err != nil {
				return nil, false, err
			}
			chain = append(chain, rerun)
		}
	}
	slices.SortFunc(chain, func(a, b *statemachine.Aggregate) int {
		return strings.Compare(ListOrder(b.Job.ID), ListOrder(a.Job.ID))
	})
	return chain, truncated, nil
}
