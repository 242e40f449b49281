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
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// road is the way to a service, which can be closed.
type road struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
	busy   sync.WaitGroup
}

// newRoad opens a road to the address. It ends with the test.
func newRoad(t *testing.T, target string) *road {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &road{listener: listener, target: target, open: map[net.Conn]struct{}{}}
	r.busy.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			r.busy.Go(func() { r.carry(from) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // It only ends the loop above.
		r.close()
		r.busy.Wait()
	})
	return r
}

// carry forwards data in both directions until one side closes.
func (r *road) carry(from net.Conn) {
	to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", r.target)
	if err != nil || !r.enter(from, to) {
		_ = from.Close() // so that the caller notices
		if err == nil {
			_ = to.Close()
		}
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // However it ends, both ends are closed.
			_, _ = way[0].Close(), way[1].Close()
		})
	}
	both.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, from)
	delete(r.open, to)
}

// enter reports whether the road is open.
func (r *road) enter(ends ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	for _, end := range ends {
		r.open[end] = struct{}{}
	}
	return true
}

// close cuts all connections and refuses new ones.
func (r *road) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for end := range r.open {
		_ = end.Close() // Its holder notices.
	}
}

// reopen lets connections through again.
func (r *road) reopen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = false
}

// connectionOver is the account's connection string over the road.
func (r *road) connectionOver(account *azurite.Server) string {
	return strings.ReplaceAll(account.ConnectionString(), account.Addr(), r.listener.Addr().String())
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
	way := newRoad(t, account.Addr())
	s := serveOn(t, t.TempDir(), "--storage-backend", config.BackendLedger, "--table-connection", way.connectionOver(account),
		"--ack-timeout", "5s", "--lease-duration", "5s", "--sweep-interval", "100ms", "--outbox-retry-interval", "100ms")
	waiting, inHand := s.submitAs(t, "waiting"), s.submitAs(t, "in hand")
	item := s.claim(t, "c1", true)

	way.close()
	for deadline := time.Now().Add(8 * time.Second); time.Now().Before(deadline); {
		response, err := s.client.SubmitCommandWithResponse(t.Context(), nil, commandOf("tenant_a", "refused"))
		if err != nil || response.StatusCode() != http.StatusServiceUnavailable || response.HTTPResponse.Header.Get("Retry-After") == "" ||
			!strings.Contains(string(response.Body), `"code":"store_unavailable"`) {
			t.Fatalf("while the account is away: %v, %d %s", err, response.StatusCode(), response.Body)
		}
	}
	if response, err := s.client.GetReadinessWithResponse(t.Context()); err != nil || response.StatusCode() != http.StatusServiceUnavailable {
		t.Errorf("readiness: %v, %s", err, response.Body)
	}
	way.reopen()

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
