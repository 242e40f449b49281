//go:build integration && !race

package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
)

// maxIdle is how many idle connections the test opens: as many as the server allows, unless
// the system allows this process fewer.
const maxIdle = 10_000

// allowFiles raises this process's limit on open files for n connections, and returns how
// many of them fit.
func allowFiles(t *testing.T, n int) int {
	t.Helper()
	const beside = 2000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max < uint64(n+beside) {
		return int(limit.Max) * 4 / 5
	}
	return n
}

// TestHostile_IdleConnections opens as many connections as are allowed: half send nothing,
// and half send nothing after one answered request.
func TestHostile_IdleConnections(t *testing.T) {
	t.Parallel()
	n := allowFiles(t, maxIdle)
	f := startAttacked(t)
	f.while(func() {
		f.openIdle(n)
		sockets := openSockets(t, f.cmd.Process.Pid)
		t.Logf("%d connections were opened, the server has %d sockets", n, sockets)
	})
}

// TestHostile_MoreConnectionsThanMayBe opens far more connections than the server allows: it
// closes those that are idle longest, and a good client can always connect. A client that sends
// its request later than it connected by the silence that the server bears, as on a busy
// machine, loses its connection, and connects again.
func TestHostile_MoreConnectionsThanMayBe(t *testing.T) {
	t.Parallel()
	const may, beside = 50, 20
	f := startAttacked(t, "--max-connections", fmt.Sprint(may))
	f.connectsAgain = true
	f.while(func() {
		for range 5 {
			f.openIdle(2 * may)
			if sockets := openSockets(t, f.cmd.Process.Pid); sockets > may+beside {
				t.Errorf("the server has %d sockets with --max-connections %d", sockets, may)
			}
		}
	})
}

// openIdle opens connections that stay idle.
func (f *attackedServer) openIdle(n int) {
	var group errgroup.Group
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error {
			return f.connecting(func() error {
				conn, err := f.dial()
				if err == nil && i%2 == 1 {
					err = askOnce(conn)
				}
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		f.t.Errorf("a connection is not served: %v", err)
	}
}

// askOnce sends a request, reads the response, and leaves the connection open.
func askOnce(conn net.Conn) error {
	if _, err := fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", response.Status)
	}
	return response.Body.Close()
}
