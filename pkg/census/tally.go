package census

import (
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// phase is what the active step of a live job waits for.
type phase uint8

const (
	phaseNone        phase = iota // nothing: its job is paused without a live attempt
	phaseDispatching              // its publish, which a pause may hold back
	phaseQueued                   // a worker
	phaseClaimed                  // the start, by the worker that claimed it
	phaseRunning                  // the RESULT
	phaseBackoff                  // the time of its next attempt
	phases
)

// standing is what one job contributes to the counts.
type standing struct {
	state statemachine.JobState // empty if the job is missing or has ended
	kind  kind
	phase phase
	// since is when a queued step was published, or a running one started, or when one in
	// backoff is due.
	since   time.Time
	created time.Time // when the job was accepted
}

// standingOf returns the standing of a job.
func standingOf(agg *statemachine.Aggregate) standing {
	state := agg.Job.State
	if len(agg.Steps) == 0 || state.Terminal() {
		return standing{}
	}
	s := standing{state: state, created: agg.Job.CreatedAt}
	i, ok := agg.Active()
	if !ok {
		return s
	}
	step := &agg.Steps[i]
	s.kind = kindOf(agg, step)
	switch step.State {
	case statemachine.StepDispatching:
		s.phase = phaseDispatching
	case statemachine.StepAwaitingAck: // Claims on Service Bus are not known.
		if s.phase = phaseClaimed; agg.Outbox != nil {
			if _, queued := agg.Queued(); queued || agg.Outbox.Bus != statemachine.BusQueue {
				s.phase, s.since = phaseQueued, agg.Outbox.SentAt
			}
		}
	case statemachine.StepInProgress:
		s.phase, s.since = phaseRunning, step.StartedAt
	case statemachine.StepFailedRetry:
		if state != statemachine.JobPaused {
			s.phase, s.since = phaseBackoff, step.NextAttemptAt
		}
	case statemachine.StepPending, statemachine.StepSucceeded, statemachine.StepFailedFinal, statemachine.StepCancelled:
	}
	return s
}

// kind is a [ledger.WorkKind] of one protocol, or of all protocols if Protocol is empty. It
// can be the key of a JSON object.
type kind struct{ Protocol, Service, StepType string }

func kindOf(agg *statemachine.Aggregate, step *statemachine.Step) kind {
	return kind{agg.Job.ProtocolID, step.Service, step.Type}
}

// everywhere is the kind of work in all protocols.
func everywhere(of ledger.WorkKind) kind { return kind{Service: of.Service, StepType: of.StepType} }

func (k kind) work() ledger.WorkKind {
	return ledger.WorkKind{Service: k.Service, StepType: k.StepType}
}

// each returns the kinds under which a step of the kind is counted: that of all protocols,
// and its own.
func (k kind) each() []kind {
	if k.Protocol == "" {
		return []kind{k}
	}
	return []kind{everywhere(k.work()), k}
}

// other returns the kind that stands for those beyond the bound.
func (k kind) other() kind {
	if k.Protocol == "" {
		return everywhere(Other)
	}
	return kind{Other.Service, Other.Service, Other.StepType}
}

// MarshalText implements [encoding.TextMarshaler].
func (k kind) MarshalText() ([]byte, error) {
	return []byte(tablestore.Join(k.Protocol, k.Service, k.StepType)), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *kind) UnmarshalText(text []byte) error {
	parts, err := tablestore.Split(string(text))
	if err != nil || len(parts) != 3 {
		return fmt.Errorf("%q is not a kind of work", text)
	}
	k.Protocol, k.Service, k.StepType = parts[0], parts[1], parts[2]
	return nil
}

// maxKinds bounds the kinds of work that are counted separately, over all protocols and, with
// the same bound, by protocol. All further kinds count as [Other].
const maxKinds = 100

// Other stands for all kinds of work beyond the first 100.
var Other = ledger.WorkKind{Service: "other", StepType: "other"}

// entry returns the kind's value in the map, and adds one if there is none. Beyond the bound,
// it returns that of [Other].
func entry[V any](all map[kind]*V, k kind) *V {
	if all[k] == nil {
		kinds := 0
		for known := range all {
			if (known.Protocol == "") == (k.Protocol == "") && known != k.other() {
				kinds++
			}
		}
		if kinds >= maxKinds {
			k = k.other()
		}
	}
	if all[k] == nil {
		all[k] = new(V)
	}
	return all[k]
}

// tally holds the gauges: the live jobs and their active steps.
type tally struct {
	Jobs    map[statemachine.JobState]int `json:"jobs,omitempty"`
	Steps   map[kind]*steps               `json:"steps,omitempty"`
	Created *ages                         `json:"created"` // of jobs, by the time of their accept
	Running *ages                         `json:"running"` // of steps, by the time of their start
	Retries *ages                         `json:"retries"` // of steps in backoff, by the time at which they are due
}

// steps counts the active steps of one kind.
type steps struct {
	Phases [phases]int `json:"phases"`
	Queued ages        `json:"queued,omitzero"`
}

func newTally() tally {
	return tally{
		Jobs: map[statemachine.JobState]int{}, Steps: map[kind]*steps{}, Created: new(ages), Running: new(ages), Retries: new(ages),
	}
}

// move adds a job if by is 1, or removes it if by is -1. aged says whether its ages count.
func (t *tally) move(s standing, by int, aged bool) {
	if s.state == "" {
		return
	}
	t.Jobs[s.state] += by
	if aged {
		t.Created.move(s.created.Unix(), by)
	}
	if s.phase == phaseNone {
		return
	}
	switch {
	case !aged:
	case s.phase == phaseRunning:
		t.Running.move(s.since.Unix(), by)
	case s.phase == phaseBackoff:
		t.Retries.move(s.since.Unix(), by)
	}
	for _, k := range s.kind.each() {
		of := entry(t.Steps, k)
		of.Phases[s.phase] += by
		if s.phase == phaseQueued && aged {
			of.Queued.move(s.since.Unix(), by)
		}
	}
}

// add adds the other counts, numerator/denominator times.
func (t *tally) add(other *tally, numerator, denominator int) {
	for state, n := range other.Jobs {
		t.Jobs[state] += n * numerator / denominator
	}
	for kind, of := range other.Steps {
		sum := entry(t.Steps, kind)
		for phase, n := range of.Phases {
			sum.Phases[phase] += n * numerator / denominator
		}
		sum.Queued.add(&of.Queued)
	}
	t.Created.add(other.Created)
	t.Running.add(other.Running)
	t.Retries.add(other.Retries)
}

// blurred reports whether a recount would know some ages to the second again, after a longer
// backlog made their unit longer.
func (t *tally) blurred() bool {
	return slices.ContainsFunc(t.ages(), (*ages).blurred)
}

// short returns a copy that takes less space, because its ages have longer units.
func (t *tally) short() tally {
	out := newTally()
	out.add(t, 1, 1)
	for _, a := range out.ages() {
		for len(a.Counts) > fewAges {
			a.coarsen(2 * a.Unit)
		}
	}
	return out
}

// ages returns all ages.
func (t *tally) ages() []*ages {
	all := []*ages{t.Created, t.Running, t.Retries}
	for _, of := range t.Steps {
		all = append(all, &of.Queued)
	}
	return all
}

// ages counts jobs or steps by a time, such as that of the publish: by the second, or by a
// longer unit if that takes too many entries.
type ages struct {
	Unit   int64         `json:"unit"` // in seconds
	Counts map[int64]int `json:"counts"`
}

const (
	// maxAges bounds the entries, so that an age is accurate to a 500th of the highest age.
	maxAges = 1000
	// fewAges bounds the stored entries if maxAges of them take too much space.
	fewAges = 16
)

// blurred reports whether the unit is longer than necessary.
func (a *ages) blurred() bool {
	n := 0
	for _, of := range a.Counts {
		n += of
	}
	return a.Unit > 1 && n > 0 && n <= maxAges
}

// move adds by to the count at a Unix time.
func (a *ages) move(at int64, by int) {
	if len(a.Counts) == 0 {
		a.Unit = 1
	}
	if a.Counts == nil {
		a.Counts = map[int64]int{}
	}
	at /= a.Unit
	if a.Counts[at] += by; a.Counts[at] == 0 {
		delete(a.Counts, at)
	}
	if len(a.Counts) > maxAges {
		a.coarsen(2 * a.Unit)
	}
}

// coarsen changes to a longer unit, a multiple of the current one by a power of two.
func (a *ages) coarsen(unit int64) {
	counts := make(map[int64]int, len(a.Counts))
	for at, n := range a.Counts {
		counts[at/(unit/a.Unit)] += n
	}
	a.Unit, a.Counts = unit, counts
}

// add adds the counts of other.
func (a *ages) add(other *ages) {
	if len(a.Counts) > 0 && other.Unit > a.Unit {
		a.coarsen(other.Unit)
	}
	for at, n := range other.Counts {
		a.move(at*other.Unit, n)
	}
}

// oldest returns the earliest time, or the zero time if there is none.
func (a *ages) oldest() time.Time {
	first := int64(0)
	for at, n := range a.Counts {
		if n > 0 && (first == 0 || at < first) {
			first = at
		}
	}
	if first == 0 {
		return time.Time{}
	}
	return time.Unix(first*a.Unit, 0).UTC()
}
