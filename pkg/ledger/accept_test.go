package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestAccept_MakesAJobWhoseFirstStepIsOnItsWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	accepted := b.mustAccept(t, command("h1"))

	agg, err := b.Job(t.Context(), accepted.Job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if agg.Job.State != statemachine.JobDispatching || agg.Job.Rev != 1 || agg.Steps[0].State != statemachine.StepDispatching {
		t.Errorf("job is %s at rev %d, step 0 %s", agg.Job.State, agg.Job.Rev, agg.Steps[0].State)
	}
	message := b.inbox.last()
	if message.JobID != accepted.Job.ID || message.MessageID() != accepted.Job.ID+".0.1/1" {
		t.Errorf("handed over %q of job %s", message.MessageID(), message.JobID)
	}
	stored, err := b.Directive(t.Context(), accepted.Job.ID, 0, 1)
	if err != nil || !cmp.Equal(stored, message.Directive) {
		t.Errorf("stored directive %s differs from the one handed over %s (%v)", stored, message.Directive, err)
	}
	if live := b.live(t); len(live) != 1 || live[0] != accepted.Job.ID {
		t.Errorf("live set is %v", live)
	}
}

func TestAccept_AJobRunsToItsEndAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	accepted := b.mustAccept(t, command("h1"))
	b.succeed(t, b.inbox.last())
	second := b.inbox.last()
	if want := `"input_ref":{"uri":"s3://b/one"}`; !contains(second.Directive, want) || !contains(second.Directive, `"payload":{"y":1.50}`) {
		t.Errorf("second directive is %s", second.Directive)
	}
	b.succeed(t, second)

	agg, err := b.Job(t.Context(), accepted.Job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if agg.Job.State != statemachine.JobSucceeded || string(agg.Job.FinalOutput) != `{"uri":"s3://b/two"}` {
		t.Errorf("job is %s with output %s", agg.Job.State, agg.Job.FinalOutput)
	}
	if entries := b.entries(t); len(entries) != 0 {
		t.Errorf("left in the schedule: %v", entries)
	}
	if live := b.live(t); len(live) != 0 {
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
			first := b.mustAccept(t, test.first)
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
	first := b.mustAccept(t, command("h"))
	other := command("h")
	other.Job.TenantID = "tenant_b"
	if second := b.mustAccept(t, other); second.Replayed || second.Job.ID == first.Job.ID {
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
	if live := b.live(t); len(live) != 1 {
		t.Errorf("live set is %v", live)
	}
}

func TestAccept_TheLimitHoldsUnderConcurrency(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const limit, commands = 5, 40
	var mu sync.Mutex
	accepted := map[string]ledger.Command{}
	var group sync.WaitGroup
	for i := range commands {
		group.Go(func() {
			cmd := command(fmt.Sprint("h", i))
			cmd.Limit = limit
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
	if len(accepted) != limit || len(b.live(t)) != limit {
		t.Fatalf("%d jobs accepted, %d live, limit %d", len(accepted), len(b.live(t)), limit)
	}
	for _, cmd := range accepted {
		if replay, err := b.Accept(t.Context(), cmd); err != nil || !replay.Replayed {
			t.Errorf("a replay was refused at the limit: %v", err)
		}
	}
	for id := range accepted {
		b.mustChange(t, id, statemachine.Cancel{})
	}
	refused := command("h-after")
	refused.Limit = limit
	b.mustAccept(t, refused)
}

func TestAccept_ARefusedCommandLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := command("h1"), command("h2")
	first.Limit, second.Limit = 1, 1
	accepted := b.mustAccept(t, first)
	if _, err := b.Accept(t.Context(), second); !errors.Is(err, ledger.ErrTenantLimit) {
		t.Fatalf("second answered %v", err)
	}
	b.mustChange(t, accepted.Job.ID, statemachine.Cancel{})
	if again := b.mustAccept(t, second); again.Replayed {
		t.Error("the refused command had left a claim")
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
	second := other.mustAccept(t, command("h"))
	if second.Replayed {
		t.Error("a command without a job was answered as a replay")
	}
	if got := stranded[0].Key.Partition; got != second.Job.ID {
		t.Errorf("rolled forward under %s, claimed was %s", second.Job.ID, got)
	}
	if _, err := b.store.Store.Commit(t.Context(), stranded); err == nil {
		t.Error("the first commit came through late, after the second")
	}
	if live := b.live(t); len(live) != 1 {
		t.Errorf("live set is %v", live)
	}
}

func contains(b []byte, s string) bool {
	return bytes.Contains(b, []byte(s))
}
