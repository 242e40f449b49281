package statemachine_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// TestRerunSteps holds each rerun against "first: outcome of each step", where "-" is a step that
// the rerun executes, or against a part of its refusal.
func TestRerunSteps(t *testing.T) {
	t.Parallel()
	// old is a job whose step "ocr" and then "split" succeeded, and whose step "embed" failed.
	old := func(state statemachine.JobState) *statemachine.Aggregate {
		product := statemachine.Product{OutputRef: json.RawMessage(`{"uri":"old"}`), ResultRef: json.RawMessage(`{"uri":"result"}`)}
		return &statemachine.Aggregate{Job: statemachine.Job{State: state}, Steps: []statemachine.Step{
			{ID: "ocr", Type: "OCR", Service: "s", State: statemachine.StepSucceeded, Product: product, GaveResult: true},
			{ID: "split", Type: "SPLIT", Service: "s", State: statemachine.StepSucceeded, Product: product},
			{ID: "embed", Type: "EMBED", Service: "s", State: statemachine.StepFailedFinal},
		}}
	}
	steps := func(names ...string) (steps []statemachine.Step) {
		for _, name := range names {
			id, stepType, _ := strings.Cut(name, ":")
			if stepType == "" {
				stepType = strings.ToUpper(id)
			}
			steps = append(steps, statemachine.Step{ID: id, Type: stepType, Service: "s"})
		}
		return steps
	}
	byHand := func(ids ...string) map[string]json.RawMessage {
		resolved := map[string]json.RawMessage{}
		for _, id := range ids {
			resolved[id] = json.RawMessage(`{"uri":"by hand"}`)
		}
		return resolved
	}
	kept := steps("ocr", "split", "embed")
	for name, test := range map[string]struct {
		state statemachine.JobState
		steps []statemachine.Step
		start statemachine.RerunStart
		want  string
	}{
		"from the failed step":             {"", kept, statemachine.RerunStart{}, "embed: carried carried -"},
		"from the start":                   {"", kept, statemachine.RerunStart{AtFirst: true}, "ocr: - - -"},
		"from a step that succeeded":       {"", kept, statemachine.RerunStart{At: "split"}, "split: carried - -"},
		"the failed step done by hand":     {"", kept, statemachine.RerunStart{Resolved: byHand("embed")}, "no step is left to execute"},
		"a step done by hand once more":    {"", kept, statemachine.RerunStart{Resolved: byHand("ocr")}, "embed: resolved carried -"},
		"with a step that is executed":     {"", kept, statemachine.RerunStart{At: "split", Resolved: byHand("embed")}, `step "embed" is resolved, but the rerun starts at "split"`},
		"with a step that is not there":    {"", kept, statemachine.RerunStart{Resolved: byHand("index")}, `has no step "index" to resolve`},
		"at a step that is not there":      {"", kept, statemachine.RerunStart{At: "index"}, `has no step "index" to start at`},
		"a longer protocol":                {"", steps("ocr", "split", "embed", "index"), statemachine.RerunStart{Resolved: byHand("embed")}, "index: carried carried resolved -"},
		"behind the failed step":           {"", steps("ocr", "split", "embed", "index"), statemachine.RerunStart{At: "index"}, `step "embed" did not succeed as a step of the type EMBED of s`},
		"a new first step":                 {"", steps("scan", "ocr", "split", "embed"), statemachine.RerunStart{}, "scan: - - - -"},
		"a step that is now of other type": {"", steps("ocr:OCR2", "split", "embed"), statemachine.RerunStart{}, "ocr: - - -"},
		"behind a step of another type":    {"", steps("ocr:OCR2", "split", "embed"), statemachine.RerunStart{At: "embed"}, `step "ocr" did not succeed as a step of the type OCR2`},
		"of a live job":                    {statemachine.JobInProgress, kept, statemachine.RerunStart{}, "this one is IN_PROGRESS: cancel it first"},
		"of a job that succeeded":          {statemachine.JobSucceeded, kept, statemachine.RerunStart{At: "ocr"}, "ocr: - - -"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.state == "" {
				test.state = statemachine.JobFailedFinal
			}
			mine := append([]statemachine.Step(nil), test.steps...)
			first, err := statemachine.RerunSteps(old(test.state), json.RawMessage(`{"uri":"new"}`), mine, test.start)
			if err != nil {
				var unfit *statemachine.NotRerunnableError
				if !errors.As(err, &unfit) || !strings.Contains(err.Error(), test.want) || unfit.Nothing != strings.Contains(err.Error(), "no step is left") {
					t.Errorf("refused: %v", err)
				}
				return
			}
			got := mine[first].ID + ":"
			for i, step := range mine {
				outcome, output, result := "-", "new", ""
				switch step.Outcome {
				case statemachine.StepCarried:
					outcome, output, result = "carried", "old", `{"uri":"result"}`
				case statemachine.StepResolved:
					outcome, output = "resolved", "by hand"
				}
				if got += " " + outcome; string(step.OutputRef) != `{"uri":"`+output+`"}` || string(step.ResultRef) != result ||
					(step.State == statemachine.StepSucceeded) != (i < first) || step.GaveOutput != (outcome == "resolved") {
					t.Errorf("step %+v", step)
				}
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
