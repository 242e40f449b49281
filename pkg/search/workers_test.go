package search_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// claimAs claims an item as that worker.
func (p *process) claimAs(owner string) statemachine.Item {
	p.t.Helper()
	p.serial++
	views, err := p.queue.Claim(p.t.Context(), workqueue.ClaimRequest{
		Owner: owner, Client: workqueue.Client{Version: "2", Host: "host of " + owner}, RequestID: fmt.Sprint(p.name, p.serial),
		Max: 1, Services: []string{"ocr"}, Start: true,
	})
	musttest.NoError(p.t, err)
	if len(views) != 1 {
		p.t.Fatalf("%d items were claimed", len(views))
	}
	return views[0].Item
}

// told words the workers: held attempts, outcomes of ended ones, latest first, and counts.
func (p *process) told() map[string]string {
	p.t.Helper()
	all, err := p.Workers(p.t.Context())
	musttest.NoError(p.t, err)
	out := map[string]string{}
	for i := range all {
		one := &all[i]
		text := fmt.Sprintf("holds %d;", len(one.Held))
		for _, a := range one.Attempts {
			text += fmt.Sprintf(" %s %s %d %s,", a.Outcome, a.Code, a.No, a.Ended.Sub(a.Claimed))
		}
		day := one.Day(time.Now())
		out[one.Owner] = text + fmt.Sprintf(" %d ended, %d failed, %d lost", day.Ended, day.Failed, day.Lost)
	}
	return out
}

func (p *process) tells(when string, want map[string]string) {
	p.t.Helper()
	if diff := cmp.Diff(want, p.told()); diff != "" {
		p.t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func TestWorkers_ByOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		for range 5 {
			p.submit("ocr")
		}
		as := func(owner string, item statemachine.Item) statemachine.ItemRequest {
			r := p.by(item)
			r.Actor = owner
			return r
		}
		one, two := p.claimAs("a"), p.claimAs("a")
		time.Sleep(time.Minute)
		_, err := p.queue.Complete(t.Context(), one.WorkID, as("a", one), statemachine.Product{})
		musttest.NoError(t, err)
		time.Sleep(time.Second)
		_, err = p.queue.Fail(t.Context(), two.WorkID, as("a", two), workqueue.Failure{Code: "bad"})
		musttest.NoError(t, err)
		three := p.claimAs("b")
		_, err = p.queue.Stall(t.Context(), three.WorkID, as("operator", three))
		musttest.NoError(t, err)
		four := p.claimAs("b")
		time.Sleep(time.Minute)
		_, err = p.queue.Heartbeat(t.Context(), four.WorkID, as("b", four), nil)
		musttest.NoError(t, err)
		p.tells("while one is held", map[string]string{
			"a": "holds 0; failed bad 1 1m1s, succeeded  1 1m0s, 2 ended, 1 failed, 0 lost",
			"b": "holds 1; taken  1 0s, 0 ended, 0 failed, 0 lost",
		})
		workers, err := p.Workers(t.Context())
		musttest.NoError(t, err)
		b := workers[0]
		if b.Owner != "b" || !b.Heartbeat.Equal(tablestore.Now()) || !b.LastPoll.Equal(time.Now().Add(-time.Minute)) || b.Host != "host of b" ||
			len(b.Services) != 1 || b.Held[0].JobID.String() != four.JobID || b.Held[0].TenantID != "tenant" {
			t.Errorf("%+v", b)
		}
		time.Sleep(2 * time.Hour) // The lease is an hour.
		p.ledger.Expire()
		want := map[string]string{
			"a": "holds 0; failed bad 1 1m1s, succeeded  1 1m0s, 2 ended, 1 failed, 0 lost",
			"b": "holds 0; lost lease_expired 1 2h1m0s, taken  1 0s, 1 ended, 0 failed, 1 lost",
		}
		p.tells("after the lease", want)
		history := p.ledger.Past(four.JobID)
		for _, e := range history {
			if e.Detail == "lease_expired" && e.Owner == "b" {
				history = nil
			}
		}
		if history != nil {
			t.Errorf("the history does not name the worker: %+v", history)
		}

		musttest.NoError(t, p.Close(t.Context(), true))
		again := start(t, p.store, "")
		again.tells("after a restart", want)
		time.Sleep(22 * time.Hour)
		again.tells("after a day", map[string]string{"b": "holds 0; lost lease_expired 1 2h1m0s, taken  1 0s, 1 ended, 0 failed, 1 lost"})
		time.Sleep(3 * time.Hour)
		musttest.NoError(t, again.RunOnce(t.Context()))
		again.tells("after another", map[string]string{})
	})
}

// An attempt may be claimed through one replica and end at another. Attempts that a crashed replica
// recorded as held stay so until a walk.
func TestWorkers_OfReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := ledgertest.Split()
		a, b := start(t, store, "a"), start(t, store, "b")
		for range 3 {
			a.submit("ocr")
		}
		item, lost := a.claimAs("worker"), a.claimAs("gone")
		time.Sleep(time.Minute)
		musttest.NoError(t, a.RunOnce(t.Context()))
		b.tells("of the claims", map[string]string{"worker": "holds 1; 0 ended, 0 failed, 0 lost", "gone": "holds 1; 0 ended, 0 failed, 0 lost"})
		b.complete(item)
		time.Sleep(time.Minute)
		musttest.NoError(t, b.RunOnce(t.Context()))
		want := map[string]string{
			"worker": "holds 0; succeeded  1 1m0s, 1 ended, 0 failed, 0 lost", "gone": "holds 1; 0 ended, 0 failed, 0 lost",
		}
		a.tells("of the end, at a", want)
		b.tells("of the end, at b", want)

		time.Sleep(2 * time.Hour)
		b.ledger.Expire() // Now the records of a and b differ.
		b.walk(nil)
		want["gone"] = "holds 0; lost lease_expired 1 2h2m0s, 1 ended, 0 failed, 1 lost"
		b.tells("after a lease, at b", want)
		c := start(t, store, "c")
		again := c.claimAs("gone")
		c.walk(nil)
		want["gone"] = "holds 1; 0 ended, 0 failed, 0 lost"
		c.tells("before b has stored it", want)
		if again.JobID == lost.JobID {
			t.Fatal("the same job was claimed")
		}
		time.Sleep(25 * time.Hour)
		d := start(t, store, "d")
		rows, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{Table: a.ledger.Tables().Queue, Partition: "workers"})
		musttest.NoError(t, err)
		if d.tells("after a day", map[string]string{}); len(rows) != 0 {
			t.Errorf("%d rows are left", len(rows))
		}
	})
}

// The worker of an attempt that began before this process is found by the walk.
func TestWorkers_HoldWhatAWalkFinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, ledgertest.Atomic(), "")
		p.submit("ocr")
		item := p.claimAs("worker")
		again := start(t, p.store, "") // The first one crashed.
		again.tells("before a walk", map[string]string{})
		again.walk(nil)
		again.tells("after it", map[string]string{"worker": "holds 1; 0 ended, 0 failed, 0 lost"})
		late := again.live()[0]
		again.complete(item)
		again.Begin()
		again.Walked(late) // It was read before its end.
		again.End()
		workers, err := again.Workers(t.Context())
		musttest.NoError(t, err)
		if len(workers[0].Held) != 0 || len(workers[0].Attempts) != 1 {
			t.Errorf("%+v", workers[0])
		}
		time.Sleep(time.Second)
		p.walk(nil)
		p.tells("of an end that another process saw", map[string]string{"worker": "holds 0; 0 ended, 0 failed, 0 lost"})
	})
}

// A worker that polls with several filters in turn asks for the work of all.
func TestWorkers_AskForAllTheirFilters(t *testing.T) {
	t.Parallel()
	p := alone(t)
	for n, services := range [][]string{{"embed"}, {"ocr"}} {
		_, err := p.queue.Claim(t.Context(), workqueue.ClaimRequest{
			Owner: "worker", RequestID: fmt.Sprint(n), Max: 1, Services: services, StepTypes: []string{"T"}[:n],
		})
		musttest.NoError(t, err)
	}
	workers, err := p.Workers(t.Context())
	musttest.NoError(t, err)
	if got := workers[0]; fmt.Sprint(got.Services, got.StepTypes) != "[embed ocr] []" {
		t.Errorf("%+v", got)
	}
}

// Workers and their attempts are bounded, in memory and in rows.
func TestWorkers_AreBounded(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{Split: true})
	p := start(t, store, "a")
	now := tablestore.Now()
	attempt := func(owner string, state statemachine.StepState, tenant string) *statemachine.Aggregate {
		now = now.Add(time.Millisecond)
		return &statemachine.Aggregate{
			Job: statemachine.Job{ID: uuid.NewString(), TenantID: tenant, UpdatedAt: now},
			Steps: []statemachine.Step{{
				ID: "s", Type: "T", Service: "ocr", State: state, AttemptNo: 1, Owner: owner, StartedAt: now, UpdatedAt: now,
			}},
		}
	}
	for n := range 5100 {
		owner := fmt.Sprint(n, strings.Repeat("x", 100))
		for range 5100 / (n + 1) {
			held := attempt(owner, statemachine.StepInProgress, fmt.Sprint("tenant-", n))
			ended := attempt("", statemachine.StepFailedRetry, "")
			p.Observe(&statemachine.Aggregate{}, held, nil)
			p.Observe(held, ended, []statemachine.Transition{{Object: statemachine.ObjectStep, ID: "s", Owner: owner, Detail: "bad"}})
		}
	}
	workers, err := p.Workers(t.Context())
	musttest.NoError(t, err)
	if len(workers) < 4500 || len(workers) > 5000 || !strings.HasPrefix(workers[0].Owner, "5099x") {
		t.Fatalf("%d workers, the latest %.10s", len(workers), workers[0].Owner)
	}
	attempts := 0
	for i := range workers {
		attempts += len(workers[i].Attempts)
	}
	bytes := int64(len(workers)<<10 + attempts<<7)
	if got := p.WorkersBytes(); got != 2*bytes {
		t.Errorf("%d attempts of them take %d bytes", attempts, got)
	}
	musttest.NoError(t, p.RunOnce(t.Context()))
	b := start(t, store, "b")
	before := b.WorkersBytes()
	there, err := b.Workers(t.Context())
	musttest.NoError(t, err)
	if len(there) < 2000 || there[0].Owner != workers[0].Owner || len(there[0].Hours) != 1 {
		t.Errorf("another replica knows %d workers", len(there))
	}
	if after := b.WorkersBytes(); before != 0 || after < int64(len(there)<<10) || after > bytes {
		t.Errorf("in another replica they take %d bytes, and then %d", before, after)
	}
	for n := range 60 {
		held := attempt("busy", statemachine.StepInProgress, "t")
		p.Observe(&statemachine.Aggregate{}, held, nil)
		p.Observe(held, attempt("", statemachine.StepCancelled, ""), nil)
		for range 1100 / 60 * min(n, 1) {
			p.Observe(&statemachine.Aggregate{}, attempt("busy", statemachine.StepInProgress, "t"), nil)
		}
	}
	workers, err = p.Workers(t.Context())
	musttest.NoError(t, err)
	if got := workers[0]; got.Owner != "busy" || len(got.Attempts) != 50 || len(got.Held) != 1000 {
		t.Errorf("%d attempts, %d held", len(got.Attempts), len(got.Held))
	}
}

// A worker that is larger than a row is stored without some of its attempts, and does not prevent the
// others from being stored.
func TestWorkers_OfWhomOneIsLargerThanARow(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{Split: true})
	var filters manyPollers
	for n := range 256 {
		var services []string
		for k := range 64 {
			services = append(services, fmt.Sprintf("%0128d", 64*n+k))
		}
		filters = append(filters, workqueue.Poller{
			Owner: "greedy", LastPoll: time.Now(), PollFilter: workqueue.PollFilter{Services: services, StepTypes: services},
		})
	}
	filters = append(filters, workqueue.Poller{Owner: "modest", LastPoll: time.Now().Add(-time.Hour)})
	counts := search.NewCounts(search.CountsConfig{Store: store, Table: "queue", Replica: "a", Queue: &filters})
	long := func(text string) string { return text + strings.Repeat("<", 127) }
	for n := range 1000 {
		now := tablestore.Now().Add(time.Duration(n) * time.Millisecond)
		counts.Observe(&statemachine.Aggregate{}, &statemachine.Aggregate{
			Job: statemachine.Job{ID: uuid.NewString(), TenantID: long("t"), UpdatedAt: now},
			Steps: []statemachine.Step{{
				ID: long("s"), Type: long("T"), Service: long("v"), State: statemachine.StepInProgress, AttemptNo: n, Owner: "shared",
				StartedAt: now, UpdatedAt: now,
			}},
		}, nil)
	}
	musttest.NoError(t, counts.RunOnce(t.Context()))
	other := search.NewCounts(search.CountsConfig{Store: store, Table: "queue", Replica: "b"})
	workers, err := other.Workers(t.Context())
	musttest.NoError(t, err)
	told := map[string]search.Worker{}
	for _, one := range workers {
		told[one.Owner] = one
	}
	if held := told["shared"].Held; len(told) != 3 || len(held) < 100 || held[len(held)-1].No != 999 {
		t.Errorf("%d workers, one of them holds %d attempts", len(told), len(held))
	}
	if got := told["greedy"]; len(got.Services) != 64 || len(got.StepTypes) != 64 {
		t.Errorf("it asks for %d services and %d step types", len(got.Services), len(got.StepTypes))
	}
}

// Rows that are no longer needed are deleted with the next write, which may be of one row.
func TestWorkers_StoreFewerRowsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{Split: true})
		var many manyPollers
		for n := range 3000 {
			many = append(many, workqueue.Poller{
				Owner: fmt.Sprint(n, strings.Repeat("x", 120)), LastPoll: time.Now(),
				PollFilter: workqueue.PollFilter{Services: []string{strings.Repeat("y", 120), strings.Repeat("z", 120)}},
			})
		}
		counts := search.NewCounts(search.CountsConfig{Store: store, Table: "queue", Replica: "a", Queue: &many})
		rows := func() int {
			musttest.NoError(t, counts.RunOnce(t.Context()))
			found, err := tablestore.ScanAll(t.Context(), store, tablestore.Query{Table: "queue", Partition: "workers"})
			musttest.NoError(t, err)
			return len(found)
		}
		if got := rows(); got < 2 {
			t.Fatalf("%d rows", got)
		}
		time.Sleep(25 * time.Hour)
		many = manyPollers{{Owner: "alone", LastPoll: time.Now()}}
		if got := rows(); got != 1 {
			t.Errorf("%d rows", got)
		}
	})
}

func TestWorkers_StoreFails(t *testing.T) {
	t.Parallel()
	healthy := memstore.New(memstore.Options{Split: true})
	store, faults := storetest.Faulty(healthy)
	p := start(t, healthy, "b")
	p.submit("ocr")
	p.claimAs("worker")
	musttest.NoError(t, p.RunOnce(t.Context()))
	queue := manyPollers{{Owner: "worker", LastPoll: time.Now()}}
	counts := search.NewCounts(search.CountsConfig{Store: store, Table: p.ledger.Tables().Queue, Replica: "a", Queue: queue})
	for name, test := range map[string]struct {
		fault storetest.Fault
		do    func() error
	}{
		"the start": {storetest.Fault{Call: storetest.ScanCall}, func() error { return counts.Open(t.Context()) }},
		"a request": {storetest.Fault{Call: storetest.ScanCall}, func() error { _, err := counts.Workers(t.Context()); return err }},
		"a pass":    {storetest.Fault{Call: storetest.CommitCall, Nth: 2}, func() error { return counts.RunOnce(t.Context()) }},
		"the end":   {storetest.Fault{Call: storetest.CommitCall, Nth: 2}, func() error { return counts.Close(t.Context(), true) }},
	} {
		faults.Plan(test.fault)
		if err := test.do(); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		faults.Clear()
	}

	// A row of another release is left out.
	rows, err := tablestore.ScanAll(t.Context(), healthy, tablestore.Query{Table: p.ledger.Tables().Queue, Partition: "workers"})
	musttest.NoError(t, err)
	for _, row := range rows {
		_, err := healthy.Commit(t.Context(), tablestore.Batch{{
			Verb: tablestore.Replace, Key: row.Key, ETag: row.ETag, Properties: tablestore.AppendLarge(nil, "figures", []byte(`[]`)),
		}})
		musttest.NoError(t, err)
	}
	workers, err := counts.Workers(t.Context())
	if err != nil || len(rows) == 0 || len(workers) != 1 || len(workers[0].Held) != 0 {
		t.Errorf("%d rows: %+v, %v", len(rows), workers, err)
	}
	faults.Plan(storetest.Fault{Call: storetest.CommitCall})
	if err := counts.Open(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("it was deleted: %v", err)
	}
}
