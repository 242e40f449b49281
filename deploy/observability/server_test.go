package observability

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
	"syscall"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a Lucius server on a data folder of its own.
type server struct {
	t      *testing.T
	url    string
	client *http.Client
	serial int
}

// start builds the server and starts it with one service, ocr, whose failures are final.
func start(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "lucius")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./cmd/lucius")
	build.Dir = "../.."
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, output)
	}
	const protocol = "protocol_id: ocr\nrequest_types: [doc.ocr]\nretry: {execution: []}\n" +
		"steps:\n  - {step_id: ocr, step_type: OCR, service: ocr}\n"
	if err := os.WriteFile(filepath.Join(dir, "ocr.yaml"), []byte(protocol), 0o600); err != nil {
		t.Fatal(err)
	}
	process := exec.CommandContext(t.Context(), binary, "serve", "--listen-addr", "127.0.0.1:0",
		"--data-dir", filepath.Join(dir, "data"), "--protocols-dir", dir)
	process.Cancel = func() error { return process.Process.Signal(syscall.SIGTERM) }
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Wait() }) // The end of the test's context has stopped it.
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "lucius serves ")
	if !ok {
		t.Fatalf("the server does not start: %q, %v", line, err)
	}
	return &server{t: t, url: url, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// do sends the body, and decodes the answer, which must be a success.
func (s *server) do(method, path string, body, answer any) {
	s.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, bytes.NewReader(data))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode/100 != 2 {
		s.t.Fatalf("%s %s: %d, %v: %s", method, path, response.StatusCode, err, text)
	}
	switch answer := answer.(type) {
	case nil:
	case *string:
		*answer = string(text)
	default:
		if err := json.Unmarshal(text, answer); err != nil {
			s.t.Fatal(err)
		}
	}
}

type object map[string]any

// submit submits a job.
func (s *server) submit() {
	s.t.Helper()
	s.serial++
	s.do(http.MethodPost, "/v1/commands", object{
		"tenant_id": "tenant_a", "request_type": "doc.ocr", "schema_version": "1", "payload": object{},
		"input_ref": object{"uri": "s3://in"}, "output_ref": object{"uri": "s3://out"}, "idempotency_key": fmt.Sprint(s.serial),
	}, nil)
}

// work does the next job, or fails it.
func (s *server) work(fails bool) {
	s.t.Helper()
	s.serial++
	var claimed struct {
		Items []struct {
			WorkID string `json:"work_id"`
			Rev    int64  `json:"rev"`
		} `json:"items"`
	}
	s.do(http.MethodPost, "/v1/work:claim", object{
		"owner": "w", "request_id": fmt.Sprint(s.serial), "max": 1, "wait_seconds": 60, "start": true,
	}, &claimed)
	if len(claimed.Items) != 1 {
		s.t.Fatalf("claimed %v", claimed)
	}
	item := claimed.Items[0]
	report, end := object{"owner": "w", "expected_rev": item.Rev, "request_id": fmt.Sprint("end ", s.serial)}, "complete"
	if fails {
		end, report["error"] = "fail", object{"code": "bad_scan", "message": "m"}
	}
	s.do(http.MethodPost, "/v1/work/"+item.WorkID+":"+end, report, nil)
}

// scrape reads the metrics.
func (s *server) scrape() scrape {
	s.t.Helper()
	var text string
	s.do(http.MethodGet, "/metrics", nil, &text)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		s.t.Fatal(err)
	}
	found := scrape{}
	for _, family := range families {
		samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.Now()}, family)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, sample := range samples {
			found[sample.Metric.String()] = value{sample.Metric, float64(sample.Value)}
		}
	}
	return found
}
