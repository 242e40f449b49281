//go:build integration && !race

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/waittest"
)

// How many jobs of each kind a bureau has, and how many of them OCR fails.
const (
	bureauJobs   = 1000
	bureauFails  = 400 // at first
	bureauBroken = 10  // of their reruns
	badScan      = "bad_scan"
)

// bureau is a server with 3,000 jobs: a third is for the service embed, which has no
// worker, a third is of a paused tenant, and a third is for ocr, whose worker fails.
type bureau struct {
	t *testing.T
	// client submits, ops asks, and worker does the work of ocr.
	client, ops, worker *caller
	// terminal is the operator's, and asked the commands that ran on it.
	terminal *terminal
	asked    []string

	embed, paused, ocr []string
	failed             []string // ids of jobs that ocr failed at first

	claims   int
	attempts int // attempts that ocr ended
	// shortest and longest bound the durations of its attempts, as the worker saw them.
	shortest, longest []time.Duration
}

// newBureau starts the server as it is shipped, and submits the jobs.
func newBureau(t *testing.T) *bureau {
	t.Helper()
	s, dir := newSite(t), t.TempDir()
	for _, service := range []string{"ocr", "embed"} {
		text := fmt.Sprintf("protocol_id: %s\nrequest_types: [doc.%[1]s]\nsteps:\n  - {step_id: %[1]s, step_type: %s, service: %[1]s}\n",
			service, strings.ToUpper(service))
		if err := os.WriteFile(filepath.Join(dir, service+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	b := &bureau{t: t}
	for name, by := range map[string]struct {
		caller **caller
		grants []string
	}{
		"client-1": {&b.client, []string{"submit:*"}},
		"ops-1":    {&b.ops, []string{"submit:*", "read:*", "admin:*"}},
		"worker-1": {&b.worker, []string{"platform:*"}},
	} {
		*by.caller = &caller{url: "http://localhost", token: addCaller(t, tokens, name, by.grants...), http: s.http}
	}
	s.start("--protocols-dir", dir, "--auth-file", tokens, "--ack-timeout", "5m", "--lease-duration", "5m")
	b.terminal = terminalOf(t, "http://"+s.address.Load().(string), b.ops.token)
	b.ask(http.StatusOK, "POST /v1/admin/pauses", `{"tenant_id":"tenant_p","reason":"the invoice is open"}`, nil)
	b.embed = b.submit("tenant_a", "embed", bureauJobs)
	b.paused = b.submit("tenant_p", "ocr", bureauJobs)
	b.ocr = b.submit("tenant_a", "ocr", bureauJobs)
	b.failed = b.ocr[:bureauFails]
	b.work(b.failed)
	return b
}

// ask sends one request of the operator, and decodes the answer.
func (b *bureau) ask(status int, target, body string, into any) {
	b.t.Helper()
	method, path, _ := strings.Cut(target, " ")
	got := b.ops.want(b.t, status, method, path, body)
	if into == nil {
		return
	}
	if err := json.Unmarshal([]byte(got.body), into); err != nil {
		b.t.Fatal(err)
	}
}

// types runs a command, which must be short, and compares its output, ignoring the width of
// columns.
func (b *bureau) types(line string, says ...string) {
	b.t.Helper()
	const longest = 60
	if b.asked = append(b.asked, line); len(line) > longest {
		b.t.Errorf("%q has %d characters", line, len(line))
	}
	out := strings.Join(strings.Fields(b.terminal.want(0, "", words(line)...)), " ")
	for _, text := range says {
		if !strings.Contains(out, text) {
			b.t.Errorf("%s does not say %q:\n%s", line, text, out)
		}
	}
}

// words splits a command line at spaces and double quotes, as a shell does, without the
// program's name.
func words(line string) (all []string) {
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 0 {
			all = append(all, strings.Fields(part)...)
		} else {
			all = append(all, part)
		}
	}
	return all[1:]
}

// submit submits n commands of the tenant, each a job for the service.
func (b *bureau) submit(tenant, service string, n int) (ids []string) {
	b.t.Helper()
	all := slices.Repeat([]int{0}, n)
	for part := range slices.Chunk(all, api.MaxBatch) {
		var commands []string
		for range part {
			command := strings.Replace(ingestFor(tenant, fmt.Sprint(service, len(ids)+len(commands))), "doc.ingest", "doc."+service, 1)
			commands = append(commands, command)
		}
		got := b.client.want(b.t, http.StatusOK, "POST", "/v1/commands:batch", `{"commands":[`+strings.Join(commands, ",")+`]}`)
		var result api.BatchResult
		if err := json.Unmarshal([]byte(got.body), &result); err != nil {
			b.t.Fatal(err)
		}
		for _, one := range result.Results {
			if one.Status != http.StatusAccepted {
				b.t.Fatalf("a command was answered %+v", one)
			}
			ids = append(ids, one.JobID)
		}
	}
	return ids
}

// work makes the worker of ocr execute all waiting items. It fails those of these jobs.
func (b *bureau) work(failing []string) {
	b.t.Helper()
	for {
		b.claims++
		asked := time.Now()
		got := b.worker.want(b.t, http.StatusOK, "POST", "/v1/work:claim",
			fmt.Sprintf(`{"owner":"worker-1","request_id":"c%d","services":["ocr"],"max":100,"start":true}`, b.claims))
		begun := time.Now()
		var claimed api.ClaimedWork
		if err := json.Unmarshal([]byte(got.body), &claimed); err != nil {
			b.t.Fatal(err)
		}
		if len(claimed.Items) == 0 {
			return
		}
		for _, item := range claimed.Items {
			var directive api.Directive
			if err := json.Unmarshal(item.Directive, &directive); err != nil {
				b.t.Fatal(err)
			}
			verb := fmt.Sprintf(`"owner":"worker-1","expected_rev":%d,"request_id":"r%d"`, item.Rev, b.attempts)
			path, body := ":complete", `{`+verb+`}`
			if slices.Contains(failing, directive.JobID) {
				path, body = ":fail", `{`+verb+`,"error":{"code":"`+badScan+`","message":"The page is blank."}}`
			}
			ending := time.Now()
			b.worker.want(b.t, http.StatusOK, "POST", "/v1/work/"+item.WorkID+path, body)
			b.attempts++
			b.shortest, b.longest = append(b.shortest, ending.Sub(begun)), append(b.longest, time.Since(asked))
		}
	}
}

// await calls the function repeatedly until it returns true.
func (b *bureau) await(what string, answer func() bool) {
	b.t.Helper()
	waittest.Until(b.t, what, answer)
}

// job reads one job.
func (b *bureau) job(id string) (job api.Job) {
	b.t.Helper()
	b.ask(http.StatusOK, "GET /v1/jobs/"+id, "", &job)
	return job
}

// failures reads the failed jobs since yesterday in groups.
func (b *bureau) failures(more string) []api.FailureGroup {
	b.t.Helper()
	var list api.FailureList
	yesterday := time.Now().AddDate(0, 0, -1).UTC().Format(time.RFC3339)
	b.ask(http.StatusOK, "GET /v1/admin/failures?ended_after="+yesterday+more, "", &list)
	if list.Truncated {
		b.t.Errorf("the failures are truncated")
	}
	return list.Groups
}

// An operator on call asks seven questions. For each, one request returns the correct answer,
// and one command prints it.
func TestQuestions_OfAnOperatorOnCall(t *testing.T) {
	t.Parallel()
	b := newBureau(t)

	// Where is X, and why does it wait?
	x := b.job(b.paused[7])
	if w := x.Waiting; x.State != api.JobStateDispatching || w == nil || w.Reason != "scope_paused" || w.BlockedBy == nil ||
		w.BlockedBy.ID != "tenant:tenant_p" || w.Detail != "paused by ops-1: the invoice is open" {
		t.Errorf("a job of the paused tenant is %s and waits for %+v", x.State, w)
	}
	b.types("lucius why "+x.JobID, "paused by ops-1: the invoice is open", "tenant:tenant_p")

	// What failed since yesterday, and why?
	groups := b.failures("")
	if len(groups) != 1 || groups[0].Service != "ocr" || groups[0].ErrorCode != badScan || groups[0].Count != bureauFails || groups[0].Resolved {
		t.Errorf("the failures are %+v", groups)
	}
	for _, id := range groups[0].SampleJobIds {
		if !slices.Contains(b.failed, id) {
			t.Errorf("job %s is said to have failed", id)
		}
	}
	b.types("lucius failures --since 24h", "400 ocr OCR bad_scan", "The page is blank.")
	b.types("lucius failures list --service ocr --limit 5", badScan, "There may be more than these 5")

	b.retryAndSee()

	// Pause OCR.
	b.types(`lucius pause --service ocr --reason "OCR is down"`, "Paused service:ocr")
	b.types("lucius pauses list", "OCR is down", "the invoice is open")
	held := b.job(b.submit("tenant_b", "ocr", 1)[0])
	if w := held.Waiting; w == nil || w.Reason != "scope_paused" || w.BlockedBy == nil || w.BlockedBy.ID != "service:ocr" {
		t.Errorf("a job for the paused service waits for %+v", w)
	}
	attempts := b.attempts
	if b.work(nil); b.attempts != attempts {
		t.Errorf("the paused service got %d directives", b.attempts-attempts)
	}

	// Who cancelled job Y?
	y := b.embed[3]
	b.ask(http.StatusAccepted, "POST /v1/jobs/"+y+":cancel", `{"reason":"wrong file"}`, nil)
	var events api.EventPage
	b.ask(http.StatusOK, "GET /v1/jobs/"+y+"/events", "", &events)
	cancelled := slices.IndexFunc(events.Events, func(e api.Event) bool { return e.Type == "job.cancelling" })
	if e := events.Events; cancelled < 0 || e[cancelled].Caller != "ops-1" || e[cancelled].Cause != "wrong file" || e[0].Caller != "client-1" {
		t.Errorf("the history is %+v", e)
	}
	b.types("lucius jobs events "+y, "job.cancelling", "ops-1 wrong file")

	b.countAll()

	// Where is X, and why does it wait? A minute without a poll shows that there is no worker.
	var why api.Waiting
	b.await("a minute without a poll", func() bool {
		why = *b.job(b.embed[7]).Waiting
		return why.Reason == "no_worker"
	})
	if !strings.Contains(why.Detail, "no worker has polled for service embed, step type EMBED") {
		t.Errorf("a job without a worker waits because %s", why.Detail)
	}
	b.types("lucius why "+b.embed[7], "No worker asks for work of service embed, step type EMBED.")

	guide, err := os.ReadFile("../../docs/run/on-call.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range b.asked {
		for _, id := range []string{x.JobID, y, b.embed[7]} {
			line = strings.ReplaceAll(line, id, "JOB")
		}
		if !strings.Contains(string(guide), "`"+line+"`") {
			t.Errorf("docs/run/on-call.md does not show %s", line)
		}
	}
}

// retryAndSee asks: retry it; did it help?
func (b *bureau) retryAndSee() {
	b.t.Helper()
	var preview api.OperationPreview
	const selection = `"service":"ocr","error_code":"bad_scan"`
	b.ask(http.StatusOK, "POST /v1/admin/retries", `{`+selection+`,"dry_run":true}`, &preview)
	if preview.Matched != bureauFails || len(preview.Sample) != 10 || preview.Truncated || preview.Sample[0].ErrorCode != badScan {
		b.t.Errorf("a dry run shows %+v", preview)
	}
	b.types("lucius retry --service ocr --code bad_scan --dry-run", "400 jobs would be changed. Nothing has been changed")
	line := "lucius retry --service ocr --code bad_scan -y --rate 1000"
	op := decode[api.Operation](b.terminal, words(line)...)
	b.asked = append(b.asked, line)
	if op.Matched != bureauFails || op.Applied != bureauFails || op.Caller != "ops-1" {
		b.t.Errorf("the retry is %+v", op)
	}
	var broken []string
	for _, item := range op.Items[:bureauBroken] {
		broken = append(broken, item.NewJobID)
	}
	b.work(broken)

	groups := b.failures("&include=resolved")
	open := slices.DeleteFunc(slices.Clone(groups), func(g api.FailureGroup) bool { return g.Resolved })
	if len(groups) != 2 || len(open) != 1 || open[0].Count != bureauBroken || groups[0].Count != bureauFails {
		b.t.Errorf("after the retry the failures are %+v", groups)
	}
	b.types("lucius failures --service ocr --include-resolved", "400 rerun ocr", "10 ocr")
	if old := b.job(op.Items[0].JobID); old.SupersededBy != broken[0] {
		b.t.Errorf("a failed job is superseded by %q, its rerun is %s", old.SupersededBy, broken[0])
	}
}

// countAll asks: how many are stuck? What is the error rate of OCR, and its p95? By then
// one job of embed is cancelled, and one of ocr is held by a pause.
func (b *bureau) countAll() {
	b.t.Helper()
	var all api.Overview
	b.await("the first count", func() bool {
		b.ask(http.StatusOK, "GET /v1/admin/overview", "", &all)
		return all.Exact && !all.Stuck.RoundEndedAt.IsZero()
	})
	if all.Stuck.Count != 0 || all.Stuck.Repaired != 0 || all.Jobs["DISPATCHING"] != 2*bureauJobs || all.Backlog != bureauJobs-1 ||
		all.OldestWaiting.Service != "embed" || len(all.Pauses) != 2 || all.Ended["FAILED_FINAL"].Total != bureauFails+bureauBroken {
		b.t.Errorf("the overview is %+v", all)
	}
	b.types("lucius stuck", "0 stuck of")
	b.types("lucius overview --once", "2000 DISPATCHING", "999, the oldest for embed", "OCR is down")

	var list api.ServiceList
	b.ask(http.StatusOK, "GET /v1/admin/services", "", &list)
	ocr, embed := service(b.t, &list, "ocr"), service(b.t, &list, "embed")
	const failed = bureauFails + bureauBroken
	rate := ocr.Attempts.LastHour
	if rate.Count != b.attempts || rate.Failed != failed || math.Abs(rate.ErrorRate-float64(failed)/float64(b.attempts)) > 0.001 ||
		ocr.WorkersTotal != 1 || ocr.Workers[0].Owner != "worker-1" {
		b.t.Errorf("ocr ended %d attempts, %d of them as failures: %+v", b.attempts, failed, ocr)
	}
	ended := fmt.Sprintf("%d attempts ended, %d failed (%.1f %%)", b.attempts, failed, 100*float64(failed)/float64(b.attempts))
	b.types("lucius services --service ocr", ended, "p95 ", "worker-1")
	// The server keeps the last durations. Each is between what its worker saw, so each percentile
	// is; the server's clock has milliseconds.
	const kept = 500
	shortest, longest := b.shortest[b.attempts-kept:], b.longest[b.attempts-kept:]
	slices.Sort(shortest)
	slices.Sort(longest)
	low, high := shortest[kept*95/100-1].Seconds()-0.003, longest[kept*95/100-1].Seconds()+0.003
	if p95 := ocr.DurationSeconds.P95; p95 < low || p95 > high || ocr.DurationSeconds.Count != kept {
		b.t.Errorf("the p95 of %d attempts of ocr is %g s, and its worker saw %g to %g", ocr.DurationSeconds.Count, p95, low, high)
	}
	if embed.Backlog != bureauJobs-1 || embed.WorkersTotal != 0 || embed.Attempts.Total != 0 {
		b.t.Errorf("embed has no worker: %+v", embed)
	}
}
