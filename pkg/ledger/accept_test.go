package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func TestAccept_CreatesAJobAndDispatchesItsFirstStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	accepted := b.MustAccept(command("h1"))

	agg := b.Read(accepted.Job.ID)
	if agg.Job.State != statemachine.JobDispatching || agg.Job.Rev != 1 || agg.Steps[0].State != statemachine.StepDispatching {
		t.Errorf("job is %s at rev %d, step 0 %s", agg.Job.State, agg.Job.Rev, agg.Steps[0].State)
	}
	message := b.Handoff.Last()
	if message.JobID != accepted.Job.ID || message.MessageID() != accepted.Job.ID+".0.1/1" {
		t.Errorf("handed over %q of job %s", message.MessageID(), message.JobID)
	}
	stored, err := b.Directive(t.Context(), accepted.Job.ID, 0, 1)
	if err != nil || !cmp.Equal(stored, message.Directive) {
		t.Errorf("stored directive %s differs from the one handed over %s (%v)", stored, message.Directive, err)
	}
	if live := b.LiveJobs(); len(live) != 1 || live[0] != accepted.Job.ID {
		t.Errorf("live set is %v", live)
	}
}

func TestAccept_AnEndedJobLeavesNoEntrySlotOrHint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	accepted := b.MustAccept(command("h1"))
	b.succeed(b.Handoff.Last())
	second := b.Handoff.Last()
	if want := `"input_ref":{"uri":"s3://b/one"}`; !contains(second.Directive, want) || !contains(second.Directive, `"payload":{"y":1.50}`) {
		t.Errorf("second directive is %s", second.Directive)
	}
	b.succeed(second)

	agg := b.Read(accepted.Job.ID)
	if agg.Job.State != statemachine.JobSucceeded || string(agg.Job.FinalOutput) != `{"uri":"s3://b/two"}` {
		t.Errorf("job is %s with output %s", agg.Job.State, agg.Job.FinalOutput)
	}
	if entries := b.entries(); len(entries) != 0 {
		t.Errorf("left in the schedule: %v", entries)
	}
	if live := b.LiveJobs(); len(live) != 0 {
		t.Errorf("left in the live set: %v", live)
	}
}

func TestAccept_TheSameCommandIsAnsweredWithItsJob(t *testing.T) {
	t.Parallel()
	withKey := func(key, hash string) ledger.Command {
		cmd := command(hash)
		cmd.Job.IdempotencyKey = key
		return cmd
	}
	tests := []struct {
		name          string
		first, second ledger.Command
		replayed      bool
		err           error
	}{
		{"same hash without a key", command("h"), command("h"), true, nil},
		{"another hash without a key", command("h"), command("i"), false, nil},
		{"same key, same hash", withKey("k", "h"), withKey("k", "h"), true, nil},
		{"same key, another hash", withKey("k", "h"), withKey("k", "i"), false, ledger.ErrIdempotencyMismatch},
		{"another key, same hash", withKey("k", "h"), withKey("l", "h"), false, nil},
		{"a key, and none", withKey("k", "h"), command("h"), false, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			first := b.MustAccept(test.first)
			second, err := b.Accept(t.Context(), test.second)
			if !errors.Is(err, test.err) {
				t.Fatalf("second answered %v, want %v", err, test.err)
			}
			if err == nil && second.Replayed != test.replayed {
				t.Errorf("replayed is %t", second.Replayed)
			}
			if test.replayed && second.Job.ID != first.Job.ID {
				t.Errorf("replay answers %s, first was %s", second.Job.ID, first.Job.ID)
			}
		})
	}
}

func TestAccept_TenantsDoNotShareKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.MustAccept(command("h"))
	other := command("h")
	other.Job.TenantID = "tenant_b"
	if second := b.MustAccept(other); second.Replayed || second.Job.ID == first.Job.ID {
		t.Error("another tenant's command was answered with the first one's job")
	}
}

func TestAccept_ManyAtOnceMakeOneJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := make([]string, 16)
	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			accepted, err := b.Accept(t.Context(), command("same"))
			if err != nil {
				t.Errorf("accept: %v", err)
			}
			ids[i] = accepted.Job.ID
		})
	}
	group.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("two jobs for one command: %v", ids)
		}
	}
	if live := b.LiveJobs(); len(live) != 1 {
		t.Errorf("live set is %v", live)
	}
}

func TestAccept_TheLimitHoldsUnderConcurrency(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const limit, commands = 5, 40
	b.store.limit.Store(limit)
	var mu sync.Mutex
	accepted := map[string]ledger.Command{}
	var group sync.WaitGroup
	for i := range commands {
		group.Go(func() {
			cmd := command(fmt.Sprint("h", i))
			answer, err := b.Accept(t.Context(), cmd)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				accepted[answer.Job.ID] = cmd
			case !errors.Is(err, ledger.ErrTenantLimit):
				t.Errorf("accept: %v", err)
			}
		})
	}
	group.Wait()
	if len(accepted) != limit || len(b.LiveJobs()) != limit {
		t.Fatalf("%d jobs accepted, %d live, limit %d", len(accepted), len(b.LiveJobs()), limit)
	}
	for _, cmd := range accepted {
		if replay, err := b.Accept(t.Context(), cmd); err != nil || !replay.Replayed {
			t.Errorf("a replay was refused at the limit: %v", err)
		}
	}
	for id := range accepted {
		b.Apply(id, statemachine.Cancel{})
	}
	b.Submit(command("h-after"))
}

// A limit that is set or lowered while the tenant has more jobs in flight holds for every
// job that is accepted from then on, and one that is raised at once.
func TestAccept_TheLimitHoldsWhenItChanges(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int64{"from none": 0, "from a higher one": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			replicas := []*bundle{b, reopen(t, b.store)}
			tried := 0
			acceptMany := func() (accepted []string) {
				var mu sync.Mutex
				var group sync.WaitGroup
				for i := range 12 {
					cmd := command(fmt.Sprint("h", tried+i))
					group.Go(func() {
						answer, err := replicas[i%2].Accept(t.Context(), cmd)
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							accepted = append(accepted, answer.Job.ID)
						case !errors.Is(err, ledger.ErrTenantLimit):
							t.Errorf("accept: %v", err)
						}
					})
				}
				group.Wait()
				tried += 12
				return accepted
			}
			b.store.limit.Store(before)
			var jobs []string
			for i := range 5 {
				jobs = append(jobs, b.Submit(command(fmt.Sprint("first", i))))
			}
			b.store.limit.Store(3)
			if over := acceptMany(); len(over) != 0 {
				t.Errorf("%d jobs accepted with 5 in flight, limit 3", len(over))
			}
			for _, id := range jobs[:3] {
				b.Apply(id, statemachine.Cancel{})
			}
			if one := acceptMany(); len(one) != 1 || len(b.LiveJobs()) != 3 {
				t.Errorf("%d jobs accepted, %d in flight, limit 3", len(one), len(b.LiveJobs()))
			}
			b.store.limit.Store(6)
			if more := acceptMany(); len(more) != 3 || len(b.LiveJobs()) != 6 {
				t.Errorf("%d jobs accepted, %d in flight, limit 6", len(more), len(b.LiveJobs()))
			}
		})
	}
}

// Two accepts read the slots at the same time, when one more job is allowed and two have
// slots beyond the limit: they may not take two slots below it.
func TestAccept_JobsBeyondTheLimitCountUnderConcurrency(t *testing.T) {
	t.Parallel()
	store := split()
	process := func(random float64) *bundle {
		return open(t, store, ledger.Config{
			Shards: 4, Random: func() float64 { return random }, Projector: projectionstest.Projector(t, store),
		})
	}
	b, other := process(0), process(0.9)
	b.Submit(command("a"))
	b.Submit(command("b"))
	store.limit.Store(3)
	var raced atomic.Bool
	store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if takesSlot(batch) && !raced.Swap(true) {
			other.Submit(command("c"))
		}
		return commit()
	})
	if _, err := b.Accept(t.Context(), command("d")); !errors.Is(err, ledger.ErrTenantLimit) || len(b.LiveJobs()) != 3 {
		t.Errorf("%d jobs in flight, limit 3: %v", len(b.LiveJobs()), err)
	}
}

// A replica that learns of a lower limit late takes slots beyond it after the others have
// checked for such slots. They check again.
func TestAccept_AReplicaThatLearnsOfTheLimitLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := split()
		process := func(limit int, random *float64) *bundle {
			return open(t, store, ledger.Config{
				Shards: 4, Limit: func(string) int { return limit }, Random: func() float64 { return *random },
			})
		}
		first, last := 0.0, 0.9
		b, late := process(3, &first), process(10, &last)
		b.Submit(command("a"))
		late.Submit(command("b")) // in slot 9
		last = 0.8
		late.Submit(command("c")) // in slot 8
		time.Sleep(3 * time.Second)
		first = 0.4 // Slot 1 is free.
		if _, err := b.Accept(t.Context(), command("d")); !errors.Is(err, ledger.ErrTenantLimit) {
			t.Errorf("a fourth job, limit 3: %v", err)
		}
	})
}

// A tenant that stays at its limit does not make each refused command read its jobs again: one
// search for slots to reclaim runs at a time, and the next is long after it.
func TestAccept_ATenantAtItsLimitIsSearchedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, shards = 500, 4
		var slow atomic.Bool
		var loads atomic.Int64
		store := storetest.Hooked(ledgertest.Split(), func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
			if slow.Load() {
				time.Sleep(10 * time.Millisecond)
				if r.Call == storetest.ScanCall && r.Key().Table == "luciusledger" {
					loads.Add(1)
				}
			}
			return do(ctx)
		})
		l := ledgertest.Open(t, ledger.Config{Store: store, Shards: shards, Limit: func(string) int { return limit }})
		for n := range limit {
			l.Submit(command(fmt.Sprint("first", n)))
		}
		slow.Store(true)
		var searches atomic.Int64
		var group sync.WaitGroup
		for n := range 200 {
			group.Go(func() {
				began := time.Now()
				if _, err := l.Accept(t.Context(), command(fmt.Sprint("refused", n))); !errors.Is(err, ledger.ErrTenantLimit) {
					t.Errorf("a command beyond the limit: %v", err)
				}
				if time.Since(began) > 200*time.Millisecond {
					searches.Add(1)
				}
			})
			time.Sleep(100 * time.Millisecond)
		}
		group.Wait()
		if searches.Load() > 8 || loads.Load() != searches.Load()*limit {
			t.Errorf("%d commands waited, %d jobs read in 20 seconds", searches.Load(), loads.Load())
		}
	})
}

func TestAccept_ARefusedCommandLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := command("h1"), command("h2")
	b.store.limit.Store(1)
	accepted := b.MustAccept(first)
	if _, err := b.Accept(t.Context(), second); !errors.Is(err, ledger.ErrTenantLimit) {
		t.Fatalf("second answered %v", err)
	}
	record := tablestore.Key{Table: "jobidempotency", Partition: "tenant_a", Row: "hash:h2"}
	if _, err := b.store.Get(t.Context(), record); !errors.Is(err, tablestore.ErrNotFound) {
		t.Errorf("the refused command's record: %v", err)
	}
	if live := b.LiveJobs(); len(live) != 1 {
		t.Errorf("live set is %v", live)
	}
	b.Apply(accepted.Job.ID, statemachine.Cancel{})
	if again := b.MustAccept(second); again.Replayed {
		t.Error("the refused command had left a record")
	}
}

func TestAccept_ACrashBeforeTheCommitIsRolledForward(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var stranded tablestore.Batch
	b.store.set(func(batch tablestore.Batch, commit commit) ([]tablestore.ETag, error) {
		if commits(batch) && stranded == nil {
			stranded = batch
			return nil, tablestore.ErrUnavailable
		}
		return commit()
	})
	if _, err := b.Accept(t.Context(), command("h")); !errors.Is(err, tablestore.ErrUnavailable) {
		t.Fatalf("first answered %v", err)
	}
	other := reopen(t, b.store)
	second := other.MustAccept(command("h"))
	if second.Replayed {
		t.Error("a command without a job was answered as a replay")
	}
	if got := stranded[0].Key.Partition; got != second.Job.ID {
		t.Errorf("rolled forward under %s, claimed was %s", second.Job.ID, got)
	}
	if _, err := b.store.Store.Commit(t.Context(), stranded); err == nil {
		t.Error("the first commit came through late, after the second")
	}
	if live := b.LiveJobs(); len(live) != 1 {
		t.Errorf("live set is %v", live)
	}
}

func contains(b []byte, s string) bool {
	return bytes.Contains(b, []byte(s))
}
