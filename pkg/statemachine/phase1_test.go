package statemachine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// edgeRow is a row of a transition table. The last event of both met and unmet is the row's
// trigger; in unmet a precondition of the row is missing.
type edgeRow struct{ from, to, trigger, met, unmet string }

// phase1 are the transition tables of "Ledger and state model, Phase 1", written out by
// hand. A row of several states is split.
var phase1 = map[statemachine.Object][]edgeRow{
	statemachine.ObjectJob: {
		{"QUEUED", "DISPATCHING", "First step outbox created", "accept", "accept; accept"},
		{"DISPATCHING", "IN_PROGRESS", "Step 0 ACK received", "accept; ack one#1", "accept; ack one#1 forged"},
		{"IN_PROGRESS", "IN_PROGRESS", "Step N succeeded, step N+1 activated", begun + "result one#1 SUCCEEDED", begun + "result one#1 FAILED_RETRY"},
		{"IN_PROGRESS", "SUCCEEDED", "Final step succeeded", "job one; " + begun + "result one#1 SUCCEEDED", begun + "result one#1 SUCCEEDED"},
		{"IN_PROGRESS", "FAILED_FINAL", "Step failed final", begun + "result one#1 FAILED_FINAL", begun + "result one#1 FAILED_FINAL forged"},
		{"QUEUED", "CANCELLING", "Cancel request", "cancel", "accept; cancel; cancel"},
		{"DISPATCHING", "CANCELLING", "Cancel request", "accept; cancel", "accept; cancel; cancel"},
		{"IN_PROGRESS", "CANCELLING", "Cancel request", begun + "cancel", begun + "result one#1 FAILED_FINAL; cancel"},
		{"CANCELLING", "CANCELLED", "Active step terminal", begun + "cancel; result one#1 SUCCEEDED", begun + "cancel; heartbeat one#1"},
	},
	statemachine.ObjectStep: {
		{"PENDING", "DISPATCHING", "Outbox row created", begun + "result one#1 SUCCEEDED", "job one; " + begun + "result one#1 SUCCEEDED"},
		{"DISPATCHING", "AWAITING_ACK", "Outbox SENT", "accept; published one#1", "accept; published one#2"},
		{"AWAITING_ACK", "IN_PROGRESS", "ACK callback", sent + "ack one#1", sent + "ack one#1 forged"},
		{"IN_PROGRESS", "SUCCEEDED", "RESULT success", begun + "result one#1 SUCCEEDED", begun + "result one#1 SUCCEEDED forged"},
		{"IN_PROGRESS", "FAILED_FINAL", "RESULT non-retryable", begun + "result one#1 FAILED_FINAL", begun + "result one#2 FAILED_FINAL"},
		{"IN_PROGRESS", "FAILED_RETRY", "RESULT retryable", begun + "result one#1 FAILED_RETRY", last + begun + "result one#1 FAILED_RETRY"},
		{"AWAITING_ACK", "FAILED_RETRY", "ACK timeout", sent + "+30s deadline-passed", last + sent + "+30s deadline-passed"},
		{"FAILED_RETRY", "DISPATCHING", "Retry dispatch", retrying + "+30s deadline-passed", retrying + "+29s deadline-passed"},
		{"PENDING", "CANCELLED", "Cancel + active step terminal", begun + "cancel; result one#1 SUCCEEDED", begun + "cancel"},
		{"DISPATCHING", "CANCELLED", "Cancel + active step terminal", "accept held; cancel", "accept held; pause"},
		{"AWAITING_ACK", "CANCELLED", "Cancel + active step terminal", sent + "cancel; +30s deadline-passed", sent + "+30s deadline-passed"},
		{"IN_PROGRESS", "CANCELLED", "Cancel + active step terminal", begun + "cancel; result one#1 FAILED_RETRY", begun + "result one#1 FAILED_RETRY"},
		{"FAILED_RETRY", "CANCELLED", "Cancel + active step terminal", retrying + "cancel", retrying + "pause"},
	},
	statemachine.ObjectOutbox: {
		{"PENDING", "SENT", "Publish succeeded", "accept; published one#1", "accept; publish-rejected one#1"},
		{"PENDING", "FAILED_FINAL", "Publish failed final", "job one dispatch=0s max-attempts=1; accept; publish-rejected one#1", "accept; publish-rejected one#1"},
	},
}

// The events before the trigger. In last, a failing attempt is the last one.
const (
	sent     = "accept; published one#1; "
	begun    = sent + "ack one#1; "
	retrying = begun + "result one#1 FAILED_RETRY; "
	last     = "job one two max-attempts=1; "
)

// beyondPhase1 are the transitions that the document does not list, each with the reason
// why there is one.
var beyondPhase1 = map[statemachine.Object][]edgeRow{
	statemachine.ObjectJob: {
		{from: "DISPATCHING", to: "FAILED_FINAL", trigger: "the first step can fail before any ACK"},
		{from: "QUEUED", to: "PAUSING", trigger: "Option B 18.1"},
		{from: "DISPATCHING", to: "PAUSING", trigger: "Option B 18.1"},
		{from: "IN_PROGRESS", to: "PAUSING", trigger: "Option B 18.1"},
		{from: "PAUSING", to: "PAUSED", trigger: "Option B 18.1"},
		{from: "PAUSING", to: "DISPATCHING", trigger: "Option B 18.2, and IN_PROGRESS begins with the first ACK"},
		{from: "PAUSING", to: "IN_PROGRESS", trigger: "Option B 18.2"},
		{from: "PAUSED", to: "DISPATCHING", trigger: "Option B 18.2, and IN_PROGRESS begins with the first ACK"},
		{from: "PAUSED", to: "IN_PROGRESS", trigger: "Option B 18.2"},
		{from: "PAUSING", to: "CANCELLING", trigger: "CANCELLING can be entered from any non-terminal state"},
		{from: "PAUSED", to: "CANCELLING", trigger: "CANCELLING can be entered from any non-terminal state"},
		{from: "PAUSING", to: "SUCCEEDED", trigger: "Option B 18.1: the current step may finish"},
		{from: "PAUSING", to: "FAILED_FINAL", trigger: "Option B 18.1: the current step may finish"},
		{from: "PAUSED", to: "SUCCEEDED", trigger: "a late RESULT counts until the next dispatch"},
		{from: "PAUSED", to: "FAILED_FINAL", trigger: "a late RESULT counts until the next dispatch"},
		{from: "QUEUED", to: "FAILED_FINAL", trigger: "a job that was not started by its not_after expires"},
		{from: "PAUSED", to: "QUEUED", trigger: "a job that is resumed before its not_before waits for it"},
	},
	statemachine.ObjectStep: {
		{from: "PENDING", to: "FAILED_FINAL", trigger: "a job that was not started by its not_after expires"},
		{from: "DISPATCHING", to: "FAILED_FINAL", trigger: "canvas, Retry Loop: attempt_no >= max_attempts"},
		{from: "AWAITING_ACK", to: "FAILED_FINAL", trigger: "ACK timeout with attempts >= max"},
		{from: "FAILED_RETRY", to: "SUCCEEDED", trigger: "a late RESULT counts until the next dispatch"},
		{from: "FAILED_RETRY", to: "FAILED_FINAL", trigger: "a late RESULT counts until the next dispatch"},
		{from: "DISPATCHING", to: "FAILED_RETRY", trigger: "a pause withdraws an attempt"},
		{from: "DISPATCHING", to: "DISPATCHING", trigger: "canvas, Retry Loop: a new pair for the next publish"},
	},
	statemachine.ObjectOutbox: {
		{from: "PENDING", to: "PENDING", trigger: "canvas, Retry Loop: next_attempt_at moves"},
	},
}

// listed returns the edges of an object in both tables, each as "from -> to".
func listed(object statemachine.Object) []string {
	var edges []string
	for _, row := range slices.Concat(phase1[object], beyondPhase1[object]) {
		edges = append(edges, row.from+" -> "+row.to)
	}
	slices.Sort(edges)
	return edges
}

// The tables of the state machine, the audit and the simulation contain exactly the
// document's edges and those of beyondPhase1.
func TestPhase1_TheTablesAreTheDocuments(t *testing.T) {
	t.Parallel()
	for object, coded := range map[statemachine.Object][]string{
		statemachine.ObjectJob:    edgesOf(statemachine.JobEdges),
		statemachine.ObjectStep:   edgesOf(statemachine.StepEdges),
		statemachine.ObjectOutbox: edgesOf(statemachine.OutboxEdges),
	} {
		if diff := cmp.Diff(listed(object), slices.Sorted(slices.Values(coded))); diff != "" {
			t.Errorf("edges of a %s (-document +code):\n%s", object, diff)
		}
	}
}

func edgesOf[S ~string](edges []statemachine.Edge[S]) []string {
	var out []string
	for _, edge := range edges {
		out = append(out, string(edge.From)+" -> "+string(edge.To))
	}
	return out
}

// The document's states, including those of Option B 18.1 (PAUSING, PAUSED), and which of
// them are final.
func TestPhase1_TheStatesAreTheDocuments(t *testing.T) {
	t.Parallel()
	wantStates(t, statemachine.JobStates,
		"QUEUED DISPATCHING IN_PROGRESS PAUSING PAUSED CANCELLING", "CANCELLED SUCCEEDED FAILED_FINAL")
	wantStates(t, statemachine.StepStates,
		"PENDING DISPATCHING AWAITING_ACK IN_PROGRESS FAILED_RETRY", "SUCCEEDED FAILED_FINAL CANCELLED")
	wantStates(t, statemachine.OutboxStates, "PENDING", "SENT FAILED_FINAL")
}

func wantStates[S interface {
	~string
	Terminal() bool
}](t *testing.T, states []S, live, terminal string) {
	t.Helper()
	var got [2][]string
	for _, s := range states {
		kind := 0
		if s.Terminal() {
			kind = 1
		}
		got[kind] = append(got[kind], string(s))
	}
	if diff := cmp.Diff([2][]string{strings.Fields(live), strings.Fields(terminal)}, got); diff != "" {
		t.Errorf("live and terminal states (-document +code):\n%s", diff)
	}
}

// The trigger of each row of the document walks the row's edge, unless a precondition is
// missing.
func TestPhase1_EachTriggerWalksItsRow(t *testing.T) {
	t.Parallel()
	for object, rows := range phase1 {
		for _, row := range rows {
			t.Run(fmt.Sprintf("%s %s to %s by %s", object, row.from, row.to, row.trigger), func(t *testing.T) {
				t.Parallel()
				edge := row.from + " -> " + row.to
				if _, got := told(t, row.met); !slices.Contains(got[object], edge) {
					t.Errorf("%s: walked %q", row.met, got[object])
				}
				if _, got := told(t, row.unmet); slices.Contains(got[object], edge) {
					t.Errorf("%s: walked it without its precondition", row.unmet)
				}
			})
		}
	}
}

// Source: "FAILED_RETRY must transition to DISPATCHING with a new attempt_no and
// lease_id"; PENDING to DISPATCHING: "set attempt_no, lease_id, lease_expires_at".
func TestPhase1_ADispatchHasANewPair(t *testing.T) {
	t.Parallel()
	s, _ := told(t, retrying+"+30s deadline-passed")
	first, second := s.given["one#1"], s.given["one#2"]
	step := s.agg.Steps[0]
	if second.AttemptNo != first.AttemptNo+1 || second.LeaseID == first.LeaseID || first.LeaseID == "" {
		t.Errorf("the pair %d, %q is followed by %d, %q", first.AttemptNo, first.LeaseID, second.AttemptNo, second.LeaseID)
	}
	if step.AttemptNo != second.AttemptNo || step.LeaseID != second.LeaseID || !step.LeaseExpiresAt.After(s.now) {
		t.Errorf("the step has %d, %q until %s", step.AttemptNo, step.LeaseID, step.LeaseExpiresAt)
	}
}

// told plays events in the words of a scenario, separated by "; ", and returns the edges
// that the last event walked. Without a job line the job has the steps one and two.
func told(t *testing.T, story string) (*scenario, map[statemachine.Object][]string) {
	t.Helper()
	if !strings.HasPrefix(story, "job ") {
		story = "job one two; " + story
	}
	s := &scenario{now: start, given: map[string]statemachine.Outbox{}, verbs: map[string]bool{}}
	var before int
	for line := range strings.SplitSeq(story, "; ") {
		before = len(s.history)
		if _, err := s.line(strings.Fields(line)); err != nil {
			t.Fatalf("%s: %s: %v", story, line, err)
		}
	}
	edges := map[statemachine.Object][]string{}
	for i := range s.history[before:] {
		if at := &s.history[before+i]; walked(at) {
			edges[at.Object] = append(edges[at.Object], at.From+" -> "+at.To)
		}
	}
	return s, edges
}
