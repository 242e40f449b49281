package ledger_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A duplicate that is refused while the first is about to commit has taken over
// its claim. If it released the claim, the job would have none, and the same command would
// be executed twice.
func TestAccept_ARefusedDuplicateLeavesNoJobWithoutAClaim(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := reopen(t, b.store)
	cmd := command("a")
	b.store.limit.Store(1)
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if commits(batch) {
			b.store.set(nil)
			if _, err := other.Accept(t.Context(), cmd); !errors.Is(err, ledger.ErrTenantLimit) {
				t.Errorf("the duplicate was answered with %v", err)
			}
		}
		return commit()
	})
	first := b.MustAccept(cmd)
	again := other.MustAccept(cmd)
	if !again.Replayed || again.Job.ID != first.Job.ID {
		t.Errorf("job %s was answered with job %s", first.Job.ID, again.Job.ID)
	}
}

// A late request may write a slot a second time. The end of the job does not free the
// second one.
func TestInspect_FreesASlotThatAnEndedJobDoesNotHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		cmd := command("a")
		b.store.limit.Store(2)
		id := b.Submit(cmd)
		b.Apply(id, statemachine.Cancel{})
		for k := range int64(2) {
			_, err := b.store.Commit(t.Context(), tablestore.Batch{{
				Verb: tablestore.Insert,
				Key: tablestore.Key{
					Table: "luciusschedule", Partition: tablestore.Join("shard", tablestore.Pad(k, 3)),
					Row: tablestore.Join("live", "tenant_a", tablestore.Pad(k, 7)),
				},
				Properties: tablestore.Properties{{Name: "job_id", Value: tablestore.String(id)}},
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Minute)
		b.inspected(t)
		if live := b.LiveJobs(); len(live) != 0 {
			t.Errorf("slots are still taken: %v", live)
		}
	})
}

// A late request may take the job's slot again after the end of the job freed it. The
// entry that the request wrote frees it once more.
func TestFire_ASlotThatIsTakenAfterTheEndIsFreed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		met := false
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if takesSlot(batch) && !met {
				met = true
				id := b.Submit(command("h"))
				b.Apply(id, statemachine.Cancel{})
			}
			return commit()
		})
		if accepted := b.MustAccept(command("h")); !met || !accepted.Replayed {
			t.Fatalf("the late request: %+v", accepted)
		}
		b.store.set(nil)
		if live := b.LiveJobs(); len(live) != 1 {
			t.Fatalf("slots are %v, the late request was meant to take one", live)
		}
		time.Sleep(2 * time.Minute)
		b.Expire()
		if live := b.LiveJobs(); len(live) != 0 {
			t.Errorf("slots are still taken: %v", live)
		}
	})
}

// A message without its directive must not exist: a bus would accept it, and later
// drop the right one as a duplicate.
func TestMessage_IsNoneWithoutItsDirective(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("a"))
	agg := b.Read(id)
	b.Discard(tablestore.Key{Table: "luciusledger", Partition: id, Row: "DIRECTIVE:0000:000001"})
	if message, err := b.Message(t.Context(), agg); message != nil || !errors.Is(err, ledger.ErrJobNotFound) {
		t.Errorf("%+v, %v", message, err)
	}
}
