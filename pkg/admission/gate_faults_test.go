package admission

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// TestGate_OperatorBeforeTheWrite: an operator may store a closure of the scope before the one of
// this process is written.
func TestGate_OperatorBeforeTheWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, gate := open(t, memstore.New(memstore.Options{}))
		now := tablestore.Now()
		gate.Close(statemachine.Closure{Service: "ocr", Until: now.Add(time.Minute), ResultAt: now})
		c := gate.closures[ocr]
		fresh, answered := c.unwritten, c.answered
		stored, err := s.Close(t.Context(), Closure{Scope: ocr, Until: now.Add(time.Hour)}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		gate.ApplyClosure(stored)
		gate.write(t.Context(), ocr, c, fresh, answered)
		if by := gate.Blocks("ocr", "OCR", "a"); by == nil || by.Until.Sub(now) != time.Hour {
			t.Errorf("blocked by %+v, want for an hour", by)
		}
	})
}

// TestGate_SlowRefresh: a refresh that began before another and ends after it changes nothing, and
// tells no negative time.
func TestGate_SlowRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := &slowScan{Store: memstore.New(memstore.Options{})}
		s := New(slow, "queue", nil)
		if _, err := s.Close(t.Context(), Closure{Scope: ocr, Until: tablestore.Now().Add(time.Hour)}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		gate, err := NewGate(t.Context(), Config{Service: s, Observe: func(_ Scope, figure Figure, n float64) {
			if n < 0 {
				t.Errorf("%v of %v", n, figure)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		slow.after.Store(int64(2 * time.Second))
		ended := make(chan error)
		go func() { ended <- gate.Refresh(t.Context()) }()
		time.Sleep(time.Second)
		slow.after.Store(0)
		if _, err := s.SetLimit(t.Context(), Limit{Scope: ocr, Count: 1, Window: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if err := gate.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if gate.limits[ocr] == nil {
			t.Error("the slow refresh has hidden the limit")
		}
	})
}

// slowScan answers scans late.
type slowScan struct {
	tablestore.Store

	after atomic.Int64 // a duration
}

func (s *slowScan) Scan(ctx context.Context, q tablestore.Query) (tablestore.Page, error) {
	page, err := s.Store.Scan(ctx, q)
	time.Sleep(time.Duration(s.after.Load()))
	return page, err
}

// TestGate_ForgetsFewAtOnce: while a refresh deletes closures that are over, the view ages.
func TestGate_ForgetsFewAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(memstore.New(memstore.Options{}), "queue", nil)
		for i := range 3 * maxForgotten {
			scope := Scope{Service: "ocr", TenantID: fmt.Sprint(i)}
			if _, err := s.Close(t.Context(), Closure{Scope: scope, Until: tablestore.Now().Add(time.Minute)}, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)
		gate, err := NewGate(t.Context(), Config{Service: s})
		if err != nil {
			t.Fatal(err)
		}
		for left := 2 * maxForgotten; left >= 0; left -= maxForgotten {
			if found, err := s.scan(t.Context()); err != nil || len(found.closures) != left {
				t.Errorf("%d closures are stored, %v; want %d", len(found.closures), err, left)
			}
			if err := gate.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestGate_RaisedLimit: a limit that was used up gives tokens as soon as it is raised.
func TestGate_RaisedLimit(t *testing.T) {
	t.Parallel()
	h := newHouse(t, 1, 1, time.Hour, 0, 1)
	p := h.processes[0]
	for _, of := range []struct {
		count int
		want  bool
	}{{1, true}, {1, false}, {2, true}} {
		if _, err := p.gate.cfg.Service.SetLimit(t.Context(), Limit{Scope: ocr, Count: of.count, Window: time.Hour}); err != nil {
			t.Fatal(err)
		}
		p.refresh()
		if _, _, ok := p.gate.Take("ocr", "OCR", "a", 1, nil); ok {
			t.Fatal("there is a token that was not leased")
		}
		p.lease()
		token, _, ok := p.gate.Take("ocr", "OCR", "a", 1, nil)
		if ok != of.want {
			t.Fatalf("a limit of %d gives a token: %v, want %v", of.count, ok, of.want)
		}
		if ok {
			token.Spend()
		}
	}
}

// open returns the rows of a store, and a gate on them.
func open(t *testing.T, store tablestore.Store) (*Service, *Gate) {
	t.Helper()
	s := New(store, "queue", nil)
	gate, err := NewGate(t.Context(), Config{Service: s})
	if err != nil {
		t.Fatal(err)
	}
	return s, gate
}

// TestGate_StoreThatRefusesWrites: leases and closures are written as soon as the store takes writes
// again, and until then the closure holds in its own process and no token can be used.
func TestGate_StoreThatRefusesWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &wire{Store: memstore.New(memstore.Options{})}
		s, gate := open(t, store)
		if _, err := s.SetLimit(t.Context(), Limit{Scope: Scope{Service: "embed"}, Count: 5, Window: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if err := gate.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		var refuses atomic.Bool
		refuses.Store(true)
		store.fault = func(send func() error) error {
			if refuses.Load() {
				return tablestore.ErrUnavailable
			}
			return send()
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- gate.Run(ctx) }()

		now := tablestore.Now()
		gate.Close(statemachine.Closure{Service: "ocr", Until: now.Add(time.Minute), ResultAt: now})
		take := func() bool {
			_, _, ok := gate.Take("embed", "EMBED", "a", 1, nil)
			time.Sleep(2 * time.Second) // The view must not become too old.
			if err := gate.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			return ok
		}
		for range 2 {
			if take() {
				t.Error("a token was taken that is not known leased")
			}
		}
		if by := gate.Blocks("ocr", "OCR", "a"); by == nil || !by.Closed {
			t.Error("the service is open in the process that closed it")
		}
		refuses.Store(false)
		if take(); !take() {
			t.Error("no token was leased after the store came back")
		}
		if _, other := open(t, store); other.Blocks("ocr", "OCR", "a") == nil {
			t.Error("another process sees no closure after the store came back")
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestGate_LimitMadeAgain: a process that leases tokens finds that the limit was deleted and made again. Nothing was leased of the
// new one, which does not mean that the process's clock is ahead.
func TestGate_LimitMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, 1, 2, time.Hour, 0, 1)
		p := h.processes[0]
		take := func() bool {
			h.now = h.now.Add(time.Second)
			p.gate.Take("ocr", "OCR", "a", 1, nil)
			p.lease()
			token, _, ok := p.gate.Take("ocr", "OCR", "a", 1, nil)
			token.Spend()
			return ok
		}
		if !take() {
			t.Fatal("the limit gives no token")
		}
		time.Sleep(time.Second)
		if err := p.gate.cfg.Service.DeleteLimit(t.Context(), ocr); err != nil {
			t.Fatal(err)
		}
		if _, err := p.gate.cfg.Service.SetLimit(t.Context(), Limit{Scope: ocr, Count: 2, Window: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if !take() {
			t.Error("the new limit gives no token")
		}
		p.refresh()
		if take(); take() {
			t.Error("the new limit gives three tokens")
		}
	})
}

// TestGate_TellsOfDeletedLimits: the figures of a limit end with it, whether a refresh or a lease finds that it is gone.
func TestGate_TellsOfDeletedLimits(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(p *host){
		"a refresh": (*host).refresh,
		"a lease": func(p *host) {
			p.gate.Take("ocr", "OCR", "a", 1, nil)
			p.lease()
		},
	} {
		h := newHouse(t, 1, 2, time.Hour, 0, 1)
		p, deleted := h.processes[0], 0
		p.gate.cfg.Observe = func(scope Scope, figure Figure, _ float64) {
			if figure == Deleted && scope == ocr {
				deleted++
			}
		}
		p.refresh()
		if deleted != 0 {
			t.Errorf("%s: the limit is deleted before it is", name)
		}
		if err := p.gate.cfg.Service.DeleteLimit(t.Context(), ocr); err != nil {
			t.Fatal(err)
		}
		h.now = h.now.Add(time.Second)
		find(p)
		p.refresh()
		if deleted != 1 {
			t.Errorf("%s: %d deletions are told of, want 1", name, deleted)
		}
	}
}

// TestGate_FiguresOfADeletedLimitDoNotComeBack: what was in flight when a refresh found the limit deleted counts no more.
func TestGate_FiguresOfADeletedLimitDoNotComeBack(t *testing.T) {
	t.Parallel()
	for figure, inFlight := range map[Figure]func(p *host, l *limit, token *Token){
		Spent:     func(_ *host, _ *limit, token *Token) { token.Spend() },
		Conflicts: func(p *host, l *limit, _ *Token) { p.gate.lease(t.Context(), ocr, l) },
		Reclaimed: func(p *host, l *limit, _ *Token) { p.gate.judge(t.Context(), ocr, l, make([]ledger.RunRow, 1)) },
	} {
		for _, deleted := range []bool{false, true} {
			p := newHouse(t, 1, 2, time.Hour, 0, 1).processes[0]
			gate := p.gate
			gate.cfg.Runs = &board{void: map[int]bool{0: true}}
			gate.Take("ocr", "OCR", "a", 1, nil)
			p.lease()
			token, _, ok := gate.Take("ocr", "OCR", "a", 1, nil)
			if !ok {
				t.Fatal("the limit gives no token")
			}
			l, counted := gate.limits[ocr], 0
			gate.cfg.Observe = func(_ Scope, of Figure, _ float64) {
				if of == figure {
					counted++
				}
			}
			if err := gate.cfg.Service.DeleteLimit(t.Context(), ocr); err != nil {
				t.Fatal(err)
			}
			if deleted {
				p.house.now = p.house.now.Add(time.Second)
				p.refresh()
			}
			if inFlight(p, l, &token); (counted == 0) != deleted {
				t.Errorf("%s, deleted is %v: %d are counted", figure, deleted, counted)
			}
		}
	}
}
