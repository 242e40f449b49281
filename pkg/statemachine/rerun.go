package statemachine

import (
	"encoding/json"
	"fmt"
	"slices"
)

// StepOutcome says how a step has SUCCEEDED that the job did not execute.
type StepOutcome string

// The outcomes.
const (
	StepCarried  StepOutcome = "carried"  // A rerun took over the result of the job that it repeats.
	StepResolved StepOutcome = "resolved" // A person did the step by hand, and gave its output.
)

// RerunStart says where a rerun starts, and what was done by hand.
type RerunStart struct {
	// AtFirst repeats every step. Otherwise a rerun starts at the first step that neither
	// succeeded in the job before nor was resolved.
	AtFirst bool
	// At is the id of the step to start at, in place of these. Optional.
	At string
	// Resolved are the outputs of the steps that were done by hand, by their ids.
	Resolved map[string]json.RawMessage
}

// NotRerunnableError is returned for a job that cannot be rerun as requested.
type NotRerunnableError struct {
	Reason string
	// Nothing says that no step would be left to execute.
	Nothing bool
}

// Error says why.
func (e *NotRerunnableError) Error() string { return e.Reason }

// RerunSteps sets the states and the results of the steps that a rerun of the old job is accepted
// with, and returns the index of the first one to execute. Each step before it must have been
// resolved, or have succeeded in the old job as a step of the same id, type and service. The
// others get the job's output_ref. The error is a [*NotRerunnableError].
func RerunSteps(old *Aggregate, outputRef json.RawMessage, steps []Step, start RerunStart) (first int, err error) {
	refuse := func(nothing bool, format string, args ...any) (int, error) {
		return 0, &NotRerunnableError{Reason: fmt.Sprintf(format, args...), Nothing: nothing}
	}
	if !old.Job.State.Terminal() {
		return refuse(false, "only a job that has ended is rerun, and this one is %s: cancel it first", old.Job.State)
	}
	for id := range start.Resolved {
		if !slices.ContainsFunc(steps, func(step Step) bool { return step.ID == id }) {
			return refuse(false, "the rerun has no step %q to resolve", id)
		}
	}
	succeeded := func(step *Step) *Step {
		i := slices.IndexFunc(old.Steps, func(was Step) bool { return was.ID == step.ID })
		if i < 0 || old.Steps[i].State != StepSucceeded || old.Steps[i].Type != step.Type || old.Steps[i].Service != step.Service {
			return nil
		}
		return &old.Steps[i]
	}
	switch first = 0; {
	case start.At != "":
		if first = slices.IndexFunc(steps, func(step Step) bool { return step.ID == start.At }); first < 0 {
			return refuse(false, "the rerun has no step %q to start at", start.At)
		}
	case !start.AtFirst:
		for first < len(steps) && (start.Resolved[steps[first].ID] != nil || succeeded(&steps[first]) != nil) {
			first++
		}
	}
	if first == len(steps) {
		return refuse(true, "no step is left to execute: every step has succeeded or is resolved")
	}
	for i := range steps {
		step := &steps[i]
		given, resolved := start.Resolved[step.ID]
		step.Product = Product{OutputRef: outputRef}
		switch was := succeeded(step); {
		case i >= first && resolved:
			return refuse(false, "step %q is resolved, but the rerun starts at %q and executes it", step.ID, steps[first].ID)
		case i >= first:
		case resolved:
			step.State, step.Outcome = StepSucceeded, StepResolved
			step.OutputRef, step.GaveOutput = given, true
		case was != nil:
			step.State, step.Outcome = StepSucceeded, StepCarried
			step.InputRef, step.Product = was.InputRef, was.Product
			step.GaveOutput, step.GaveResult = was.GaveOutput, was.GaveResult
		default:
			return refuse(false, "step %q did not succeed as a step of the type %s of %s: resolve it, or start at it",
				step.ID, step.Type, step.Service)
		}
	}
	return first, nil
}

// FirstExecuted returns the id of the first step that the job executes itself: those before it were
// carried or resolved.
func (a *Aggregate) FirstExecuted() string {
	for i := range a.Steps {
		if a.Steps[i].Outcome == "" {
			return a.Steps[i].ID
		}
	}
	return ""
}
