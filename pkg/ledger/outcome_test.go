package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// A write has three outcomes. These tests lose the reply to a commit: the change must
// be applied exactly once in each case.
func TestChange_AnUnknownOutcomeIsResolved(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		lose  func(commit func() ([]tablestore.ETag, error)) error
		times int
	}{
		{"applied, reply lost", func(commit func() ([]tablestore.ETag, error)) error {
			_, err := commit()
			return errors.Join(tablestore.ErrUnknown, err)
		}, 1},
		{"not applied", func(func() ([]tablestore.ETag, error)) error { return tablestore.ErrUnknown }, 1},
		{"not applied, three times", func(func() ([]tablestore.ETag, error)) error { return tablestore.ErrUnknown }, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := b.Submit(command("h"))
			message := b.Handoff.Last()
			lost := 0
			b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
				if commits(batch) && lost < test.times {
					lost++
					return nil, test.lose(commit)
				}
				return commit()
			})
			b.Apply(id, ledgertest.Started(message))
			assertRevs(t, b, id, 2)
		})
	}
}

func TestAccept_AnUnknownOutcomeIsResolved(t *testing.T) {
	t.Parallel()
	type outcome struct {
		applied bool
		limit   int // With a limit slots are numbered; without one each job has its own.
	}
	for _, test := range []outcome{{true, 2}, {false, 2}, {true, 0}, {false, 0}} {
		for _, table := range []string{"luciusledger", "jobidempotency", "luciusschedule"} {
			t.Run(fmt.Sprintf("%s, applied %t, limit %d", table, test.applied, test.limit), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				var lost atomic.Bool // The batches of a stage are committed concurrently.
				b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
					if batch[0].Key.Table != table || lost.Swap(true) {
						return commit()
					}
					if test.applied {
						_, _ = commit()
					}
					return nil, tablestore.ErrUnknown
				})
				cmd := command("h")
				b.store.limit.Store(int64(test.limit))
				accepted := b.MustAccept(cmd)
				assertRevs(t, b, accepted.Job.ID, 1)
				if again := b.MustAccept(cmd); again.Job.ID != accepted.Job.ID {
					t.Error("the command has two jobs")
				}
				if live := b.LiveJobs(); len(live) != 1 {
					t.Errorf("live set is %v", live)
				}
			})
		}
	}
}

func TestChange_ALostRaceIsDecidedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	message := b.Handoff.Last()
	other := reopen(t, b.store)
	raced := false
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if commits(batch) && !raced {
			raced = true
			other.Apply(id, ledgertest.Sent(message))
		}
		return commit()
	})
	result := b.Apply(id, ledgertest.Started(message))
	if result.Job.Steps[0].State != statemachine.StepInProgress {
		t.Errorf("step is %s", result.Job.Steps[0].State)
	}
	assertRevs(t, b, id, 3)
}

func TestChange_AnUnavailableStoreChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	b.store.set(func(tablestore.Batch, commit) ([]tablestore.ETag, error) {
		return nil, tablestore.ErrUnavailable
	})
	if _, err := b.Change(t.Context(), id, statemachine.Cancel{}); !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("answered %v", err)
	}
	b.store.set(nil)
	assertRevs(t, b, id, 1)
}

// A submission whose reply was lost may still arrive, even if the store refuses the next one.
func TestChange_ARefusalAfterAnUnknownOutcomeConfirmsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	answers := []error{tablestore.ErrUnknown, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, tablestore.ErrDenied)}
	var late commit
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if !commits(batch) {
			return commit()
		}
		if late == nil {
			late = commit
		}
		answer := answers[0]
		answers = answers[1:]
		return nil, answer
	})
	if _, err := b.Change(t.Context(), id, statemachine.Cancel{}); !errors.Is(err, tablestore.ErrUnknown) || len(answers) > 0 {
		t.Errorf("answered %v, with %d answers left", err, len(answers))
	}
	if _, err := late(); err != nil {
		t.Fatal(err)
	}
	b.store.set(nil)
	assertRevs(t, b, id, 2)
}

func TestChange_AnotherTenantsJobIsNotFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	_, err := b.Change(t.Context(), id, statemachine.Cancel{}, ledger.InTenant("tenant_b"))
	if !errors.Is(err, ledger.ErrJobNotFound) {
		t.Errorf("answered %v", err)
	}
	if _, err := b.Change(t.Context(), "no-such-job", statemachine.Cancel{}); !errors.Is(err, ledger.ErrJobNotFound) {
		t.Errorf("a missing job answered %v", err)
	}
}

func TestChange_HeartbeatWritesNoJournal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	message := b.Handoff.Last()
	b.Apply(id, ledgertest.Started(message))
	for range 3 {
		b.Apply(id, statemachine.Heartbeat{StepID: message.StepID, Pair: ledgertest.Pair(message)})
	}
	assertRevs(t, b, id, 2)
}

// assertRevs checks that the history is gapless from 1 and ends at the job's
// own rev.
func assertRevs(t *testing.T, b *bundle, id string, want int64) {
	t.Helper()
	agg := b.Read(id)
	if agg.Job.Rev != want {
		t.Errorf("rev is %d, want %d", agg.Job.Rev, want)
	}
	next := int64(1)
	for after := int64(0); ; {
		entries, more, err := b.History(t.Context(), id, after, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if entry.Rev != next && entry.Rev != next-1 {
				t.Fatalf("history jumps to rev %d, expected %d", entry.Rev, next)
			}
			next = entry.Rev + 1
		}
		if more == 0 {
			break
		}
		after = more
	}
	if next != want+1 {
		t.Errorf("history ends at rev %d, want %d", next-1, want)
	}
}

// If a second accept of a command rolls the record of the first forward, both use one
// job id. A slot that the first took then belongs to the job, whichever commits.
func TestAccept_TheLoserLeavesTheSlotThatTheJobHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		cmd := command("h")
		b.store.limit.Store(1)
		other := reopen(t, b.store)
		before := other.MustAccept(command("before")) // So that it does not read the slots first.
		b.Apply(before.Job.ID, statemachine.Cancel{})
		var raced atomic.Bool
		b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
			switch {
			case commits(batch) && !raced.Swap(true):
				other.Submit(cmd)
			case takesSlot(batch) && raced.Load():
				return nil, tablestore.ErrUnknown // The second reads the slots, and finds that of its job.
			}
			return commit()
		})
		accepted := b.MustAccept(cmd)
		b.store.set(nil)
		if live := b.LiveJobs(); !accepted.Replayed || len(live) != 1 || live[0] != accepted.Job.ID {
			t.Errorf("accepted %+v, the live set is %v", accepted.Replayed, live)
		}
		next := command("next")
		if _, err := b.Accept(t.Context(), next); !errors.Is(err, ledger.ErrTenantLimit) {
			t.Errorf("a second job of the tenant: %v, want ErrTenantLimit", err)
		}
	})
}

// For each commit either Observe is called, or Unsure because Observe may have missed it.
func TestUnsure_IsToldOfACommitThatMayNotBeObserved(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(l *ledger.Ledger, jobID string, hints []ledger.Hint) error{
		"accept": func(l *ledger.Ledger, _ string, _ []ledger.Hint) error {
			_, err := l.Accept(t.Context(), command("another"))
			return err
		},
		"change": func(l *ledger.Ledger, jobID string, _ []ledger.Hint) error {
			_, err := l.Change(t.Context(), jobID, statemachine.Cancel{})
			return err
		},
		"claim": func(l *ledger.Ledger, _ string, hints []ledger.Hint) error {
			_, err := l.Claim(t.Context(), hints, &ledger.Claim{Owner: "o", RequestID: "r"})
			return err
		},
	} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " lost ", lost), func(t *testing.T) {
				t.Parallel()
				store, faults := storetest.Faulty(ledgertest.Atomic())
				observed, unsure := 0, 0
				l, err := ledger.Open(t.Context(), ledger.Config{
					Store: store, Shards: 1, Unsure: func() { unsure++ },
					Observe: func(_ context.Context, _, _ *statemachine.Aggregate, _ []statemachine.Transition) { observed++ },
				})
				if err != nil {
					t.Fatal(err)
				}
				accepted, err := l.Accept(t.Context(), command("one"))
				if err != nil {
					t.Fatal(err)
				}
				hints, _, _, err := l.ReadyHints(t.Context(), ledger.WorkClass{WorkKind: hintKinds[0]}, 0, "", "", 10)
				if err != nil || len(hints) != 1 {
					t.Fatal(hints, err)
				}
				if lost {
					faults.Plan(storetest.Fault{Call: storetest.CommitCall, After: true, Onwards: true},
						storetest.Fault{Call: storetest.GetCall, Onwards: true})
				}
				if err := change(l, accepted.Job.ID, hints); (err != nil) != lost {
					t.Errorf("error %v", err)
				}
				if (observed == 2) == lost || (unsure > 0) != lost {
					t.Errorf("observed %d times, unsure %d times", observed, unsure)
				}
			})
		}
	}
}
