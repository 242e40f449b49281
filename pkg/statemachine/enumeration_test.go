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

// candidate is an event with its name in the golden file.
type candidate struct {
	name  string
	event statemachine.Event
	wait  time.Duration
}

// The dates of the jobs that have some, and those to which they are rescheduled.
var (
	date, expiry  = start.Add(30 * time.Minute), start.Add(5 * time.Hour)
	later, latest = start.Add(24 * time.Hour), start.Add(48 * time.Hour)
)

// candidates are all events that can be applied to a job, each with the current pair, with
// an earlier one, and with one that never existed.
func candidates(agg *statemachine.Aggregate) []candidate {
	i, ok := agg.Active()
	if !ok {
		i = len(agg.Steps) - 1
	}
	step := &agg.Steps[i]
	out := []candidate{
		{"accept", statemachine.Accept{}, 0},
		{"taken early", statemachine.DispatchClaimed{}, 0}, {"taken", statemachine.DispatchClaimed{}, time.Minute},
		{"deadline_passed early", statemachine.DeadlinePassed{}, 0},
		{"deadline_passed", statemachine.DeadlinePassed{}, time.Hour},
		{"cancel", statemachine.Cancel{}, 0}, {"pause", statemachine.Pause{}, 0}, {"resume", statemachine.Resume{}, time.Hour},
		{"reschedule", statemachine.Reschedule{NotBefore: &later, NotAfter: &latest}, 0},
		{"reschedule to now", statemachine.Reschedule{NotBefore: &time.Time{}}, 0},
		{"prioritize", statemachine.Prioritize{Class: statemachine.ClassBulk}, 0},
		{"retry", statemachine.Retry{}, 0}, {"stall", statemachine.Stall{StepID: step.ID, AttemptNo: step.AttemptNo}, 0},
	}
	if agg.Job.AttemptsTotal == 0 {
		out = append(out, candidate{"resume early", statemachine.Resume{}, 0},
			candidate{"deadline_passed after both dates", statemachine.DeadlinePassed{}, 72 * time.Hour})
	}
	if row := agg.Outbox; row != nil {
		out = append(out,
			candidate{"published", statemachine.Published{OutboxID: row.ID, AttemptNo: row.AttemptNo}, 0},
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
		out = append(out, candidate{
			"result FAILED_RETRY throttled " + p.name,
			statemachine.Result{
				StepID: step.ID, Pair: p.pair, Status: statemachine.ResultFailedRetry,
				Throttled: statemachine.ThrottleService, RetryAfter: time.Minute,
			}, 0,
		})
	}
	return out
}

// lease returns the lease id of an attempt. It is the same on every path to the attempt, so
// that equivalent states are equal.
func lease(attempt, step int) string { return fmt.Sprintf("lease-%d-%d", step, attempt) }

// name names a state in the golden file by all that an event's outcome depends on, except
// times.
func name(agg *statemachine.Aggregate) string {
	var b strings.Builder
	b.WriteString(string(agg.Job.State))
	if agg.Job.Parked {
		b.WriteString(" until its date")
	}
	if !agg.Job.Started && !agg.Job.NotAfter.IsZero() {
		b.WriteString(" expiring")
	}
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
		if step.Throttled {
			b.WriteString(" throttled")
		}
		if step.State == dispatching && agg.Outbox.Rejected {
			b.WriteString(" rejected")
		}
		if step.State == dispatching && agg.Outbox.Bus == statemachine.BusQueue {
			b.WriteString(" for the queue")
		}
	}
	return strings.ReplaceAll(b.String(), "  ", " ")
}

// process describes the process that applies an event: the bus that it publishes to, and
// whether it holds new rows back.
type process struct {
	name string
	bus  statemachine.Bus
	held bool
}

// processes are all kinds of process.
var processes = []process{
	{"queue", statemachine.BusQueue, false},
	{"queue held", statemachine.BusQueue, true},
	{"servicebus", statemachine.BusServiceBus, false},
	{"servicebus held", statemachine.BusServiceBus, true},
}

// explorer walks through all states breadth first.
type explorer struct {
	t *testing.T
	// fates are the outcomes of an event in a state, by process.
	fates map[string]map[string][]string
	edges map[string]bool
}

// TestDecide_EveryPairOfStateAndEvent applies every event to every state that a
// job can be in, by processes of both buses which hold new rows back or do not,
// and compares the outcomes with the golden file. A row names its processes unless it
// applies to all. Each step checks the invariants of a job. Run with -rewrite to rewrite
// the file, and commit it only if you understand the change.
func TestDecide_EveryPairOfStateAndEvent(t *testing.T) {
	t.Parallel()
	e := &explorer{t: t, fates: map[string]map[string][]string{}, edges: map[string]bool{}}
	e.explore()
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(e.fates)) {
		for _, line := range lines(e.fates[key]) {
			b.WriteString(key + line + "\n")
		}
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
	for object := range phase1 {
		e.walked(object)
	}
}

// walked checks that each listed edge was walked, and no other.
func (e *explorer) walked(object statemachine.Object) {
	edges := listed(object)
	for _, edge := range edges {
		key := string(object) + " " + edge
		if !e.edges[key] {
			e.t.Errorf("edge %s was never walked", key)
		}
	}
	for key := range e.edges {
		edge, ok := strings.CutPrefix(key, string(object)+" ")
		if ok && !slices.Contains(edges, edge) {
			e.t.Errorf("edge %s is not listed", key)
		}
	}
}

// node is a state with the time at which it was reached.
type node struct {
	agg statemachine.Aggregate
	now time.Time
}

// lines returns the rows of one pair of state and event: one for each outcome, with the
// processes that get it.
func lines(fates map[string][]string) []string {
	var order []string
	met := map[string][]string{}
	for _, p := range processes {
		slices.Sort(fates[p.name])
		fate := strings.Join(fates[p.name], " or ")
		if met[fate] == nil {
			order = append(order, fate)
		}
		met[fate] = append(met[fate], p.name)
	}
	if len(order) == 1 {
		return []string{" => " + order[0]}
	}
	var out []string
	for _, fate := range order {
		out = append(out, " by "+strings.Join(met[fate], ", ")+" => "+fate)
	}
	return out
}

func (e *explorer) explore() {
	first := untold(e.t, statemachine.BusQueue).agg
	for i := range first.Steps {
		first.Steps[i].Policy.Dispatch = []time.Duration{time.Minute}
		first.Steps[i].Policy.Ack = []time.Duration{time.Minute}
	}
	accept := candidate{"accept", statemachine.Accept{}, 0}
	seen := map[string]bool{}
	frontier := e.applyEvent(node{first, start}, accept, seen)
	first.Job.NotBefore, first.Job.NotAfter = date, expiry
	frontier = append(frontier, e.applyEvent(node{first, start}, accept, seen)...)
	for len(frontier) > 0 {
		var next []node
		for _, n := range frontier {
			before := clone(n.agg)
			for _, c := range candidates(&n.agg) {
				next = append(next, e.applyEvent(n, c, seen)...)
			}
			if !reflect.DeepEqual(before, n.agg) {
				e.t.Fatalf("an event in %s changed its input", name(&before))
			}
		}
		frontier = next
	}
}

// applyEvent applies an event to one state by each process, and returns the states that
// are new.
func (e *explorer) applyEvent(n node, c candidate, seen map[string]bool) []node {
	var fresh []node
	from := name(&n.agg)
	for _, p := range processes {
		in := env(n.now.Add(c.wait), nextLease(&n.agg, c.event), p.bus, p.held)
		d, err := statemachine.Decide(n.agg, c.event, in)
		if err != nil {
			e.t.Fatalf("%s + %s by %s: %v", from, c.name, p.name, err)
		}
		to := name(&d.After)
		e.record(from, c.name, p.name, to, &d)
		if d.Outcome != statemachine.Applied {
			continue
		}
		for _, broken := range violations(&n.agg, &d, in) {
			e.t.Errorf("%s + %s by %s: %s", from, c.name, p.name, broken)
		}
		if goneOn(&d.After) {
			continue
		}
		if key := to + unnamed(&d.After, in.Now); !seen[key] {
			seen[key] = true
			fresh = append(fresh, node{d.After, in.Now})
		}
	}
	return fresh
}

// goneOn reports whether a step went on after a throttled attempt. Such a job has the state of one
// that was never throttled, and another count: it would be explored again for each count.
func goneOn(agg *statemachine.Aggregate) bool {
	return slices.ContainsFunc(agg.Steps, func(s statemachine.Step) bool { return s.Spent.Free > 0 && !s.Throttled })
}

// unnamed tells apart states that share their rows in the golden file.
func unnamed(agg *statemachine.Aggregate, now time.Time) string {
	job := &agg.Job
	dates := fmt.Sprint(job.NotBefore.After(now), !job.Started && job.NotAfter.After(now))
	row := agg.Outbox
	if row == nil {
		return dates
	}
	due := row.State == statemachine.OutboxPending && !row.DueAt.After(now)
	return fmt.Sprint(agg.Steps[0].Spent, agg.Steps[1].Spent, agg.Steps[0].AttemptNo > 1, row.Bus, due, dates)
}

// nextLease returns the lease id for the attempt that the event may make.
func nextLease(agg *statemachine.Aggregate, event statemachine.Event) string {
	i, ok := agg.Active()
	if !ok {
		return ""
	}
	if _, isResult := event.(statemachine.Result); isResult && i == 0 {
		return lease(1, 1)
	}
	return lease(agg.Steps[i].AttemptNo+1, i)
}

// clone returns a deep copy of all that Decide could write to.
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

// record notes the outcome of the event. States that differ only in times and budgets share
// a row, which then lists each outcome.
func (e *explorer) record(from, event, process, to string, d *statemachine.Decision) {
	fate := d.Outcome.String()
	switch d.Outcome {
	case statemachine.Duplicate:
	case statemachine.Refused:
		fate += " " + string(d.Code)
	case statemachine.Applied:
		fate += fmt.Sprintf(" [%s] wake %d light %t", to, d.Wake.Kind, d.Light)
	}
	key := from + " + " + event
	if e.fates[key] == nil {
		e.fates[key] = map[string][]string{}
	}
	if fates := e.fates[key][process]; !slices.Contains(fates, fate) {
		e.fates[key][process] = append(fates, fate)
	}
	for _, t := range d.History {
		if t.From != "" && (t.From != t.To || strings.HasPrefix(t.Type, "outbox") || t.Type == statemachine.EventJobAdvanced ||
			t.Type == statemachine.EventStepRefenced) {
			e.edges[string(t.Object)+" "+t.From+" -> "+t.To] = true
		}
	}
}
