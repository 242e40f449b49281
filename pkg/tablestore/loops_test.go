package tablestore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func TestRetry_RepeatsOnlyLostRaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			results []error
			calls   int
			want    error
		}{
			"done at once":       {[]error{nil}, 1, nil},
			"done after 2 races": {[]error{&tablestore.ConflictError{}, fmt.Errorf("wrapped: %w", tablestore.ErrConflict), nil}, 3, nil},
			"unknown":            {[]error{tablestore.ErrUnknown}, 1, tablestore.ErrUnknown},
			"unavailable":        {[]error{tablestore.ErrConflict, tablestore.ErrUnavailable}, 2, tablestore.ErrUnavailable},
		} {
			calls := 0
			err := tablestore.Retry(t.Context(), nil, func() error {
				calls++
				return test.results[calls-1]
			})
			if !errors.Is(err, test.want) || calls != test.calls {
				t.Errorf("%s: %d calls, %v", name, calls, err)
			}
		}
	})
}

// The delays follow the caller's random numbers, and the tries end.
func TestRetry_GivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for random, want := range map[float64][2]time.Duration{
			0:   {500 * time.Microsecond, 25 * time.Millisecond},
			0.5: {time.Millisecond, 50 * time.Millisecond},
		} {
			var waited []time.Duration
			last := time.Now()
			err := tablestore.Retry(t.Context(), func() float64 { return random }, func() error {
				waited = append(waited, time.Since(last))
				last = time.Now()
				return tablestore.ErrConflict
			})
			if !errors.Is(err, tablestore.ErrUnavailable) || errors.Is(err, tablestore.ErrConflict) {
				t.Errorf("%v, want ErrUnavailable alone", err)
			}
			if n := len(waited); n != 50 || waited[1] != want[0] || waited[n-1] != want[1] {
				t.Errorf("random %g: %d tries, after %s", random, n, waited)
			}
		}
	})
}

func TestRetry_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	err := tablestore.Retry(ctx, func() float64 { return 1e9 }, func() error {
		calls++
		cancel()
		return tablestore.ErrConflict
	})
	if !errors.Is(err, tablestore.ErrUnavailable) || !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}

func TestUpdate_LosesNoRace(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{})
	const racers, rounds = 4, 5
	done := make(chan error)
	for range racers {
		go func() {
			var err error
			for range rounds {
				err = errors.Join(err, tablestore.Update(t.Context(), store, key("r"), nil,
					func(stored *tablestore.Row) (tablestore.Properties, error) {
						return tablestore.Properties{{Name: "n", Value: tablestore.Int(stored.Properties.Get("n").Int() + 1)}}, nil
					}))
			}
			done <- err
		}()
	}
	for range racers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if row, err := store.Get(t.Context(), key("r")); err != nil || row.Properties.Get("n").Int() != racers*rounds {
		t.Errorf("%+v, %v", row, err)
	}
}

func TestUpdate_WritesNothingUnlessAsked(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
	refusal := errors.New("refused")
	for _, want := range []error{nil, refusal} {
		err := tablestore.Update(t.Context(), store, key("r"), nil, func(stored *tablestore.Row) (tablestore.Properties, error) {
			if stored.ETag != "" {
				t.Error("an absent row has a version")
			}
			return nil, want
		})
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if _, err := store.Get(t.Context(), key("r")); !errors.Is(err, tablestore.ErrNotFound) {
		t.Errorf("a row was written: %v", err)
	}
	for _, call := range []storetest.Call{storetest.GetCall, storetest.CommitCall} {
		faults.Plan(storetest.Fault{Call: call})
		err := tablestore.Update(t.Context(), store, key("r"), nil, func(*tablestore.Row) (tablestore.Properties, error) {
			return tablestore.Properties{}, nil
		})
		if !errors.Is(err, tablestore.ErrUnavailable) {
			t.Errorf("a failing store: %v", err)
		}
	}
}

func TestScanAll_ReadsEveryPage(t *testing.T) {
	t.Parallel()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{}))
	for n := range 7 {
		if _, err := store.Commit(t.Context(), putRow(strconv.Itoa(n))); err != nil {
			t.Fatal(err)
		}
	}
	query := tablestore.Query{Table: key("").Table, Partition: key("").Partition, From: "1", Limit: 2}
	rows, err := tablestore.ScanAll(t.Context(), store, query)
	if err != nil || len(rows) != 6 || rows[0].Key.Row != "1" || rows[5].Key.Row != "6" {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	faults.Plan(storetest.Fault{Call: storetest.ScanCall, Nth: 2})
	if rows, err := tablestore.ScanAll(t.Context(), store, query); !errors.Is(err, tablestore.ErrUnavailable) || rows != nil {
		t.Errorf("%d rows, %v, want the error of the second page", len(rows), err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
