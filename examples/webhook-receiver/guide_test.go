//go:build integration && !race

package main

import (
	"bufio"
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/guides"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// guideReceiver starts the receiver that the guide shows, on a free port. It returns its URL
// and its output.
func guideReceiver(t *testing.T, secret string) (url string, out *bufio.Scanner) {
	t.Helper()
	text, err := os.ReadFile("../../docs/use/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := guides.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(blocks, func(b guides.Block) bool { return b.Verb == guides.File && b.Argument == "receiver.py" })
	const last = `HTTPServer(("127.0.0.1", 9000), Receiver).serve_forever()`
	program := filepath.Join(t.TempDir(), "receiver.py")
	if at < 0 || !strings.Contains(blocks[at].Text, last) {
		t.Fatalf("the guide has no receiver.py that ends with %s", last)
	}
	anyPort := "front = HTTPServer((\"127.0.0.1\", 0), Receiver)\nprint(front.server_port, flush=True)\nfront.serve_forever()"
	if err := os.WriteFile(program, []byte(strings.Replace(blocks[at].Text, last, anyPort, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "python3", program)
	cmd.Env = append(os.Environ(), "WEBHOOK_SECRET="+secret)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	out = bufio.NewScanner(pipe)
	if !out.Scan() {
		t.Fatalf("it does not start: %v", out.Err())
	}
	return "http://127.0.0.1:" + out.Text(), out
}

func TestGuidesReceiver_TakesEachEndOfAJob(t *testing.T) {
	t.Parallel()
	master, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	url, out := guideReceiver(t, master.ForTenant("tenant_a").Reveal())
	sender := newSender(t, master)
	for _, test := range []struct {
		job  statemachine.Job
		want string
	}{
		{
			statemachine.Job{State: statemachine.JobSucceeded, IdempotencyKey: "order-1", FinalOutput: []byte(`{"uri":"s3://b/1"}`)},
			"job.succeeded order-1 {'uri': 's3://b/1'}",
		},
		{statemachine.Job{State: statemachine.JobFailedFinal, IdempotencyKey: "order-2", ErrorCode: "bad_scan"}, "job.failed order-2 bad_scan"},
		{statemachine.Job{State: statemachine.JobCancelled, ErrorCode: "cancelled"}, "job.cancelled None cancelled"},
	} {
		body, err := webhook.Body(&test.job)
		if err != nil {
			t.Fatal(err)
		}
		sent := sender.Send(t.Context(), webhook.Message{ID: "job.0", TenantID: "tenant_a", URL: url, Body: body})
		if sent.Outcome != webhook.Delivered || !out.Scan() || out.Text() != test.want {
			t.Errorf("%s: %s, it prints %q, want %q", test.job.State, sent.Outcome, out.Text(), test.want)
		}
	}
}

func TestGuidesReceiver_RefusesWhatLuciusDidNotSign(t *testing.T) {
	t.Parallel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	url, _ := guideReceiver(t, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	for name, headers := range map[string]map[string]string{
		"no header":         {},
		"no signature":      {"webhook-id": "1", "webhook-timestamp": "1767323045"},
		"another signature": {"webhook-id": "1", "webhook-timestamp": "1767323045", "webhook-signature": "v1,AAAA v1,\xe9"},
		"no time":           {"webhook-id": "1", "webhook-timestamp": "soon", "webhook-signature": "v1,AAAA"},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader([]byte(`{"type":"job.succeeded"}`)))
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range headers {
			request.Header.Set(key, value)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if response.Body.Close(); response.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s is answered %d, want 401", name, response.StatusCode)
		}
	}
}
