package statemachine_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// depth is how many events after the accept are explored. All states that a
// job of two steps with these budgets can be in are reached with fewer.
const depth = 9

// candidate is an event with the name under which the golden file lists it.
type candidate struct {
	name  string
	event statemachine.Event
	wait  time.Duration
}

// candidates are all events that can be brought to a job, each with the
// current pair, with one of the past, and with one that never was.
func candidates(agg *statemachine.Aggregate) []candidate {
	i, ok := agg.Active()
	if !ok {
		i = len(agg.Steps) - 1
	}
	step := &agg.Steps[i]
	out := []candidate{
		{"accept", statemachine.Accept{}, 0}, {"taken", statemachine.Taken{}, time.Minute},
		{"deadline_passed early", statemachine.DeadlinePassed{}, 0},
		{"deadline_passed", statemachine.DeadlinePassed{}, time.Hour},
		{"cancel", statemachine.Cancel{}, 0}, {"pause", statemachine.Pause{}, 0}, {"resume", statemachine.Resume{}, time.Hour},
		{"retry", statemachine.Retry{}, 0}, {"stall", statemachine.Stall{StepID: step.ID, AttemptNo: step.AttemptNo}, 0},
	}
	if row := agg.Outbox; row != nil {
		out = append(out,
			candidate{"published push", statemachine.Published{OutboxID: row.ID, AttemptNo: row.AttemptNo}, 0},
			candidate{"published pull", statemachine.Published{OutboxID: row.ID, AttemptNo: row.AttemptNo, AwaitsClaim: true}, 0},
			candidate{"publish_rejected", statemachine.PublishRejected{OutboxID: row.ID, AttemptNo: row.AttemptNo}, 0})
	}
	for _, p := range []struct {
		name string
		pair statemachine.Pair
	}{
		{"current", statemachine.Pair{AttemptNo: step.AttemptNo, LeaseID: lease(step.AttemptNo, i)}},
		{"past", statemachine.Pair{AttemptNo: step.AttemptNo - 1, LeaseID: lease(step.AttemptNo-1, i)}},
		{"unknown", statemachine.Pair{AttemptNo: step.AttemptNo, LeaseID: "guessed"}},
	} {
		out = append(out,
			candidate{"claimed " + p.name, statemachine.Claimed{StepID: step.ID, Pair: p.pair}, 0},
			candidate{"claim_extended " + p.name, statemachine.ClaimExtended{StepID: step.ID, Pair: p.pair}, 0},
			candidate{"ack " + p.name, statemachine.Ack{StepID: step.ID, Pair: p.pair}, 0},
			candidate{"heartbeat " + p.name, statemachine.Heartbeat{StepID: step.ID, Pair: p.pair}, 0})
		for _, status := range []statemachine.ResultStatus{
			statemachine.ResultSucceeded, statemachine.ResultFailedRetry, statemachine.ResultFailedFinal,
		} {
			out = append(out, candidate{
				"result " + string(status) + " " + p.name,
				statemachine.Result{StepID: step.ID, Pair: p.pair, Status: status}, 0,
			})
		}
	}
	return out
}

// lease is the lease id of an attempt: the same on every path to it, so that
// states that are alike are the same.
func lease(attempt, step int) string { return fmt.Sprintf("lease-%d-%d", step, attempt) }

// name is a state in the golden file: what the event's fate depends on, but
// for times.
func name(agg *statemachine.Aggregate) string {
	var b strings.Builder
	b.WriteString(string(agg.Job.State))
	active, _ := agg.Active()
	for i := range agg.Steps {
		step := &agg.Steps[i]
		fmt.Fprintf(&b, " | %s", step.State)
		if i != active {
			continue
		}
		switch {
		case step.State == awaiting && step.LeaseExpiresAt.IsZero():
			b.WriteString(" unclaimed")
		case step.State == waiting && step.LeaseID == "":
			b.WriteString(" withdrawn")
		}
		if a := step.Attempts; len(a) > 0 {
			if a[len(a)-1].Acked {
				b.WriteString(" acked")
			}
			b.WriteString(strings.ToLower(" " + string(a[len(a)-1].Result)))
		}
		if step.State == dispatching && agg.Outbox.Rejected {
			b.WriteString(" rejected")
		}
	}
	return strings.ReplaceAll(b.String(), "  ", " ")
}

// explorer walks through all states breadth first.
type explorer struct {
	t     *testing.T
	rows  map[string]string
	edges map[string]bool
}

// TestDecide_EveryPairOfStateAndEvent brings every event to every state that a
// job can be in, and holds the outcomes against the golden file. At each step
// the invariants of a job are checked. Run with -rewrite to renew the file,
// and commit that only if you understand what caused the change.
func TestDecide_EveryPairOfStateAndEvent(t *testing.T) {
	t.Parallel()
	e := &explorer{t: t, rows: map[string]string{}, edges: map[string]bool{}}
	e.explore()
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(e.rows)) {
		b.WriteString(key + " => " + e.rows[key] + "\n")
	}
	const golden = "testdata/enumeration.txt"
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("the enumeration differs from %s (-want +got):\n%s", golden, diff)
	}
	e.walked(statemachine.ObjectJob, edgesOf(statemachine.JobEdges))
	e.walked(statemachine.ObjectStep, edgesOf(statemachine.StepEdges))
	e.walked(statemachine.ObjectOutbox, edgesOf(statemachine.OutboxEdges))
}

func edgesOf[S ~string](edges []statemachine.Edge[S]) []string {
	var out []string
	for _, edge := range edges {
		out = append(out, string(edge.From)+" -> "+string(edge.To))
	}
	return out
}

// unwalked are the listed edges that no job can come to, with the reason.
var unwalked = map[string]string{
	"job QUEUED -> CANCELLING": "accept dispatches the first step in the same change",
	"job QUEUED -> PAUSING":    "accept dispatches the first step in the same change",
}

// walked checks that each listed edge was walked, and no other.
func (e *explorer) walked(object statemachine.Object, listed []string) {
	for _, edge := range listed {
		key := string(object) + " " + edge
		if !e.edges[key] && unwalked[key] == "" {
			e.t.Errorf("edge %s was never walked", key)
		}
	}
	for key := range e.edges {
		edge, ok := strings.CutPrefix(key, string(object)+" ")
		if ok && !slices.Contains(listed, edge) {
			e.t.Errorf("edge %s is not listed", key)
		}
	}
}

// node is a state with the time at which it was reached.
type node struct {
	agg statemachine.Aggregate
	now time.Time
}

func (e *explorer) explore() {
	s := newStory(e.t)
	first := s.agg
	first.Steps = slices.Clone(first.Steps)
	for i := range first.Steps {
		first.Steps[i].Policy.Dispatch = []time.Duration{time.Minute}
		first.Steps[i].Policy.Ack = []time.Duration{time.Minute}
	}
	first.Steps[0].LeaseID = lease(1, 0)
	first.Steps[0].Attempts = []statemachine.Attempt{{No: 1, LeaseDigest: statemachine.LeaseDigest(lease(1, 0))}}
	row := *first.Outbox
	row.LeaseID = lease(1, 0)
	first.Outbox = &row
	frontier := []node{{first, start}}
	e.edges["job QUEUED -> DISPATCHING"] = true
	seen := map[string]bool{name(&first): true}
	for range depth {
		var next []node
		for _, n := range frontier {
			next = append(next, e.expand(n, seen)...)
		}
		frontier = next
	}
}

// expand brings every event to one state and returns the states that are new.
func (e *explorer) expand(n node, seen map[string]bool) []node {
	var fresh []node
	from := name(&n.agg)
	for _, c := range candidates(&n.agg) {
		d, now := e.decide(n, c)
		to := name(&d.After)
		e.record(from, c.name, to, &d)
		if d.Outcome != statemachine.Applied {
			continue
		}
		e.check(from, c.name, &n.agg, &d)
		attempts := fmt.Sprint(d.After.Steps[0].Spent, d.After.Steps[1].Spent, d.After.Steps[0].AttemptNo > 1)
		if key := to + attempts; !seen[key] {
			seen[key] = true
			fresh = append(fresh, node{d.After, now})
		}
	}
	return fresh
}

func (e *explorer) decide(n node, c candidate) (statemachine.Decision, time.Time) {
	e.t.Helper()
	now := n.now.Add(c.wait)
	i, ok := n.agg.Active()
	leaseID := ""
	if ok {
		leaseID = lease(n.agg.Steps[i].AttemptNo+1, i)
		if _, isResult := c.event.(statemachine.Result); isResult && i == 0 {
			leaseID = lease(1, 1)
		}
	}
	before := clone(n.agg)
	d, err := statemachine.Decide(n.agg, c.event, statemachine.Env{Now: now, LeaseID: leaseID, Hold: 15 * time.Second, Hot: hot})
	if err != nil {
		e.t.Fatalf("%s: %s: %v", name(&n.agg), c.name, err)
	}
	if !reflect.DeepEqual(before, n.agg) {
		e.t.Fatalf("%s: %s changed its input", name(&before), c.name)
	}
	return d, now
}

// clone is a deep copy of what Decide could write to.
func clone(agg statemachine.Aggregate) statemachine.Aggregate {
	agg.Steps = slices.Clone(agg.Steps)
	for i := range agg.Steps {
		agg.Steps[i].Attempts = slices.Clone(agg.Steps[i].Attempts)
	}
	if agg.Outbox != nil {
		row := *agg.Outbox
		agg.Outbox = &row
	}
	return agg
}

// record notes the fate of the event. States that differ only in times and
// budgets share a row, which then lists each fate.
func (e *explorer) record(from, event, to string, d *statemachine.Decision) {
	fate := d.Outcome.String()
	switch d.Outcome {
	case statemachine.Duplicate:
	case statemachine.Refused:
		fate += " " + string(d.Code)
	case statemachine.Applied:
		fate += fmt.Sprintf(" [%s] wake %d light %t", to, d.Wake.Kind, d.Light)
	}
	key := from + " + " + event
	fates := strings.Split(e.rows[key], " or ")
	if e.rows[key] == "" {
		fates = nil
	}
	if !slices.Contains(fates, fate) {
		fates = append(fates, fate)
		slices.Sort(fates)
		e.rows[key] = strings.Join(fates, " or ")
	}
	for _, t := range d.History {
		if t.From != "" && (t.From != t.To || strings.HasPrefix(t.Type, "outbox") || t.Type == statemachine.EventJobAdvanced ||
			t.Type == statemachine.EventStepRefenced) {
			e.edges[string(t.Object)+" "+t.From+" -> "+t.To] = true
		}
	}
}

// check holds the invariants of a job against a change.
func (e *explorer) check(from, event string, before *statemachine.Aggregate, d *statemachine.Decision) {
	for _, broken := range violations(before, d) {
		e.t.Errorf("%s + %s: %s", from, event, broken)
	}
}
