package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// house is a number of processes on one store, whose clocks differ. One goroutine drives
// them, so a seed is always the same run.
type house struct {
	t         *testing.T
	rng       *rand.Rand
	store     *wire
	now       time.Time // the true time
	processes []*host
	starts    []time.Time
}

// host is a process with its clocks.
type host struct {
	house *house
	gate  *Gate
	off   time.Duration // by how much the wall clock is ahead
	slept time.Duration // for which the clock that never jumps stood still
}

func (h *host) read() Reading {
	return Reading{Wall: h.house.now.Add(h.off), Mono: h.house.now.Sub(epoch) - h.slept}
}

var (
	epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ocr   = Scope{Service: "ocr"}
)

// wire is the store with the faults of a network.
type wire struct {
	tablestore.Store
	fault func(commit func() error) error // nil means none
}

func (w *wire) Commit(ctx context.Context, batch tablestore.Batch) (etags []tablestore.ETag, err error) {
	send := func() error {
		etags, err = w.Store.Commit(ctx, batch)
		return err
	}
	if w.fault == nil {
		return w.Store.Commit(ctx, batch)
	}
	if fault := w.fault(send); fault != nil {
		return nil, fault
	}
	return etags, nil
}

// newHouse starts so many processes whose clocks differ by at most skew.
func newHouse(t *testing.T, seed uint64, count int, window, skew time.Duration, processes int) *house {
	t.Helper()
	h := &house{t: t, rng: rand.New(rand.NewPCG(seed, 0)), store: &wire{Store: memstore.New(memstore.Options{})}, now: epoch.Add(time.Hour)}
	service := New(h.store, "queue", h.rng.Float64)
	if _, err := service.SetLimit(t.Context(), Limit{Scope: ocr, Count: count, Window: window}); err != nil {
		t.Fatal(err)
	}
	for i := range processes {
		p := &host{house: h}
		if processes > 1 {
			p.off = skew * time.Duration(i) / time.Duration(processes-1)
		}
		gate, err := NewGate(t.Context(), Config{Service: service, Skew: skew, Clock: p.read, Random: h.rng.Float64})
		if err != nil {
			t.Fatal(err)
		}
		p.gate = gate
		h.processes = append(h.processes, p)
	}
	return h
}

// lease lets the process lease tokens if it lacks some.
func (h *host) lease() {
	l := h.gate.limits[ocr]
	if now := h.read().Mono; l.again <= now && l.missed.places(now) > 0 {
		h.gate.lease(h.house.t.Context(), ocr, l)
	}
}

// refresh reads the rows.
func (h *host) refresh() {
	if err := h.gate.Refresh(h.house.t.Context()); err != nil {
		h.house.t.Fatal(err)
	}
}

// start starts a directive with the token, if that can still be used.
func (h *host) start(token *Token) {
	if !token.Usable() {
		token.Return()
		return
	}
	h.house.starts = append(h.house.starts, h.house.now)
	token.Spend()
}

// check compares each window with the limit.
func (h *house) check(count int, window time.Duration) {
	h.t.Helper()
	slices.SortFunc(h.starts, time.Time.Compare)
	for i := count; i < len(h.starts); i++ {
		if between := h.starts[i].Sub(h.starts[i-count]); between < window {
			h.t.Fatalf("%d starts within %v from %v on, allowed are %d in %v", count+1, between, h.starts[i-count].Sub(epoch), count, window)
		}
	}
}

// TestGate_NeverAboveTheLimit lets processes with clocks that differ, lost answers, late writes
// and suspensions start as much as they can.
func TestGate_NeverAboveTheLimit(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		name   string
		count  int
		window time.Duration
	}{{"10 in 1 s", 10, time.Second}, {"50 in 5 s", 50, 5 * time.Second}, {"30 in 20 s", 30, 20 * time.Second}} {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			all := 0
			for seed := range uint64(60) {
				h := newHouse(t, seed, of.count, of.window, 250*time.Millisecond, 4)
				h.faults()
				held := map[*host][]Token{}
				for end := h.now.Add(10 * of.window); h.now.Before(end); {
					p := h.processes[h.rng.IntN(len(h.processes))]
					switch h.rng.IntN(8) {
					case 0:
						p.refresh()
					case 1, 2:
						p.lease()
					case 3, 4, 5:
						token, _, ok := p.gate.Take("ocr", "OCR", "a", 1+h.rng.IntN(20), nil)
						for ; ok; token, _, ok = p.gate.Take("ocr", "OCR", "a", 1+h.rng.IntN(20), nil) {
							held[p] = append(held[p], token)
						}
						p.lease()
					case 6:
						for i := range held[p] {
							p.start(&held[p][i])
						}
						held[p] = nil
					case 7:
						h.now = h.now.Add(time.Duration(h.rng.Int64N(int64(of.window / 100))))
						if h.rng.IntN(100) == 0 { // The host is suspended.
							slept := time.Duration(h.rng.Int64N(int64(2 * of.window)))
							h.now, p.slept = h.now.Add(slept), p.slept+slept
						}
						if h.rng.IntN(100) == 0 { // Its wall clock is set, within what is allowed.
							p.off = time.Duration(h.rng.Int64N(int64(250*time.Millisecond) + 1))
						}
					}
				}
				h.check(of.count, of.window)
				all += len(h.starts)
			}
			if share := float64(all) / float64(60*10*of.count); share < 0.3 {
				t.Errorf("the processes started %.2f of what the limit allows: too few to find a fault", share)
			}
		})
	}
}

// faults makes writes slow, loses answers, and lets writes arrive late.
func (h *house) faults() {
	var late []func() error
	h.store.fault = func(send func() error) error {
		if len(late) > 0 && h.rng.IntN(2) == 0 {
			_ = late[0]() // It changes nothing if the row has changed since.
			late = late[1:]
		}
		switch h.rng.IntN(12) {
		case 0:
			h.now = h.now.Add(time.Duration(h.rng.Int64N(int64(400 * time.Millisecond))))
			return send()
		case 1:
			if err := send(); err != nil {
				return err
			}
			return tablestore.ErrUnknown
		case 2:
			late = append(late, send)
			return tablestore.ErrUnknown
		}
		return send()
	}
}

// TestGate_LetsThroughWhatTheFormulaSays gives four processes more work than the limit allows.
func TestGate_LetsThroughWhatTheFormulaSays(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		name      string
		count     int
		window    time.Duration
		skew      time.Duration
		processes int
		share     float64
	}{
		{"600 in 1m", 600, time.Minute, 250 * time.Millisecond, 4, 0.92},
		{"100 in 10s", 100, 10 * time.Second, 250 * time.Millisecond, 4, 0.90},
		{"50 in 5s", 50, 5 * time.Second, 250 * time.Millisecond, 4, 0.87},
		{"600 in 1m, one process", 600, time.Minute, 0, 1, 0.92},
		{"10 in 1s, one process", 10, time.Second, 0, 1, 0.77},
	} {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, 1, of.count, of.window, of.skew, of.processes)
			const windows = 6
			for step, end := 0, h.now.Add(windows*of.window); h.now.Before(end); step++ {
				h.now = h.now.Add(10 * time.Millisecond)
				for _, p := range h.processes {
					if step%100 == 0 {
						p.refresh()
					}
					for {
						token, _, ok := p.gate.Take("ocr", "OCR", "a", 10, nil)
						if !ok {
							break
						}
						p.start(&token)
					}
					p.lease()
				}
			}
			h.check(of.count, of.window)
			// The first window has the whole count at once.
			share := float64(len(h.starts)-of.count) / float64((windows-1)*of.count)
			if share < of.share {
				t.Errorf("%d starts, %.3f of the limit, want %.2f", len(h.starts), share, of.share)
			}
		})
	}
}

// TestGate_SlowerProcessUsesItsTokens: a process that becomes slower after it has leased tokens for
// the items to come still uses them.
func TestGate_SlowerProcessUsesItsTokens(t *testing.T) {
	t.Parallel()
	h := newHouse(t, 1, 1000, time.Minute, 0, 1)
	p, lapsed := h.processes[0], 0.0
	p.gate.cfg.Observe = func(_ Scope, figure Figure, n float64) {
		if figure == Lapsed {
			lapsed += n
		}
	}
	for _, every := range []time.Duration{100 * time.Millisecond, 150 * time.Millisecond} {
		for range 60 {
			h.now = h.now.Add(every)
			p.refresh()
			token, _, ok := p.gate.Take("ocr", "OCR", "a", 1, nil)
			if !ok {
				p.lease()
				token, _, ok = p.gate.Take("ocr", "OCR", "a", 1, nil)
			}
			if !ok {
				t.Fatal("no token could be leased")
			}
			p.start(&token)
		}
	}
	if lapsed > 0 {
		t.Errorf("%g tokens lapsed", lapsed)
	}
}

// TestGate_TokensLapseByEitherClock: a suspended host sees the end of its tokens by the wall
// clock alone, and a host whose wall clock is set back by the other one alone.
func TestGate_TokensLapseByEitherClock(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(p *host, life time.Duration){
		"suspended":           func(p *host, life time.Duration) { p.slept += life },
		"wall clock set back": func(p *host, _ time.Duration) { p.off -= time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, 1, 10, time.Minute, 0, 1)
			p := h.processes[0]
			p.gate.Take("ocr", "OCR", "a", 2, nil)
			p.lease()
			token, _, ok := p.gate.Take("ocr", "OCR", "a", 2, nil)
			if !ok || !token.Usable() {
				t.Fatalf("token %v of a fresh lease, usable %v", ok, token.Usable())
			}
			h.now = h.now.Add(3 * time.Second)
			change(p, 3*time.Second)
			if token.Usable() {
				t.Error("the token is usable after its life")
			}
			if _, _, ok := p.gate.Take("ocr", "OCR", "a", 1, nil); ok {
				t.Error("a lapsed token was taken")
			}
		})
	}
}

// TestGate_ASuspendedHostHasAnOldView: a host that was suspended, or whose wall clock was set, hands nothing out
// until it has read what was paused since.
func TestGate_ASuspendedHostHasAnOldView(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(p *host){
		"suspended":           func(p *host) { p.house.now, p.slept = p.house.now.Add(time.Hour), p.slept+time.Hour },
		"wall clock set back": func(p *host) { p.off -= time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newHouse(t, 1, 10, time.Minute, 0, 1).processes[0]
			change(p)
			if _, _, ok := p.gate.Take("embed", "EMBED", "a", 1, nil); ok || !p.gate.Stale() {
				t.Error("a start is allowed by an old view")
			}
			p.refresh()
			if _, _, ok := p.gate.Take("embed", "EMBED", "a", 1, nil); !ok {
				t.Error("no start is allowed by a new view")
			}
		})
	}
}

// TestGate_ClockThatIsAheadAddsOneCount: two processes whose clocks differ by more than the
// window would drop each other's buckets in turn, if the one that is ahead did not notice.
func TestGate_ClockThatIsAheadAddsOneCount(t *testing.T) {
	t.Parallel()
	const count, window = 20, 10 * time.Second
	h := newHouse(t, 1, count, window, 250*time.Millisecond, 8)
	h.processes[0].off = time.Hour
	for step, end := 0, h.now.Add(10*window); h.now.Before(end); step++ {
		h.now = h.now.Add(20 * time.Millisecond)
		for _, p := range h.processes {
			if step%50 == 0 {
				p.refresh()
			}
			for token, _, ok := p.gate.Take("ocr", "OCR", "a", 10, nil); ok; token, _, ok = p.gate.Take("ocr", "OCR", "a", 10, nil) {
				p.start(&token)
			}
			p.lease()
		}
	}
	h.check(2*count, window)
	if len(h.starts) < 7*count {
		t.Errorf("%d starts in ten windows of %d: the wrong clock closed the limit", len(h.starts), count)
	}
}

// TestGate_BucketsFromTheFutureEnd: a process whose clock is an hour ahead takes the whole count
// and ends. It must not close the limit for an hour.
func TestGate_BucketsFromTheFutureEnd(t *testing.T) {
	t.Parallel()
	const count, window = 10, 10 * time.Second
	h := newHouse(t, 1, count, window, 250*time.Millisecond, 2)
	wrong, right := h.processes[0], h.processes[1]
	wrong.off = time.Hour
	wrong.refresh()
	wrong.gate.Take("ocr", "OCR", "a", count, nil)
	wrong.lease()
	started := false
	for end := h.now.Add(3 * window); h.now.Before(end); h.now = h.now.Add(100 * time.Millisecond) {
		right.refresh()
		if token, _, ok := right.gate.Take("ocr", "OCR", "a", 1, nil); ok {
			right.start(&token)
			started = true
		}
		right.lease()
	}
	if !started {
		t.Error("the limit lets nothing through after two windows")
	}
}

// TestService_Closures says how the changes of one closure meet.
func TestService_Closures(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		change func(t *testing.T, s *Service) (Closure, error)
		until  time.Duration // from the beginning of the test
	}{
		"a later end counts": {func(t *testing.T, s *Service) (Closure, error) {
			return s.Close(t.Context(), Closure{Scope: ocr, Until: tablestore.Now().Add(time.Hour)}, tablestore.Now())
		}, time.Hour},
		"an earlier end does not shorten it": {func(t *testing.T, s *Service) (Closure, error) {
			return s.Close(t.Context(), Closure{Scope: ocr, Until: tablestore.Now().Add(time.Second)}, tablestore.Now())
		}, time.Minute},
		"an operator opens it": {func(t *testing.T, s *Service) (Closure, error) {
			return s.Open(t.Context(), ocr, "ops", "the vendor is back")
		}, 0},
		"a RESULT from before it was opened does not close it again": {func(t *testing.T, s *Service) (Closure, error) {
			answered := tablestore.Now()
			time.Sleep(time.Second)
			if _, err := s.Open(t.Context(), ocr, "ops", "the vendor is back"); err != nil {
				return Closure{}, err
			}
			return s.Close(t.Context(), Closure{Scope: ocr, Until: tablestore.Now().Add(time.Hour)}, answered)
		}, time.Second},
		"a RESULT from after it was opened closes it": {func(t *testing.T, s *Service) (Closure, error) {
			if _, err := s.Open(t.Context(), ocr, "ops", "the vendor is back"); err != nil {
				return Closure{}, err
			}
			time.Sleep(time.Second)
			return s.Close(t.Context(), Closure{Scope: ocr, Until: tablestore.Now().Add(time.Hour)}, tablestore.Now())
		}, time.Hour + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, began := New(memstore.New(memstore.Options{}), "queue", nil), tablestore.Now()
				if _, err := s.Close(t.Context(), Closure{Scope: ocr, Until: began.Add(time.Minute)}, began); err != nil {
					t.Fatal(err)
				}
				closure, err := of.change(t, s)
				if err != nil {
					t.Fatal(err)
				}
				if got := closure.Until.Sub(began); got != of.until {
					t.Errorf("it is closed for %v, want %v", got, of.until)
				}
			})
		})
	}
}

// TestGate_ForgetsOldClosures: a closure is deleted an hour after its end, and not before.
func TestGate_ForgetsOldClosures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, gate := open(t, memstore.New(memstore.Options{}))
		if _, err := s.Close(t.Context(), Closure{Scope: ocr, Until: tablestore.Now().Add(time.Minute)}, tablestore.Now()); err != nil {
			t.Fatal(err)
		}
		for _, of := range []struct {
			after time.Duration
			rows  int
		}{{time.Minute, 1}, {time.Hour - time.Second, 1}, {time.Second, 0}} {
			time.Sleep(of.after)
			if err := gate.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if found, err := s.scan(t.Context()); err != nil || len(found.closures) != of.rows {
				t.Errorf("%d closures are stored after another %v, %v; want %d", len(found.closures), of.after, err, of.rows)
			}
		}
	})
}

// TestGate_ClosesForAnHourAtMost: what a worker answers does not close a service for longer.
func TestGate_ClosesForAnHourAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, gate := open(t, memstore.New(memstore.Options{}))
		now := tablestore.Now()
		gate.Close(statemachine.Closure{Service: "ocr", Until: now.Add(24 * time.Hour), ResultAt: now})
		if by := gate.Blocks("ocr", "OCR", "a"); by == nil || !by.Closed || by.Until.Sub(now) != time.Hour {
			t.Errorf("blocked by %+v, want for an hour", by)
		}
	})
}

// A worker may name any tenant, and each process reads all closures every second.
func TestGate_KeepsFewClosures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, gate := open(t, memstore.New(memstore.Options{}))
		closes := func(tenant string, after time.Duration) bool {
			now := tablestore.Now()
			return gate.Close(statemachine.Closure{Service: ocr.Service, TenantID: tenant, Until: now.Add(after), ResultAt: now})
		}
		for n := range maxClosures {
			if !closes(fmt.Sprint("t", n), time.Minute) {
				t.Fatalf("closure %d is refused", n)
			}
		}
		if closes("one more", time.Minute) {
			t.Errorf("there are more than %d closures", maxClosures)
		}
		if !closes("t7", time.Hour) {
			t.Error("a scope that is closed cannot be closed for longer")
		}
	})
}

// TestGate_LeavesRoomForWhatResultsClose: the closures of one tenant's operators refuse no RESULT of
// another tenant.
func TestGate_LeavesRoomForWhatResultsClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, gate := open(t, memstore.New(memstore.Options{}))
		now := tablestore.Now()
		for n := range maxClosures {
			gate.ApplyClosure(Closure{Scope: Scope{Service: fmt.Sprint("s", n), TenantID: "a"}, Until: now.Add(time.Hour)})
		}
		if !gate.Close(statemachine.Closure{Service: ocr.Service, TenantID: "b", Until: now.Add(time.Minute), ResultAt: now}) {
			t.Error("a throttled RESULT closes nothing")
		}
	})
}

// TestGate_ShorterWindowDropsTokens: tokens that were leased for a longer window live longer
// than the new one counts them for.
func TestGate_ShorterWindowDropsTokens(t *testing.T) {
	t.Parallel()
	h := newHouse(t, 1, 100, time.Minute, 0, 1)
	p := h.processes[0]
	p.gate.Take("ocr", "OCR", "a", 50, nil)
	p.lease()
	if _, err := p.gate.cfg.Service.SetLimit(t.Context(), Limit{Scope: ocr, Count: 1, Window: time.Second}); err != nil {
		t.Fatal(err)
	}
	p.refresh()
	if _, _, ok := p.gate.Take("ocr", "OCR", "a", 1, nil); ok {
		t.Error("a token of the longer window was taken")
	}
}

// TestGate_OperatorDoesNotShortenAClosure: a RESULT closes a scope for longer than an operator
// does at the same moment, before the closure of the RESULT is written.
func TestGate_OperatorDoesNotShortenAClosure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, gate := open(t, memstore.New(memstore.Options{}))
		now := tablestore.Now()
		gate.Close(statemachine.Closure{Service: "ocr", Until: now.Add(time.Minute), ResultAt: now})
		stored, err := s.Close(t.Context(), Closure{Scope: ocr, Until: now.Add(time.Second)}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		gate.ApplyClosure(stored)
		if by := gate.Blocks("ocr", "OCR", "a"); by == nil || by.Until.Sub(now) != time.Minute {
			t.Errorf("blocked by %+v, want for a minute", by)
		}
	})
}
