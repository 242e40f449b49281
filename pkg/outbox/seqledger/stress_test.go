package seqledger_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

// crowd is a small relay: workers that are sometimes too slow, calls of
// Reclaim, and a clock that advances with the work.
type crowd struct {
	*seqledger.Window
	t *testing.T
	// elapsed is the logical time since t0.
	elapsed atomic.Int64
	// again holds the reclaimed seqs that wait for a new owner.
	again chan seqledger.Seq
	// settled counts the commits of each seq.
	settled [crowdSeqs + 1]atomic.Int32
	taken   atomic.Int64
}

const crowdSeqs = 4000

// TestManyOwners runs the crowd concurrently: nothing is fatal, and every seq
// is settled exactly once.
func TestManyOwners(t *testing.T) {
	t.Parallel()
	window := seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Window:        32,
		Retry:         seqledger.Policy{MaxAttempts: 4, Retryable: []seqledger.Class{timeout, seqledger.LeaseExpired}},
		Fatal:         func(e *seqledger.IllegalTransitionError) { t.Error(e) },
	})
	c := &crowd{Window: window, t: t, again: make(chan seqledger.Seq, crowdSeqs)}
	var workers sync.WaitGroup
	for i := range 8 {
		workers.Go(func() { c.work(fmt.Sprintf("worker-%d", i), rand.New(rand.NewPCG(1, uint64(i)))) })
	}
	workers.Wait()

	if got, want := c.Counters(), (seqledger.Counters{Committed: crowdSeqs}); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
	for seq := 1; seq <= crowdSeqs; seq++ {
		if n := c.settled[seq].Load(); n != 1 {
			t.Errorf("seq %d was settled %d times", seq, n)
		}
	}
}

func (c *crowd) now() time.Time { return t0.Add(time.Duration(c.elapsed.Load())) }

// work runs seqs until all are settled, and reclaims from time to time.
func (c *crowd) work(owner string, random *rand.Rand) {
	for !c.t.Failed() && c.Counters().Committed < crowdSeqs {
		if random.IntN(4) == 0 {
			c.reclaim()
		}
		if seq, ok := c.pick(); ok {
			c.run(seq, owner, random)
		}
	}
}

// pick takes a reclaimed seq over, or else takes a new one.
func (c *crowd) pick() (seqledger.Seq, bool) {
	select {
	case seq := <-c.again:
		return seq, true
	default:
	}
	if c.taken.Add(1) > crowdSeqs {
		c.taken.Add(-1)
		c.reclaim()
		return 0, false
	}
	seq, err := c.Take(c.now())
	if err != nil {
		c.taken.Add(-1)
		if !errors.Is(err, seqledger.ErrWindowFull) {
			c.t.Error(err)
		}
	}
	return seq, err == nil
}

// run works on one seq, under one lease after another, until it is settled or
// reclaimed.
func (c *crowd) run(seq seqledger.Seq, owner string, random *rand.Rand) {
	for {
		lease, err := c.Begin(seq, owner, c.now())
		if err != nil {
			c.t.Error(err)
			return
		}
		c.elapsed.Add(int64(random.IntN(3)) * int64(leaseDuration) / 4)
		if _, err := c.Heartbeat(lease, c.now()); err != nil {
			c.t.Error(err)
		}
		c.elapsed.Add(int64(random.IntN(5)) * int64(leaseDuration) / 4)
		if random.IntN(3) == 0 {
			c.reclaim()
		}
		outcome := seqledger.TerminalSuccess + seqledger.State(random.IntN(4))
		held, err := c.Finish(lease, outcome, c.now())
		if err != nil {
			c.t.Error(err)
		}
		if !held {
			return
		}
		if outcome != seqledger.TerminalFail || !c.retry(seq) {
			c.settle(seq)
			return
		}
	}
}

func (c *crowd) retry(seq seqledger.Seq) bool {
	retried, err := c.Retry(seq, timeout, c.now())
	if err != nil {
		c.t.Error(err)
	}
	return retried
}

func (c *crowd) reclaim() {
	reclaimed, err := c.Reclaim(c.now())
	if err != nil {
		c.t.Error(err)
	}
	for _, r := range reclaimed {
		if r.Retried {
			c.again <- r.Seq
		} else {
			c.settle(r.Seq)
		}
	}
}

func (c *crowd) settle(seq seqledger.Seq) {
	changed, err := c.Commit(seq, c.now())
	if !changed || err != nil {
		c.t.Errorf("Commit(%d) = %t, %v", seq, changed, err)
	}
	c.settled[seq].Add(1)
}
