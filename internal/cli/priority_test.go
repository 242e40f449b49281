package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
)

func TestSubmit_Priority(t *testing.T) {
	t.Parallel()
	s, l := newIntake(t)
	const command = `{"request_type":"doc.ingest","doc_id":"1"}`
	l.Stdin = strings.NewReader(command)
	out, err := l.run(t, "submit", "-", "--priority", "bulk")
	if err != nil || !strings.HasSuffix(s.bodies[0], `"priority":"bulk"}`) || len(s.jobs) != 1 {
		t.Errorf("%v, %s, sent %s", err, out, s.bodies[0])
	}
	for text, want := range map[string]string{
		command + "\n" + `{"priority":"normal"}`: "line 2: the command has a priority: leave out --priority",
	} {
		l.Stdin = strings.NewReader(text)
		_, err := l.run(t, "submit", "-", "--priority", "bulk")
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, args := range [][]string{
		{"submit", "-", "--priority", "high"}, {"jobs", "rerun", jobID, "--priority", "high"}, {"retry", jobID, "--priority", "high"},
	} {
		l.Stdin = strings.NewReader(command)
		_, err := l.run(t, args...)
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), `--priority is "high", it must be normal or bulk`) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestJobsPrioritize(t *testing.T) {
	t.Parallel()
	var body string
	job := parkedJob()
	job.Priority = api.PriorityBulk
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		musttest.NoError(t, err)
		body = r.URL.Path + " " + string(text)
		fmt.Fprint(w, encode(t, job))
	}))
	out, err := l.run(t, "jobs", "prioritize", jobID, "bulk", "--reason", "it can wait")
	if err != nil || body != "/v1/jobs/"+jobID+`:prioritize {"priority":"bulk","reason":"it can wait"}` {
		t.Errorf("%v, sent %s", err, body)
	}
	if out != "Job "+jobID+" is bulk: it is QUEUED\n" {
		t.Errorf("says %s", out)
	}
	if _, err := l.run(t, "jobs", "prioritize", jobID, "high"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("another class: %v", err)
	}
	forPrograms(t, l, job, "jobs", "prioritize", jobID, "bulk")
	if _, err := l.run(t, "jobs", "rerun", jobID, "--priority", "bulk"); err != nil || !strings.Contains(body, `"priority":"bulk"`) {
		t.Errorf("a rerun sent %s (%v)", body, err)
	}
}
