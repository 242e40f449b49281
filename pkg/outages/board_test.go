package outages_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/outages"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// boards returns the boards of two replicas on one store.
func boards(t *testing.T, store tablestore.Store) (one, two *outages.Board) {
	t.Helper()
	var made [2]*outages.Board
	for i := range made {
		var err error
		if made[i], err = outages.New(outages.Config{Store: store, Table: "luciusschedule", Margin: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	return made[0], made[1]
}

// All replicas know an outage that one replica notices. It lasts until the
// margin after its last sign.
func TestBoard_AnOutageIsKnownToAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one, two := boards(t, memstore.New(memstore.Options{}))
		begin := time.Now()
		ends := func() map[outages.Part]time.Duration {
			t.Helper()
			read, err := two.Ends(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			since := map[outages.Part]time.Duration{}
			for part, end := range read {
				since[part] = end.Sub(begin)
			}
			return since
		}
		if got := ends(); len(got) != 0 {
			t.Errorf("before any: %v", got)
		}
		for range 30 {
			for _, part := range []outages.Part{outages.Bus, outages.Replies, "global-bus-p3"} {
				if err := one.Note(t.Context(), part); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		for _, after := range []struct{ sleep, want time.Duration }{
			{0, 30 * time.Second}, {5 * time.Second, 35 * time.Second}, {time.Hour, 38 * time.Second},
		} {
			time.Sleep(after.sleep)
			want := map[outages.Part]time.Duration{outages.Bus: after.want, outages.Replies: after.want, "global-bus-p3": after.want}
			if diff := cmp.Diff(want, ends()); diff != "" {
				t.Errorf("after %s (-want +got):\n%s", after.sleep, diff)
			}
		}
	})
}

// An ongoing outage is written at intervals, and again at once after a store
// error.
func TestBoard_WritesNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
		board, _ := boards(t, store)
		faults.Plan(storetest.Fault{Onwards: true})
		if err := board.Note(t.Context(), outages.Bus); !errors.Is(err, storetest.ErrInjected) {
			t.Errorf("a store that fails: %v", err)
		}
		if _, err := board.Ends(t.Context()); !errors.Is(err, storetest.ErrInjected) {
			t.Errorf("a store that fails: %v", err)
		}
		faults.Clear()
		if err := board.Note(t.Context(), outages.Bus); err != nil {
			t.Fatal(err)
		}
		faults.Plan(storetest.Fault{Onwards: true}) // No further call is made.
		if err := board.Note(t.Context(), outages.Bus); err != nil {
			t.Errorf("soon after: %v", err)
		}
	})
}

func TestNoteAll_NotesWhatIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
		one, two := boards(t, store)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		loop := upkeep.Loop{Name: "outages", Pass: func(ctx context.Context) error {
			return one.NoteAll(ctx, []outages.Part{"global-bus-p1"})
		}}
		go func() { done <- loop.Run(ctx) }()
		faults.Plan(storetest.Fault{Call: storetest.CommitCall})
		time.Sleep(time.Minute)
		ends, err := two.Ends(t.Context())
		if err != nil || !ends["global-bus-p1"].Equal(time.Now()) {
			t.Errorf("%v, %v", ends, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNew_NamesTheField(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{})
	for _, cfg := range []outages.Config{{Table: "t"}, {Store: store}, {Store: store, Table: "t", Margin: -1}} {
		if _, err := outages.New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}
