package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// intake is a server that accepts commands, one for each key. Its jobs have ended.
type intake struct {
	t  *testing.T
	mu sync.Mutex
	// jobs holds the keys of accepted commands, and bodies the requests.
	jobs   map[string]int
	bodies []string
	// busy is how many further commands get the answer that the store is unavailable.
	busy int
	// limit is the most bytes of a body.
	limit int
}

func (s *intake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := strings.CutPrefix(r.URL.Path, "/v1/jobs/"); ok {
		job := failedJob()
		if job.JobID = id; id != "job-2" {
			job.State, job.ErrorCode = api.JobStateSucceeded, ""
		}
		_ = json.NewEncoder(w).Encode(job)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	s.bodies = append(s.bodies, string(body))
	answer := func(status int, value any) {
		w.Header().Set("Content-Type", "application/json")
		if status >= 400 {
			w.Header().Set("Content-Type", "application/problem+json")
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(value)
	}
	for code, refused := range map[apierror.Code]bool{
		apierror.TooLarge: len(body) > s.limit, apierror.InvalidJSON: strings.Contains(string(body), `"doc_id":"a","doc_id":"b"`),
	} {
		if refused {
			answer(code.Status(), api.Problem{Code: code, Title: code.Title(), Status: int32(code.Status())})
			return
		}
	}
	if r.URL.Path == "/v1/commands" {
		one := s.take(body)
		if one.Error != nil {
			answer(int(one.Status), one.Error)
			return
		}
		answer(http.StatusAccepted, api.CommandAccepted{JobID: one.JobID, State: one.State, Replayed: *one.Replayed})
		return
	}
	var batch struct{ Commands []json.RawMessage }
	if err := json.Unmarshal(body, &batch); err != nil {
		s.t.Error(err)
	}
	var result api.BatchResult
	for _, text := range batch.Commands {
		result.Results = append(result.Results, s.take(text))
	}
	answer(http.StatusOK, result)
}

func (s *intake) take(text []byte) api.BatchItem {
	refuse := func(code apierror.Code, detail string) api.BatchItem {
		status := int32(code.Status())
		return api.BatchItem{Status: status, Error: &api.Problem{Code: code, Title: code.Title(), Detail: detail, Status: status}}
	}
	var c api.Command
	if err := json.Unmarshal(text, &c); err != nil {
		s.t.Error(err)
	}
	switch {
	case s.busy > 0:
		s.busy--
		return refuse(apierror.StoreUnavailable, "")
	case c.RequestType != "doc.ingest":
		return refuse(apierror.UnknownRequestType, "No protocol takes "+c.RequestType+".")
	case len(c.IdempotencyKey) == 0:
		s.t.Errorf("a command without a key: %s", text)
	}
	number, replayed := s.jobs[c.IdempotencyKey]
	if !replayed {
		number = len(s.jobs) + 1
		s.jobs[c.IdempotencyKey] = number
	}
	return api.BatchItem{Status: http.StatusAccepted, JobID: fmt.Sprint("job-", number), State: api.JobStateDispatching, Replayed: &replayed}
}

func newIntake(t *testing.T) (*intake, *line) {
	t.Helper()
	s := &intake{t: t, jobs: map[string]int{}, limit: 1 << 20}
	return s, newLine(t, serve(t, s.ServeHTTP))
}

// input writes a file of commands.
func input(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "commands.jsonl")
	musttest.WriteFile(t, path, text)
	return path
}

func TestSubmit_One(t *testing.T) {
	t.Parallel()
	s, l := newIntake(t)
	run := func(stdin string, code int, want string, args ...string) {
		t.Helper()
		l.Stdin = strings.NewReader(stdin)
		out, err := l.run(t, append([]string{"submit", "-"}, args...)...)
		if cli.ExitCode(err) != code || !strings.Contains(out+fmt.Sprint(err), want) {
			t.Errorf("%s: %v, %s", stdin, err, out)
		}
	}
	run(`{"request_type": "doc.ingest", "doc_id": "1"}`, 0, "Accepted: job job-1 is DISPATCHING\n")
	run(`{"doc_id":"1","request_type":"doc.ingest"}`, 0, "Accepted before: job job-1") // the same command
	run(`{"doc_id":"1","request_type":"doc.ingest"}`, 0, "Accepted: job job-2", "--again")
	run(`{"doc_id":"1","request_type":"doc.ingest","idempotency_key":"mine"}`, 0, "Accepted: job job-3")
	if s.jobs["mine"] != 3 || !strings.Contains(s.bodies[0], `"idempotency_key":"cli-`) {
		t.Errorf("the keys are %v", s.jobs)
	}
	run("\ufeff"+`{"doc_id":"4","request_type":"doc.ingest"}`+"\r\n", 0, "Accepted: job job-4")
	run(`{"request_type":"doc.burn"}`, cli.ExitRefused, "No protocol takes doc.burn")
	run(`{"doc_id":"1","request_type":"doc.ingest"}`, 0, "SUCCEEDED", "--wait")
	run(`{"doc_id":"2","request_type":"doc.ingest","idempotency_key":"mine"}`, 0, `"replayed": true`, "-o", "json")
	s.busy = 1
	run(`{"doc_id":"1","request_type":"doc.ingest"}`, 0, "Accepted before: job job-1") // on the second attempt
	for text, want := range map[string]string{
		"": "has no command", "[]": "has no command", "{}\n{]": "line 2: the input is not JSON", "{}\n\n7": "line 3: a command must be a JSON object",
		"[{}\n,{}\n": "line 3: the input is cut short", "[{}]\n{}": "line 2: the input is not JSON: there is text", "{}\n}\n{}": "line 2: the input is not JSON",
		"{}\n{\"doc_id\":\"\xff\"}": "line 2: the input is not UTF-8", "[{},]": "line 1: the input is not JSON",
	} {
		run(text, cli.ExitUsage, want)
	}
}

func TestSubmit_Many(t *testing.T) {
	t.Parallel()
	s, l := newIntake(t)
	var lines strings.Builder
	for i := range 250 {
		fmt.Fprintf(&lines, `{"request_type":"doc.ingest","doc_id":"%d"}`+"\n", i)
	}
	lines.WriteString(`{"request_type":"doc.burn"}` + "\n" + `{"request_type":"doc.ingest","doc_id":"0"}` + "\n")
	file := input(t, lines.String())
	out, err := l.run(t, "submit", file)
	if cli.ExitCode(err) != cli.ExitRefused || fmt.Sprint(err) != "1 of 252 commands were refused" {
		t.Errorf("answered %v", err)
	}
	golden(t, "submit-many.txt", out)
	if len(s.bodies) != 3 || len(s.jobs) != 251 { // A copy in the same file is a separate command.
		t.Errorf("%d requests, %d jobs", len(s.bodies), len(s.jobs))
	}
	out, err = l.run(t, "submit", file, "-o", "json")
	var batch api.BatchResult
	if err := json.Unmarshal([]byte(out), &batch); err != nil || len(batch.Results) != 252 || len(s.jobs) != 251 ||
		batch.Results[250].Error == nil || batch.Results[251].JobID == "" {
		t.Errorf("a repeat: %v, %d results, %d jobs", err, len(batch.Results), len(s.jobs))
	}
	if cli.ExitCode(err) != cli.ExitRefused {
		t.Errorf("a repeat: %v", err)
	}
}

// Commands are repeated while the server is busy, and sent in smaller batches if it rejects
// larger ones.
func TestSubmit_ManyToABusyServer(t *testing.T) {
	t.Parallel()
	s, l := newIntake(t)
	s.busy, s.limit = 3, 1000
	var commands []string
	for i := range 40 {
		commands = append(commands, fmt.Sprintf(`{"request_type":"doc.ingest","doc_id":"%d"}`, i))
	}
	l.Terminal = true
	out, err := l.run(t, "submit", input(t, "[\n"+strings.Join(commands, ",\n")+"\n]"))
	if err != nil || !strings.Contains(out, "40 accepted, 0 accepted before, 0 refused") || len(s.jobs) != 40 {
		t.Errorf("%v\n%s", err, out)
	}
	s.busy = 1 << 20
	l.Stdin = strings.NewReader(commands[0] + commands[1])
	if _, err := l.run(t, "submit", "-"); cli.ExitCode(err) != cli.ExitUnavailable || !strings.Contains(fmt.Sprint(err), "creates no second job") {
		t.Errorf("answered %v", err)
	}
}

// A command that spoils its batch is refused alone.
func TestSubmit_ManyWithInvalidOnes(t *testing.T) {
	t.Parallel()
	s, l := newIntake(t)
	s.limit = 2000
	file := input(t, `{"request_type":"doc.ingest","doc_id":"1"}`+"\n"+
		`{"request_type":"doc.ingest","doc_id":"a","doc_id":"b"}`+"\n"+
		`{"request_type":"doc.ingest","doc_id":"`+strings.Repeat("x", 3000)+`"}`+"\n"+
		`{"request_type":"doc.ingest","doc_id":"2"}`+"\n")
	out, err := l.run(t, "submit", file)
	if cli.ExitCode(err) != cli.ExitUsage || fmt.Sprint(err) != "2 of 4 commands were refused" || len(s.jobs) != 2 {
		t.Errorf("answered %v, %d jobs", err, len(s.jobs))
	}
	golden(t, "submit-spoilt.txt", out)
}

// With --again, the error must not promise that a repeat creates no second job.
func TestSubmit_InterruptedWithAgain(t *testing.T) {
	t.Parallel()
	s, l := newIntake(t)
	s.busy = 1 << 20
	for text, want := range map[string]string{"{} {}": "creates second jobs", "{}": "repeat the command with its idempotency_key \""} {
		_, err := l.run(t, "submit", "--again", input(t, text))
		if cli.ExitCode(err) != cli.ExitUnavailable || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: answered %v", text, err)
		}
	}
}

func TestSubmit_InterruptedSaysThatTheJobsContinue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"{}": "lucius jobs watch slow", "{} {}": "the jobs continue"} {
		ctx, interrupt := context.WithCancel(t.Context())
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // Only then does the server notice that the client leaves.
			switch one := (api.BatchItem{Status: http.StatusAccepted, JobID: "slow"}); r.URL.Path {
			case "/v1/commands":
				fmt.Fprint(w, encode(t, api.CommandAccepted{JobID: "slow"}))
			case "/v1/commands:batch":
				fmt.Fprint(w, encode(t, api.BatchResult{Results: []api.BatchItem{one, one}}))
			default:
				interrupt()
				<-r.Context().Done()
			}
		})
		l := newLine(t, url)
		l.Stdin = strings.NewReader(text)
		err := cli.Run(ctx, cli.Root(&l.Env), []string{"submit", "-", "--wait"})
		if cli.ExitCode(err) != cli.ExitInterrupted || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: answered %v", text, err)
		}
	}
}

// Without the id, a job with a key that --again has made could not be found again.
func TestWait_NamesTheJobWhateverBreaksIt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code int
		args []string
		get  http.HandlerFunc
	}{
		{cli.ExitUnavailable, []string{"submit", "-", "--wait"}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }},
		{cli.ExitForbidden, []string{"submit", "-", "--wait", "--again"}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, encode(t, refused(apierror.Unauthenticated, "No valid token.")))
		}},
		{cli.ExitUnavailable, []string{"jobs", "rerun", "old", "--wait"}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				fmt.Fprint(w, encode(t, api.CommandAccepted{JobID: "new", State: api.JobStateDispatching}))
				return
			}
			test.get(w, r)
		}))
		l.Stdin = strings.NewReader("{}")
		_, err := l.run(t, test.args...)
		if cli.ExitCode(err) != test.code || !strings.HasSuffix(fmt.Sprint(err), "; job new was accepted: lucius jobs watch new") {
			t.Errorf("%v: exits with %d: %v", test.args, cli.ExitCode(err), err)
		}
	}
}

func TestSubmit_ManyAndWait(t *testing.T) {
	t.Parallel()
	_, l := newIntake(t)
	file := input(t, `{"request_type":"doc.ingest","doc_id":"1"} {"request_type":"doc.ingest","doc_id":"2"}`)
	out, err := l.run(t, "submit", file, "--wait")
	if cli.ExitCode(err) != cli.ExitFailed || fmt.Sprint(err) != "1 of 2 jobs did not succeed" {
		t.Errorf("answered %v", err)
	}
	golden(t, "submit-wait.txt", out)
	out, _ = l.run(t, "submit", file, "--wait", "-o", "json")
	var list api.JobPage
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&list); err != nil || len(list.Jobs) != 2 || list.Jobs[1].State != api.JobStateFailedFinal {
		t.Errorf("as JSON: %v\n%s", err, out)
	}
}

// What is known of the jobs is printed, whatever the wait for one of them comes to.
func TestSubmit_ManyPrintsWhatItKnows(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	accepted := func(id string) api.BatchItem { return api.BatchItem{Status: http.StatusAccepted, JobID: id} }
	refused := api.BatchItem{Status: http.StatusUnprocessableEntity, Error: &api.Problem{
		Code: apierror.UnknownRequestType, Status: http.StatusUnprocessableEntity, Detail: "No protocol takes doc.burn.",
	}}
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		job := failedJob()
		job.State = api.JobStateSucceeded
		switch job.JobID = strings.TrimPrefix(r.URL.Path, "/v1/jobs/"); {
		case r.Method == http.MethodPost:
			fmt.Fprint(w, encode(t, api.BatchResult{Results: []api.BatchItem{accepted("done"), accepted("slow"), refused}}))
			return
		case job.JobID == "slow" && away.Load():
			w.WriteHeader(http.StatusBadGateway)
			return
		case job.JobID == "slow" && r.URL.Query().Has("wait"):
			<-r.Context().Done()
			return
		case job.JobID == "slow":
			job.State, job.CompletedAt = api.JobStateInProgress, api.Time{}
		}
		fmt.Fprint(w, encode(t, job))
	}))
	file := input(t, "{} {}\n{}")
	for _, test := range []struct {
		away      bool
		code      int
		says, out string
	}{
		{false, cli.ExitFailed, "1 of 2 jobs did not succeed, 1 of them have not ended within 50ms", "1 succeeded, 1 did not"},
		{true, cli.ExitUnavailable, "the jobs continue: lucius jobs list", "1 succeeded, 0 did not"},
	} {
		away.Store(test.away)
		args := []string{"submit", file, "--wait", "--timeout", "50ms"}
		if test.away {
			args = args[:3]
		}
		out, err := l.run(t, args...)
		if cli.ExitCode(err) != test.code || !strings.Contains(fmt.Sprint(err), test.says) || !strings.Contains(out, test.out) ||
			!strings.Contains(out, "No protocol takes doc.burn") {
			t.Errorf("answered %v\n%s", err, out)
		}
		out, _ = l.run(t, append(args, "-o", "json")...)
		var list api.JobPage
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Jobs) == 0 || list.Jobs[0].JobID != "done" ||
			!strings.Contains(l.notes.String(), "line 2: unknown_request_type: No protocol takes doc.burn") {
			t.Errorf("as JSON: %v\n%s\n%s", err, out, l.notes.String())
		}
	}
}

func TestSubmit_WaitsAtMostTheTimeout(t *testing.T) {
	t.Parallel()
	for name, get := range map[string]http.HandlerFunc{
		"the server waits":   func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"the server is away": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					fmt.Fprint(w, encode(t, api.CommandAccepted{JobID: "slow", State: api.JobStateDispatching}))
					return
				}
				get(w, r)
			})
			l := newLine(t, url)
			l.Stdin = strings.NewReader("{}")
			l.Sleep = func(ctx context.Context, _ time.Duration) { <-ctx.Done() }
			_, err := l.run(t, "submit", "-", "--wait", "--timeout", "50ms")
			if cli.ExitCode(err) != cli.ExitFailed || !strings.Contains(fmt.Sprint(err), "job slow has not ended within 50ms: lucius why slow") {
				t.Errorf("answered %v", err)
			}
		})
	}
}
