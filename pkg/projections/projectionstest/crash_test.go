package projectionstest_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// A process may crash after any of its writes. Within seconds another process's sweeper
// finds the changes that were committed but not projected.
func TestProject_CatchesUpAfterACrash(t *testing.T) {
	t.Parallel()
	for name, verbs := range map[string][]string{
		"dispatch":                  {"published"},
		"ACK":                       {"published", "ack"},
		"the RESULT that goes on":   {"published", "ack", "succeeded"},
		"the RESULT that ends it":   {"ack", "succeeded", "ack", "succeeded"},
		"a new fence":               {"rejected", "wait", "taken"},
		"a pause that has no timer": {"pause"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for crashAt := int64(1); ; crashAt++ {
					if !dieAt(t, crashAt, verbs) {
						return // There is no later write.
					}
				}
			})
		})
	}
}

// dieAt makes a process crash at that write of the last verb, and reports whether there is
// such a write.
func dieAt(t *testing.T, crashAt int64, verbs []string) bool {
	t.Helper()
	b := setup(t)
	jobID := b.Submit(command("c"))
	last := len(verbs) - 1
	for _, verb := range verbs[:last] {
		b.live(t, jobID, verb)
	}
	var writes atomic.Int64 // Rows are written concurrently.
	b.store.set(func(tablestore.Batch) error {
		if writes.Add(1) >= crashAt {
			return tablestore.ErrUnavailable
		}
		return nil
	})
	outcome, err := b.Change(t.Context(), jobID, lives(verbs[last], b.Handoff.Last()))
	b.store.set(nil)
	if err == nil && outcome.PostErr == nil {
		return false
	}
	when := fmt.Sprintf("after a crash at write %d", crashAt)
	if err == nil {
		time.Sleep(6 * time.Second)
		on(t, b.memory).Expire(ledger.Timer)
		b.assertShown(t, when)
	}
	time.Sleep(6 * time.Minute) // The sweeper drops an entry whose change was never committed.
	for range 3 {
		on(t, b.memory).Expire(ledger.Timer)
	}
	b.assertShown(t, when+", in the end")
	b.assertAtRest(t, jobID)
	return true
}

// The same holds for a command: sent again after a crash before or after its
// commit, it has one job in the end, and that job is projected.
func TestProject_CatchesUpAfterACrashOfAnAccept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for crashAt := int64(1); ; crashAt++ {
			b := setup(t)
			var writes atomic.Int64
			b.store.set(func(tablestore.Batch) error {
				if writes.Add(1) >= crashAt {
					return tablestore.ErrUnavailable
				}
				return nil
			})
			accepted, err := b.Accept(t.Context(), command("c"))
			b.store.set(nil)
			if err == nil && accepted.PostErr == nil {
				return // There is no later write.
			}
			time.Sleep(6 * time.Second)
			on(t, b.memory).Expire(ledger.Timer)
			b.assertShown(t, fmt.Sprintf("after a crash at write %d", crashAt))
			jobID := b.Submit(command("c"))
			b.assertShown(t, fmt.Sprintf("sent again after a crash at write %d", crashAt))
			time.Sleep(7 * time.Minute)
			for range 3 {
				b.Expire(ledger.Timer)
			}
			b.assertAtRest(t, jobID)
		}
	})
}

// lives returns the verb's event.
func lives(verb string, m ledger.Message) statemachine.Event { return verbs[verb](m) }

// Jobs continue while the projected tables are unreachable. The first change
// that is projected again adds all missing rows.
func TestProject_CatchesUpWithTheNextChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		jobID := b.Submit(command("c"))
		b.store.set(func(batch tablestore.Batch) error {
			if projected[batch[0].Key.Table] {
				return tablestore.ErrUnavailable
			}
			return nil
		})
		for _, verb := range []string{"rejected", "pause", "resume", "published"} {
			if outcome := b.Send(jobID, lives(verb, b.Handoff.Last())); !errors.Is(outcome.PostErr, tablestore.ErrUnavailable) {
				t.Errorf("%s: the work after the commit returned %v", verb, outcome.PostErr)
			}
		}
		b.store.set(nil)
		b.live(t, jobID, "ack")
		b.assertShown(t, "after the next change")
	})
}

// projected are the names of the projected tables.
var projected = map[string]bool{"luciusjobs": true, "luciusoutbox": true, "luciusevents": true}

// Revisions may be projected late, twice and concurrently: no row ever returns
// to an earlier revision.
func TestProject_OnlyGoesForwards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		jobID := b.Submit(command("c"))
		for _, verb := range []string{"published", "ack", "retryable", "wait", "deadline", "published", "ack", "succeeded", "cancel"} {
			b.live(t, jobID, verb)
		}
		revisions := b.seen.revisions
		for _, revision := range slices.Backward(revisions) {
			at, err := b.projections.Project(t.Context(), revision)
			if err != nil || at < revisions[len(revisions)-1].Job.Rev {
				t.Errorf("revision %d again: %d, %v", revision.Job.Rev, at, err)
			}
		}
		b.assertShown(t, "shown again, backwards")

		var group sync.WaitGroup
		for _, revision := range revisions {
			group.Go(func() {
				if _, err := b.projections.Project(t.Context(), revision); err != nil {
					t.Errorf("revision %d once more: %v", revision.Job.Rev, err)
				}
			})
		}
		group.Wait()
		b.assertShown(t, "shown again, at once")
	})
}

// Projecting a revision whose predecessor is missing returns the revision shown
// so far. The job's row stays unchanged until the missing changes are
// projected.
func TestProject_ReturnsTheRevisionThatIsShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		jobID := b.Submit(command("c"))
		for _, verb := range []string{"rejected", "wait", "taken", "published"} {
			b.live(t, jobID, verb)
		}
		// Other tables, still empty.
		p := projections.New(b.store, projections.Tables{Jobs: "otherjobs", Outbox: "otheroutbox", Events: "otherevents"}, nil)
		for _, step := range []struct {
			rev int64 // that is projected
			at  int64 // that the row then shows
		}{{4, 0}, {2, 0}, {1, 1}, {3, 1}, {2, 2}, {1, 2}, {3, 3}, {4, 4}, {2, 4}} {
			at, err := p.Project(t.Context(), b.seen.revisions[step.rev-1])
			if err != nil || at != step.at {
				t.Errorf("rev %d: shows %d, want %d, %v", step.rev, at, step.at, err)
			}
		}
	})
}

// A writer that read before others wrote loses the race, and no row returns to
// an earlier revision.
func TestProject_ALateWriterChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	jobID := b.Submit(command("c"))
	b.store.set(func(batch tablestore.Batch) error {
		if projected[batch[0].Key.Table] {
			return tablestore.ErrUnavailable
		}
		return nil
	})
	b.Send(jobID, lives("published", b.Handoff.Last()))
	b.store.set(nil)
	late := b.seen.revisions[len(b.seen.revisions)-1]
	reached, goOn := make(chan struct{}), make(chan struct{})
	wait := sync.OnceFunc(func() { close(reached); <-goOn })
	slow := storetest.AfterRead(b.memory, func(*storetest.Request) { wait() })
	var done sync.WaitGroup
	done.Go(func() {
		if at, err := projections.New(slow, projections.Tables{}, nil).Project(t.Context(), late); err != nil || at < 4 {
			t.Errorf("the late one finds %d, %v", at, err)
		}
	})
	<-reached
	b.live(t, jobID, "ack")
	b.live(t, jobID, "succeeded")
	close(goOn)
	done.Wait()
	b.assertShown(t, "after the race")
}
