package census

import (
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// phase is what the active step of a live job waits for.
type phase uint8

const (
	phaseNone        phase = iota // its job is paused with nothing in hand
	phaseDispatching              // its publish, which a pause may hold back
	phaseQueued                   // a worker
	phaseClaimed                  // the start, by the worker that claimed it
	phaseRunning                  // the RESULT
	phaseBackoff                  // the time of its next attempt
	phases
)

// standing is what one job adds to the counts.
type standing struct {
	state statemachine.JobState // empty for a job that is missing or has ended
	kind  kind
	phase phase
	since time.Time // when a queued step was published
}

// standingOf returns the standing of a job.
func standingOf(agg *statemachine.Aggregate) standing {
	state := agg.Job.State
	if len(agg.Steps) == 0 || state.Terminal() {
		return standing{}
	}
	i, ok := agg.Active()
	if !ok {
		return standing{state: state}
	}
	step := &agg.Steps[i]
	s := standing{state: state, kind: kindOf(step)}
	switch step.State {
	case statemachine.StepDispatching:
		s.phase = phaseDispatching
	case statemachine.StepAwaitingAck: // On Service Bus, claims are not known.
		if s.phase = phaseClaimed; agg.Outbox != nil {
			if _, queued := agg.Queued(); queued || agg.Outbox.Bus != statemachine.BusQueue {
				s.phase, s.since = phaseQueued, agg.Outbox.SentAt
			}
		}
	case statemachine.StepInProgress:
		s.phase = phaseRunning
	case statemachine.StepFailedRetry:
		if state != statemachine.JobPaused {
			s.phase = phaseBackoff
		}
	case statemachine.StepPending, statemachine.StepSucceeded, statemachine.StepFailedFinal, statemachine.StepCancelled:
	}
	return s
}

// kind is a [ledger.WorkKind] that can be the key of a JSON object.
type kind ledger.WorkKind

func kindOf(step *statemachine.Step) kind { return kind{step.Service, step.Type} }

// MarshalText implements [encoding.TextMarshaler].
func (k kind) MarshalText() ([]byte, error) {
	return []byte(tablestore.Join(k.Service, k.StepType)), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (k *kind) UnmarshalText(text []byte) error {
	parts, err := tablestore.Split(string(text))
	if err != nil || len(parts) != 2 {
		return fmt.Errorf("%q is no kind of work", text)
	}
	k.Service, k.StepType = parts[0], parts[1]
	return nil
}

// maxKinds bounds the kinds of work that are counted apart. All further ones are counted
// as one, [Other].
const maxKinds = 100

// Other stands for the kinds of work beyond the first 100.
var Other = ledger.WorkKind{Service: "other", StepType: "other"}

// entry returns the kind's value in the map, a new one if there is none. It counts a
// further kind as [Other].
func entry[V any](all map[kind]*V, k kind) *V {
	room := maxKinds
	if all[kind(Other)] != nil {
		room++
	}
	if all[k] == nil && len(all) >= room {
		k = kind(Other)
	}
	if all[k] == nil {
		all[k] = new(V)
	}
	return all[k]
}

// tally counts what stands.
type tally struct {
	Jobs  map[statemachine.JobState]int `json:"jobs,omitempty"`
	Steps map[kind]*steps               `json:"steps,omitempty"`
}

// steps counts the active steps of one kind.
type steps struct {
	Phases [phases]int `json:"phases"`
	Queued ages        `json:"queued,omitzero"`
}

func newTally() tally {
	return tally{Jobs: map[statemachine.JobState]int{}, Steps: map[kind]*steps{}}
}

// move counts a job, or with by = -1 no longer.
func (t *tally) move(s standing, by int, aged bool) {
	if s.state == "" {
		return
	}
	t.Jobs[s.state] += by
	if s.phase == phaseNone {
		return
	}
	of := entry(t.Steps, s.kind)
	of.Phases[s.phase] += by
	if s.phase == phaseQueued && aged {
		of.Queued.move(s.since.Unix(), by)
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
}

// blurred reports whether a new count would tell exactly how old the queued steps of some
// kind are: a longer backlog has made their unit longer, and they fit in seconds again.
func (t *tally) blurred() bool {
	for _, of := range t.Steps {
		if n := of.Phases[phaseQueued]; of.Queued.Unit > 1 && n > 0 && n <= maxAges {
			return true
		}
	}
	return false
}

// ages counts queued steps by the second in which they were published, or by a longer
// unit if they were in too many different seconds.
type ages struct {
	Unit   int64         `json:"unit"` // in seconds
	Counts map[int64]int `json:"counts"`
}

// maxAges bounds the units that are counted apart, so that an age is known to a 500th
// of the highest one since no more were queued.
const maxAges = 1000

// move counts steps of that Unix time.
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

// coarsen makes the unit longer, by a power of two.
func (a *ages) coarsen(unit int64) {
	counts := make(map[int64]int, len(a.Counts))
	for at, n := range a.Counts {
		counts[at/(unit/a.Unit)] += n
	}
	a.Unit, a.Counts = unit, counts
}

// add adds the other counts.
func (a *ages) add(other *ages) {
	if len(a.Counts) > 0 && other.Unit > a.Unit {
		a.coarsen(other.Unit)
	}
	for at, n := range other.Counts {
		a.move(at*other.Unit, n)
	}
}

// oldest returns since when the oldest step has been queued, zero if there is none.
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
