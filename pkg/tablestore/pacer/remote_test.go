//go:build integration

package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pacer"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// shortDeadline is the deadline of a call in these tests.
var shortDeadline = waittest.Scale(200 * time.Millisecond)

// slowProxy forwards connections to a service. While it is slow, each answer comes half of the
// deadline up to twice as late, however many parts it has.
type slowProxy struct {
	target string
	slow   atomic.Bool
	opened atomic.Int64 // connections

	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// newSlowProxy starts a proxy in front of the address, and returns its own. It ends with the
// test.
func newSlowProxy(t *testing.T, target string) (p *slowProxy, address string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = &slowProxy{target: target, open: map[net.Conn]struct{}{}}
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			p.opened.Add(1)
			busy.Go(func() { p.forward(from) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // This ends the loop above.
		p.mu.Lock()
		for end := range p.open {
			_ = end.Close() // forward returns.
		}
		p.mu.Unlock()
		busy.Wait()
	})
	return p, listener.Addr().String()
}

// forward copies data in both directions until one side closes.
func (p *slowProxy) forward(from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.open[from], p.open[to] = struct{}{}, struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	var asked atomic.Bool
	both.Go(func() {
		_, _ = io.Copy(&request{to, &asked}, from) // Both ends are closed, whatever ended the copy.
		_, _ = from.Close(), to.Close()
	})
	p.answer(from, to, &asked)
	_, _ = from.Close(), to.Close()
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, from)
	delete(p.open, to)
}

// request marks that an answer is due once a part of a request is written.
type request struct {
	to    io.Writer
	asked *atomic.Bool
}

func (r *request) Write(part []byte) (int, error) {
	r.asked.Store(true)
	return r.to.Write(part)
}

// answer copies the answers of the service.
func (p *slowProxy) answer(to io.Writer, from io.Reader, asked *atomic.Bool) {
	part := make([]byte, 1<<16)
	for {
		n, err := from.Read(part)
		if asked.Swap(false) && p.slow.Load() {
			time.Sleep(shortDeadline/2 + rand.N(shortDeadline*3/2))
		}
		if _, failed := to.Write(part[:n]); failed != nil || err != nil {
			return
		}
	}
}

// onAzurite returns a store on Azurite behind a proxy.
func onAzurite(t *testing.T) (tablestore.Store, *slowProxy) {
	t.Helper()
	server, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	proxy, address := newSlowProxy(t, server.Addr())
	store, err := aztablestore.Open(t.Context(), aztablestore.Options{
		Connection: strings.ReplaceAll(server.ConnectionString(), server.Addr(), address), Tables: []string{"luciusledger", "luciusschedule", "luciusqueue", "jobidempotency", "luciusjobindex"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return store, proxy
}

// onPostgres returns a store on PostgreSQL behind a proxy.
func onPostgres(t *testing.T) (tablestore.Store, *slowProxy) {
	t.Helper()
	database, err := url.Parse(postgrestest.DatabaseOn(t, postgrestest.Start(t)))
	if err != nil {
		t.Fatal(err)
	}
	proxy, address := newSlowProxy(t, database.Host)
	database.Host = address
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: database.String(), Timeout: 25 * shortDeadline})
	if err != nil {
		t.Fatal(err)
	}
	return store, proxy
}

// TestASlowStore accepts and cancels jobs on a store whose answers take half of the deadline up
// to twice as long, while background loops read without a pause. Every job ends, with fewer calls
// at once and a longer deadline, and few calls are in vain.
func TestASlowStore(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) (tablestore.Store, *slowProxy){
		"on Azurite": onAzurite, "on PostgreSQL": onPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			remote, proxy := open(t)
			t.Cleanup(func() { _ = remote.Close() }) // It never fails.
			counted, counter := storetest.Counting(remote)
			store := pacer.New(counted, pacer.Config{Deadline: shortDeadline})
			l := ledgertest.Open(t, ledger.Config{Store: store, Bus: statemachine.BusServiceBus, Shared: true})
			counter.Reset()
			proxy.slow.Store(true)
			reading, stop := context.WithCancel(t.Context())
			var loops sync.WaitGroup
			for n := range 12 {
				loop := tablestore.ForLoop(reading, fmt.Sprint("loop ", n))
				loops.Go(func() {
					for loop.Err() == nil {
						_, _, _ = l.Due(loop, ledger.Timer, 0, time.Now(), 1, "") // It may be late.
					}
				})
			}
			const clients, jobs = 40, 4
			var group sync.WaitGroup
			var requests atomic.Int64
			for client := range clients {
				group.Go(func() {
					for job := range jobs {
						requests.Add(acceptAndCancel(t, l, fmt.Sprint(client, "-", job)))
					}
				})
			}
			group.Wait()
			stop()
			loops.Wait()
			p, counts, opened := pace(store), counter.Counts(), proxy.opened.Load()
			calls := counts.Gets + counts.Scans + counts.Commits
			t.Logf("%d requests, %d calls, %d connections, %+v", requests.Load(), calls, opened, p)
			if p.Timeouts == 0 || p.Timeouts > calls/2 || p.Deadline <= shortDeadline || p.Slow.IsZero() {
				t.Errorf("of %d calls some timed out: the pace is %+v", calls, p)
			}
			if p.Underway != 0 || p.Waiting != 0 {
				t.Errorf("calls are left: %+v", p)
			}
			if opened > clients*jobs {
				t.Errorf("%d connections were opened for %d jobs", opened, clients*jobs)
			}
		})
	}
}

// acceptAndCancel carries a job from its command to its end, and repeats a request that the
// store did not confirm, as a client does. It returns the number of requests.
func acceptAndCancel(t *testing.T, l *ledgertest.Ledger, name string) (requests int64) {
	t.Helper()
	var id string
	for _, request := range []func() error{
		func() error {
			accepted, err := l.Accept(t.Context(), ledgertest.Command("t", name))
			if err == nil {
				id = accepted.Job.ID
			}
			return err
		},
		func() error {
			_, err := l.Change(t.Context(), id, statemachine.Cancel{})
			return err
		},
	} {
		for {
			requests++
			err := request()
			if err == nil {
				break
			}
			if !errors.Is(err, tablestore.ErrUnknown) && !errors.Is(err, tablestore.ErrUnavailable) {
				t.Errorf("job %s: %v", name, err)
				return requests
			}
		}
	}
	return requests
}
