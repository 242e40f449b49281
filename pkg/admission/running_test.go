package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// board is the store of the run slots of one limit: a row of each that is taken.
type board struct {
	mu   sync.Mutex // held by the methods that a gate calls
	rows map[int]ledger.RunRow
	void map[int]bool  // rows that a crash left
	took time.Duration // by each judgement
}

func (b *board) RunRows(context.Context, Scope) (rows []ledger.RunRow, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, no := range slices.Sorted(maps.Keys(b.rows)) {
		rows = append(rows, b.rows[no])
	}
	return rows, nil
}

func (b *board) JudgeRun(_ context.Context, row *ledger.RunRow) (freed bool, err error) {
	time.Sleep(b.took)
	b.mu.Lock()
	defer b.mu.Unlock()
	if freed = b.void[row.Slot.No]; freed {
		delete(b.void, row.Slot.No)
		delete(b.rows, row.Slot.No)
	}
	return freed, nil
}

// insert takes the token's slot, as the write of a claim does. It reports false if no slot is free.
func (b *board) insert(token *Token, workID string) (slot statemachine.RunSlot, ok bool) {
	slot = token.Slots()[0]
	for {
		if _, taken := b.rows[slot.No]; !taken {
			b.rows[slot.No] = ledger.RunRow{Slot: slot, WorkID: workID, AttemptNo: 1, Rev: 2}
			return slot, true
		}
		if slot, ok = token.Another(slot); !ok {
			return slot, false
		}
	}
}

// TestGate_NeverMoreRunThanAllowed lets processes with views of different ages claim and end attempts,
// with crashes, while an operator raises and lowers the limit. Once all processes know a lower limit, no
// claim makes more run than it allows.
func TestGate_NeverMoreRunThanAllowed(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 0))
		now, most := epoch, 1+rng.IntN(6)
		service := New(memstore.New(memstore.Options{}), "queue", rng.Float64)
		rows := &board{rows: map[int]ledger.RunRow{}, void: map[int]bool{}}
		set := func() {
			if _, err := service.SetLimit(t.Context(), Limit{Scope: ocr, MaxRunning: most, Reason: fmt.Sprint(most)}); err != nil {
				t.Fatal(err)
			}
		}
		set()
		gates := make([]*Gate, 3)
		for i := range gates {
			var err error
			gates[i], err = NewGate(t.Context(), Config{
				Service: service, Runs: rows, Random: rng.Float64,
				Clock: func() Reading { return Reading{Wall: now, Mono: now.Sub(epoch) + time.Hour} },
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		refresh := func(g *Gate) {
			if err := errors.Join(g.Refresh(t.Context()), g.RefreshRuns(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
		claims := 0
		for step := range 600 {
			now = now.Add(10 * time.Millisecond)
			g := gates[rng.IntN(len(gates))]
			switch rng.IntN(8) {
			case 0:
				refresh(g)
			case 1, 2:
				held := slices.DeleteFunc(slices.Sorted(maps.Keys(rows.rows)), func(no int) bool { return rows.void[no] })
				if len(held) > 0 {
					no := held[rng.IntN(len(held))]
					slot := rows.rows[no].Slot
					delete(rows.rows, no)
					g.Freed([]statemachine.RunSlot{slot})
				}
			case 3:
				if step%50 == 0 {
					most = 1 + rng.IntN(6)
					set()
					for _, g := range gates {
						refresh(g)
					}
				}
			default:
				before := len(rows.rows)
				token, _, ok := g.Take("ocr", "OCR", "tenant_a", 1, nil)
				if !ok {
					continue
				}
				slot, took := rows.insert(&token, fmt.Sprint(step))
				if !took {
					token.Return()
					continue
				}
				token.Spend()
				claims++
				if rng.IntN(10) == 0 {
					rows.void[slot.No] = true // Its process crashed.
				}
				if before+1 > most {
					t.Fatalf("seed %d: %d run, at most %d may", seed, before+1, most)
				}
			}
			if rng.IntN(40) == 0 {
				all, _ := rows.RunRows(t.Context(), ocr)
				g.judge(t.Context(), ocr, g.limits[ocr], all)
			}
		}
		if claims < 20 {
			t.Errorf("seed %d: only %d claims", seed, claims)
		}
	}
}

// TestGate_JudgesEachSlotInTurn: while a limit is full, what a crash left is found also if more slots of
// older attempts are taken than can be judged until the first of them is due again.
func TestGate_JudgesEachSlotInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 150
		service := New(memstore.New(memstore.Options{}), "queue", nil)
		_, err := service.SetLimit(t.Context(), Limit{Scope: ocr, MaxRunning: most})
		if err != nil {
			t.Fatal(err)
		}
		rows := &board{rows: map[int]ledger.RunRow{}, void: map[int]bool{most - 1: true}, took: 100 * time.Millisecond}
		began := time.Now()
		for no := range most { // The youngest is void.
			rows.rows[no] = ledger.RunRow{
				Slot: statemachine.RunSlot{Limit: ocr.ID(), No: no}, WorkID: fmt.Sprint(no), AttemptNo: 1, Rev: 2,
				At: began.Add(time.Duration(no) * time.Millisecond),
			}
		}
		gate, err := NewGate(t.Context(), Config{Service: service, Runs: rows})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = gate.Run(ctx) })
		defer running.Wait()
		defer end()
		for time.Since(began) < time.Minute {
			if token, _, ok := gate.Take("ocr", "OCR", "tenant_a", 1, nil); ok {
				token.Return()
				return
			}
			time.Sleep(time.Second)
			if err := errors.Join(gate.Refresh(ctx), gate.RefreshRuns(ctx)); err != nil {
				t.Fatal(err)
			}
		}
		t.Errorf("after %s no claim has found the slot that a crash left", time.Since(began))
	})
}

// manyRuns are the run slots of many limits: all are free, and each read takes a time. Those of embed cannot be read.
type manyRuns struct{ took time.Duration }

func (r *manyRuns) RunRows(_ context.Context, scope Scope) ([]ledger.RunRow, error) {
	time.Sleep(r.took)
	if r.took > 0 && scope.Service == "embed" {
		return nil, tablestore.ErrUnavailable
	}
	return nil, nil
}

func (*manyRuns) JudgeRun(context.Context, *ledger.RunRow) (freed bool, err error) { return false, nil }

// TestGate_ReadsOfRunSlotsDoNotAgeTheView: however long the slots of many limits take to read, and also if
// some cannot be read, the view of the rest stays young, and a slot that another process freed is seen.
func TestGate_ReadsOfRunSlotsDoNotAgeTheView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		service, rows := New(memstore.New(memstore.Options{}), "queue", nil), &manyRuns{}
		for i := range 1000 {
			of := Scope{Service: []string{"ocr", "embed"}[i%2], TenantID: fmt.Sprint(i)}
			if _, err := service.SetLimit(t.Context(), Limit{Scope: of, MaxRunning: 1}); err != nil {
				t.Fatal(err)
			}
		}
		gate, err := NewGate(t.Context(), Config{Service: service, Runs: rows})
		if err != nil {
			t.Fatal(err)
		}
		rows.took = 100 * time.Millisecond
		token, _, _ := gate.Take("ocr", "OCR", "0", 1, nil)
		token.Spend() // Its attempt ends at another process.
		ctx, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for _, pass := range []func(context.Context) error{gate.Refresh, gate.RefreshRuns} {
			running.Go(func() { // As the server's loops do.
				for ctx.Err() == nil {
					next := time.After(time.Second)
					_ = pass(ctx)
					<-next
				}
			})
		}
		defer running.Wait()
		defer end()
		for range 60 {
			time.Sleep(500 * time.Millisecond)
			if gate.Stale() {
				t.Fatal("the view is stale")
			}
		}
		if _, by, ok := gate.Take("ocr", "OCR", "0", 1, nil); !ok {
			t.Errorf("the slot of %s is not seen free after half a minute", by.ID())
		}
	})
}
