//go:build sdk

package conformance_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/waittest"
)

// lease is the lease of every task: short, so that one can end within a test.
var lease = waittest.Scale(6 * time.Second)

// builds is the folder of the server's binary.
var builds string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lucius-sdk-")
	if err != nil {
		panic(err)
	}
	builds = dir
	code := m.Run()
	_ = os.RemoveAll(dir) // Nothing depends on it.
	os.Exit(code)
}

// program builds the server once for all SDKs.
var program = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(builds, "lucius")
	cmd := exec.Command("go", "build", "-o", binary, "../../cmd/lucius")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return binary, nil
})

// site is a server with its folder, behind the proxy.
type site struct {
	t     *testing.T
	data  string
	proxy *proxy
	cmd   *exec.Cmd
	said  *bytes.Buffer
	flags []string // further ones of the server
}

func newSite(t *testing.T, flags ...string) *site {
	t.Helper()
	s := &site{t: t, flags: flags, data: filepath.Join(t.TempDir(), "data"), proxy: newProxy(t)}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// start starts the server and waits until it serves.
func (s *site) start() {
	s.t.Helper()
	binary, err := program()
	if err != nil {
		s.t.Fatal(err)
	}
	many := strings.TrimSuffix(strings.Repeat("100ms,", 9), ",")
	s.cmd = exec.Command(binary, "serve", "--listen-addr", "127.0.0.1:0", "--data-dir", s.data,
		"--protocols-dir", "testdata/protocols", "--log-level", "error", "--audit-log", "off",
		"--ack-timeout", waittest.Scale(10*time.Second).String(), "--lease-duration", lease.String(), "--ack-backoff", many, "--execution-backoff", many,
		"--sweep-interval", "100ms", "--outbox-retry-interval", "100ms")
	s.cmd.Args = append(s.cmd.Args, s.flags...)
	s.said = &bytes.Buffer{}
	s.cmd.Stderr = s.said
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line, _ := lines.ReadString('\n') // A process that ends says nothing.
	_, address, serves := strings.Cut(strings.TrimSpace(line), "lucius serves http://")
	if !serves {
		s.kill()
		s.t.Fatalf("the server did not come up: %q %s", line, s.said.String())
	}
	s.proxy.target.Store(address)
}

// kill ends the server as a crash does.
func (s *site) kill() {
	_ = s.cmd.Process.Kill() // It may have ended.
	_ = s.cmd.Wait()
}

// audit stops the server and audits its folder.
func (s *site) audit() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("the server: %v, %s", err, s.said.String())
	}
	binary, err := program()
	if err != nil {
		s.t.Fatal(err)
	}
	if out, err := exec.Command(binary, "audit", "--data-dir", s.data, "--quiescent").CombinedOutput(); err != nil {
		s.t.Errorf("the audit: %v\n%s", err, out)
	}
}

// call calls the server directly, and decodes its answer.
func (s *site) call(method, path string, body, into any) {
	s.t.Helper()
	encoded, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	url := "http://" + s.proxy.target.Load().(string) + path
	request, err := http.NewRequestWithContext(s.t.Context(), method, url, bytes.NewReader(encoded))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.proxy.server.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // It is read.
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 300 {
		s.t.Fatalf("%s %s: %s %v\n%s", method, path, response.Status, err, content)
	}
	if into != nil {
		if err := json.Unmarshal(content, into); err != nil {
			s.t.Fatalf("%s %s: %v\n%s", method, path, err, content)
		}
	}
}

// what is the payload of a task.
type what map[string]any

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// submit submits a job of a request type, and returns its id.
func (s *site) submit(requestType string, payload what) string {
	s.t.Helper()
	var accepted struct{ JobID string }
	s.call("POST", "/v1/commands", map[string]any{
		"tenant_id": "tenant_a", "request_type": requestType, "schema_version": "1", "payload": payload,
		"input_ref": what{"uri": "conformance://in"}, "output_ref": what{"uri": "conformance://out"},
		"idempotency_key": fmt.Sprint(time.Now().UnixNano()), "traceparent": traceparent,
	}, &accepted)
	return accepted.JobID
}

// job is what the tests look at of a job.
type job struct {
	JobID        string `json:"jobId"`
	State        string `json:"state"`
	ErrorCode    string `json:"error_code"`
	ErrorMessage string `json:"error_message"`
	FinalOutput  struct {
		URI         string `json:"uri"`
		Traceparent string `json:"traceparent"`
	} `json:"final_output"`
	Steps []struct {
		State     string `json:"state"`
		AttemptNo int    `json:"attempt_no"`
		Owner     string `json:"owner"`
		Progress  struct {
			Fraction float64 `json:"fraction"`
			Message  string  `json:"message"`
		} `json:"progress"`
	} `json:"steps"`
}

func (s *site) job(id string) (j job) {
	s.t.Helper()
	s.call("GET", "/v1/jobs/"+id, nil, &j)
	return j
}

func (j *job) ended() bool {
	return j.State == "SUCCEEDED" || j.State == "FAILED_FINAL" || j.State == "CANCELLED"
}

// wait waits until the job has ended.
func (s *site) wait(id string) (j job) {
	s.t.Helper()
	waittest.Until(s.t, "job "+id+" ends", func() bool {
		s.call("GET", "/v1/jobs/"+id+"?wait=5s", nil, &j)
		return j.ended()
	})
	return j
}

// event is one entry of a job's history.
type event struct {
	Type      string `json:"type"`
	To        string `json:"to"`
	AttemptNo int    `json:"attempt_no"`
	Detail    string `json:"detail"`
}

func (s *site) history(id string) []event {
	s.t.Helper()
	var page struct{ Events []event }
	s.call("GET", "/v1/jobs/"+id+"/events?limit=1000", nil, &page)
	return page.Events
}
