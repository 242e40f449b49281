//go:build integration

package pacer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pacer"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// shortDeadline is the deadline of a call in these tests.
var shortDeadline = waittest.Scale(200 * time.Millisecond)

// slowProxy forwards connections to a service. While it is slow, each part of an answer comes
// half of the deadline up to twice as late.
type slowProxy struct {
	target string
	slow   atomic.Bool

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
	both.Go(func() {
		_, _ = io.Copy(to, from) // Both ends are closed, whatever ended the copy.
		_, _ = from.Close(), to.Close()
	})
	p.answer(from, to)
	_, _ = from.Close(), to.Close()
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, from)
	delete(p.open, to)
}

// answer copies the answers of the service.
func (p *slowProxy) answer(to io.Writer, from io.Reader) {
	part := make([]byte, 1<<16)
	for {
		n, err := from.Read(part)
		if p.slow.Load() {
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

// TestASlowStoreOnAzurite accepts and cancels jobs on a store whose answers take half of the
// deadline up to twice as long. Every job ends, with fewer calls at once and a longer deadline,
// and few calls are in vain.
func TestASlowStoreOnAzurite(t *testing.T) {
	t.Parallel()
	remote, proxy := onAzurite(t)
	t.Cleanup(func() { _ = remote.Close() }) // It never fails.
	counted, counter := storetest.Counting(remote)
	store := pacer.New(counted, pacer.Config{Deadline: shortDeadline})
	l := ledgertest.Open(t, ledger.Config{Store: store, Bus: statemachine.BusServiceBus})
	counter.Reset()
	proxy.slow.Store(true)
	const jobs = 40
	var group sync.WaitGroup
	var requests atomic.Int64
	for i := range jobs {
		group.Go(func() { requests.Add(acceptAndCancel(t, l, fmt.Sprint(i))) })
	}
	group.Wait()
	p, counts := pace(store), counter.Counts()
	calls := counts.Gets + counts.Scans + counts.Commits
	t.Logf("%d requests, %d calls, %+v", requests.Load(), calls, p)
	if p.Timeouts == 0 || p.Timeouts > calls/2 || p.Deadline <= shortDeadline || p.Slow.IsZero() {
		t.Errorf("of %d calls some timed out: the pace is %+v", calls, p)
	}
	if p.Underway != 0 || p.Waiting != 0 {
		t.Errorf("calls are left: %+v", p)
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
