package seqledger_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

// taken has every way to lose a lease, and what may happen to the seq
// afterwards.
var taken = []struct {
	name string
	take func(t *testing.T, f *fixture, seq seqledger.Seq, lease *seqledger.Lease)
	now  seqledger.State
}{
	{"reclaimed", reclaimOne, seqledger.Dispatched},
	{"reclaimed, with a new owner", func(t *testing.T, f *fixture, seq seqledger.Seq, lease *seqledger.Lease) {
		reclaimOne(t, f, seq, lease)
		f.begin(t, seq, "bert", at(10))
	}, seqledger.InFlight},
	{"reclaimed and finished by another", func(t *testing.T, f *fixture, seq seqledger.Seq, lease *seqledger.Lease) {
		reclaimOne(t, f, seq, lease)
		if _, err := f.Finish(f.begin(t, seq, "bert", at(10)), seqledger.TerminalSuccess, at(11)); err != nil {
			t.Fatal(err)
		}
	}, seqledger.TerminalSuccess},
	{"cancelled by force", func(t *testing.T, f *fixture, seq seqledger.Seq, _ *seqledger.Lease) {
		if err := f.Cancel(seq, at(1)); err != nil {
			t.Fatal(err)
		}
	}, seqledger.TerminalCancel},
	{"cancelled and committed", func(t *testing.T, f *fixture, seq seqledger.Seq, _ *seqledger.Lease) {
		if err := f.Cancel(seq, at(1)); err != nil {
			t.Fatal(err)
		}
		f.commit(t, seq)
	}, seqledger.Committed},
}

func reclaimOne(t *testing.T, f *fixture, _ seqledger.Seq, _ *seqledger.Lease) {
	t.Helper()
	if got := mustReclaim(t, f, at(10)); len(got) != 1 || !got[0].Retried {
		t.Fatalf("reclaimed %+v, want one retried", got)
	}
}

// TestTheOwnerOfALostLeaseGetsNotHeld checks that a lost lease is never fatal.
func TestTheOwnerOfALostLeaseGetsNotHeld(t *testing.T) {
	t.Parallel()
	for _, test := range taken {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newWindow(t)
			seq, lease := f.in(t, seqledger.InFlight)
			test.take(t, f, seq, lease)
			before := f.Counters()

			verbs := map[string]func() (bool, error){
				"Heartbeat": func() (bool, error) { return f.Heartbeat(lease, at(12)) },
				"Finish":    func() (bool, error) { return f.Finish(lease, seqledger.TerminalSuccess, at(12)) },
			}
			for name, call := range verbs {
				if held, err := call(); held || err != nil {
					t.Errorf("%s = %t, %v, want not held", name, held, err)
				}
			}
			f.wantState(t, seq, test.now)
			if after := f.Counters(); after != before {
				t.Errorf("counters went from %+v to %+v", before, after)
			}
			f.wantLegal(t)
		})
	}
}

// A last heartbeat after the owner finished is latency and not fatal.
func TestAHeartbeatAfterTheOwnerFinished(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	seq, lease := f.in(t, seqledger.TerminalSuccess)
	if held, err := f.Heartbeat(lease, at(1)); held || err != nil {
		t.Errorf("Heartbeat = %t, %v, want not held", held, err)
	}
	f.wantState(t, seq, seqledger.TerminalSuccess)
	f.wantLegal(t)
}

func TestALeaseExpiresItsDurationAfterTheLastHeartbeat(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	seq, lease := f.in(t, seqledger.InFlight)
	if held, err := f.Heartbeat(lease, at(4)); !held || err != nil {
		t.Fatalf("Heartbeat = %t, %v", held, err)
	}
	want := seqledger.Status{State: seqledger.InFlight, Attempts: 1, Owner: "anna", Heartbeat: at(4), ExpiresAt: at(14)}
	if got := f.Inspect(seq); got != want {
		t.Errorf("status %+v, want %+v", got, want)
	}
	if got := mustReclaim(t, f, at(14).Add(-time.Nanosecond)); got != nil {
		t.Errorf("reclaimed %+v before the expiry", got)
	}
	if got := mustReclaim(t, f, at(14)); len(got) != 1 {
		t.Errorf("reclaimed %+v at the expiry, want one", got)
	}
}

// TestAnExpiredLeaseCountsUntilItIsReclaimed: an expired lease is still held
// until Reclaim takes it.
func TestAnExpiredLeaseCountsUntilItIsReclaimed(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	seq, lease := f.in(t, seqledger.InFlight)
	if held, err := f.Heartbeat(lease, at(60)); !held || err != nil {
		t.Errorf("Heartbeat = %t, %v, want held", held, err)
	}
	if got := mustReclaim(t, f, at(61)); got != nil {
		t.Errorf("reclaimed %+v, although the heartbeat revived the lease", got)
	}
	if held, err := f.Finish(lease, seqledger.TerminalSuccess, at(120)); !held || err != nil {
		t.Errorf("Finish = %t, %v, want held", held, err)
	}
	f.wantState(t, seq, seqledger.TerminalSuccess)
}

func TestHeartbeatsAreMonotonic(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	one, other := f.take(t), f.take(t)
	lease := f.begin(t, one, "anna", at(5))
	if _, err := f.Heartbeat(lease, at(3)); err != nil {
		t.Fatal(err)
	}
	f.begin(t, other, "bert", at(2))
	for _, seq := range []seqledger.Seq{one, other} {
		if got := f.Inspect(seq).Heartbeat; !got.Equal(at(5)) {
			t.Errorf("heartbeat of seq %d is %s, want %s", seq, got, at(5))
		}
	}
}

// TestReclaimWalks covers both final states of an expired lease.
func TestReclaimWalks(t *testing.T) {
	t.Parallel()
	f := newWindow(t)
	seq := f.take(t)
	for attempt := 1; attempt <= 3; attempt++ {
		begun := at(20 * attempt)
		f.begin(t, seq, "anna", begun)
		got := mustReclaim(t, f, begun.Add(leaseDuration))
		want := []seqledger.Reclaimed{{Seq: seq, Owner: "anna", Attempt: attempt, Retried: attempt < 3}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("attempt %d: reclaimed %+v, want %+v", attempt, got, want)
		}
	}
	if got, want := f.Inspect(seq), (seqledger.Status{State: seqledger.TerminalFail, Attempts: 3, Owner: "anna"}); got != want {
		t.Errorf("status %+v, want %+v", got, want)
	}
	f.wantLegal(t)
}

func TestReclaimStaysFailedIfExpiryIsNotRetryable(t *testing.T) {
	t.Parallel()
	window := seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Window:        64,
		Retry:         seqledger.Policy{MaxAttempts: 3, Retryable: []seqledger.Class{timeout}},
		Fatal:         func(e *seqledger.IllegalTransitionError) { t.Error(e) },
	})
	f := &fixture{Window: window}
	seq, _ := f.in(t, seqledger.InFlight)
	want := []seqledger.Reclaimed{{Seq: seq, Owner: "anna", Attempt: 1}}
	if got := mustReclaim(t, f, at(10)); !reflect.DeepEqual(got, want) {
		t.Errorf("reclaimed %+v, want %+v", got, want)
	}
	f.wantState(t, seq, seqledger.TerminalFail)
}

// TestReclaimIsDeterministic replays one history many times. Leases are
// reclaimed in order of their last heartbeats, whatever the order of the seqs.
func TestReclaimIsDeterministic(t *testing.T) {
	t.Parallel()
	want := []seqledger.Reclaimed{
		{Seq: 5, Owner: "e", Attempt: 1, Retried: true},
		{Seq: 3, Owner: "c", Attempt: 1, Retried: true},
		{Seq: 1, Owner: "a", Attempt: 1, Retried: true},
		{Seq: 4, Owner: "d", Attempt: 1, Retried: true},
	}
	for range 20 {
		f := newWindow(t)
		leases := make(map[seqledger.Seq]*seqledger.Lease)
		for _, owner := range []string{"a", "b", "c", "d", "e"} {
			seq := f.take(t)
			leases[seq] = f.begin(t, seq, owner, t0)
		}
		beats := []struct {
			seq    seqledger.Seq
			second int
		}{{5, 1}, {3, 2}, {1, 3}, {4, 3}, {2, 4}}
		for _, beat := range beats {
			if _, err := f.Heartbeat(leases[beat.seq], at(beat.second)); err != nil {
				t.Fatal(err)
			}
		}
		if got := mustReclaim(t, f, at(13)); !reflect.DeepEqual(got, want) {
			t.Fatalf("reclaimed %+v, want %+v", got, want)
		}
		f.wantState(t, 2, seqledger.InFlight)
	}
}

func mustReclaim(t tb, f *fixture, now time.Time) []seqledger.Reclaimed {
	t.Helper()
	reclaimed, err := f.Reclaim(now)
	if err != nil {
		t.Fatalf("Reclaim: %v", err)
	}
	return reclaimed
}
