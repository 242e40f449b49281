package cli_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
)

// Each shell reads its script: bash always, the others if they are installed.
func TestCompletion_ScriptsParse(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		out, err := newLine(t, "").run(t, "completion", shell)
		if err != nil || !strings.Contains(out, "__complete") {
			t.Errorf("%s: %v", shell, err)
		}
		if _, err := exec.LookPath(shell); err != nil && shell != "bash" {
			t.Logf("%s is not here: its script is not read", shell)
			continue
		}
		script := filepath.Join(t.TempDir(), "lucius."+shell)
		musttest.WriteFile(t, script, out)
		source := map[string]string{
			"bash": "source " + script + " && complete -p lucius", "fish": "source " + script + "; complete -c lucius",
			"zsh": "autoload -U compinit && compinit -u -d " + script + ".dump && source " + script + " && whence _lucius",
		}[shell]
		said, err := exec.CommandContext(t.Context(), shell, "-c", source).CombinedOutput()
		if err != nil || !strings.Contains(string(said), "lucius") {
			t.Errorf("%s: %v\n%s", shell, err, said)
		}
	}
}

func TestCompletion_AsksTheServer(t *testing.T) {
	t.Parallel()
	l := newLine(t, answers(t, map[string]any{
		"GET /v1/jobs":      api.JobPage{Jobs: []api.Job{failedJob()}},
		"GET /v1/protocols": api.ProtocolList{Protocols: []api.Protocol{{RequestTypes: []string{"doc.ingest", "doc.scan"}}}},
	}))
	l.must(t, "context", "set", "prod", "--url", "https://lucius.example.com")
	for line, want := range map[string]string{
		"jobs get ":             jobID + "\tdoc.ingest of tenant_a, FAILED_FINAL\n",
		"jobs get x -o ":        "table\njson\nyaml\n",
		"jobs get x --context ": "prod\n",
		"context use ":          "prod\n",

		"jobs list --request-type ": "doc.ingest\ndoc.scan\n",
		"jobs list --state ":        "QUEUED\nDISPATCHING\nIN_PROGRESS\nPAUSING\nPAUSED\nCANCELLING\nCANCELLED\nSUCCEEDED\nFAILED_FINAL\n",
		"jobs get x ":               "", // The command takes one argument.
	} {
		l.Environment = append(l.Environment[:1], "LUCIUS_URL="+l.DefaultURL)
		out, err := l.run(t, append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if err != nil || !strings.HasPrefix(out, want+":4\n") {
			t.Errorf("%q: %v, %q", line, err, out)
		}
	}
	l.Environment = append(l.Environment[:1], "LUCIUS_URL=http://127.0.0.1:1")
	if out, err := l.run(t, "__complete", "jobs", "get", ""); err != nil || !strings.HasPrefix(out, ":4\n") {
		t.Errorf("without a server: %v, %q", err, out)
	}
}
