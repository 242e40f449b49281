package workqueue_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// index is the ready index by itself: rows without jobs, and a process that takes
// hints of it.
type index struct {
	*bundle
	tap    *tapped
	serial int
	now    time.Time
}

// newIndex opens a process on the store, whose taps are those of the tapped one.
func newIndex(t testing.TB, store tablestore.Store, tap *tapped, limit int) *index {
	t.Helper()
	return &index{bundle: reopenWith(t, store, ledger.Config{}, limit), tap: tap, now: time.Now().UTC().Truncate(time.Second)}
}

// bothIndexes runs a test on an atomic and on a split store.
func bothIndexes(t *testing.T, limit int, run func(t *testing.T, x *index)) {
	t.Run("atomic", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := tapAtomic()
			run(t, newIndex(t, store, store.tapped, limit))
		})
	})
	t.Run("split", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := tap()
			run(t, newIndex(t, store, store, limit))
		})
	})
}

// hint returns a made-up hint that is newer than the earlier ones.
func (x *index) hint(tenant string) ledger.Hint {
	x.serial++
	return ledger.Hint{
		Target: statemachine.Target{TenantID: tenant, Service: "ocr"}, Kind: ledger.WorkKind{Service: "ocr", StepType: "OCR"},
		WorkID:    fmt.Sprintf("job-%06d.0.1", x.serial),
		AttemptNo: 1, Rev: 1, Since: x.now.Add(time.Duration(x.serial) * time.Millisecond),
	}
}

// write writes hints' rows, as another process does.
func (x *index) write(t testing.TB, hints ...ledger.Hint) {
	t.Helper()
	for chunk := range slices.Chunk(hints, 90) {
		var batch tablestore.Batch
		for i := range chunk {
			batch = append(batch, tablestore.Op{
				Verb: tablestore.Put, Key: hintKey(&chunk[i]), Properties: tablestore.Properties{
					{Name: "protocol_id", Value: tablestore.String(chunk[i].ProtocolID)},
					{Name: "lane", Value: tablestore.Int(int64(chunk[i].Lane))},
				},
			})
		}
		for _, batch := range []tablestore.Batch{batch, {{Verb: tablestore.Put, Key: catalogKey(&chunk[0])}}} {
			if _, err := x.store.Commit(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func hintKey(h *ledger.Hint) tablestore.Key {
	parts := []string{"ready", h.Kind.Service, h.Kind.StepType, tablestore.Pad(int64(h.Shard), 3)}
	return tablestore.Key{Table: queueTable, Row: h.Row(), Partition: joinClass(h, parts)}
}

func catalogKey(h *ledger.Hint) tablestore.Key {
	return tablestore.Key{Table: queueTable, Partition: "catalog", Row: joinClass(h, []string{h.Kind.Service, h.Kind.StepType})}
}

// joinClass joins the parts and the class, unless that is normal.
func joinClass(h *ledger.Hint, parts []string) string {
	if h.Class != statemachine.ClassNormal {
		parts = append(parts, h.Class.String())
	}
	return tablestore.Join(parts...)
}

// commit writes hints' rows as this process does: the mirror is told of each.
func (x *index) commit(t testing.TB, hints ...ledger.Hint) {
	t.Helper()
	x.write(t, hints...)
	for _, hint := range hints {
		x.mirror.Ready(hint, true)
	}
}

// remove deletes a hint's row, and tells the mirror.
func (x *index) remove(t testing.TB, hint ledger.Hint) {
	t.Helper()
	if _, err := x.store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Discard, Key: hintKey(&hint)}}); err != nil {
		t.Fatal(err)
	}
	x.mirror.Ready(hint, false)
}

// backlog returns n made-up hints of a tenant.
func (x *index) backlog(tenant string, n int) []ledger.Hint {
	hints := make([]ledger.Hint, n)
	for i := range hints {
		hints[i] = x.hint(tenant)
	}
	return hints
}

// take takes hints.
func (x *index) take(t testing.TB, most int, tenants ...string) []ledger.Hint {
	t.Helper()
	hints, err := x.Take(t.Context(), workqueue.ClaimRequest{Max: most, Tenants: tenants})
	musttest.NoError(t, err)
	return hints
}

// done tells the mirror that the hints' items were claimed.
func (x *index) done(t testing.TB, hints ...ledger.Hint) {
	t.Helper()
	for _, hint := range hints {
		x.remove(t, hint)
	}
}

// drain takes all hints, a limited number at a time, and fails unless they are these hints,
// in this order for each tenant, and each claim before the end is full.
func (x *index) drain(t testing.TB, most int, want []ledger.Hint) {
	t.Helper()
	left := map[string][]ledger.Hint{}
	for _, hint := range want {
		left[hint.TenantID] = append(left[hint.TenantID], hint)
	}
	for n := len(want); n > 0; {
		got := x.take(t, most)
		if len(got) != min(n, most) {
			t.Fatalf("with %d hints left a claim of %d took %d", n, most, len(got))
		}
		for _, hint := range got {
			next := left[hint.TenantID]
			if len(next) == 0 || next[0] != hint {
				t.Fatalf("took %s, want %s", hint.WorkID, next[0].WorkID)
			}
			left[hint.TenantID] = next[1:]
		}
		x.done(t, got...)
		n -= len(got)
	}
	if got := x.take(t, most); len(got) != 0 {
		t.Errorf("took %d hints too many", len(got))
	}
}

// A backlog of one tenant, of any length, drains as fast as it is claimed: one read of the
// index brings a thousand hints.
func TestReadAhead_ABacklogOfOneTenantDrainsAtTheSpeedOfItsClaims(t *testing.T) {
	t.Parallel()
	const n = 8000
	for name, limit := range map[string]int{"in a small mirror": 500, "in a large one": 0} {
		for who, local := range map[string]bool{"of this process": true, "of others": false} {
			t.Run(name+"/"+who, func(t *testing.T) {
				t.Parallel()
				bothIndexes(t, limit, func(t *testing.T, x *index) {
					all := x.backlog("a", n)
					if local {
						x.commit(t, all...)
					} else {
						x.write(t, all...)
					}
					x.drain(t, 100, all)
					if pages := x.tap.indexPages(); pages > n/400 {
						t.Errorf("%d pages were read of %d hints", pages, n)
					}
				})
			})
		}
	}
}

// The same with jobs: each claim before the end is full, in every process.
func TestReadAhead_ABacklogIsClaimedToItsEnd(t *testing.T) {
	t.Parallel()
	bothStores(t, func(t *testing.T, b *bundle) {
		for range 2500 {
			b.work()
		}
		process := b
		for n := range 25 {
			if n == 12 {
				process = reopenWith(t, b.store, ledger.Config{}, 200)
			}
			if views := process.claim(t, "w", fmt.Sprint("c", n), 100, true); len(views) != 100 {
				t.Fatalf("claim %d of 100 took %d", n, len(views))
			}
		}
		if views := process.claim(t, "w", "end", 100, true); len(views) != 0 {
			t.Errorf("claimed %d items too many", len(views))
		}
	})
}

// No tenant has a second page before each tenant with work had its first, and within
// a page tenants take turns.
func TestReadAhead_IsFair(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 0, func(t *testing.T, x *index) {
		const tenants, each = 100, 300
		var all []ledger.Hint
		for n := range tenants {
			all = append(all, x.backlog(fmt.Sprintf("tenant-%03d", n), each)...)
		}
		x.write(t, all...)
		taken := map[string]int{}
		for range tenants * each / 50 {
			got := x.take(t, 50)
			if len(got) != 50 {
				t.Fatalf("a claim of 50 took %d", len(got))
			}
			for _, hint := range got {
				taken[hint.TenantID]++
			}
			x.done(t, got...)
			least := each
			for n := range tenants {
				least = min(least, taken[fmt.Sprintf("tenant-%03d", n)])
			}
			if most := slices.Max(slices.Collect(maps.Values(taken))); least < 1 && most > 128 {
				t.Fatalf("a tenant has had %d hints, another none", most)
			}
		}
		if pages := x.tap.indexPages(); pages > 3*tenants {
			t.Errorf("%d pages were read for %d tenants", pages, tenants)
		}
	})
}

// Hints that do not fit into the mirror stay in the store and are read later.
func TestReadAhead_ASmallMirrorLosesNothing(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 50, func(t *testing.T, x *index) {
		var all []ledger.Hint
		for n := range 500 {
			for _, tenant := range []string{"a", "b", "c"}[:1+n%3] {
				all = append(all, x.hint(tenant))
			}
		}
		x.commit(t, all...)
		if inside, _, _ := x.mirror.Inside(); inside > 50+3*128 {
			t.Errorf("%d hints are inside", inside)
		}
		x.drain(t, 7, all)
	})
}

// The more tenants have work, the less of each is in a full mirror, so that its size does not grow
// with the number of tenants times that of their hints.
func TestReadAhead_ManyTenantsShareAFullMirror(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 100, func(t *testing.T, x *index) {
		const tenants, each = 200, 40
		var all []ledger.Hint
		for range each {
			for n := range tenants {
				all = append(all, x.hint(fmt.Sprint("tenant-", n)))
			}
		}
		x.commit(t, all...)
		check := func() {
			if inside, _, _ := x.mirror.Inside(); inside > 100+tenants*128/16 {
				t.Errorf("%d hints are inside", inside)
			}
		}
		check()
		x.take(t, 0) // A sweep
		check()
		x.drain(t, tenants, all)
	})
}

// A claim of one tenant does not walk over the queues of the others, which keep their order.
func TestReadAhead_AClaimOfOneTenantCostsTheSameAmongMany(t *testing.T) { //nolint:paralleltest // Allocations of others would count.
	synctest.Test(t, func(t *testing.T) {
		store := tapAtomic()
		x := newIndex(t, store, store.tapped, 0)
		all := x.backlog("tenant-0", 1)
		x.commit(t, all...)
		idle := func() float64 { return testing.AllocsPerRun(100, func() { x.take(t, 1, "idle") }) }
		few := idle()
		for n := 1; n < 3000; n++ {
			all = append(all, x.hint(fmt.Sprint("tenant-", n)))
		}
		x.commit(t, all[1:]...)
		if many := idle(); many > few {
			t.Errorf("a claim of an idle tenant makes %g allocations, %g if one other has work", many, few)
		}
		if got := x.take(t, 5, "tenant-2000", "tenant-1000"); !slices.Equal(got, []ledger.Hint{all[1000], all[2000]}) {
			t.Errorf("took %+v", got)
		}
		if got, want := x.take(t, 5000), slices.Concat(all[:1000], all[1001:2000], all[2001:]); !slices.Equal(got, want) {
			t.Errorf("took %d hints of others, or in another order", len(got))
		}
	})
}

// A hint in the mirror does not keep the rows of its job in memory.
func TestMirror_KeepsCopiesOfTexts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		x := newIndex(t, store, store, 0)
		row := string(bytes.Repeat([]byte("x"), 100))
		hint := x.hint(row[:1])
		hint.Service, hint.ProtocolID, hint.WorkID = row[:2], row[:3], row[:4]
		hint.Kind = ledger.WorkKind{Service: row[:2], StepType: row[:5]}
		x.mirror.Ready(hint, true)
		got := x.take(t, 1)
		if len(got) != 1 || got[0] != hint {
			t.Fatalf("took %+v", got)
		}
		for _, text := range []string{
			got[0].TenantID, got[0].Service, got[0].ProtocolID, got[0].WorkID, got[0].Kind.Service, got[0].Kind.StepType,
		} {
			if unsafe.StringData(text) == unsafe.StringData(row) {
				t.Errorf("%q is a part of the row", text)
			}
		}
	})
}

// Hints that are committed while any page is being read are not lost.
func TestReadAhead_HintsCommittedDuringAReadAreFound(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]bool{"by this process": true, "by another": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothIndexes(t, 60, func(t *testing.T, x *index) {
				if !told && x.ledger.Exclusive() {
					return // There is no other process.
				}
				x.mirror.SetSizes(16, 64, 32, 8)
				left := map[string]bool{}
				add := func() {
					hints := append(x.backlog("a", 3), x.backlog("b", 1)...)
					if told {
						x.commit(t, hints...)
					} else {
						x.write(t, hints...)
					}
					for _, hint := range hints {
						left[hint.WorkID] = true
					}
				}
				for range 100 {
					add()
				}
				for n := range 400 {
					if n < 300 {
						x.tap.afterPage(n%3, add)
					}
					if n%10 == 0 {
						time.Sleep(time.Second)
					}
					got := x.take(t, 5)
					for _, hint := range got {
						if !left[hint.WorkID] {
							t.Fatalf("%s was handed out twice", hint.WorkID)
						}
						delete(left, hint.WorkID)
					}
					x.done(t, got...)
				}
				x.tap.afterPage(0, nil)
				time.Sleep(6 * time.Second)
				for len(left) > 0 {
					got := x.take(t, 50)
					if len(got) == 0 {
						t.Fatalf("%d hints are lost", len(left))
					}
					for _, hint := range got {
						delete(left, hint.WorkID)
					}
					x.done(t, got...)
				}
			})
		})
	}
}

// A slower process may commit a key that the cursor has passed. So each head is read again
// while claims continue, however long the backlog is.
func TestReadAhead_AKeyThatTheCursorHasPassedIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		x := newIndex(t, store, store, 0)
		old := x.hint("a")
		x.write(t, x.backlog("a", 5000)...)
		x.done(t, x.take(t, 500)...)
		x.write(t, old)
		for n := range 3 {
			time.Sleep(time.Second)
			if got := x.take(t, 1); got[0] == old {
				return
			} else if n == 2 {
				t.Error("the older hint was not handed out")
			} else {
				x.done(t, got...)
			}
		}
	})
}

// Hints that a pause covers are kept apart and are not read repeatedly. They return in
// order when the pause ends.
func TestReadAhead_HintsUnderAPauseAreKeptApartAndReturn(t *testing.T) {
	t.Parallel()
	const n = 5000
	for name, limit := range map[string]int{"in a small mirror": 500, "in a large one": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothIndexes(t, limit, func(t *testing.T, x *index) {
				held := x.backlog("a", n)
				for i := range held {
					held[i].ProtocolID = "paused"
				}
				x.write(t, held...)
				free := x.backlog("a", 20)
				x.write(t, free...)
				x.heldProtocol.Store("paused")
				x.done(t, x.take(t, 10)...)
				before := x.tap.indexPages()
				for _, hint := range free[10:] {
					time.Sleep(time.Second)
					got := x.take(t, 1)
					if len(got) != 1 || got[0] != hint {
						t.Fatalf("took %+v, want %s", got, hint.WorkID)
					}
					x.done(t, got...)
				}
				if pages := x.tap.indexPages() - before; pages > 60 { // Three walks of ten pages, and the heads.
					t.Errorf("%d pages were read in ten seconds", pages)
				}
				if got := x.take(t, 5); len(got) != 0 {
					t.Fatalf("took %d hints that are held", len(got))
				}
				x.heldProtocol.Store("")
				x.drain(t, 100, held)
			})
		})
	}
}

// The backlog of a paused tenant takes no room in the mirror, and costs no reads.
func TestReadAhead_APausedTenantsBacklogIsNotRead(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 0, func(t *testing.T, x *index) {
		held := x.backlog("a", 5000)
		x.write(t, held...)
		x.heldTenant.Store("a")
		free := x.backlog("b", 10)
		x.write(t, free...)
		for _, hint := range free {
			time.Sleep(time.Second)
			got := x.take(t, 5)
			if len(got) == 0 || got[0].TenantID != "b" {
				t.Fatalf("took %+v, want %s", got, hint.WorkID)
			}
			x.done(t, got[0])
			for _, other := range got[1:] {
				x.mirror.PutBack(other)
			}
		}
		if pages := x.tap.indexPages(); pages > 40 { // Two for each read of the heads, and the reads at the start.
			t.Errorf("%d pages were read", pages)
		}
		x.heldTenant.Store("")
		x.drain(t, 100, held)
	})
}

// While claims wait the index is read about once a second for all of them.
func TestReadAhead_WaitingClaimsShareTheirReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := tap()
		x := newIndex(t, store, store, 0)
		first := x.backlog("a", 1)
		x.write(t, first...)
		x.done(t, x.take(t, 5)...)
		before := x.tap.indexPages()
		const claims, seconds = 50, 20
		answers := make(chan error, claims)
		for n := range claims {
			time.Sleep(7 * time.Millisecond)
			go func() {
				_, err := x.Claim(t.Context(), workqueue.ClaimRequest{
					Owner: "w", RequestID: fmt.Sprint(n), Max: 1, Wait: seconds * time.Second,
				})
				answers <- err
			}()
		}
		for range claims {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		if pages := x.tap.indexPages() - before; pages > claims+seconds+2 { // Each reads once by itself.
			t.Errorf("%d claims read %d pages in %d seconds", claims, pages, seconds)
		}
	})
}

// Tenants without work are forgotten, including those that only a claim has named.
func TestReadAhead_ForgetsTenantsWithoutWork(t *testing.T) {
	t.Parallel()
	bothIndexes(t, 0, func(t *testing.T, x *index) {
		for n := range 200 {
			x.commit(t, x.backlog(fmt.Sprint("with-", n), 2)...)
			x.take(t, 1, fmt.Sprint("without-", n))
		}
		for {
			got := x.take(t, 100)
			if len(got) == 0 {
				break
			}
			x.done(t, got...)
		}
		for range 3 {
			time.Sleep(time.Minute)
			x.take(t, 1)
		}
		if _, _, tenants := x.mirror.Inside(); tenants > 0 {
			t.Errorf("there are queues of %d tenants", tenants)
		}
	})
}
