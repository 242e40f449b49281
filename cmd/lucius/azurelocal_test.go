//go:build integration && !race

package main

import (
	"bufio"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lucius-project/lucius/api"
)

// The steps that `make azure-local` prints are enough to process a document with Lucius on
// stand-ins for Azure.
func TestAzureLocal_PrintsHowToGoOn(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "azurelocal")
	if out, err := exec.Command("go", "build", "-o", binary, "../../internal/azurelocal").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(binary, "--lanes", "2", "--documents-dir", "../../internal/demo/documents", "--work-dir", t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("it did not end well: %v", err)
		}
	})
	flags, body := readAdvice(t, bufio.NewScanner(out))
	for _, word := range []string{"provision", "check"} {
		if out, code := azureCommand(t, nil, append([]string{word, "--protocols-dir", "../../protocols"}, flags...)...); code != 0 {
			t.Errorf("lucius azure %s ends with %d:\n%s", word, code, out)
		}
	}
	s := serveOn(t, t.TempDir(), append(flags, longTimeouts...)...)
	response, err := s.client.SubmitCommandWithBodyWithResponse(t.Context(), nil, "application/json", strings.NewReader(body))
	if err != nil || response.StatusCode() != http.StatusAccepted {
		t.Fatalf("submit %s: %v, %s", body, err, bodyOf(response))
	}
	if job := s.wait(t, response.JSON202.JobID); job.State != api.JobStateSucceeded {
		t.Errorf("the job is %s: %s", job.State, job.ErrorMessage)
	}
}

// readAdvice reads the variables, as flags, and the body of the example.
func readAdvice(t *testing.T, lines *bufio.Scanner) (flags []string, body string) {
	t.Helper()
	for lines.Scan() {
		line := lines.Text()
		if variable, value, ok := strings.Cut(strings.TrimPrefix(line, "export LUCIUS_"), "="); ok && strings.HasPrefix(line, "export ") {
			flags = append(flags, "--"+strings.ReplaceAll(strings.ToLower(variable), "_", "-"), strings.Trim(value, "'"))
		}
		if _, rest, ok := strings.Cut(line, "-d '"); ok {
			body, _, _ = strings.Cut(rest, "'")
		}
		if strings.Contains(line, "Ctrl-C") {
			return flags, body
		}
	}
	t.Fatalf("it printed %v and no more", flags)
	return nil, ""
}
