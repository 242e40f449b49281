package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func TestReady_AnAcceptNamesAHintThatWasWrittenBefore(t *testing.T) {
	t.Parallel()
	b := pulling(t, split())
	seen := 0
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if commits(batch) {
			seen = len(b.hints(t))
		}
		return commit()
	})
	id := b.Submit(command("a"))
	b.store.set(nil)
	hints := b.hints(t)
	if seen != 1 || len(hints) != 1 {
		t.Fatalf("%d hints before the commit, after it %+v", seen, hints)
	}
	want := ledger.Hint{
		Target: statemachine.Target{TenantID: "tenant_a", Service: hintKinds[0].Service}, Kind: hintKinds[0], WorkID: id + ".0.1", AttemptNo: 1, Rev: 1, Since: hints[0].Since,
	}
	if hints[0] != want {
		t.Errorf("hint is %+v, want %+v", hints[0], want)
	}
	item, err := b.Item(t.Context(), want.WorkID)
	if err != nil || item.Status != statemachine.StatusQueued || item.Rev != 1 {
		t.Errorf("the item is %s at rev %d (%v)", item.Status, item.Rev, err)
	}
	if b.Handoff.Len() > 0 {
		t.Error("the relay was given what the commit has published")
	}
}

// A hint below its rev is left alone by claims and, within the grace, by the
// reconciler: its commit may still land.
func TestReady_AHintOfACommitUnderWayIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pulling(t, split())
		first := b.loseAccept(t, command("a"))
		leave := func(what string) {
			hint := b.hints(t)[0]
			if got := b.take(t, what, false, hint)[0].Standing; got != ledger.HintEarly {
				t.Errorf("%s: a claim found the hint %d", what, got)
			}
			if repaired, err := b.InspectHint(t.Context(), hint); repaired || err != nil {
				t.Errorf("%s: repaired %t, %v", what, repaired, err)
			}
			if len(b.hints(t)) != 1 {
				t.Errorf("%s: the hint is gone", what)
			}
		}
		leave("an accept")
		if err := first(); err != nil {
			t.Fatal(err)
		}
		started := b.take(t, "c", true, b.hints(t)...)[0].Item
		second := b.loseResult(t, &started)
		leave("a RESULT")
		if err := second(); err != nil {
			t.Fatal(err)
		}
		if got := b.take(t, "c2", true, b.hints(t)...)[0]; got.Standing != ledger.HintNamed || got.Item.StepID != "two" {
			t.Errorf("the commit came late, and a claim found %+v", got)
		}
	})
}

// After the grace the reconciler makes the commit of a hint impossible, and at the next
// inspection the hint is void.
func TestInspectHint_GivesUpOnACommitThatNeverCame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pulling(t, split())
		inspect := func(what string, late func() error) {
			time.Sleep(10 * time.Minute)
			hint := b.hints(t)[0]
			if repaired, err := b.InspectHint(t.Context(), hint); !repaired || err != nil {
				t.Errorf("%s: repaired %t, %v", what, repaired, err)
			}
			if repaired, err := b.InspectHint(t.Context(), hint); repaired || err != nil {
				t.Errorf("%s: at the next look: repaired %t, %v", what, repaired, err)
			}
			if left := b.hints(t); len(left) != 0 {
				t.Errorf("%s: left are %+v", what, left)
			}
			if err := late(); !errors.Is(err, tablestore.ErrConflict) {
				t.Errorf("%s: the late commit: %v", what, err)
			}
		}
		inspect("an accept", b.loseAccept(t, command("a")))
		b.Expire() // The accept's own entry frees its reservations.
		id := b.Submit(command("a"))
		started := b.take(t, "c", true, b.hints(t)...)[0].Item
		inspect("a RESULT", b.loseResult(t, &started))
		if live := b.LiveJobs(); len(live) != 1 || live[0] != id {
			t.Errorf("the live set is %v", live)
		}
	})
}

// If that commit lands first, an item names the hint, and the hint stays.
func TestInspectHint_DeletesNothingInTheInspectionThatRaisesTheRev(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pulling(t, split())
		b.Submit(command("a"))
		started := b.take(t, "c", true, b.hints(t)...)[0].Item
		late := b.loseResult(t, &started)
		time.Sleep(10 * time.Minute)
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if commits(batch) {
				b.store.set(nil)
				if err := late(); err != nil {
					t.Error(err)
				}
			}
			return commit()
		})
		hint := b.hints(t)[0]
		for look := range 2 {
			if _, err := b.InspectHint(t.Context(), hint); err != nil {
				t.Errorf("look %d: %v", look, err)
			}
		}
		if got := b.take(t, "c2", true, b.hints(t)...); len(got) != 1 || got[0].Standing != ledger.HintNamed {
			t.Errorf("claimed %+v", got)
		}
	})
}

// Claims and the reconciler delete a hint at or beyond its rev that no queued item
// names.
func TestReady_AVoidHintIsDeletedByItsReader(t *testing.T) {
	t.Parallel()
	for name, see := range map[string]func(t *testing.T, b *bundle, hint ledger.Hint){
		"by a claim": func(t *testing.T, b *bundle, hint ledger.Hint) {
			if got := b.take(t, "again", false, hint)[0].Standing; got != ledger.HintVoid {
				t.Errorf("the claim found the hint %d", got)
			}
		},
		"by the reconciler": func(t *testing.T, b *bundle, hint ledger.Hint) {
			if repaired, err := b.InspectHint(t.Context(), hint); repaired || err != nil {
				t.Errorf("repaired %t, %v", repaired, err)
			}
		},
	} {
		for what, end := range map[string]func(t *testing.T, b *bundle, id string, hint ledger.Hint){
			"claimed":   func(t *testing.T, b *bundle, _ string, hint ledger.Hint) { b.take(t, "c", false, hint) },
			"withdrawn": func(_ *testing.T, b *bundle, id string, _ ledger.Hint) { b.Send(id, statemachine.Pause{}) },
			"cancelled": func(_ *testing.T, b *bundle, id string, _ ledger.Hint) { b.Send(id, statemachine.Cancel{}) },
		} {
			t.Run(what+"/"+name, func(t *testing.T) {
				t.Parallel()
				b := pulling(t, split())
				id := b.Submit(command("a"))
				hint := b.hints(t)[0]
				b.leaveHints(func() { end(t, b, id, hint) })
				if left := b.hints(t); len(left) != 1 {
					t.Fatalf("the crash left %+v", left)
				}
				see(t, b, hint)
				if left := b.hints(t); len(left) != 0 {
					t.Errorf("left are %+v", left)
				}
			})
		}
	}
}

// Only a purge explains that the job of a later hint is missing.
func TestInspectHint_OfAMissingJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pulling(t, split())
		id := b.Submit(command("a"))
		b.take(t, "c", true, b.hints(t)...)
		gone, err := b.NewJobID()
		if err != nil {
			t.Fatal(err)
		}
		for rev, want := range map[int64]int{1: 1, 7: 0} {
			hint := ledger.Hint{
				Target: statemachine.Target{TenantID: "tenant_a"}, Kind: hintKinds[0], WorkID: gone + ".0.1",
				AttemptNo: 1, Rev: rev, Since: time.Now().UTC(),
			}
			key := tablestore.Key{Table: "luciusqueue", Partition: "ready:ones:ONE:000", Row: hint.Row()}
			if _, err := b.store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Put, Key: key}}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.InspectHint(t.Context(), hint); err != nil {
				t.Fatal(err)
			}
			if left := b.hints(t); len(left) != want {
				t.Errorf("of rev %d: left are %+v", rev, left)
			}
			b.Discard(key)
		}
		if _, err := b.InspectHint(t.Context(), ledger.Hint{WorkID: "nonsense"}); err == nil {
			t.Error("nonsense was inspected")
		}
		if _, err := b.Job(t.Context(), id); err != nil {
			t.Error(err)
		}
	})
}

// A requeue writes a new hint and deletes the previous one: a purge knows only the last.
func TestReady_ARequeueDeletesTheHintOfTheAttemptBefore(t *testing.T) {
	t.Parallel()
	b := pulling(t, split())
	id := b.Submit(command("a"))
	b.leaveHints(func() { b.take(t, "c", true, b.hints(t)...) })
	b.Apply(id, statemachine.Stall{StepID: "one", AttemptNo: 1})
	if left := b.hints(t); len(left) != 1 || left[0].AttemptNo != 1 {
		t.Fatalf("the crash left %+v", left)
	}
	b.Apply(id, statemachine.Retry{})
	if left := b.hints(t); len(left) != 1 || left[0].AttemptNo != 2 || left[0].WorkID != id+".0.1" {
		t.Errorf("after the requeue there are %+v", left)
	}
}

func TestPurge_DeletesTheHintsThatCrashesLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pulling(t, split())
		id := b.Submit(command("a"))
		b.leaveHints(func() {
			for n := range 2 {
				hints := b.hints(t)
				item := b.take(t, fmt.Sprint("c", n), true, hints[len(hints)-1])[0].Item
				b.Apply(id, statemachine.Result{
					StepID: item.StepID, Pair: statemachine.Pair{AttemptNo: 1, LeaseID: item.LeaseID}, Status: statemachine.ResultSucceeded,
				})
			}
		})
		if left := b.hints(t); len(left) != 2 {
			t.Fatalf("the crashes left %+v", left)
		}
		time.Sleep(2 * time.Hour)
		entry := b.Entries(ledger.Retention, time.Now())[0]
		if outcome, err := b.Purge(t.Context(), entry); err != nil || outcome != ledger.PurgeDone {
			t.Fatalf("%s, %v", outcome, err)
		}
		if left := b.hints(t); len(left) != 0 {
			t.Errorf("left are %+v", left)
		}
		if page, err := b.store.Scan(t.Context(), tablestore.Query{Table: "luciusledger", Partition: id}); err != nil || len(page.Rows) != 0 {
			t.Errorf("%d rows of the job are left (%v)", len(page.Rows), err)
		}
	})
}

// A missing hint of a queued job is written again: by the reconciler, and by the entry
// of the accept, which is then deleted.
func TestReady_AMissingHintIsRestored(t *testing.T) {
	t.Parallel()
	lost := func(t *testing.T, b *bundle) (id string, hint ledger.Hint) {
		id = b.Submit(command("a"))
		hint = b.hints(t)[0]
		b.Discard(tablestore.Key{Table: "luciusqueue", Partition: "ready:ones:ONE:000", Row: hint.Row()})
		return id, hint
	}
	back := func(t *testing.T, b *bundle, hint ledger.Hint) {
		if hints := b.hints(t); len(hints) != 1 || hints[0] != hint {
			t.Errorf("hints are %+v, want %+v", hints, hint)
		}
	}
	t.Run("by the reconciler", func(t *testing.T) {
		t.Parallel()
		b := pulling(t, split())
		_, hint := lost(t, b)
		if found := b.inspected(t); len(found) != 1 || found[0].Repaired == "" {
			t.Errorf("%+v", found)
		}
		back(t, b, hint)
		if found := b.inspected(t); found[0].Repaired != "" || found[0].Stuck != "" {
			t.Errorf("repaired again: %+v", found)
		}
	})
	t.Run("by the accept's entry", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := pulling(t, split())
			id, hint := lost(t, b)
			time.Sleep(2 * time.Second) // The step's ACK timeout is one.
			if got := b.Expire(); got[ledger.Acted] != 1 {
				t.Errorf("fired %v", got)
			}
			back(t, b, hint)
			if entries := b.entries(); len(entries) != 0 {
				t.Errorf("entries are left: %+v", entries)
			}
			if got := b.take(t, "c", true, hint)[0]; got.Standing != ledger.HintNamed {
				t.Errorf("the claim found the hint %d", got.Standing)
			}
			if found := b.inspected(t); len(found) != 1 || found[0].Repaired != "" || found[0].Stuck != "" || found[0].JobID != id {
				t.Errorf("%+v", found)
			}
		})
	})
	t.Run("not after a claim in between", func(t *testing.T) {
		t.Parallel()
		b := pulling(t, split())
		b.Submit(command("a"))
		// The claim comes after the job was loaded and before its hint is read.
		other := pulling(t, b.store)
		claim := sync.OnceFunc(func() { other.take(t, "c", true, other.hints(t)...) })
		slow := pulling(t, &hooked{Store: storetest.AfterRead(b.store.Store, func(r *storetest.Request) {
			if r.Key().Table == "luciusledger" {
				claim()
			}
		})})
		if found := slow.inspected(t); len(found) != 1 || found[0].Repaired != "" {
			t.Errorf("%+v", found)
		}
		if hints := b.hints(t); len(hints) != 0 {
			t.Errorf("hints are %+v", hints)
		}
	})
}

// A part of the index that the store cannot decode is reported, and does not stop the walk: the
// reconciler would inspect no job any more. An outage stops it.
func TestInspectReady_GoesPastAPageThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for partition, seen := range map[string]int{"ready:ones:ONE:000": 1, "catalog": 0} {
		for fault, ends := range map[error]bool{tablestore.ErrCorrupt: true, tablestore.ErrUnavailable: false} {
			t.Run(partition+"/"+fault.Error(), func(t *testing.T) {
				t.Parallel()
				b := pulling(t, split())
				b.Submit(command("a"))
				other := command("b")
				other.Steps[0].Service = "others"
				b.Submit(other)
				b.store.Store = storetest.Hooked(b.store.Store,
					func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
						if r.Query.Partition == partition {
							return fault
						}
						return do(ctx)
					})
				var walk ledger.ReadyWalk
				ended, reported, hints := false, false, 0
				for page := 0; page < 20 && !ended; page++ {
					var n int
					var err error
					n, _, ended, err = b.InspectReady(t.Context(), &walk, 10)
					hints += n
					reported = reported || errors.Is(err, fault)
				}
				if !reported || ended != ends || ends && hints != seen {
					t.Errorf("reported %t, ended %t, %d hints", reported, ended, hints)
				}
			})
		}
	}
}

// A corrupt row of the index is reported, and stops neither the page nor the walk.
func TestInspectReady_GoesPastBadRows(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]string{"before the others": "0", "after them": "zzz"} {
		for what, accept := range map[string]bool{"with others": true, "alone": false} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				b := pulling(t, split())
				b.Submit(command("a"))
				if !accept {
					b.take(t, "c", true, b.hints(t)...)
				}
				key := tablestore.Key{Table: "luciusqueue", Partition: "ready:ones:ONE:000", Row: row}
				if _, err := b.store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Put, Key: key}}); err != nil {
					t.Fatal(err)
				}
				var walk ledger.ReadyWalk
				bad, seen := 0, 0
				for page := 0; ; page++ {
					hints, _, ended, err := b.InspectReady(t.Context(), &walk, 1)
					if err != nil {
						bad++
					}
					seen += hints
					if ended {
						break
					}
					if page > 10 {
						t.Fatal("the walk does not end")
					}
				}
				want := 0
				if accept {
					want = 1
				}
				if bad != 1 || seen != want {
					t.Errorf("%d pages had errors, %d hints were seen", bad, seen)
				}
			})
		}
	}
}

// A job that cannot be read does not stop it either.
func TestInspectReady_GoesPastAJobThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := pulling(t, split())
	broken := b.Submit(command("a"))
	b.Discard(tablestore.Key{Table: "luciusledger", Partition: broken, Row: "OUTBOX:0000:000001"})
	void := b.Submit(command("b"))
	b.leaveHints(func() { b.Send(void, statemachine.Cancel{}) })
	var walk ledger.ReadyWalk
	seen, _, ended, err := b.InspectReady(t.Context(), &walk, 10)
	if err == nil || !ended || seen != 2 {
		t.Errorf("saw %d, ended %t, %v", seen, ended, err)
	}
	if left := b.hints(t); len(left) != 1 || left[0].WorkID != broken+".0.1" {
		t.Errorf("left are %+v", left)
	}
}

// The place in the queue counts only the tenant's directives of the same kind, in all
// shards, up to a bound.
func TestReadyBefore_CountsTheTenantsOlderDirectives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, split(), ledger.Config{Shards: 8, ReadyShards: 8})
		before := func(id string, limit int) int {
			t.Helper()
			agg := b.Read(id)
			n, err := b.ReadyBefore(t.Context(), agg, limit)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		var ids []string
		for i := range 6 {
			ids = append(ids, b.Submit(command(fmt.Sprint(i))))
			for _, tenant := range []string{"tenant_a-b", "tenant_a1", "tenant_b"} { // They sort next to it.
				other := command(fmt.Sprint(i))
				other.Job.TenantID = tenant
				b.Submit(other)
			}
			time.Sleep(time.Second)
		}
		for want, id := range ids {
			if got := before(id, 100); got != want {
				t.Errorf("%d are before job %d", got, want)
			}
		}
		if got := before(ids[5], 3); got != 3 {
			t.Errorf("%d are counted, with a limit of 3", got)
		}
		b.Apply(ids[0], statemachine.Cancel{})
		if got := before(ids[5], 100); got != 4 {
			t.Errorf("%d are before it after one was cancelled", got)
		}
		b.Apply(ids[5], statemachine.Pause{})
		if got := before(ids[5], 100); got != 0 {
			t.Errorf("%d are before a job that is not queued", got)
		}
	})
}
