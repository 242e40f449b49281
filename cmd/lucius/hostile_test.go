package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
)

// memoryBound is the resident memory in bytes that docs/run/limits.md promises for a
// server, even under attack.
const memoryBound = 512 << 20

// attackedServer is a server process that authenticates callers by tokens and by JWTs. A good
// client uses it during each attack. It and the attacker are two callers with all roles.
type attackedServer struct {
	*process
	*caller // the attacker
	good    *caller

	url     string
	address string
	issuer  *tokenIssuer
	keys    atomic.Int64

	// connectsAgain says that clients lose connections on which they were silent, and connect again.
	connectsAgain bool
}

// startAttacked starts the server. More flags override the usual ones.
func startAttacked(t *testing.T, more ...string) *attackedServer {
	t.Helper()
	f := &attackedServer{issuer: newTokenIssuer(t)}
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	roles := []string{"submit:*", "read:*", "platform:*", "admin:*"}
	token, good := addCaller(t, file, "attacker", roles...), addCaller(t, file, "good", roles...)
	s := newSite(t)
	f.process = s.start(append([]string{
		"--auth-file", file, "--oidc-issuer", f.issuer.url, "--oidc-audience", "lucius", "--audit-log", "off",
	}, append(longTimeouts, more...)...)...)
	f.address = s.address.Load().(string)
	f.url = "http://" + f.address
	f.caller, f.good = f.as(token), f.as(good)
	return f
}

// as returns a client with that token.
func (f *attackedServer) as(token string) *caller {
	transport := &http.Transport{}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &caller{url: f.url, token: token, http: &http.Client{Transport: transport, Timeout: waittest.Bound(f.t)}}
}

// while runs an attack, and checks that the good client is always answered and that the server
// stays within its memory bound.
func (f *attackedServer) while(attack func()) {
	f.t.Helper()
	over := make(chan struct{})
	var calls sync.WaitGroup
	answered := 0
	calls.Go(func() {
		for last := false; !last; answered++ {
			select {
			case <-over:
				last = true // Once more, after the attack.
			case <-time.After(20 * time.Millisecond):
			}
			if err := f.submitAndRead(); err != nil {
				f.t.Errorf("a good client is not answered: %v", err)
				return
			}
		}
	})
	attack()
	close(over)
	calls.Wait()
	highest := residentPeak(f.t, f.cmd.Process.Pid)
	f.t.Logf("%d good calls were answered, the server had at most %d MiB", answered, highest>>20)
	if highest > memoryBound {
		f.t.Errorf("the server had %d MiB, the bound is %d MiB", highest>>20, memoryBound>>20)
	}
}

// submitAndRead submits a command and reads its job.
func (f *attackedServer) submitAndRead() error {
	key := fmt.Sprint(f.keys.Add(1))
	submitted, err := f.ask(http.MethodPost, "/v1/commands", strings.Replace(ingestFor("tenant_good", key), "{}}", `{"language":"en"}}`, 1))
	if err != nil {
		return err
	}
	var accepted api.CommandAccepted
	if err := json.Unmarshal([]byte(submitted.body), &accepted); err != nil || submitted.status != http.StatusAccepted {
		return fmt.Errorf("a command is answered %d %s", submitted.status, submitted.body)
	}
	if job, err := f.ask(http.MethodGet, "/v1/jobs/"+accepted.JobID, ""); err != nil || job.status != http.StatusOK {
		return fmt.Errorf("its job is answered %d %s, %w", job.status, job.body, err)
	}
	return nil
}

// ask sends a request of the good client.
func (f *attackedServer) ask(method, path, body string) (got answer, err error) {
	err = f.connecting(func() error {
		got, err = f.good.call(f.t.Context(), method, path, body)
		return err
	})
	return got, err
}

// connecting calls the function again, for minutes, if the server closed its connection and
// clients must expect that.
func (f *attackedServer) connecting(call func() error) error {
	for begun := time.Now(); ; {
		err := call()
		closed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		if !closed || !f.connectsAgain || time.Since(begun) > waittest.Bound(f.t) {
			return err
		}
	}
}

// dial opens a connection that ends with the test, or after the bound of a wait.
func (f *attackedServer) dial() (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", f.address, waittest.Bound(f.t))
	if err != nil {
		return nil, err
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn, conn.SetDeadline(time.Now().Add(waittest.Bound(f.t)))
}

// expectClosed fails unless the server closes the connection, and returns the bytes that it
// sent before.
func (f *attackedServer) expectClosed(conn net.Conn) string {
	said, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		f.t.Errorf("the connection of %s is still open", conn.LocalAddr())
	}
	return string(said)
}

// expectProblem fails unless the response is a problem with that code, as the OpenAPI
// document has it for the request, and reveals no internals.
func (f *attackedServer) expectProblem(method, path string, got answer, code string) {
	f.t.Helper()
	var found api.Problem
	err := json.Unmarshal([]byte(got.body), &found)
	mediaType := got.header.Get("Content-Type")
	if err != nil || mediaType != "application/problem+json" || string(found.Code) != code ||
		found.Code.Status() != got.status || int(found.Status) != got.status {
		f.t.Errorf("%s %.80s is answered %d, %s, want %s: %.500s", method, path, got.status, mediaType, code, got.body)
		return
	}
	request, err := http.NewRequestWithContext(f.t.Context(), method, f.url+path, http.NoBody)
	if err != nil {
		f.t.Error(err)
		return
	}
	err = contract().Check(&contracttest.Exchange{
		Request: request, Status: got.status, Header: got.header, Received: []byte(got.body),
	})
	if err != nil {
		f.t.Errorf("not as documented: %.1000v", err)
	}
	for _, inside := range []string{".go", "goroutine", "panic", "pebble", "jose", "0xc0", f.site.data, os.TempDir(), "dial tcp"} {
		if strings.Contains(got.body, inside) {
			f.t.Errorf("%s %.80s tells %q: %.500s", method, path, inside, got.body)
		}
	}
	if len(got.body) > 64<<10 {
		f.t.Errorf("%s %.80s is answered with %d bytes", method, path, len(got.body))
	}
}

// residentPeak returns the peak resident memory of the process in bytes on Linux, and 0
// elsewhere.
func residentPeak(t *testing.T, pid int) int64 {
	t.Helper()
	if runtime.GOOS != "linux" {
		return 0
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kilobytes int64
		if _, err := fmt.Sscanf(lines.Text(), "VmHWM: %d kB", &kilobytes); err == nil {
			return kilobytes << 10
		}
	}
	t.Fatal("the system does not tell the memory of a process")
	return 0
}
