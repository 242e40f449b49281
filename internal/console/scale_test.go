//go:build scale

package console

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	flags "flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
)

var (
	scaleFinished = flags.Int("scale.finished", 20_000, "how many jobs have ended")
	scaleLive     = flags.Int("scale.live", 2_000, "how many jobs are live")
	scaleParked   = flags.Int("scale.parked", 2_000, "how many more wait for their date")
	scaleLines    = flags.Int("scale.lines", 300, "how many lines have jobs that wait; one in ten of them is blocked")
	scaleDir      = flags.String("scale.dir", "", "data folder that is kept, and filled if it is new; default is a temporary one")
	scaleAsks     = flags.Int("scale.asks", 5, "how often each page is asked for")
)

const (
	// scaleTenants is the number of tenants with jobs. One in scaleFails jobs fails.
	scaleTenants = 20
	scaleFails   = 100
	// scalePaused is how many live jobs are paused, the oldest ones.
	scalePaused = 12
	// mostReads and mostRows bound what one page reads from the store, however many jobs
	// there are.
	mostReads = 1_000
	mostRows  = 30_000
)

// crowded is a server that holds many jobs.
type crowded struct {
	*testing.T

	url             string
	client          *api.Client
	browser         *http.Client
	live, ended     string // one job of each
	line, blocked   string // a line, and a job that waits in it
	requests, fails atomic.Int64
}

// TestScale asks a real server with many jobs for each page. It prints how long that takes
// and how much the server reads for it, and fails if it reads more than mostReads or
// mostRows. `make console-scale` runs it.
func TestScale(t *testing.T) { //nolint:paralleltest // It measures.
	s := startCrowded(t)
	s.fill()
	pages := []string{
		"", "flow", "services", "services/work", "services/rest", "services/idle",
		"jobs", "jobs?tenant_id=tenant_1", "jobs?state=DISPATCHING", "jobs?state=IN_PROGRESS", "jobs?state=PAUSED", "jobs?state=QUEUED",
		"jobs?state=SUCCEEDED", "jobs?state=FAILED_FINAL", "jobs?state=CANCELLED", "jobs?service=rest", "jobs?service=idle",
		"jobs?waiting=scheduled", "jobs?waiting=scheduled&tenant_id=tenant_1", "jobs?waiting=scheduled&service=none",
		"jobs?service=none", "jobs?service=none&state=IN_PROGRESS", "jobs?service=none&state=SUCCEEDED", "jobs?request_type=none",
		"jobs?error_code=code_3", "jobs?error_code=none", "jobs?error_code=none&tenant_id=tenant_1", "jobs?correlation_id=none",
		"jobs?state=PAUSED&tenant_id=tenant_1", "jobs?since=1+h&service=none",
		"jobs?tenant_id=tenant_1&doc_id=doc_7", "jobs?tenant_id=tenant_1&doc_id=none", "document?tenant_id=tenant_1&doc_id=doc_7",
		"jobs?tenant_id=tenant_1&tag=env%3Dprod", "jobs?tenant_id=tenant_1&tag=customer%3D7", "jobs?tenant_id=tenant_1&tag=customer%3D7&tag=env%3Dprod",
		"jobs?tenant_id=tenant_1&tag=env%3Dprod&state=FAILED_FINAL", "jobs?tenant_id=tenant_1&tag=env%3Dnone",
		"failures?tenant_id=tenant_1&tag=customer%3D7", "search?q=doc_7",
		"lines", "lines?state=blocked", "lines?state=moving", "lines?tenant_id=tenant_1", "lines/" + s.line, "jobs/" + s.blocked,
		"jobs/" + s.live, "jobs/" + s.ended, "failures", "failures?since=1+h", "failures?service=none", "failures?tenant_id=tenant_1",
		"outbox", "outbox?state=SENT", "outbox?state=FAILED_FINAL", "outbox?state=ALL", "outbox?lane=7",
		"pauses", "limits", "webhooks", "operations", "protocols", "audit",
		"do/jobs-cancel?state=PAUSED", "do/jobs-cancel?service=none", "do/retry?service=none",
	}
	t.Logf("%-45s %9s %9s %7s %8s", "page", "median", "slowest", "reads", "rows")
	for _, page := range pages {
		times, reads, rows := make([]time.Duration, *scaleAsks), 1<<60, 1<<60
		for i := range times {
			if i > 0 {
				time.Sleep(100 * time.Millisecond) // Otherwise all would include what the server reads in the background.
			}
			readsBefore, rowsBefore := s.read()
			begun := time.Now()
			s.page(page)
			times[i] = time.Since(begun)
			readsAfter, rowsAfter := s.read()
			reads, rows = min(reads, readsAfter-readsBefore), min(rows, rowsAfter-rowsBefore)
		}
		slices.Sort(times)
		t.Logf("%-45s %9s %9s %7d %8d", Path+strings.NewReplacer(s.live, "{live}", s.ended, "{ended}", s.line, "{line}", s.blocked, "{blocked}").Replace(page), times[len(times)/2].Round(100*time.Microsecond),
			times[len(times)-1].Round(100*time.Microsecond), reads, rows)
		if reads > mostReads || rows > mostRows {
			t.Errorf("/ui/%s reads %d rows in %d reads", page, rows, reads)
		}
	}
}

// startCrowded builds the program from these sources and starts it.
func startCrowded(t *testing.T) *crowded {
	t.Helper()
	dir := cmp.Or(*scaleDir, t.TempDir())
	program, protocols := filepath.Join(t.TempDir(), "lucius"), t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/lucius").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, service := range []string{"work", "rest", "idle", "line"} {
		text := fmt.Sprintf("protocol_id: %[1]s_v1\nrequest_types: [scale.%[1]s]\nlease: 24h\nsteps:\n"+
			"  - {step_id: one, step_type: SCALE, service: %[1]s, input: job}\n", service)
		musttest.WriteFile(t, filepath.Join(protocols, service+".yaml"), text)
	}
	server := exec.CommandContext(context.WithoutCancel(t.Context()), program, "serve", "--listen-addr", "127.0.0.1:0",
		"--data-dir", dir, "--protocols-dir", protocols, "--log-level", "error")
	server.Stderr = os.Stderr
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	musttest.NoError(t, err)
	browser := &http.Client{}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		if err := server.Wait(); err != nil {
			t.Error(err)
		}
		browser.CloseIdleConnections()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "lucius serves ")
	if err != nil || !ok {
		t.Fatalf("the server did not come up: %q, %v", line, err)
	}
	client, err := api.NewClient(url, api.WithHTTPClient(browser))
	musttest.NoError(t, err)
	return &crowded{T: t, url: url, client: client, browser: browser}
}

// fill creates the jobs, unless the folder has some.
func (s *crowded) fill() {
	list, err := call[api.JobPage](s.client.ListJobs(s.Context(), &api.ListJobsParams{Limit: new(api.Limit(1))}))
	if err == nil && len(list.Jobs) == 0 {
		begun := time.Now()
		err = errors.Join(s.submit("idle", scalePaused, 0), s.pauseAll(), s.submit("rest", *scaleParked, 24*time.Hour))
		if err == nil {
			err = s.finish(*scaleFinished)
		}
		if err == nil {
			err = errors.Join(s.submit("idle", *scaleLive/2, 0), s.submit("rest", *scaleLive/2, 0), s.claim(*scaleLive/4), s.block())
		}
		s.Logf("filled in %s", time.Since(begun).Round(time.Second))
	}
	if err != nil {
		s.Fatal(err)
	}
	// After a walk over its live jobs the server knows them: it need not search for jobs in a
	// state that none has.
	for deadline, known := time.Now().Add(10*time.Minute), false; !known; time.Sleep(time.Second) {
		list, err := s.jobs(api.JobStateCancelling)
		if err != nil || time.Now().After(deadline) {
			s.Fatalf("the live jobs are not known: %v", err)
		}
		known = list.NextPageToken == ""
	}
	for state, into := range map[api.JobState]*string{api.JobStateInProgress: &s.live, api.JobStateFailedFinal: &s.ended} {
		list, err := s.jobs(state)
		if err != nil || len(list.Jobs) == 0 {
			s.Fatalf("no job is %s: %v", state, err)
		}
		*into = list.Jobs[0].JobID
	}
	lines, err := call[api.LinePage](s.client.ListLines(s.Context(), &api.ListLinesParams{State: new(api.LineStateBlocked)}))
	if err != nil || len(lines.Lines) == 0 {
		s.Fatalf("no line is blocked: %v", err)
	}
	s.line = lines.Lines[0].LineID
	jobs, err := call[api.LineJobPage](s.client.ListLineJobs(s.Context(), s.line, nil))
	if err != nil || len(jobs.Jobs) < 2 {
		s.Fatalf("no job waits in the line: %v", err)
	}
	s.blocked = jobs.Jobs[1].JobID
}

// jobs lists the newest job in that state.
func (s *crowded) jobs(state api.JobState) (api.JobPage, error) {
	return call[api.JobPage](s.client.ListJobs(s.Context(), &api.ListJobsParams{State: &state, Limit: new(api.Limit(1))}))
}

// submit submits jobs for a service, which begin after the delay.
func (s *crowded) submit(service string, jobs int, delay time.Duration) error {
	var group errgroup.Group
	group.SetLimit(8)
	for from := 0; from < jobs; from += 100 {
		group.Go(func() error { return s.submitBatch(service, min(100, jobs-from), delay) })
	}
	return group.Wait()
}

func (s *crowded) submitBatch(service string, jobs int, delay time.Duration) error {
	request := api.BatchRequest{Commands: make([]api.Command, jobs)}
	for i := range request.Commands {
		n, key := s.requests.Add(1), ""
		if service == "line" {
			key = fmt.Sprint("key_", n/scaleTenants%((int64(*scaleLines)+scaleTenants-1)/scaleTenants))
		}
		request.Commands[i] = api.Command{
			TenantID: fmt.Sprint("tenant_", n%scaleTenants), RequestType: "scale." + service, SchemaVersion: "1",
			IdempotencyKey: fmt.Sprint("k", n), DelaySeconds: int64(delay.Seconds()), InputRef: json.RawMessage(`{"uri":"s3://b/in"}`),
			OutputRef: json.RawMessage(`{"uri":"s3://b/out"}`), Payload: json.RawMessage(`{"pages":7}`),
			// A tenant's documents have three jobs each, all its jobs the tag env, and one in ten thousand customer=7.
			OrderKey: key, DocID: fmt.Sprint("doc_", n/scaleTenants/3), Tags: api.Tags{"env": "prod", "customer": fmt.Sprint(n / scaleTenants % 10_000)},
		}
	}
	answer, err := call[api.BatchResult](s.client.SubmitBatch(s.Context(), request))
	for i := range answer.Results {
		if refused := answer.Results[i].Error; refused != nil {
			return errors.New(refused.Detail)
		}
	}
	return err
}

// pauseAll pauses all live jobs.
func (s *crowded) pauseAll() error {
	list, err := call[api.JobPage](s.client.ListJobs(s.Context(), nil))
	for i := range list.Jobs {
		if err == nil {
			_, err = call[api.Job](s.client.PauseJob(s.Context(), list.Jobs[i].JobID, api.ControlRequest{}))
		}
	}
	return err
}

// claimed has the fields of a claimed item that the test uses.
type claimed struct {
	Items []struct {
		WorkID string `json:"work_id"`
		Rev    int64  `json:"rev"`
	} `json:"items"`
}

func (s *crowded) claimSome(service string, most int) (claimed, error) {
	return call[claimed](s.client.ClaimWork(s.Context(), api.ClaimRequest{
		Owner: "scale", Services: []string{service}, Max: int32(most), WaitSeconds: 5, Start: true, RequestID: s.name(),
	}))
}

// block makes lines of three jobs, and lets the first job of one in ten of them fail.
func (s *crowded) block() error {
	if err := s.submit("line", 3**scaleLines, 0); err != nil {
		return err
	}
	got, err := s.claimSome("line", min(100, *scaleLines/10))
	for _, item := range got.Items {
		if err == nil {
			err = s.fail(item.WorkID, item.Rev, "blocks")
		}
	}
	return err
}

// fail lets the step of an item fail for good.
func (s *crowded) fail(workID string, rev int64, code string) error {
	_, err := call[api.WorkItem](s.client.FailWork(s.Context(), workID, api.WorkFailure{
		Owner: "scale", ExpectedRev: rev, RequestID: s.name(), Error: api.ReportedError{Code: code, Message: "It does not work."},
	}))
	return err
}

// name returns a new id for a request.
func (s *crowded) name() string { return fmt.Sprint("r", s.requests.Add(1)) }

// claim starts jobs that never end.
func (s *crowded) claim(jobs int) error {
	for jobs > 0 {
		got, err := s.claimSome("rest", min(jobs, 100))
		if err != nil {
			return err
		}
		jobs -= len(got.Items)
	}
	return nil
}

// finish creates jobs that have ended.
func (s *crowded) finish(jobs int) error {
	var group errgroup.Group
	group.SetLimit(8)
	for from := 0; from < jobs; from += 100 {
		group.Go(func() error {
			if err := s.submitBatch("work", min(100, jobs-from), 0); err != nil {
				return err
			}
			got, err := s.claimSome("work", 100)
			if err != nil {
				return err
			}
			return s.end(&got)
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for {
		got, err := s.claimSome("work", 100)
		if err != nil || len(got.Items) == 0 {
			return err
		}
		if err := s.end(&got); err != nil {
			return err
		}
	}
}

// end completes the items, or lets some of them fail.
func (s *crowded) end(got *claimed) error {
	var done api.WorkCompletionBatch
	for _, item := range got.Items {
		if n := s.fails.Add(1); n%scaleFails == 0 {
			if err := s.fail(item.WorkID, item.Rev, fmt.Sprint("code_", n/scaleFails%5)); err != nil {
				return err
			}
			continue
		}
		done.Items = append(done.Items, api.ItemCompletion{
			WorkID: item.WorkID, Owner: "scale", ExpectedRev: item.Rev, RequestID: s.name(), ResultRef: json.RawMessage(`{"uri":"s3://b/r"}`),
		})
	}
	if len(done.Items) == 0 {
		return nil
	}
	_, err := call[api.WorkCompletionResults](s.client.CompleteWorkBatch(s.Context(), done))
	return err
}

// get returns the body of a response, which must be a success.
func (s *crowded) get(path string) string {
	request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	response, err := s.browser.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		s.Fatalf("%s: %s, %v", path, response.Status, err)
	}
	return string(body)
}

// page asks for a page.
func (s *crowded) page(path string) { s.get(Path + path) }

// read returns how much the server has read from its store.
func (s *crowded) read() (reads, rows int) {
	for line := range strings.Lines(s.get("/metrics")) {
		for name, into := range map[string]*int{"lucius_store_reads_total ": &reads, "lucius_store_rows_read_total ": &rows} {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				n, err := strconv.ParseFloat(value, 64)
				if err != nil {
					s.Fatal(err)
				}
				*into = int(n)
			}
		}
	}
	return reads, rows
}
