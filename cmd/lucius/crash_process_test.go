package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
)

// helpEnv turns this test binary into a helper process of a test.
const helpEnv = "LUCIUS_TEST_HELP"

// builds is the folder of the binaries that the tests run.
var builds string

func TestMain(m *testing.M) {
	if os.Getenv(helpEnv) == "worker" {
		helpWork()
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lucius-test-")
	if err != nil {
		panic(err)
	}
	builds = dir
	defer func() { _ = os.RemoveAll(dir) }() // Nothing depends on it.
	return holdToContract(m.Run())
}

// build builds the binary as it is shipped, without C, once for all tests.
func build(tags string) (string, error) {
	binary := filepath.Join(builds, "lucius"+tags)
	cmd := exec.Command("go", "build", "-tags", tags, "-o", binary, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return binary, nil
}

var (
	buildPlain    = sync.OnceValues(func() (string, error) { return build("") })
	buildKillable = sync.OnceValues(func() (string, error) { return build("killpoints") })
)

// fastFlags let a server that is killed repeatedly complete all work within seconds, without
// exhausting a budget.
func fastFlags() []string {
	brief, delays := waittest.Scale(500*time.Millisecond).String(), strings.Repeat("100ms,", 15)+"100ms"
	return []string{
		"--listen-addr", "127.0.0.1:0", "--protocols-dir", "../../protocols", "--log-level", "error",
		"--ack-timeout", brief, "--publish-timeout", brief, "--lease-duration", waittest.Scale(2 * time.Second).String(),
		"--ack-backoff", delays, "--execution-backoff", delays, "--max-attempts", "1000",
		"--sweep-interval", "50ms", "--outbox-retry-interval", "50ms", "--shutdown-grace", waittest.Scale(20 * time.Second).String(),
	}
}

// site is a data directory, with a client of the server that currently runs on it.
type site struct {
	t      *testing.T
	data   string
	client *api.ClientWithResponses
	http   *http.Client
	// address is the listen address of the current server, or "".
	address atomic.Value
}

// siteURL stands for the current server, whatever its address.
const siteURL = "http://localhost"

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, data: filepath.Join(t.TempDir(), "data")}
	s.address.Store("")
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		address := s.address.Load().(string)
		if address == "" {
			return nil, syscall.ECONNREFUSED
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dial}
	s.http = &http.Client{Transport: contracted(transport)}
	var err error
	s.client, err = api.NewClientWithResponses(siteURL, api.WithHTTPClient(s.http))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// process is a server process. It ends with the test.
type process struct {
	t     *testing.T
	site  *site
	cmd   *exec.Cmd
	said  strings.Builder // its standard error, to be read once it has ended
	ended chan struct{}
}

// start starts the server as it is shipped and waits until it serves. More
// flags win over the usual ones.
func (s *site) start(more ...string) *process {
	s.t.Helper()
	binary, err := buildPlain()
	if err != nil {
		s.t.Fatal(err)
	}
	p, serves := s.launch(exec.Command(binary, s.arguments(more)...))
	if !serves {
		s.t.Fatalf("the server did not come up: %s", p.ending())
	}
	return p
}

// arguments returns the arguments of a server on the site.
func (s *site) arguments(more []string) []string {
	return append(append([]string{"serve", "--data-dir", s.data}, fastFlags()...), more...)
}

// launch starts a process and waits until it serves, or has ended.
func (s *site) launch(cmd *exec.Cmd) (*process, bool) {
	s.t.Helper()
	p := &process{t: s.t, site: s, cmd: cmd, ended: make(chan struct{})}
	cmd.Stderr = &p.said
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			ending := p.ending()
			s.t.Logf("a server ended with %s", ending[max(0, len(ending)-4000):])
		}
		expectFields(s.t, p.said.String())
	})
	lines := bufio.NewReader(out)
	line, _ := lines.ReadString('\n') // It is empty if the process ends.
	_, address, serves := strings.Cut(strings.TrimSpace(line), "lucius serves http://")
	if serves {
		s.address.Store(address)
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines) // until the process ends
		_ = cmd.Wait()                    // cmd keeps the exit status.
		s.address.CompareAndSwap(address, "")
		close(p.ended)
	}()
	if !serves {
		p.wait()
	}
	return p, serves
}

// wait waits until the process ends by itself.
func (p *process) wait() {
	p.t.Helper()
	waittest.Receive(p.t, "the process ends", p.ended)
}

// ending describes how the process ended, with its output. It must have ended.
func (p *process) ending() string { return p.cmd.ProcessState.String() + ": " + p.said.String() }

// signal sends a signal to the process, which may have ended.
func (p *process) signal(signal syscall.Signal) { _ = p.cmd.Process.Signal(signal) }

// kill ends the process as kill -9 does, if it has not ended.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.wait()
}

// killed reports whether SIGKILL ended the process.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// terminate sends the server SIGTERM and fails unless it exits with status 0.
func (p *process) terminate() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	p.wait()
	if !p.cmd.ProcessState.Success() {
		p.t.Errorf("the server did not end well: %s", p.ending())
	}
}
