package admission_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// target is what a pause can name of a directive.
func target(tenantID, protocolID string, lane int) statemachine.Target {
	return statemachine.Target{TenantID: tenantID, ProtocolID: protocolID, Lane: lane, Service: "ocr"}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setup is a service on the store, and a gate.
func setup(t *testing.T, store tablestore.Store) (*admission.Service, *admission.Gate) {
	t.Helper()
	service := admission.New(store, "luciusschedule", nil)
	gate, err := admission.NewGate(t.Context(), admission.Config{Service: service})
	musttest.NoError(t, err)
	return service, gate
}

func TestScopes(t *testing.T) {
	t.Parallel()
	for id, test := range map[string]struct {
		scope  statemachine.Scope
		covers bool
	}{
		"all":        {statemachine.Scope{}, true},
		"tenant:a":   {statemachine.Scope{Kind: "tenant", Value: "a"}, true},
		"tenant:b:c": {statemachine.Scope{Kind: "tenant", Value: "b:c"}, false},
		"protocol:p": {statemachine.Scope{Kind: "protocol", Value: "p"}, true},

		"tenant:b~2Fc~7E~25":  {statemachine.Scope{Kind: "tenant", Value: "b/c~%"}, false},
		"protocol:~C3~A4~3F1": {statemachine.Scope{Kind: "protocol", Value: "ä?1"}, false},

		"protocol:q":    {statemachine.Scope{Kind: "protocol", Value: "q"}, false},
		"lane:3":        {statemachine.Scope{Kind: "lane", Value: "3"}, true},
		"service:ocr":   {statemachine.Scope{Kind: "service", Value: "ocr"}, true},
		"service:embed": {statemachine.Scope{Kind: "service", Value: "embed"}, false},
		"lane:0":        {statemachine.Scope{Kind: "lane", Value: "0"}, false},
	} {
		parsed, err := statemachine.ParseScope(id)
		if diff := cmp.Diff(test.scope, parsed); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", id, err, diff)
		}
		if parsed.ID() != id || parsed.Covers(target("a", "p", 3)) != test.covers {
			t.Errorf("%s: id %s, covers %t", id, parsed.ID(), parsed.Covers(target("a", "p", 3)))
		}
	}
	for _, id := range []string{"", "al", "tenant:", "tenant:~2", "lane:x", "service:", "lane:-1", "job:1"} {
		if _, err := statemachine.ParseScope(id); err == nil {
			t.Errorf("%q is a scope", id)
		}
	}
}

func TestPause_HoldsItsScopeAndNothingElse(t *testing.T) {
	t.Parallel()
	service, gate := setup(t, memstore.New(memstore.Options{}))
	pause, err := service.Pause(t.Context(), admission.Pause{Scope: statemachine.Scope{Kind: "tenant", Value: "a"}, Reason: "it burns", Actor: "operator"})
	if err != nil || pause.State != admission.Paused || pause.Reason != "it burns" || pause.Actor != "operator" {
		t.Fatalf("%+v, %v", pause, err)
	}
	if !gate.Admit(target("a", "p", 3)) {
		t.Error("the gate knew before it looked")
	}
	musttest.NoError(t, gate.Refresh(t.Context()))
	if gate.Admit(target("a", "p", 3)) || !gate.HoldsTenant("a") {
		t.Error("the tenant's directive passed")
	}
	if !gate.Admit(target("b", "p", 3)) || gate.HoldsTenant("b") {
		t.Error("another tenant's was held")
	}
	if !gate.HoldsNew(target("a", "p", 3)) || gate.HoldsNew(target("b", "", 0)) {
		t.Error("a command is held otherwise than its directive")
	}
	if active := gate.Active(); len(active) != 1 || active[0].ID() != "tenant:a" {
		t.Errorf("active: %+v", active)
	}
}

func TestCreate_TheSameScopeIsTheSamePause(t *testing.T) {
	t.Parallel()
	service, _ := setup(t, memstore.New(memstore.Options{}))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := service.Pause(t.Context(), admission.Pause{Reason: "why", Actor: "operator"}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if found, err := service.Pauses(t.Context()); err != nil || len(found) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestResume_RampsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service, gate := setup(t, memstore.New(memstore.Options{}))
		if _, err := service.Pause(t.Context(), admission.Pause{Reason: "why", Actor: "operator"}); err != nil {
			t.Fatal(err)
		}
		pause, err := service.Resume(t.Context(), statemachine.Scope{}, 5*time.Second)
		if err != nil || pause.State != admission.Ramping {
			t.Fatalf("%+v, %v", pause, err)
		}
		gate.ApplyPause(pause)
		var passed []int
		for range 6 {
			time.Sleep(time.Second)
			musttest.NoError(t, gate.Refresh(t.Context()))
			n := 0
			for range 1000 {
				if gate.Admit(target("a", "p", 3)) {
					n++
				}
			}
			passed = append(passed, n)
		}
		if diff := cmp.Diff([]int{10, 20, 40, 80, 1000, 1000}, passed); diff != "" {
			t.Errorf("passed in each second (-want +got):\n%s", diff)
		}
		if found, err := service.Pauses(t.Context()); err != nil || len(found) != 0 {
			t.Errorf("left: %+v, %v", found, err)
		}
	})
}

func TestResume_AtOnceAndAgain(t *testing.T) {
	t.Parallel()
	service, gate := setup(t, memstore.New(memstore.Options{}))
	var told *apierror.Error
	if _, err := service.Resume(t.Context(), statemachine.Scope{}, 0); !errors.As(err, &told) || told.Code != apierror.NotFound {
		t.Errorf("resume of nothing: %v", err)
	}
	if _, err := service.Pause(t.Context(), admission.Pause{Reason: "why", Actor: "operator"}); err != nil {
		t.Fatal(err)
	}
	pause, err := service.Resume(t.Context(), statemachine.Scope{}, 0)
	if err != nil || pause.State != admission.Resumed {
		t.Fatalf("%+v, %v", pause, err)
	}
	gate.ApplyPause(pause)
	if !gate.Admit(target("a", "p", 3)) || gate.HoldsNew(target("a", "p", 3)) || len(gate.Active()) != 0 {
		t.Error("the directive is held")
	}
	if again, err := service.Resume(t.Context(), statemachine.Scope{}, time.Minute); err != nil || again.State != admission.Resumed {
		t.Errorf("resumed again: %+v, %v", again, err)
	}
	if again, err := service.Pause(t.Context(), admission.Pause{Reason: "once more", Actor: "operator"}); err != nil || again.Reason != "once more" {
		t.Errorf("paused again: %+v, %v", again, err)
	}
}

// A second resume answers what is there; it gives the ramp no second beginning.
func TestResume_AgainDoesNotLetMoreThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service, gate := setup(t, memstore.New(memstore.Options{}))
		if _, err := service.Pause(t.Context(), admission.Pause{Reason: "why", Actor: "operator"}); err != nil {
			t.Fatal(err)
		}
		passed := 0
		for range 2 {
			pause, err := service.Resume(t.Context(), statemachine.Scope{}, time.Minute)
			musttest.NoError(t, err)
			gate.ApplyPause(pause)
			time.Sleep(time.Second / 2)
			for range 100 {
				if gate.Admit(target("a", "p", 3)) {
					passed++
				}
			}
		}
		if passed != 11 {
			t.Errorf("%d passed in the first second, want one at once and 10", passed)
		}
	})
}

// A ramp that is over holds nothing back, also before the gate has looked again.
func TestGate_ARampThatIsOverIsNotActive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service, gate := setup(t, memstore.New(memstore.Options{}))
		if _, err := service.Pause(t.Context(), admission.Pause{Reason: "why", Actor: "operator"}); err != nil {
			t.Fatal(err)
		}
		pause, err := service.Resume(t.Context(), statemachine.Scope{}, time.Second)
		musttest.NoError(t, err)
		gate.ApplyPause(pause)
		if active := gate.Active(); len(active) != 1 || active[0].State != admission.Ramping {
			t.Errorf("while it ramps up: %+v", active)
		}
		time.Sleep(time.Second)
		if active := gate.Active(); len(active) != 0 {
			t.Errorf("afterwards: %+v", active)
		}
	})
}

// A pause that expires is resumed once, by the first of several processes that refreshes
// after its time, and ramps up as one that an operator resumes: since then, not since its
// time, in case no process ran at that moment.
func TestExpiry_RampsUpInEveryProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		service, _ := setup(t, store)
		scope := statemachine.Scope{Kind: "tenant", Value: "a"}
		made, err := service.Pause(t.Context(), admission.Pause{
			Scope: scope, Reason: "why", Actor: "operator", Until: time.Now().Add(time.Minute), Ramp: 5 * time.Second,
		})
		if err != nil || made.State != admission.Paused {
			t.Fatalf("%+v, %v", made, err)
		}
		var expired []admission.Pause
		gates := make([]*admission.Gate, 2)
		for i := range gates {
			gates[i], err = admission.NewGate(t.Context(), admission.Config{
				Service: service, Expired: func(_ context.Context, p admission.Pause) { expired = append(expired, p) },
			})
			musttest.NoError(t, err)
		}
		passing := func() (n int) {
			for _, gate := range gates {
				musttest.NoError(t, gate.Refresh(t.Context()))
			}
			for range 100 {
				if gates[0].Admit(target("a", "p", 3)) {
					n++
				}
			}
			return n
		}
		time.Sleep(time.Minute - time.Millisecond)
		if n := passing(); n != 0 || len(expired) != 0 || !gates[1].HoldsTenant("a") {
			t.Errorf("before its time %d passed, and expired are %+v", n, expired)
		}
		if shown := gates[0].Covering(target("a", "p", 3)); shown == nil || !shown.Until.Equal(made.Until) || shown.State != admission.Paused {
			t.Errorf("a job sees %+v", shown)
		}
		time.Sleep(time.Hour)
		var passed []int
		for range 3 {
			passed = append(passed, passing())
			time.Sleep(time.Second)
		}
		if diff := cmp.Diff([]int{1, 10, 20}, passed); diff != "" {
			t.Errorf("passed in each second (-want +got):\n%s", diff)
		}
		if len(expired) != 1 || expired[0].ID() != scope.ID() || expired[0].State != admission.Ramping || !expired[0].Until.Equal(made.Until) {
			t.Errorf("expired: %+v", expired)
		}
		time.Sleep(3 * time.Second)
		if n := passing(); n != 100 {
			t.Errorf("%d passed after the ramp", n)
		}
		if found, err := service.Pauses(t.Context()); err != nil || len(found) != 0 {
			t.Errorf("left: %+v, %v", found, err)
		}
	})
}

// Of two pauses of one scope the one that ends later counts; a resume ends either.
func TestCreate_TheLaterEndCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service, gate := setup(t, memstore.New(memstore.Options{}))
		begin := tablestore.Now()
		hour := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Hour) }
		for _, one := range []struct {
			reason string
			until  time.Time
			want   string
			ends   time.Time
		}{
			{"first", hour(2), "first", hour(2)},
			{"shorter", hour(1), "first", hour(2)},
			{"longer", hour(4), "longer", hour(4)},
			{"endless", time.Time{}, "endless", time.Time{}},
			{"bounded", hour(9), "endless", time.Time{}},
		} {
			got, err := service.Pause(t.Context(), admission.Pause{Reason: one.reason, Actor: "by " + one.reason, Until: one.until})
			if err != nil || got.Reason != one.want || got.Actor != "by "+one.want || !got.Until.Equal(one.ends) || !got.CreatedAt.Equal(begin) {
				t.Errorf("%s: %+v, %v", one.reason, got, err)
			}
			time.Sleep(time.Second)
		}
		if _, err := service.Resume(t.Context(), statemachine.Scope{}, 0); err != nil {
			t.Fatal(err)
		}
		if got, err := service.Pause(t.Context(), admission.Pause{Reason: "again", Until: hour(9)}); err != nil || got.Reason != "again" {
			t.Errorf("%+v, %v", got, err)
		}
		got, err := service.Resume(t.Context(), statemachine.Scope{}, time.Hour)
		if err != nil || got.State != admission.Ramping || !got.Until.IsZero() {
			t.Errorf("resumed before its time: %+v, %v", got, err)
		}
		time.Sleep(9 * time.Hour)
		if err := gate.Refresh(t.Context()); err != nil || len(gate.Active()) != 0 {
			t.Errorf("active: %+v, %v", gate.Active(), err)
		}
	})
}

// afterScan is a store that calls a function after each scan, before its rows are returned.
func afterScan(do func()) tablestore.Store {
	return storetest.AfterRead(memstore.New(memstore.Options{}), func(r *storetest.Request) {
		if r.Call == storetest.ScanCall {
			do()
		}
	})
}

// What a refresh read before a change of this process does not undo it.
func TestGate_ARefreshDoesNotUndoALaterChange(t *testing.T) {
	t.Parallel()
	read := func() {}
	store := afterScan(func() { read() })
	service, gate := setup(t, store)
	read = func() {
		read = func() {}
		pause, err := service.Pause(t.Context(), admission.Pause{Reason: "why", Actor: "operator"})
		if err != nil {
			t.Error(err)
		}
		gate.ApplyPause(pause)
	}
	for _, when := range []string{"during the change", "afterwards"} {
		musttest.NoError(t, gate.Refresh(t.Context()))
		if gate.Admit(target("a", "p", 3)) {
			t.Errorf("the directive passed after a refresh %s", when)
		}
	}
}

// A refresh takes over what others have paused though this process changes a pause meanwhile,
// even if it does so in each refresh, as for a script that pauses many tenants.
func TestGate_RefreshesDuringManyChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read := func() {}
		store := afterScan(func() { read() })
		service, gate := setup(t, store)
		own, resumed := statemachine.Scope{Kind: "tenant", Value: "own"}, statemachine.Scope{Kind: "tenant", Value: "resumed"}
		create := func(scope statemachine.Scope) admission.Pause {
			pause, err := service.Pause(t.Context(), admission.Pause{Scope: scope, Reason: "why", Actor: "operator"})
			musttest.NoError(t, err)
			return pause
		}
		create(statemachine.Scope{Kind: "tenant", Value: "other"})
		gate.ApplyPause(create(resumed))
		read = func() {
			gate.ApplyPause(create(own))
			pause, err := service.Resume(t.Context(), resumed, 0)
			if err == nil { // Otherwise an earlier refresh has removed it.
				gate.ApplyPause(pause)
			}
		}
		for range 10 {
			time.Sleep(time.Second)
			musttest.NoError(t, gate.Refresh(t.Context()))
			for tenant, want := range map[string]bool{"own": true, "other": true, "resumed": false, "none": false} {
				if held := gate.HoldsNew(target(tenant, "p", 3)); held != want {
					t.Errorf("tenant %s: held %t", tenant, held)
				}
			}
		}
	})
}

// While the store is away, what is paused stays paused, and who pauses is told.
func TestGate_KeepsItsViewWithoutTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
		service, gate := setup(t, store)
		if _, err := service.Pause(t.Context(), admission.Pause{Reason: "why", Actor: "operator"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- background.Loop{Name: "pauses", Pass: gate.Refresh}.Run(ctx) }()
		time.Sleep(1500 * time.Millisecond)
		faults.Plan(storetest.Fault{Onwards: true})
		time.Sleep(10 * time.Second)
		if gate.Admit(target("a", "p", 3)) {
			t.Error("the directive passed")
		}
		if _, err := service.Resume(t.Context(), statemachine.Scope{}, 0); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("resume: %v", err)
		}
		if err := gate.Refresh(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("refresh: %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A process that could not read the pauses for a while does not know what another one
// has paused: it makes nothing ready and hands nothing out until it has read them again.
func TestGate_AViewThatIsTooOldLetsNothingThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, gate := setup(t, memstore.New(memstore.Options{}))
		expect := func(passes bool) {
			t.Helper()
			if gate.Admit(target("a", "p", 3)) != passes || gate.HoldsNew(target("a", "p", 3)) == passes ||
				gate.HoldsQueued(target("a", "p", 3)) == passes || gate.HoldsTenant("a") == passes {
				t.Errorf("after %s: admitted %t, held %t, not handed out %t, of a paused tenant %t", time.Now(),
					gate.Admit(target("a", "p", 3)), gate.HoldsNew(target("a", "p", 3)), gate.HoldsQueued(target("a", "p", 3)), gate.HoldsTenant("a"))
			}
		}
		time.Sleep(5 * time.Second)
		expect(true)
		time.Sleep(time.Millisecond)
		expect(false)
		musttest.NoError(t, gate.Refresh(t.Context()))
		expect(true)
	})
}

// Of several pauses that cover a directive, one that holds back everything is shown
// rather than a ramp, and then the oldest.
func TestGate_ShowsThePauseThatCoversADirective(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service, gate := setup(t, memstore.New(memstore.Options{}))
		begin, ocr := time.Now().UTC(), statemachine.Scope{Kind: "service", Value: "ocr"}
		shows := func(want *admission.Pause) {
			t.Helper()
			if diff := cmp.Diff(want, gate.Covering(target("a", "p", 3))); diff != "" {
				t.Errorf("covering (-want +got):\n%s", diff)
			}
		}
		pause := func(scope statemachine.Scope, why string) {
			t.Helper()
			pause, err := service.Pause(t.Context(), admission.Pause{Scope: scope, Reason: why, Actor: "ops-1"})
			musttest.NoError(t, err)
			gate.ApplyPause(pause)
			time.Sleep(time.Second)
		}
		resume := func(scope statemachine.Scope) {
			t.Helper()
			pause, err := service.Resume(t.Context(), scope, time.Minute)
			musttest.NoError(t, err)
			gate.ApplyPause(pause)
		}
		pause(statemachine.Scope{Kind: "service", Value: "embed"}, "another service")
		shows(nil)
		pause(ocr, "OCR is down")
		pause(statemachine.Scope{}, "all")
		shows(&admission.Pause{Scope: ocr, State: admission.Paused, Actor: "ops-1", Reason: "OCR is down", CreatedAt: begin.Add(time.Second)})
		resume(ocr)
		shows(&admission.Pause{State: admission.Paused, Actor: "ops-1", Reason: "all", CreatedAt: begin.Add(2 * time.Second)})
		resume(statemachine.Scope{})
		shows(&admission.Pause{
			Scope: ocr, State: admission.Ramping, Actor: "ops-1", Reason: "OCR is down", CreatedAt: begin.Add(time.Second),
			ResumedAt: begin.Add(3 * time.Second), Ramp: time.Minute,
		})
		time.Sleep(time.Minute)
		shows(nil)
	})
}
