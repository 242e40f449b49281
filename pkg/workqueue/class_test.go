package workqueue_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

const classShards = 4

// newClassIndex opens a process whose ready index has several shards.
func newClassIndex(t testing.TB) *index {
	t.Helper()
	store := tapAtomic()
	return &index{
		bundle: reopenWith(t, store, ledger.Config{ReadyShards: classShards}, 0), tap: store.tapped,
		now: time.Now().UTC().Truncate(time.Second),
	}
}

// in returns made-up hints of that class in a shard.
func (x *index) in(class statemachine.Class, shard int, tenant string, n int) []ledger.Hint {
	hints := x.backlog(tenant, n)
	for i := range hints {
		hints[i].Class, hints[i].Shard = class, shard
	}
	return hints
}

// picks takes one hint after the other, and returns them as a row of n and b.
func (x *index) picks(t testing.TB, n int) (row string) {
	t.Helper()
	for range n {
		got := x.take(t, 1)
		x.done(t, got...)
		row += classesOf(got)
	}
	return row
}

func classesOf(hints []ledger.Hint) (row string) {
	for _, hint := range hints {
		row += hint.Class.String()[:1]
	}
	return row
}

func TestClass_NormalWorkGoesFirstWhateverItsAgeAndShard(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 0, func(t *testing.T, x *index) {
		for shard := range classShards {
			bulk := x.in(statemachine.ClassBulk, shard, "tenant_a", 1)
			bulk[0].Since = bulk[0].Since.AddDate(-1, 0, 0)
			x.commit(t, bulk...)
		}
		x.commit(t, x.in(statemachine.ClassNormal, classShards-1, "tenant_b", 2)...)
		if got := x.picks(t, 6); got != "nnbbbb" {
			t.Errorf("picked %s", got)
		}
	})
}

// Bulk work gets one pick in eight, by claims of one item as by large ones.
func TestClass_BulkWorkGetsItsShare(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 3, 8, 64} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			x := newClassIndex(t)
			for shard := range classShards {
				x.commit(t, x.in(statemachine.ClassNormal, shard, "tenant_a", 100)...)
				x.commit(t, x.in(statemachine.ClassBulk, shard, "tenant_b", 20)...)
			}
			var row string
			for len(row) < 192 {
				got := x.take(t, most)
				x.done(t, got...)
				row += classesOf(got)
			}
			for i := range row {
				want := byte('n')
				if i%8 == 7 {
					want = 'b'
				}
				if row[i] != want {
					t.Fatalf("pick %d is %c: %s", i, row[i], row)
				}
			}
		})
	}
}

func TestClass_ABiggerShareIsSet(t *testing.T) {
	t.Parallel()
	x := newClassIndex(t)
	x.mirror.SetBulkShare(3)
	x.commit(t, x.in(statemachine.ClassNormal, 0, "tenant_a", 9)...)
	x.commit(t, x.in(statemachine.ClassBulk, 1, "tenant_b", 9)...)
	if got := x.picks(t, 9); got != "nnbnnbnnb" {
		t.Errorf("picked %s", got)
	}
}

// Picks made while there was no bulk work for the claim give it no right.
func TestClass_OnlyPicksPastBulkWorkThatIsReadyCount(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(t *testing.T, x *index){
		"there is none": func(*testing.T, *index) {},
		"its tenant is paused": func(t *testing.T, x *index) {
			x.commit(t, x.in(statemachine.ClassBulk, 1, "tenant_b", 1)...)
			x.heldTenant.Store("tenant_b")
		},
		"its protocol is paused": func(t *testing.T, x *index) {
			hints := x.in(statemachine.ClassBulk, 1, "tenant_b", 1)
			hints[0].ProtocolID = "p"
			x.heldProtocol.Store("p")
			x.commit(t, hints...)
			x.picks(t, 7) // A pause of a target is seen once the hint is to be picked.
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newClassIndex(t)
			x.commit(t, x.in(statemachine.ClassNormal, 0, "tenant_a", 50)...)
			before(t, x)
			if got := x.picks(t, 20); got != "nnnnnnnnnnnnnnnnnnnn" {
				t.Fatalf("picked %s", got)
			}
			x.heldTenant.Store("")
			x.heldProtocol.Store("")
			x.commit(t, x.in(statemachine.ClassBulk, 0, "tenant_b", 1)...)
			got := x.picks(t, 8)
			if want := "nnnnnnnb"; name != "its protocol is paused" && got != want {
				t.Errorf("picked %s, want %s", got, want)
			}
			if !slices.Contains([]byte(got), 'b') {
				t.Errorf("picked %s", got)
			}
		})
	}
}

// A claim that may not take the bulk work does not use up its share.
func TestClass_AClaimThatTakesNoBulkWorkDoesNotCount(t *testing.T) {
	t.Parallel()
	x := newClassIndex(t)
	x.commit(t, x.in(statemachine.ClassNormal, 0, "tenant_a", 50)...)
	x.commit(t, x.in(statemachine.ClassBulk, 0, "tenant_b", 1)...)
	for range 20 {
		x.done(t, x.take(t, 1, "tenant_a")...)
	}
	if got := x.picks(t, 8); got != "nnnnnnnb" {
		t.Errorf("picked %s", got)
	}
}

// Normal work that is still in the store counts as work: bulk work waits for the read. The first sweep
// reaches only the paused tenant.
func TestClass_BulkWorkWaitsForAReadOfNormalWork(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 0, func(t *testing.T, x *index) {
		x.mirror.SetSizes(1, 1, 5, 2)
		x.take(t, 1) // It reads the catalog, and all that there is.
		x.heldTenant.Store("tenant_a")
		x.write(t, x.in(statemachine.ClassNormal, 0, "tenant_a", 1)...)
		x.write(t, x.in(statemachine.ClassNormal, 0, "tenant_b", 1)...)
		x.commit(t, x.in(statemachine.ClassBulk, 0, "tenant_b", 1)...)
		time.Sleep(10 * time.Second)
		if got := x.picks(t, 2); got != "nb" {
			t.Errorf("picked %s", got)
		}
	})
}

// Claims that find enough normal work read no further, and yet the share of a long backlog goes on.
func TestClass_ABacklogOfBulkWorkGetsItsShareToItsEnd(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 0, func(t *testing.T, x *index) {
		const backlog = 600
		x.mirror.SetSizes(8, 64, 16, 4)
		x.write(t, x.in(statemachine.ClassBulk, 0, "tenant_b", backlog)...)
		taken, all := 0, 0
		for taken < backlog && all < 10*backlog {
			x.commit(t, x.in(statemachine.ClassNormal, 0, "tenant_a", 4)...)
			got := x.take(t, 4)
			x.done(t, got...)
			all += len(got)
			for _, hint := range got {
				if hint.Class == statemachine.ClassBulk {
					taken++
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if taken < backlog || all > 8*(backlog+1) {
			t.Errorf("%d bulk picks of %d", taken, all)
		}
	})
}

// A waiting claim is not handed bulk work while there is normal work for it.
func TestClass_BulkWorkIsNotHandedOverBeforeNormalWork(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 0, func(t *testing.T, x *index) {
		x.commit(t, x.in(statemachine.ClassNormal, 0, "tenant_a", 1)...)
		x.picks(t, 2) // The second finds that there is no more.
		_, leave := x.Park(t.Context(), workqueue.ClaimRequest{Owner: "first", Max: 1})
		defer leave()
		second, leaveToo := x.Park(t.Context(), workqueue.ClaimRequest{Owner: "second", Max: 1})
		defer leaveToo()
		normal := x.in(statemachine.ClassNormal, 0, "tenant_a", 1)
		bulk := x.in(statemachine.ClassBulk, 0, "tenant_a", 1)[0]
		x.commit(t, normal...) // It wakes the first claim.
		if taker := x.mirror.Taker(&bulk); taker != nil {
			t.Errorf("handed to %s past normal work", taker.Owner)
		}
		x.done(t, normal...)
		taker := x.mirror.Taker(&bulk)
		if taker == nil || taker.Owner != "second" {
			t.Fatalf("handed to %+v", taker)
		}
		taker.Done(nil)
		second.Unpark()
	})
}

// The bound that the package promises: with b queues of bulk work, the p-th item of each is picked
// within 8·p·b picks, however the queues lie in the shards and whatever arrives.
func TestClass_TheWaitOfBulkWorkIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		x := newClassIndex(t)
		waits := map[string]int{} // the number of the pick until which the item may wait
		queues := rapid.IntRange(1, 9).Draw(r, "queues")
		for b := range queues {
			shard := rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3}).Draw(r, "shard")
			for p, hint := range x.in(statemachine.ClassBulk, shard, fmt.Sprint("bulk-", b), rapid.IntRange(1, 4).Draw(r, "items")) {
				x.commit(t, hint)
				waits[hint.WorkID] = 8 * (p + 1) * queues
			}
		}
		for pick := 0; len(waits) > 0; {
			for range rapid.IntRange(0, 12).Draw(r, "normal") {
				x.commit(t, x.in(statemachine.ClassNormal, rapid.IntRange(0, 3).Draw(r, "of shard"), "tenant_a", 1)...)
			}
			got := x.take(t, rapid.IntRange(1, 10).Draw(r, "most"))
			for _, hint := range got {
				pick++
				if most, ok := waits[hint.WorkID]; ok && pick > most {
					r.Fatalf("%s is pick %d, and must be within %d", hint.WorkID, pick, most)
				}
				delete(waits, hint.WorkID)
			}
			x.done(t, got...)
			if len(got) == 0 {
				r.Fatalf("%d items of bulk work are lost", len(waits))
			}
		}
	})
}
