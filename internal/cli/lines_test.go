package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// lineID is the id of a line.
const lineID = "3f0d1b0c5a7e"

// blockedLine returns a line that a failed job blocks.
func blockedLine() api.Line {
	return api.Line{
		LineID: lineID, TenantID: "tenant_a", OrderKey: "customer-42", State: api.LineStateBlocked, Waiting: 2, Since: at(time.Hour),
		Head: api.LineHead{JobID: jobID, State: api.JobStateFailedFinal, ErrorCode: "bad_scan"}, AsOf: at(0),
	}
}

// movingLine returns a line whose first job runs.
func movingLine() api.Line {
	line := blockedLine()
	line.State, line.Head, line.OrderKey = api.LineStateMoving, api.LineHead{JobID: "j2", State: api.JobStateInProgress}, "customer-7"
	return line
}

func TestLines_ListsBlockedOnesFirst(t *testing.T) {
	t.Parallel()
	var asked []string
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		page := api.LinePage{Lines: []api.Line{movingLine()}}
		if r.URL.Query().Get("state") == "blocked" {
			page.Lines[0] = blockedLine()
		}
		fmt.Fprint(w, encode(t, page))
	}))
	golden(t, "lines.txt", l.must(t, "lines", "--tenant", "tenant_a"))
	if len(asked) != 2 || asked[0] != "tenant_id=tenant_a&state=blocked&limit=50" || asked[1] != "tenant_id=tenant_a&state=moving&limit=49" {
		t.Errorf("asked for %q", asked)
	}
	if asked = nil; !strings.Contains(l.must(t, "lines", "--limit", "1"), "bad_scan") || len(asked) != 1 {
		t.Errorf("for one line asked for %q", asked)
	}
	if out := l.must(t, "lines", "--state", "moving"); strings.Contains(out, "bad_scan") {
		t.Error(out)
	}
	if _, err := l.run(t, "lines", "--state", "standing"); cli.ExitCode(err) != cli.ExitUsage {
		t.Error(err)
	}
	forPrograms(t, l, api.LinePage{Lines: []api.Line{movingLine()}}, "lines", "--state", "moving")
}

func TestLines_Show(t *testing.T) {
	t.Parallel()
	l := newLine(t, answers(t, map[string]any{
		"GET /v1/lines/" + lineID: blockedLine(),
		"GET /v1/lines/" + lineID + "/jobs": api.LineJobPage{Jobs: []api.Job{
			failedJob(), waitingJob(api.JobStateQueued, api.Waiting{Reason: api.WaitingReasonLineBlocked}),
		}},
	}))
	golden(t, "lines-show.txt", l.must(t, "lines", "show", lineID))
}

func TestLines_ByTheirKey(t *testing.T) {
	t.Parallel()
	var asked []string
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RequestURI())
		switch {
		case r.URL.Query().Get("order_key") == "none":
			fmt.Fprint(w, `{"lines":[]}`)
		case r.URL.Path == "/v1/lines":
			fmt.Fprint(w, encode(t, api.LinePage{Lines: []api.Line{blockedLine()}}))
		case strings.HasSuffix(r.URL.Path, "/jobs"):
			fmt.Fprint(w, encode(t, api.LineJobPage{Jobs: []api.Job{failedJob()}}))
		default:
			fmt.Fprint(w, encode(t, blockedLine()))
		}
	}))
	key := []string{"--tenant", "tenant_a", "--order-key", "customer 42"}
	if out := l.must(t, append([]string{"lines"}, key...)...); !strings.Contains(out, lineID) ||
		len(asked) != 1 || asked[0] != "/v1/lines?tenant_id=tenant_a&order_key=customer+42&limit=50" {
		t.Errorf("asked for %q, said %s", asked, out)
	}
	if out := l.must(t, append([]string{"lines", "show"}, key...)...); !strings.Contains(out, "lucius lines release "+lineID) {
		t.Error(out)
	}
	for args, want := range map[string]int{
		"lines --order-key k": cli.ExitUsage, "lines show --order-key k": cli.ExitUsage, "lines show": cli.ExitUsage,
		"lines show --tenant t": cli.ExitUsage, "lines show LINE --tenant t --order-key k": cli.ExitUsage,
		"lines show --tenant t --order-key none": cli.ExitNotFound,
	} {
		if _, err := l.run(t, strings.Fields(args)...); cli.ExitCode(err) != want {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestLines_Release(t *testing.T) {
	t.Parallel()
	line, body := blockedLine(), ""
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, encode(t, line))
			return
		}
		body = sent(t, r)
		fmt.Fprint(w, encode(t, movingLine()))
	}))
	for flags, want := range map[string]string{
		"":                         `{"jobId":"` + jobID + `"}`,
		"--reason known --job old": `{"jobId":"old","reason":"known"}`,
	} {
		out, err := l.run(t, append([]string{"lines", "release", lineID, "-y"}, strings.Fields(flags)...)...)
		if err != nil || body != want || !strings.Contains(out, "Job j2 is first now: it is IN_PROGRESS") {
			t.Errorf("%s: %v, sent %s, said %s", flags, err, body, out)
		}
	}
	if _, err := l.run(t, "lines", "release", lineID); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("without a confirmation: %v", err)
	}
	line = movingLine()
	if _, err := l.run(t, "lines", "release", lineID, "-y"); cli.ExitCode(err) != cli.ExitRefused {
		t.Errorf("of a line that moves: %v", err)
	}
}

// A release that left no job in the line can be repeated by a command that names its job.
func TestLines_ReleaseRepeatedOnAnEmptyLine(t *testing.T) {
	t.Parallel()
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"code":"line_not_found","status":404}`)
			return
		}
		fmt.Fprint(w, encode(t, api.Line{LineID: lineID, State: api.LineStateMoving}))
	}))
	if out := l.must(t, "lines", "release", lineID, "--job", "old", "-y"); out != "Released job old\n" {
		t.Errorf("said %s", out)
	}
	if _, err := l.run(t, "lines", "release", lineID, "-y"); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("without a job: %v", err)
	}
}

func TestLines_Cancel(t *testing.T) {
	t.Parallel()
	var bodies []string
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, encode(t, movingLine()))
			return
		}
		bodies = append(bodies, sent(t, r))
		fmt.Fprint(w, encode(t, api.LineCancellation{LineID: lineID, Cancelled: 1000, More: len(bodies) < 3}))
	}))
	out := l.must(t, "lines", "cancel", lineID, "--reason", "why", "-y")
	if out != "Cancelled 3000 jobs\n" || len(bodies) != 3 || bodies[0] != `{"reason":"why"}` {
		t.Errorf("said %s, sent %q", out, bodies)
	}
	for _, args := range [][]string{{"-y"}, {"--reason", "why"}} {
		if _, err := l.run(t, append([]string{"lines", "cancel", lineID}, args...)...); cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// A line is gone once its last job has ended.
func TestLines_CancelOfALineThatEndsIsDone(t *testing.T) {
	t.Parallel()
	server := newScripted(t, map[string][]any{
		"GET /v1/lines/" + lineID:              {movingLine()},
		"POST /v1/lines/" + lineID + ":cancel": {api.LineCancellation{LineID: lineID, Cancelled: 1000, More: true}, apierror.LineNotFound},
	})
	l := newLine(t, server.url)
	if out := l.must(t, "lines", "cancel", lineID, "--reason", "why", "-y"); out != "Cancelled 1000 jobs\n" {
		t.Errorf("said %s", out)
	}
	if _, err := l.run(t, "lines", "cancel", lineID, "--reason", "why", "-y"); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("of a line that was gone before: %v", err)
	}
}

// sent returns the body of a request.
func sent(t *testing.T, r *http.Request) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	musttest.NoError(t, err)
	return string(text)
}
