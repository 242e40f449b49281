package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// scripted is a server that answers the requests for each "METHOD /path" with one value after
// the other, repeating the last one, and records requests.
type scripted struct {
	url string

	mu      sync.Mutex
	answers map[string][]any
	asked   []string // method, path, query and body
	keys    []string // Idempotency-Key
}

func newScripted(t *testing.T, answers map[string][]any) *scripted {
	t.Helper()
	s := &scripted{answers: answers}
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		target := r.Method + " " + r.URL.Path
		left := s.answers[target]
		if len(left) == 0 {
			t.Errorf("%s is not expected", target)
			return
		}
		if len(left) > 1 {
			s.answers[target] = left[1:]
		}
		s.asked = append(s.asked, strings.Join(strings.Fields(target+" "+r.URL.RawQuery+" "+string(body)), " "))
		s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
		status, mediaType, value := http.StatusOK, "application/json", left[0]
		if code, ok := value.(apierror.Code); ok {
			status, mediaType = code.Status(), "application/problem+json"
			value = api.Problem{Code: code, Status: int32(status), Title: code.Title(), Type: code.Type()}
		}
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(value); err != nil {
			t.Error(err)
		}
	})
	s.url = url
	return s
}

// wantAsked compares the requests since its last call.
func (s *scripted) wantAsked(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(want, s.asked); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	s.asked = nil
}

const operationID = "0198c5f2-4a00-7c3e-9d2a-5b1f0e6d7c00"

// operation returns a retry of three jobs, of which done have been tried. One that is DONE has no other jobs.
func operation(state api.OperationState, done int) api.Operation {
	op := api.Operation{
		OperationID: operationID, Kind: api.OperationKindRetry, State: state, Matched: 3, Done: done, Caller: "ops-1", RatePerSecond: 20,
		Reason: "the scanner is clean", CreatedAt: at(time.Minute), UpdatedAt: at(2 * time.Second), From: api.RerunFromFailed,
		Filter: api.OperationFilter{Service: "ocr"}, Items: []api.OperationItem{},
	}
	if state == api.OperationStateDone {
		op.Matched = done
	}
	if op.Applied = done; done == 3 {
		op.Applied, op.Failed = 1, 1
		op.Skipped = 1
		op.Items = []api.OperationItem{
			{JobID: jobID, Outcome: api.OperationItemOutcomeApplied, NewJobID: "0198c5f2-4a00-7c3e-9d2a-5b1f0e6d7caa"},
			{JobID: "b", Outcome: api.OperationItemOutcomeSkipped, Detail: "The job was rerun since."},
			{JobID: "c", Outcome: api.OperationItemOutcomeFailed, Detail: "The tenant's limit is reached.\x1b[2J"},
		}
	}
	return op
}

func preview(matched int) api.OperationPreview {
	p := api.OperationPreview{Kind: api.OperationKindRetry, DryRun: true, Matched: matched, Sample: []api.OperationSample{}}
	if matched > 0 {
		p.Sample = []api.OperationSample{{
			JobID: jobID, State: api.JobStateFailedFinal, TenantID: "tenant_a", ErrorCode: "bad_scan", ErrorMessage: "The page is blank.",
		}}
	}
	return p
}

const retries = "POST /v1/admin/retries"

func TestRetry_AsksAndFollows(t *testing.T) {
	t.Parallel()
	server := newScripted(t, map[string][]any{
		retries: {preview(3), operation(api.OperationStateRunning, 0)},
		"GET /v1/admin/operations/" + operationID: {apierror.ShuttingDown, operation(api.OperationStateRunning, 2), operation(api.OperationStateDone, 3)},
	})
	l := newLine(t, server.url)
	l.Interactive, l.Stdin = true, strings.NewReader("y\n")
	out, err := l.run(t, "retry", "--service", "ocr", "--code", "bad_scan", "--since", "24h", "--ended-before", "1h",
		"--created-after", "7d", "--tenant", "tenant_a", "--rate", "100", "--limit", "7", "--from", "start", "--reason", "the scanner is clean")
	if cli.ExitCode(err) != cli.ExitFailed || fmt.Sprint(err) != "1 of 3 jobs could not be changed" {
		t.Errorf("the retry ends with %v", err)
	}
	golden(t, "retry.txt", l.notes.String()+"\n"+out)
	request := strings.NewReplacer("\t", "", "\n", "").Replace(`{
		"created_after":"2026-01-20T12:00:00.000Z",%s"ended_after":"2026-01-26T12:00:00.000Z",
		"ended_before":"2026-01-27T11:00:00.000Z","error_code":"bad_scan","from":"start","limit":7,"rate_per_second":100,"reason":"the scanner is clean",
		"service":"ocr","tenant_id":"tenant_a"}`)
	server.wantAsked(t, retries+" "+fmt.Sprintf(request, `"dry_run":true,`), retries+" "+fmt.Sprintf(request, ""),
		"GET /v1/admin/operations/"+operationID+" limit=1", "GET /v1/admin/operations/"+operationID+" limit=1",
		"GET /v1/admin/operations/"+operationID+" limit=1", "GET /v1/admin/operations/"+operationID+" limit=1000")
	if server.keys[0] == "" || server.keys[0] != server.keys[1] {
		t.Errorf("the keys are %q", server.keys[:2])
	}
}

func TestRetry_ChangesNothingUnlessConfirmed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args, stdin string
		interactive bool
		matched     int
		code        int
		says        string
	}{
		{"retry --all --dry-run", "", false, 12, 0, "and 11 more\n\n12 jobs would be changed. Nothing has been changed.\n"},
		{"retry --all --dry-run --yes", "", false, 12, 0, "12 jobs would be changed"},
		{"retry --all --dry-run", "", false, 0, 0, "No job matches: nothing was changed.\n"},
		{"retry --all", "", true, 0, 0, "No job matches: nothing was changed.\n"},
		{"retry --all", "\n", true, 12, cli.ExitFailed, "nothing was changed"},
		{"retry --all", "y\n", false, 12, cli.ExitUsage, "Rerun 12 jobs? There is no terminal to ask on: add --yes"},
	} {
		server := newScripted(t, map[string][]any{retries: {preview(test.matched)}})
		l := newLine(t, server.url)
		l.Interactive, l.Stdin = test.interactive, strings.NewReader(test.stdin)
		out, err := l.run(t, strings.Split(test.args, " ")...)
		if err != nil {
			out += err.Error()
		}
		if cli.ExitCode(err) != test.code || !strings.Contains(out, test.says) {
			t.Errorf("%s: %v, %q", test.args, err, out)
		}
		server.wantAsked(t, retries+` {"all":true,"dry_run":true}`)
	}
	for args, want := range map[string]string{
		"retry":                        "say which jobs",
		"retry a --service ocr":        "not both",
		"retry a --from middle":        "--from is",
		"retry --state SUCCEEDED":      "say which jobs",
		"retry a --state SUCCEEDED":    "not both",
		"retry --created-before 1h":    "say which jobs",
		"retry a --created-before 1h":  "not both",
		"retry --all --state PAUSED":   "--state is",
		"retry --all --rate fast":      "20/s",
		"retry --ended-after soon":     "--ended-after is",
		"jobs cancel":                  "say which jobs",
		"jobs pause a --state queued":  "not both",
		"jobs resume a --dry-run":      "--dry-run and --detach",
		"operations":                   "",
		"operations get":               "usage: lucius operations get OPERATION",
		"failures list --since x":      "--ended-after is",
		"failures --created-before -1": "--created-before is",
		"retry --tag a=b":              "--doc and --tag need --tenant",
		"retry --tag a":                "must be key=value",
		"jobs cancel a --doc d":        "not both",
		"jobs pause a --tag a=b":       "not both",
	} {
		_, err := newLine(t, "http://127.0.0.1:1").run(t, strings.Split(args, " ")...)
		if want != "" && (cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// What selects by document and tags sends both, and refuses what the server would refuse.
func TestDocumentAndTags(t *testing.T) {
	t.Parallel()
	const query = "tenant_id=t&doc_id=d+1&tag=a%3Db&tag=c%3Dd%3De"
	const filter = `{"doc_id":"d 1","dry_run":true,%s"tags":{"a":"b","c":"d=e"},"tenant_id":"t"}`
	bulk := func(more string) string { return fmt.Sprintf(filter, more) }
	for command, test := range map[string]struct{ path, asked string }{
		"jobs list":     {"GET /v1/jobs", query + "&limit=50"},
		"failures list": {"GET /v1/jobs", strings.Replace(query, "&", "&state=FAILED_FINAL&", 1) + "&limit=50"},
		"failures":      {"GET /v1/admin/failures", query},
		"retry":         {retries, bulk(``)},
		"jobs cancel":   {"POST /v1/admin/cancellations", bulk("")},
		"jobs pause":    {"POST /v1/admin/pausings", bulk("")},
		"jobs resume":   {"POST /v1/admin/resumptions", bulk("")},
	} {
		answer := map[string]any{"GET /v1/jobs": api.JobPage{Jobs: []api.Job{}}, "GET /v1/admin/failures": api.FailureList{Groups: []api.FailureGroup{}}}[test.path]
		args := []string{}
		if answer == nil {
			answer, args = preview(3), []string{"--dry-run"}
		}
		server := newScripted(t, map[string][]any{test.path: {answer}})
		l := newLine(t, server.url)
		run := func(flags ...string) error {
			_, err := l.run(t, slices.Concat(strings.Fields(command), flags, args)...)
			return err
		}
		musttest.NoError(t, run("--tenant", "t", "--doc", "d 1", "--tag", "a=b", "--tag", "c=d=e"))
		server.wantAsked(t, test.path+" "+test.asked)
		for _, refused := range []struct {
			flags []string
			want  string
		}{
			{[]string{"--doc", "d"}, "--doc and --tag need --tenant"},
			{[]string{"--tag", "a=b"}, "--doc and --tag need --tenant"},
			{[]string{"--tenant", "t", "--tag", "a"}, `--tag "a" must be key=value`},
			{[]string{"--tenant", "t", "--tag", "A=b"}, `--tag "A=b" must have a key of`},
			{[]string{"--tenant", "t", "--tag", "a="}, `--tag "a=" must have a value of 1 to 128 bytes`},
			{[]string{"--tenant", "t", "--tag", "a=b", "--tag", "a=c"}, `--tag "a=c" must have another key`},
			{slices.Concat([]string{"--tenant", "t"}, slices.Repeat([]string{"--tag", "a=b"}, 9)), "--tag must be given at most 8 times, not 9"},
		} {
			if err := run(refused.flags...); cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), refused.want) {
				t.Errorf("%s %q: %v", command, refused.flags, err)
			}
		}
		server.wantAsked(t)
	}
}

// An operation changes at most --limit jobs, however many match.
func TestRetry_SaysHowManyJobsItChanges(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args      string
		matched   int
		truncated bool
		want      string
	}{
		{"retry --all", 500, false, "Rerun 500 jobs?"},
		{"retry --all --limit 10", 500, false, "Rerun 10 of 500 jobs?"},
		{"retry --all", 12_000, false, "Rerun 12000 jobs?"},
		{"retry --all", 9000, true, "Rerun at least 9000 jobs?"},
		{"retry --all --dry-run", 0, true, "No job matches among those that were examined, and there are more."},
		{"retry --all", 0, true, "Rerun at least 0 jobs?"},
		{"retry --all --limit 10", 500, true, "Rerun 10 of at least 500 jobs?"},
		{"retry --all --limit 10 --dry-run", 500, false, "10 of 500 jobs would be changed."},
		{"retry --all --dry-run", 9000, true, "At least 9000 jobs would be changed."},
	} {
		matching := preview(test.matched)
		matching.Truncated = test.truncated
		out, err := newLine(t, newScripted(t, map[string][]any{retries: {matching}}).url).run(t, strings.Split(test.args, " ")...)
		if err != nil {
			out += err.Error()
		}
		if !strings.Contains(out, test.want) {
			t.Errorf("%s: %q, want %q", test.args, out, test.want)
		}
	}
}

func TestRetry_OfNamedJobs(t *testing.T) {
	t.Parallel()
	server := newScripted(t, map[string][]any{retries: {operation(api.OperationStateRunning, 0)}})
	l := newLine(t, server.url)
	forPrograms(t, l, operation(api.OperationStateRunning, 0), "retry", "a", "b", "--yes", "--detach")
	server.wantAsked(t, retries+` {"job_ids":["a","b"]}`, retries+` {"job_ids":["a","b"]}`)
	server.answers[retries] = []any{preview(2)}
	forPrograms(t, l, preview(2), "retry", "a", "b", "--dry-run")
}

// After Ctrl-C the operation continues, and the command says how to watch and stop it.
func TestRetry_Interrupted(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{true, false} {
		ctx, interrupt := context.WithCancel(t.Context())
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPost && begun:
				fmt.Fprint(w, encode(t, operation(api.OperationStateRunning, 0)))
			default:
				_, _ = io.Copy(io.Discard, r.Body) // Only then does the server notice that the client leaves.
				interrupt()
				<-r.Context().Done()
			}
		})
		l := newLine(t, url)
		err := cli.Run(ctx, cli.Root(&l.Env), []string{"retry", "--all", "--yes"})
		want := "interrupted; the operation continues: lucius operations get " + operationID + " --watch follows it, lucius operations cancel " +
			operationID + " stops it"
		if !begun {
			want = "interrupted: lucius operations list shows whether the operation has started"
		}
		if cli.ExitCode(err) != cli.ExitInterrupted || fmt.Sprint(err) != want {
			t.Errorf("begun %t: %v", begun, err)
		}
	}
}

func TestJobsControl_OfSelectedJobs(t *testing.T) {
	t.Parallel()
	for verb, path := range map[string]string{"cancel": "cancellations", "pause": "pausings", "resume": "resumptions"} {
		done := operation(api.OperationStateDone, 0)
		server := newScripted(t, map[string][]any{
			"POST /v1/admin/" + path: {done}, "GET /v1/admin/operations/" + operationID: {done},
		})
		_, err := newLine(t, server.url).run(t, "jobs", verb, "--service", "ocr", "--state", "paused", "--step-type", "OCR",
			"--request-type", "doc.ingest", "--created-before", "1h", "--reason", "late", "--yes")
		if err != nil {
			t.Error(err)
		}
		server.wantAsked(t, "POST /v1/admin/"+path+` {"created_before":"2026-01-27T11:00:00.000Z","reason":"late","request_type":"doc.ingest",`+
			`"service":"ocr","state":"PAUSED","step_type":"OCR"}`, "GET /v1/admin/operations/"+operationID+" limit=1000")
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()
	one, running := operation(api.OperationStateDone, 3), operation(api.OperationStateRunning, 0)
	cancelled := operation(api.OperationStateCancelled, 2)
	one.Results = &api.OperationResults{Counted: 1, Failed: 1}
	list := api.OperationPage{Operations: []api.Operation{running, cancelled, one}}
	path := "GET /v1/admin/operations/" + operationID
	server := newScripted(t, map[string][]any{
		"GET /v1/admin/operations": {list}, path: {one}, "POST /v1/admin/operations/" + operationID + ":cancel": {cancelled},
	})
	l := newLine(t, server.url)
	var text strings.Builder
	for _, args := range []string{"list --tenant tenant_a --kind cancel", "get " + operationID, "cancel " + operationID + " --reason late"} {
		out := l.must(t, append([]string{"operations"}, strings.Split(args, " ")...)...)
		text.WriteString(out + "\n")
	}
	golden(t, "operations.txt", strings.TrimSuffix(text.String(), "\n"))
	server.wantAsked(t, "GET /v1/admin/operations kind=cancel&tenant_id=tenant_a&limit=50", path+" limit=50", path+" include=results&limit=1",
		"POST /v1/admin/operations/"+operationID+`:cancel {"reason":"late"}`)
	forPrograms(t, l, list, "operations", "list")
	forPrograms(t, l, one, "operations", "get", operationID)
	forPrograms(t, l, cancelled, "operations", "cancel", operationID)

	server.answers[path] = []any{running, cancelled}
	if _, err := l.run(t, "operations", "get", operationID, "--watch"); cli.ExitCode(err) != cli.ExitFailed ||
		!strings.Contains(err.Error(), "cancelled after 2 of 3 jobs") {
		t.Errorf("an operation that is cancelled: %v", err)
	}
	incomplete := operation(api.OperationStateDone, 2)
	incomplete.Matched = 3
	server.answers[path] = []any{running, incomplete}
	if _, err := l.run(t, "operations", "get", operationID, "--watch"); cli.ExitCode(err) != cli.ExitFailed ||
		!strings.Contains(fmt.Sprint(err), "ended without the outcome of 1 of 3 jobs") {
		t.Errorf("an operation that ended without the outcome of a job: %v", err)
	}
	server.answers[path] = []any{apierror.NotFound}
	if _, err := l.run(t, "operations", "get", operationID); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("an operation that is not there: %v", err)
	}
	if out, err := l.run(t, "__complete", "--url", server.url, "operations", "get", ""); err != nil || !strings.Contains(out, operationID+"\tretry of 3 jobs") {
		t.Errorf("completion: %v, %q", err, out)
	}
}

// A repetition goes on after each truncated operation, and a second run of the command has the same
// jobs before it, whatever the time is by then.
func TestRetry_RepeatsJobsThatSucceededUntilNoneIsLeft(t *testing.T) {
	t.Parallel()
	args := []string{"retry", "--state", "succeeded", "--request-type", "doc.ingest", "--since", "30d", "--patch", `{"model": "v3"}`,
		"--protocol", "current", "--rate", "20/s", "--yes"}
	first, second := operation(api.OperationStateDone, 2), operation(api.OperationStateDone, 2)
	first.Truncated, second.OperationID = true, "second"
	const asks = `{%s"created_after":"2025-12-28T12:00:00.000Z","created_before":"%s",%s"payload_patch":{"model":"v3"},"protocol":"current",` +
		`"rate_per_second":20,"request_type":"doc.ingest","state":"SUCCEEDED"}`
	other, earlier := first, second
	earlier.Filter = api.OperationFilter{
		State: api.JobStateSucceeded, RequestType: "doc.ingest", CreatedAfter: at(40 * 24 * time.Hour), CreatedBefore: at(2 * time.Hour),
	}
	earlier.From, earlier.PayloadPatch, earlier.Protocol = api.RerunFromStart, json.RawMessage(`{"model":"v3"}`), api.RerunProtocolCurrent
	other.Filter = earlier.Filter
	over := earlier
	over.Filter.CreatedBefore = at(31 * 24 * time.Hour) // It has none of the jobs that are asked for.
	ended := earlier
	ended.Filter.EndedAfter, ended.Filter.EndedBefore = at(7*24*time.Hour+2*time.Hour), at(3*time.Hour)
	const asBefore, aMinuteAgo = "2026-01-27T10:00:00.000Z", "2026-01-27T11:59:00.000Z"
	const goesOn = "lucius: goes on with the jobs accepted before 2026-01-27T10:00:00Z, as operation second did"
	for _, test := range []struct {
		flags  string
		before []api.Operation
		time   string
		ended  string
		says   string
	}{
		{"", nil, aMinuteAgo, "", "lucius: repeats jobs accepted before 2026-01-27T11:59:00Z\n"},
		{"", []api.Operation{other}, aMinuteAgo, "", "lucius: repeats jobs"},
		{"", []api.Operation{over}, aMinuteAgo, "", "lucius: repeats jobs"},
		{"", []api.Operation{other, earlier}, asBefore, "", goesOn},
		{ // An age is another time by now, a point in time is not.
			"--ended-after 7d --ended-before 1h", []api.Operation{earlier, ended}, asBefore,
			`"ended_after":"2026-01-20T12:00:00.000Z","ended_before":"2026-01-27T11:00:00.000Z",`, goesOn,
		},
		{
			"--ended-after 7d --ended-before 2026-01-27T11:00:00Z", []api.Operation{earlier, ended}, aMinuteAgo,
			`"ended_after":"2026-01-20T12:00:00.000Z","ended_before":"2026-01-27T11:00:00.000Z",`, "lucius: repeats jobs",
		},
		{ // All jobs that ended since were accepted after the time of the operation before.
			"--ended-after 1h --ended-before 10m", []api.Operation{earlier, ended}, aMinuteAgo,
			`"ended_after":"2026-01-27T11:00:00.000Z","ended_before":"2026-01-27T11:50:00.000Z",`, "lucius: repeats jobs",
		},
		{"--ended-after 7d", []api.Operation{earlier}, aMinuteAgo, `"ended_after":"2026-01-20T12:00:00.000Z",`, "lucius: repeats jobs"},
	} {
		server := newScripted(t, map[string][]any{
			"GET /v1/admin/retries": {api.OperationPage{Operations: test.before}}, retries: {first, second},
			"GET /v1/admin/operations/" + operationID: {first}, "GET /v1/admin/operations/second": {second},
		})
		l := newLine(t, server.url)
		if _, err := l.run(t, append(slices.Clone(args), strings.Fields(test.flags)...)...); err != nil {
			t.Error(err)
		}
		if notes := l.notes.String(); !strings.Contains(notes, test.says) || !strings.Contains(notes, "goes on with the jobs that follow those of operation "+operationID) {
			t.Errorf("the notes are %s", notes)
		}
		server.wantAsked(t, "GET /v1/admin/retries limit=1000", retries+" "+fmt.Sprintf(asks, "", test.time, test.ended),
			"GET /v1/admin/operations/"+operationID+" limit=1000", retries+" "+fmt.Sprintf(asks, `"after":"`+operationID+`",`, test.time, test.ended),
			"GET /v1/admin/operations/second limit=1000")
		if server.keys[1] == server.keys[3] {
			t.Error("both operations have one key")
		}
	}
}

// An operation that goes on after another one has its times, but for points in time.
func TestRetry_TakesTheTimesOfTheOperationBefore(t *testing.T) {
	t.Parallel()
	before := operation(api.OperationStateDone, 2)
	before.Filter = api.OperationFilter{CreatedAfter: at(40 * 24 * time.Hour), CreatedBefore: at(2 * time.Hour)}
	const own = " --created-after 2025-12-18T12:00:00Z --created-before 2026-01-27T10:00:00Z\n"
	for flags, test := range map[string]struct{ says, after, before string }{
		"--tenant t":             {own, "2025-12-18T12:00:00.000Z", "2026-01-27T10:00:00.000Z"},
		"--tenant t --since 30d": {own, "2025-12-18T12:00:00.000Z", "2026-01-27T10:00:00.000Z"},
		"--tenant t --since 2026-01-01T00:00:00Z --created-before 1h": {
			" --created-before 2026-01-27T10:00:00Z\n", "2026-01-01T00:00:00.000Z", "2026-01-27T10:00:00.000Z",
		},
		"--tenant t --created-after 1h --created-before 2026-01-26T00:00:00Z": {
			" --created-after 2025-12-18T12:00:00Z\n", "2025-12-18T12:00:00.000Z", "2026-01-26T00:00:00.000Z",
		},
	} {
		server := newScripted(t, map[string][]any{"GET /v1/admin/operations/" + operationID: {before}, retries: {preview(1)}})
		l := newLine(t, server.url)
		l.must(t, append([]string{"retry", "--state", "SUCCEEDED", "--after", operationID, "--dry-run"}, strings.Fields(flags)...)...)
		if got, want := l.notes.String(), "lucius: takes the times of operation "+operationID+":"+test.says; got != want {
			t.Errorf("%s: it says %q, not %q", flags, got, want)
		}
		server.wantAsked(t, "GET /v1/admin/operations/"+operationID+" limit=1",
			retries+` {"after":"`+operationID+`","created_after":"`+test.after+`","created_before":"`+test.before+`","dry_run":true,"state":"SUCCEEDED","tenant_id":"t"}`)
	}
	// The server refuses a bound that the operation before has not.
	server := newScripted(t, map[string][]any{
		"GET /v1/admin/operations/" + operationID: {operation(api.OperationStateDone, 2), apierror.NotFound}, retries: {preview(1)},
	})
	l := newLine(t, server.url)
	l.must(t, "retry", "--since", "1h", "--after", operationID, "--dry-run")
	server.wantAsked(t, "GET /v1/admin/operations/"+operationID+" limit=1",
		retries+` {"after":"`+operationID+`","dry_run":true,"ended_after":"2026-01-27T11:00:00.000Z"}`)
	if _, err := l.run(t, "retry", "--tenant", "t", "--after", operationID, "--dry-run"); cli.ExitCode(err) != cli.ExitNotFound || l.notes.Len() > 0 {
		t.Errorf("after an operation that is not there: %v, %s", err, &l.notes)
	}
}

// A list leaves out a long patch: then the operation itself tells whether it is the same repetition.
func TestRetry_ComparesALongPatchWithThatOfTheOperation(t *testing.T) {
	t.Parallel()
	for patch, want := range map[string]string{
		`{"model": 9007199254740992}`: "2026-01-27T10:00:00.000Z", `{"model": 9007199254740993}`: "2026-01-27T11:59:00.000Z",
	} {
		listed := operation(api.OperationStateDone, 2)
		listed.From, listed.Filter = api.RerunFromStart, api.OperationFilter{TenantID: "t", State: api.JobStateSucceeded, CreatedBefore: at(2 * time.Hour)}
		full := listed
		full.PayloadPatch = json.RawMessage(`{"model":9007199254740992}`)
		server := newScripted(t, map[string][]any{
			"GET /v1/admin/retries": {api.OperationPage{Operations: []api.Operation{listed}}}, "GET /v1/admin/operations/" + operationID: {full},
			retries: {preview(1)},
		})
		newLine(t, server.url).must(t, "retry", "--state", "SUCCEEDED", "--tenant", "t", "--patch", patch, "--dry-run")
		server.wantAsked(t, "GET /v1/admin/retries tenant_id=t&limit=1000", "GET /v1/admin/operations/"+operationID+" limit=1",
			retries+` {"created_before":"`+want+`","dry_run":true,"payload_patch":`+strings.ReplaceAll(patch, " ", "")+`,"state":"SUCCEEDED","tenant_id":"t"}`)
	}
}

// A dry run shows what would become of each job of the sample.
func TestRetry_ShowsTheDifferences(t *testing.T) {
	t.Parallel()
	sample := preview(2)
	sample.Sample[0].FirstStep = "ocr"
	sample.Sample[0].Changes = []api.CommandChange{
		{Pointer: "/payload/model", Before: json.RawMessage(`"v2"`), After: json.RawMessage(`"v3"`)}, {Pointer: "/payload/n", After: json.RawMessage("1")},
	}
	sample.Sample = append(sample.Sample, api.OperationSample{
		JobID: "b", State: api.JobStateSucceeded, TenantID: "tenant_a",
		Refused: &api.Refusal{Code: "payload_invalid", Errors: []apierror.Violation{{Pointer: "/payload/model", Message: "must be a string"}}},
	})
	server := newScripted(t, map[string][]any{retries: {sample}, "GET /v1/admin/retries": {api.OperationPage{}}})
	golden(t, "retry-dry-run.txt", newLine(t, server.url).must(t, "retry", "--all", "--state", "SUCCEEDED", "--patch", `{"model":"v3"}`, "--dry-run"))
	server.wantAsked(t, "GET /v1/admin/retries limit=1000", retries+` {"all":true,"created_before":"2026-01-27T11:59:00.000Z","dry_run":true,"payload_patch":{"model":"v3"},"state":"SUCCEEDED"}`)
}
