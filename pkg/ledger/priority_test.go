package ledger_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// bulk is a command of bulk work.
func bulk(hash string) ledger.Command {
	c := command(hash)
	c.Job.Class = statemachine.ClassBulk
	return c
}

var (
	toBulk   = statemachine.Prioritize{Class: statemachine.ClassBulk}
	toNormal = statemachine.Prioritize{}
)

// only returns the only hint of the ready index.
func (b *bundle) only(t *testing.T) ledger.Hint {
	t.Helper()
	hints := b.hints(t)
	if len(hints) != 1 {
		t.Fatalf("the hints are %+v", hints)
	}
	return hints[0]
}

func TestPrioritize_MovesTheHintOfAQueuedItemAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func() *hooked{"split": split, "atomic": func() *hooked { return &hooked{Store: ledgertest.Atomic()} }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := pulling(t, store())
				id := b.Submit(command("a"))
				was := b.only(t)
				item, err := b.Item(t.Context(), was.WorkID)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				b.Apply(id, toBulk)
				want := was
				want.Class, want.Rev = statemachine.ClassBulk, 2
				if got := b.only(t); got != want {
					t.Errorf("the hint is %+v, want %+v", got, want)
				}
				same, err := b.Item(t.Context(), was.WorkID)
				if err != nil || same.Rev != item.Rev || same.AttemptNo != item.AttemptNo || same.Status != item.Status || same.Attempt != 0 {
					t.Errorf("the item was %+v and is %+v (%v)", item, same, err)
				}
				if got := b.take(t, "r", true, was)[0].Standing; got != ledger.HintVoid {
					t.Errorf("the old hint stands at %d", got)
				}
				if got := b.take(t, "r", true, want)[0].Standing; got != ledger.HintNamed {
					t.Errorf("the new hint stands at %d", got)
				}
			})
		})
	}
}

// A job whose directive no worker can take keeps its hints: the class counts from the next dispatch.
func TestPrioritize_OfAHeldItemCountsFromTheNextDispatch(t *testing.T) {
	t.Parallel()
	b := pulling(t, split())
	id := b.Submit(command("a"))
	item := b.take(t, "r", true, b.only(t))[0].Item
	b.Apply(id, toBulk)
	if hints := b.hints(t); len(hints) != 0 {
		t.Fatalf("the hints are %+v", hints)
	}
	b.Apply(id, statemachine.Result{
		StepID: "one", Pair: statemachine.Pair{AttemptNo: item.AttemptNo, LeaseID: item.LeaseID}, Status: statemachine.ResultSucceeded,
	})
	if hint := b.only(t); hint.Class != statemachine.ClassBulk || hint.Kind != hintKinds[1] {
		t.Errorf("the next step's hint is %+v", hint)
	}
	b.Apply(id, statemachine.Cancel{})
	if refused := b.Send(id, toNormal); refused.Outcome != statemachine.Refused {
		t.Errorf("of an ended job it is %s", refused.Outcome)
	}
}

// A claim that crashed before it deleted its hint leaves one in the class that the job then had. The
// requeue deletes that one, by the class that the item names.
func TestPrioritize_ALeftHintIsFoundInTheClassThatItHad(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, b *bundle, id string){
		"by the requeue": func(_ *testing.T, b *bundle, id string) {
			b.Apply(id, statemachine.Stall{StepID: "one", AttemptNo: 1})
			b.Apply(id, statemachine.Retry{})
		},
		"by the purge": func(t *testing.T, b *bundle, id string) {
			b.Apply(id, statemachine.Cancel{})
			b.Apply(id, statemachine.Stall{StepID: "one", AttemptNo: 1})
			time.Sleep(2 * time.Hour)
			for _, entry := range b.Entries(ledger.Retention, time.Now()) {
				if _, err := b.Purge(t.Context(), entry); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := pulling(t, split())
				id := b.Submit(command("a"))
				left := b.only(t)
				b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
					if batch[0].Verb == tablestore.Discard && batch[0].Key.Row == left.Row() {
						return nil, tablestore.ErrUnavailable
					}
					return commit()
				})
				b.take(t, "r", true, left)
				b.store.set(nil)
				b.Apply(id, toBulk)
				if got := b.only(t); got != left {
					t.Fatalf("the hint is %+v, want %+v", got, left)
				}
				end(t, b, id)
				for _, hint := range b.hints(t) {
					if hint == left {
						t.Errorf("the hint %+v is left", hint)
					}
				}
			})
		})
	}
}

// A change of the class that lost to a claim finds a held item, and leaves a void hint.
func TestPrioritize_AgainstAClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pulling(t, split())
		id := b.Submit(command("a"))
		hint := b.only(t)
		taken := false
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if commits(batch) && !taken {
				taken = true
				if got := b.take(t, "r", true, hint)[0].Standing; got != ledger.HintNamed {
					t.Errorf("the claim found the hint %d", got)
				}
			}
			return commit()
		})
		b.Apply(id, toBulk)
		b.store.set(nil)
		agg := b.Read(id)
		if agg.Job.Class != statemachine.ClassBulk || agg.Steps[0].State != statemachine.StepInProgress {
			t.Errorf("the job is %q, its step %s", agg.Job.Class, agg.Steps[0].State)
		}
		for _, early := range b.hints(t) {
			if got := b.take(t, "other", true, early)[0].Standing; got != ledger.HintVoid {
				t.Errorf("the hint %+v stands at %d", early, got)
			}
		}
		if hints := b.hints(t); len(hints) != 0 {
			t.Errorf("left are %+v", hints)
		}
	})
}

// A repeat of a claim whose candidate moved claims it by its new hint.
func TestPrioritize_ACandidateOfAnEarlierClaimIsClaimedByItsNewHint(t *testing.T) {
	t.Parallel()
	b := pulling(t, split())
	id := b.Submit(command("a"))
	hint := b.only(t)
	b.Apply(id, toBulk)
	claim := &ledger.Claim{Owner: "w", RequestID: "r"}
	_, got, err := b.Reclaim(t.Context(), ledger.Candidate{WorkID: hint.WorkID, AttemptNo: 1}, claim, func(*ledger.Hint) bool { return false })
	if err != nil || got != ledger.ReclaimHeld {
		t.Errorf("reclaimed: %d, %v", got, err)
	}
	if hints := b.hints(t); len(hints) != 0 {
		t.Errorf("left are %+v", hints)
	}
}

// The reconciler walks the partitions of bulk work, and writes a hint that is missing there.
func TestPrioritize_TheReconcilerKeepsTheHintsOfBulkWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pulling(t, split())
		lost := b.loseAccept(t, bulk("early"))
		_ = lost // It never lands.
		id := b.Submit(bulk("a"))
		time.Sleep(time.Hour)
		for range 2 {
			var walk ledger.ReadyWalk
			for ended := false; !ended; {
				var err error
				if _, _, ended, err = b.InspectReady(t.Context(), &walk, 10); err != nil {
					t.Fatal(err)
				}
			}
		}
		hint := b.only(t)
		if hint.Class != statemachine.ClassBulk || hint.WorkID != id+".0.1" {
			t.Fatalf("the hint is %+v", hint)
		}
		key := tablestore.Key{Table: "luciusqueue", Partition: "ready:ones:ONE:000:bulk", Row: hint.Row()}
		b.Row(key)
		b.Discard(key)
		if _, _, err := b.Inspect(t.Context(), 0, 10, ""); err != nil {
			t.Fatal(err)
		}
		if again := b.only(t); again != hint {
			t.Errorf("the hint is %+v, want %+v", again, hint)
		}
	})
}

// All normal work of the tenant is before its bulk work, which is in the order of its age.
func TestReadyBefore_CountsByClass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, split(), ledger.Config{Shards: 8, ReadyShards: 8})
		var ids []string
		for _, c := range []ledger.Command{bulk("1"), command("2"), bulk("3"), command("4"), command("5")} {
			ids = append(ids, b.Submit(c))
			time.Sleep(time.Second)
		}
		for i, want := range []int{3, 0, 4, 1, 2} {
			got, err := b.ReadyBefore(t.Context(), b.Read(ids[i]), 100)
			if err != nil || got != want {
				t.Errorf("%d are before job %d, want %d (%v)", got, i+1, want, err)
			}
		}
	})
}

func TestRerun_KeepsTheClassUnlessTheRequestNamesOne(t *testing.T) {
	t.Parallel()
	normal, other := statemachine.ClassNormal, statemachine.ClassBulk
	for _, c := range []struct {
		old  ledger.Command
		name *statemachine.Class
		want statemachine.Class
	}{
		{bulk("a"), nil, statemachine.ClassBulk},
		{bulk("a"), &normal, statemachine.ClassNormal},
		{command("a"), nil, statemachine.ClassNormal},
		{command("a"), &other, statemachine.ClassBulk},
	} {
		b := pulling(t, split())
		id := b.Submit(c.old)
		b.Apply(id, statemachine.Cancel{})
		accepted, err := b.Rerun(t.Context(), ledger.Rerun{JobID: id, From: ledger.FromStart, Class: c.name})
		if err != nil || accepted.Job.Class != c.want {
			t.Errorf("the rerun is %q, want %q (%v)", accepted.Job.Class, c.want, err)
		}
		if hint := b.only(t); hint.Class != c.want {
			t.Errorf("its hint is %+v", hint)
		}
		again, err := b.Rerun(t.Context(), ledger.Rerun{JobID: id, From: ledger.FromStart})
		if err != nil || !again.Replayed || again.Job.ID != accepted.Job.ID {
			t.Errorf("the repeat made %+v (%v)", again, err)
		}
	}
}

// A class is no part of the idempotency hash: the replay of a command with another class returns the
// job with the class of the first.
func TestAccept_AReplayKeepsTheFirstClass(t *testing.T) {
	t.Parallel()
	b := pulling(t, split())
	first, second := bulk("a"), command("a")
	first.Job.IdempotencyKey, second.Job.IdempotencyKey = "k", "k"
	accepted, err := b.Accept(t.Context(), first)
	again, err2 := b.Accept(t.Context(), second)
	if err := errors.Join(err, err2); err != nil || !again.Replayed || again.Job.ID != accepted.Job.ID || again.Job.Class != statemachine.ClassBulk {
		t.Errorf("the replay is %+v (%v)", again.Job, err)
	}
}
