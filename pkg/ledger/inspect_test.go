package ledger_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestInspect_AJobWithAnEntryOrAHintIsFine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Submit(command("a"))
	paused := b.Submit(command("b"))
	b.Apply(paused, statemachine.Pause{})
	for _, found := range b.inspected(t) {
		if found.Stuck != "" || found.Repaired != "" || found.Job == nil {
			t.Errorf("%+v", found)
		}
	}
}

func TestInspect_AMissingEntryIsWrittenAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Submit(command("a"))
	before := b.entries()
	for _, entry := range before {
		b.Discard(entryKey(&entry))
	}
	if found := b.inspected(t); len(found) != 1 || found[0].Repaired == "" {
		t.Errorf("%+v", found)
	}
	if after := b.entries(); len(after) != len(before) || !after[0].Due.Equal(before[0].Due) {
		t.Errorf("entries %+v, before %+v", after, before)
	}
	if found := b.inspected(t); found[0].Repaired != "" {
		t.Errorf("repaired again: %+v", found)
	}
}

func TestInspect_FinishesTheEndOfAJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		id := b.Submit(command("a"))
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			if strings.HasPrefix(batch[0].Key.Row, "live:") {
				return nil, tablestore.ErrUnavailable
			}
			return commit()
		})
		if result := b.Send(id, statemachine.Cancel{}); result.PostErr == nil {
			t.Fatal("the slot was freed")
		}
		b.store.set(nil)
		if found := b.inspected(t); found[0].Repaired != "" {
			t.Errorf("at once: %+v", found)
		}
		time.Sleep(2 * time.Minute)
		if found := b.inspected(t); found[0].Repaired == "" || len(b.LiveJobs()) != 0 {
			t.Errorf("later: %+v, %v", found, b.LiveJobs())
		}
	})
}

// An accept that never commits leaves a slot. After the grace period a tombstone makes the
// commit impossible, and only then the slot is freed.
func TestInspect_GivesUpOnASlotThatNamesNoJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		late := b.loseAccept(t, command("a"))
		if found := b.inspected(t); len(found) != 1 || found[0].Repaired != "" {
			t.Errorf("at once: %+v", found)
		}
		time.Sleep(6 * time.Minute)
		if found := b.inspected(t); found[0].Repaired == "" || len(b.LiveJobs()) != 0 || found[0].Fields().TenantID != command("a").Job.TenantID {
			t.Errorf("later: %+v", found)
		}
		if err := late(); !errors.Is(err, tablestore.ErrConflict) {
			t.Errorf("the late commit: %v", err)
		}
	})
}

// A job whose rows cannot be read keeps no other job of its page from being inspected.
func TestInspect_SkipsAJobThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := pulling(t, split())
	for _, hash := range []string{"a", "b", "c", "d"} {
		b.Submit(command(hash))
	}
	live := b.LiveJobs()
	b.rewrite(t, live[1], "JOB", func(p tablestore.Properties) tablestore.Properties {
		return slices.DeleteFunc(slices.Clone(p), func(p tablestore.Property) bool { return p.Name == "state" })
	})
	found, next, err := b.Inspect(t.Context(), 0, 3, "")
	if err == nil || !strings.Contains(err.Error(), live[1]) {
		t.Errorf("the error is %v, want one that names job %s", err, live[1])
	}
	if len(found) != 2 || found[0].JobID != live[0] || found[1].JobID != live[2] {
		t.Errorf("found %+v, want jobs %s and %s", found, live[0], live[2])
	}
	if found, next, err = b.Inspect(t.Context(), 0, 3, next); err != nil || next != "" || len(found) != 1 || found[0].JobID != live[3] {
		t.Errorf("the next page has %+v, %q, %v; want job %s", found, next, err, live[3])
	}
}

func TestInspect_ReturnsTheStoresErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Submit(command("a"))
	b.store.set(func(tablestore.Batch, commit) ([]tablestore.ETag, error) {
		return nil, tablestore.ErrUnavailable
	})
	for _, entry := range b.entries() {
		key := entryKey(&entry)
		if _, err := b.store.Store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Discard, Key: key}}); err != nil {
			t.Fatal(err)
		}
	}
	failed := false
	for shard := range b.Shards() {
		if _, _, err := b.Inspect(t.Context(), shard, 100, ""); errors.Is(err, tablestore.ErrUnavailable) {
			failed = true
		}
	}
	if !failed {
		t.Error("no inspection failed")
	}
}
