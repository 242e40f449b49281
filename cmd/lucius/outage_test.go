//go:build integration

package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// tcpProxy forwards connections to a service until it is closed.
type tcpProxy struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
	busy   sync.WaitGroup
}

// newTCPProxy starts a proxy in front of the address. It ends with the test.
func newTCPProxy(t *testing.T, target string) *tcpProxy {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tcpProxy{listener: listener, target: target, open: map[net.Conn]struct{}{}}
	p.busy.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			p.busy.Go(func() { p.forward(from) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // This ends the loop above.
		p.close()
		p.busy.Wait()
	})
	return p
}

// forward copies data in both directions until one side closes.
func (p *tcpProxy) forward(from net.Conn) {
	to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.target)
	if err != nil || !p.add(from, to) {
		_ = from.Close() // so that the caller notices
		if err == nil {
			_ = to.Close()
		}
		return
	}
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // Both ends are closed, whatever ended the copy.
			_, _ = pair[0].Close(), pair[1].Close()
		})
	}
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, from)
	delete(p.open, to)
}

// add registers both ends of a connection, unless the proxy is closed.
func (p *tcpProxy) add(ends ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	for _, end := range ends {
		p.open[end] = struct{}{}
	}
	return true
}

// close cuts all connections and refuses new ones.
func (p *tcpProxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for end := range p.open {
		_ = end.Close() // forward returns.
	}
}

// reopen lets connections through again.
func (p *tcpProxy) reopen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
}

// connectionOver returns the account's connection string with the proxy's address.
func (p *tcpProxy) connectionOver(account *azurite.Server) string {
	return strings.ReplaceAll(account.ConnectionString(), account.Addr(), p.listener.Addr().String())
}

// While the storage account is unreachable, clients get an error, and no accepted job fails
// or loses an attempt, however long the outage lasts.
func TestServe_WaitsForAnUnreachableAccount(t *testing.T) {
	t.Parallel()
	account, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(account.Stop)
	proxy := newTCPProxy(t, account.Addr())
	lease := waittest.Scale(15 * time.Second) // A third of it is left for a report after the outage.
	s := serveOn(t, t.TempDir(), "--storage-backend", config.BackendLedger, "--table-connection", proxy.connectionOver(account),
		"--ack-timeout", lease.String(), "--lease-duration", lease.String(), "--sweep-interval", "1s", "--outbox-retry-interval", "1s")
	waiting, inHand := s.submitAs(t, "waiting"), s.submitAs(t, "in hand")
	item := s.claim(t, "c1", true)

	proxy.close()
	for deadline := time.Now().Add(lease + lease/2); time.Now().Before(deadline); {
		response, err := s.client.SubmitCommandWithResponse(t.Context(), nil, commandOf("tenant_a", "refused"))
		if err != nil || response.StatusCode() != http.StatusServiceUnavailable || response.HTTPResponse.Header.Get("Retry-After") == "" ||
			!strings.Contains(string(response.Body), `"code":"store_unavailable"`) {
			t.Fatalf("while the account is away: %v, %s", err, bodyOf(response))
		}
	}
	if response, err := s.client.GetReadinessWithResponse(t.Context()); err != nil || response.StatusCode() != http.StatusServiceUnavailable {
		t.Errorf("readiness: %v, %s", err, bodyOf(response))
	}
	proxy.reopen()

	s.complete(t, item)
	rest := workOver(t, s)
	defer rest()
	for _, jobID := range []string{waiting, inHand} {
		if job := s.wait(t, jobID); job.State != api.JobStateSucceeded || job.AttemptsTotal != 3 {
			t.Errorf("job %s is %s after %d attempts: %s", jobID, job.State, job.AttemptsTotal, job.ErrorMessage)
		}
	}
}

// workOver makes a worker pull work until the test ends, or rest is called.
func workOver(t *testing.T, s *testServer) (rest func()) {
	t.Helper()
	w := newWorker(t, s.url, s.http, "w2", func(context.Context, *lucius.Task) (any, error) { return nil, nil })
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("worker: %v", err)
		}
	})
}
