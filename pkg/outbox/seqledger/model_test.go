package seqledger_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

// model is the simplest window: it keeps all seqs forever and answers every call by a scan.
type model struct {
	clock time.Time
	seqs  []*modelSeq // by seq - 1
}

type modelSeq struct {
	state    seqledger.State
	attempts int
	owner    string
	current  *modelLease
}

type modelLease struct {
	real      *seqledger.Lease
	seq       seqledger.Seq
	attempt   int
	owner     string
	lost      bool
	heartbeat time.Time
	beats     int // number of the operation that set heartbeat
}

func (m *model) at(seq seqledger.Seq) *modelSeq {
	if seq == 0 || int(seq) > len(m.seqs) {
		return &modelSeq{}
	}
	return m.seqs[seq-1]
}

func (m *model) status(seq seqledger.Seq) seqledger.Status {
	s := m.at(seq)
	if s.state == seqledger.Committed {
		return seqledger.Status{State: seqledger.Committed}
	}
	status := seqledger.Status{State: s.state, Attempts: s.attempts, Owner: s.owner}
	if s.current != nil {
		status.Heartbeat = s.current.heartbeat
		status.ExpiresAt = s.current.heartbeat.Add(leaseDuration)
	}
	return status
}

// recount computes the counters from the seqs.
func (m *model) recount() (c seqledger.Counters) {
	for _, s := range m.seqs {
		switch {
		case s.state == seqledger.Dispatched:
			c.Dispatched++
		case s.state == seqledger.InFlight:
			c.InFlight++
		case s.state.Terminal():
			c.Terminal++
		case s.state == seqledger.Committed:
			c.Committed++
		}
	}
	return c
}

func (m *model) end(s *modelSeq, outcome seqledger.State, lost bool) {
	if s.current != nil {
		s.current.lost = lost
		s.current = nil
	}
	s.state = outcome
}

func (m *model) retry(s *modelSeq, class seqledger.Class) bool {
	if class == poison || s.attempts >= modelAttempts {
		return false
	}
	s.attempts++
	s.state = seqledger.Dispatched
	return true
}

// expired returns the leases to be reclaimed, in the order of reclaim.
func (m *model) expired() (leases []*modelLease) {
	for _, s := range m.seqs {
		if s.current != nil && !m.clock.Before(s.current.heartbeat.Add(leaseDuration)) {
			leases = append(leases, s.current)
		}
	}
	slices.SortFunc(leases, func(a, b *modelLease) int { return a.beats - b.beats })
	return leases
}

// The model's window is small, so that calls reach its limits soon.
const (
	modelWindow   = 5
	modelAttempts = 2
)

// machine makes the same calls on the window and the model.
type machine struct {
	*fixture
	model  model
	now    time.Time
	leases []*modelLease // all leases that were ever granted
	ops    int
	// patience is how many more calls must be legal.
	patience int
	// illegal is set once the model predicts an illegal transition.
	illegal bool
}

// tick draws the time of the next call, which is occasionally in the past.
func (m *machine) tick(t *rapid.T) time.Time {
	seconds := rapid.SampledFrom([]int{0, 1, 2, -1, 4, 9}).Draw(t, "seconds")
	m.now = m.now.Add(time.Duration(seconds) * time.Second)
	if m.now.After(m.model.clock) {
		m.model.clock = m.now
	}
	m.ops++
	return m.now
}

// drawSeq draws a seq in one of the states from which the call is legal, or any
// seq once patience is used up. It reports whether there is one.
func (m *machine) drawSeq(t *rapid.T, legal ...seqledger.State) (seqledger.Seq, bool) {
	var seqs []seqledger.Seq
	for i := range len(m.model.seqs) + 2 {
		seq := seqledger.Seq(i)
		if m.patience == 0 || slices.Contains(legal, m.model.at(seq).state) {
			seqs = append(seqs, seq)
		}
	}
	if len(seqs) == 0 {
		return 0, false
	}
	return rapid.SampledFrom(seqs).Draw(t, "seq"), true
}

// drawLease draws one of the latest leases, whether held or not. It reports
// whether there is one.
func (m *machine) drawLease(t *rapid.T) (*modelLease, bool) {
	if len(m.leases) == 0 {
		return nil, false
	}
	back := rapid.IntRange(0, min(len(m.leases), 8)-1).Draw(t, "lease, from the latest")
	return m.leases[len(m.leases)-1-back], true
}

// expect records whether the next call is legal, and reports whether to make
// it.
func (m *machine) expect(legal bool) bool {
	if !legal && m.patience > 0 {
		return false
	}
	m.illegal = !legal
	m.patience = max(0, m.patience-1)
	return true
}

// verify checks the error of a call against expect's prediction, and reports
// whether the call was legal.
func (m *machine) verify(t *rapid.T, err error, want seqledger.IllegalTransitionError) bool {
	if !m.illegal {
		if err != nil {
			t.Fatalf("legal call failed: %v", err)
		}
		return true
	}
	m.wantIllegal(t, err, want)
	return false
}

func (m *machine) Take(t *rapid.T) {
	m.expect(true)
	seq, err := m.Window.Take(m.tick(t))
	if m.model.recount().Open() == modelWindow {
		if err == nil {
			t.Fatal("Take went beyond the window")
		}
		return
	}
	if int(seq) != len(m.model.seqs)+1 {
		t.Fatalf("took seq %d (%v), want %d", seq, err, len(m.model.seqs)+1)
	}
	m.model.seqs = append(m.model.seqs, &modelSeq{state: seqledger.Dispatched, attempts: 1})
}

func (m *machine) Begin(t *rapid.T) {
	seq, ok := m.drawSeq(t, seqledger.Dispatched)
	if !ok {
		return
	}
	owner := rapid.SampledFrom([]string{"anna", "bert"}).Draw(t, "owner")
	s := m.model.at(seq)
	if !m.expect(s.state == seqledger.Dispatched) {
		return
	}
	now := m.tick(t)
	lease, err := m.Window.Begin(seq, owner, now)
	want := seqledger.IllegalTransitionError{Seq: seq, From: s.state, To: seqledger.InFlight, Owner: owner, At: now}
	if !m.verify(t, err, want) {
		return
	}
	s.state, s.owner = seqledger.InFlight, owner
	s.current = &modelLease{
		real: lease, seq: seq, attempt: s.attempts, owner: owner, heartbeat: m.model.clock, beats: m.ops,
	}
	m.leases = append(m.leases, s.current)
}

func (m *machine) Heartbeat(t *rapid.T) {
	lease, ok := m.drawLease(t)
	if !ok || !m.expect(true) {
		return
	}
	want := m.model.at(lease.seq).current == lease
	held, err := m.Window.Heartbeat(lease.real, m.tick(t))
	if held != want || err != nil {
		t.Fatalf("Heartbeat = %t, %v, want %t", held, err, want)
	}
	if held {
		lease.heartbeat, lease.beats = m.model.clock, m.ops
	}
}

func (m *machine) Finish(t *rapid.T) {
	lease, ok := m.drawLease(t)
	if !ok {
		return
	}
	outcome := rapid.SampledFrom(allStates).Draw(t, "outcome")
	s := m.model.at(lease.seq)
	holds := s.current == lease
	if !m.expect(lease.lost || (holds && outcome.Terminal())) {
		return
	}
	now := m.tick(t)
	held, err := m.Window.Finish(lease.real, outcome, now)
	want := seqledger.IllegalTransitionError{Seq: lease.seq, From: s.state, To: outcome, Owner: lease.owner, At: now}
	if !m.verify(t, err, want) {
		return
	}
	if held != holds {
		t.Fatalf("Finish: held = %t, want %t", held, holds)
	}
	if holds {
		m.model.end(s, outcome, false)
	}
}

func (m *machine) Cancel(t *rapid.T) {
	seq, ok := m.drawSeq(t, seqledger.Dispatched, seqledger.InFlight)
	if !ok {
		return
	}
	s := m.model.at(seq)
	if !m.expect(s.state == seqledger.Dispatched || s.state == seqledger.InFlight) {
		return
	}
	now := m.tick(t)
	if m.verify(t, m.Window.Cancel(seq, now), m.unowned(seq, seqledger.TerminalCancel, now)) {
		m.model.end(s, seqledger.TerminalCancel, true)
	}
}

func (m *machine) Retry(t *rapid.T) {
	seq, ok := m.drawSeq(t, seqledger.TerminalFail)
	if !ok {
		return
	}
	class := rapid.SampledFrom([]seqledger.Class{timeout, seqledger.LeaseExpired, poison}).Draw(t, "class")
	s := m.model.at(seq)
	if !m.expect(s.state == seqledger.TerminalFail) {
		return
	}
	now := m.tick(t)
	retried, err := m.Window.Retry(seq, class, now)
	if !m.verify(t, err, m.unowned(seq, seqledger.Dispatched, now)) {
		return
	}
	if want := m.model.retry(s, class); retried != want {
		t.Fatalf("retried = %t, want %t", retried, want)
	}
}

func (m *machine) Commit(t *rapid.T) {
	seq, ok := m.drawSeq(t, allStates[3:]...)
	if !ok {
		return
	}
	s := m.model.at(seq)
	if !m.expect(s.state.Terminal() || s.state == seqledger.Committed) {
		return
	}
	now := m.tick(t)
	changed, err := m.Window.Commit(seq, now)
	if !m.verify(t, err, m.unowned(seq, seqledger.Committed, now)) {
		return
	}
	if want := s.state != seqledger.Committed; changed != want {
		t.Fatalf("changed = %t, want %t", changed, want)
	}
	s.state = seqledger.Committed
}

func (m *machine) Reclaim(t *rapid.T) {
	m.expect(true)
	now := m.tick(t)
	var want []seqledger.Reclaimed
	for _, lease := range m.model.expired() {
		s := m.model.at(lease.seq)
		m.model.end(s, seqledger.TerminalFail, true)
		want = append(want, seqledger.Reclaimed{
			Seq: lease.seq, Owner: lease.owner, Attempt: lease.attempt,
			Retried: m.model.retry(s, seqledger.LeaseExpired),
		})
	}
	got, err := m.Window.Reclaim(now)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("reclaimed %+v, %v, want %+v", got, err, want)
	}
}

// unowned returns the illegal transition of a call that names no owner.
func (m *machine) unowned(seq seqledger.Seq, to seqledger.State, now time.Time) seqledger.IllegalTransitionError {
	status := m.model.status(seq)
	return seqledger.IllegalTransitionError{Seq: seq, From: status.State, To: to, Owner: status.Owner, At: now}
}

// Check compares all observable state.
func (m *machine) Check(t *rapid.T) {
	if got, want := m.Counters(), m.model.recount(); got != want {
		t.Fatalf("counters %+v, want %+v", got, want)
	}
	for i := range len(m.model.seqs) + 2 {
		seq := seqledger.Seq(i)
		want := m.model.status(seq)
		if got := m.Inspect(seq); got != want {
			t.Fatalf("status of seq %d is %+v, want %+v", seq, got, want)
		}
	}
	if (len(m.fatal) > 0) != m.illegal {
		t.Fatalf("the hook was called with %v, want a call: %t", m.fatal, m.illegal)
	}
}

// TestTheWindowIsItsModel makes random calls, legal at first and then any, on
// the window and the model, and compares all answers, states and counters.
func TestTheWindowIsItsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rt)
		actions := []func(*rapid.T){
			m.Begin, m.Finish, m.Take, m.Commit, m.Reclaim, m.Retry, m.Heartbeat, m.Cancel,
		}
		for range 300 {
			action := rapid.IntRange(0, len(actions)-1).Draw(rt, "action")
			actions[action](rt)
			m.Check(rt)
			if m.illegal {
				return
			}
		}
	})
}

func newMachine(t *rapid.T) *machine {
	m := &machine{fixture: &fixture{}, now: t0}
	m.patience = rapid.SampledFrom([]int{100, 300, 30, 0}).Draw(t, "patience")
	window := seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Window:        modelWindow,
		Retry: seqledger.Policy{
			MaxAttempts: modelAttempts,
			Retryable:   []seqledger.Class{timeout, seqledger.LeaseExpired},
		},
		Fatal: func(e *seqledger.IllegalTransitionError) { m.fatal = append(m.fatal, e) },
	})
	m.Window = window
	return m
}
