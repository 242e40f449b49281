package console

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
)

func TestJobs_ListsThemWithAFewWords(t *testing.T) {
	t.Parallel()
	failed := runningJob()
	failed.JobID, failed.State, failed.Waiting, failed.ErrorCode, failed.ErrorMessage = "j2", api.JobStateFailedFinal, nil, "bad", hostile
	failed.SupersededBy = "j3"
	running := runningJob()
	running.TenantID, running.Waiting = hostile, &api.Waiting{Reason: api.WaitingReasonSilent, Detail: "silent since " + at(40).String()}
	b := newBrowser(t, map[string]any{"GET /v1/jobs": api.JobPage{Jobs: []api.Job{running, failed}, NextPageToken: "t&2"}})
	page := b.get(t, "/ui/jobs?state=IN_PROGRESS&service=ocr&error_code=a+b&since=24+h&page_token=t1&back=")
	b.asks(t, "GET /v1/jobs?state=IN_PROGRESS&service=ocr&error_code=a+b&created_after=2026-01-26T10%3A02%3A30.000Z&limit=50&page_token=t1")
	filter := "created_after=2026-01-26T10%3A02%3A30.000Z&amp;error_code=a&#43;b"
	has(t, page, `href="/ui/jobs/j1"`, "<option selected>IN_PROGRESS</option>", `<option selected>24 h</option>`, `silent for <time class="since"`, "bad: &lt;script&gt;", `rerun as <a href="/ui/jobs/j3">`,
		`rel="prev" href="/ui/jobs?created_after=2026-01-26T10%3A02%3A30.000Z&amp;error_code=a&#43;b&amp;service=ocr&amp;state=IN_PROGRESS"`,
		`rel="next" href="/ui/jobs?back=&amp;back=t1&amp;`+filter+`&amp;page_token=t%262&amp;`,
		`/ui/do/jobs-cancel?`+filter+`&amp;service=ocr&amp;state=IN_PROGRESS"`, `formaction="/ui/do/jobs-pause?ticked=1"`, `name="job" value="j2"`,
		"lucius jobs list --service ocr --code &#39;a b&#39; --state IN_PROGRESS --created-after 2026-01-26T10:02:30.000Z")
	hasNot(t, page, hostile, "do/retry", "There are no jobs")
	page = b.get(t, "/ui/jobs?tenant_id=t&doc_id=a+b&tag=env%3Dprod&tag=customer%3D4%262&tag=")
	b.asks(t, "GET /v1/jobs?tenant_id=t&doc_id=a+b&tag=customer%3D4%262&tag=env%3Dprod&limit=50")
	has(t, page, `value="a b"`, `<input name="tag" value="customer=4&amp;2">`, `/ui/do/jobs-cancel?doc_id=a&#43;b&amp;tag=customer%3D4%262&amp;tag=env%3Dprod&amp;tenant_id=t"`,
		"lucius jobs list --tenant t --doc &#39;a b&#39; --tag &#39;customer=4&amp;2&#39; --tag &#39;env=prod&#39;")
	b.token = "reader"
	hasNot(t, b.get(t, "/ui/jobs"), "do/jobs-cancel", `name="job"`)
	b.token = "bound"
	has(t, b.get(t, "/ui/jobs?created_before=2026-01-27T10:00"), "<option selected>tenant_a</option>", `value="2026-01-27T10:00:00"`, "do/retry?")
	b.asks(t, "GET /v1/jobs?tenant_id=tenant_a&created_before=2026-01-27T10%3A00%3A00.000Z&limit=50")
}

func TestJobs_SaysThatTenantsAreOmitted(t *testing.T) {
	t.Parallel()
	const said = "Choose a tenant to see all that it has."
	for page, list := range map[string]func(omitted bool) any{
		"/ui/jobs":   func(omitted bool) any { return api.JobPage{Jobs: []api.Job{runningJob()}, TenantsOmitted: omitted} },
		"/ui/outbox": func(omitted bool) any { return api.OutboxPage{Outbox: []api.OutboxRow{}, TenantsOmitted: omitted} },
	} {
		call := map[string]string{"/ui/jobs": "GET /v1/jobs", "/ui/outbox": "GET /v1/admin/outbox"}[page]
		has(t, newBrowser(t, map[string]any{call: list(true)}).get(t, page), said)
		hasNot(t, newBrowser(t, map[string]any{call: list(false)}).get(t, page), said)
	}
}

func TestJobs_OffersWhatFitsTheState(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/jobs": api.JobPage{Jobs: []api.Job{runningJob()}}})
	for query, want := range map[string]string{
		"":                                  "retry jobs-pause jobs-resume jobs-cancel; retry jobs-pause jobs-resume jobs-cancel",
		"?state=FAILED_FINAL":               "retry; retry",
		"?state=PAUSED":                     "jobs-pause jobs-resume jobs-cancel; jobs-pause jobs-resume jobs-cancel",
		"?state=SUCCEEDED":                  "retry; retry",
		"?correlation_id=c&state=":          "; retry jobs-pause jobs-resume jobs-cancel", // Operations do not select by it.
		"?state=CANCELLED&service=s1":       "retry; retry",
		"?waiting=no_worker":                "; retry jobs-pause jobs-resume jobs-cancel",
		"?ended_after=2026-01-01T00:00:00Z": "retry; retry",
	} {
		page := b.get(t, "/ui/jobs"+query)
		var all, ticked []string
		for _, found := range regexp.MustCompile(`(href|formaction)="/ui/do/([a-z-]+)[?"]`).FindAllStringSubmatch(page, -1) {
			if found[1] == "href" {
				all = append(all, found[2])
			} else {
				ticked = append(ticked, found[2])
			}
		}
		if got := strings.Join(all, " ") + "; " + strings.Join(ticked, " "); got != want {
			t.Errorf("%q offers %q, not %q", query, got, want)
		}
		ended := strings.HasPrefix(query, "?state=") && strings.HasPrefix(want, "retry;")
		if got := strings.Contains(page, "Rerun these…"); got != ended {
			t.Errorf("%q: reruns of jobs that ended this way: %v", query, got)
		}
	}
}

func TestJobs_TeachesIfThereAreNone(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/jobs": api.JobPage{}, "GET /v1/protocols": api.ProtocolList{}})
	has(t, b.get(t, "/ui/jobs"), "There are no jobs yet", "<code>lucius protocols list</code>")
	b.set("GET /v1/protocols", api.ProtocolList{Protocols: []api.Protocol{{
		ProtocolID: "summarize_v1", RequestTypes: []string{"doc.summarize"}, PayloadExample: map[string]any{"words": 1},
	}}})
	has(t, b.get(t, "/ui/jobs"), "There are no jobs yet", "curl http://example.com/v1/commands",
		"&#34;request_type&#34;:&#34;doc.summarize&#34;", "&#34;payload&#34;:{&#34;words&#34;:1}")
	has(t, b.get(t, "/ui/jobs?service=ocr"), "No job matches.", `href="/ui/jobs">Clear`)
	b.set("GET /v1/jobs", api.JobPage{NextPageToken: "more", SearchedTo: api.NewTime(now.Add(-90 * time.Minute))})
	has(t, b.get(t, "/ui/jobs?service=ocr"), "No match among the jobs accepted within", "1 h 30 min", "Older ones")
	b.set("GET /v1/jobs", api.JobPage{Jobs: []api.Job{runningJob()}, NextPageToken: "more", SearchedTo: api.NewTime(now.Add(-90 * time.Minute))})
	has(t, b.get(t, "/ui/jobs?service=ocr"), "These are the matches among the jobs accepted within", "1 h 30 min")
	if w := b.send(http.MethodGet, "/ui/jobs?created_after=noon", nil); w.Code != http.StatusBadRequest {
		t.Errorf("a time that is none is answered %d", w.Code)
	}
}

func TestJobs_LeadsBackThroughItsPages(t *testing.T) {
	t.Parallel()
	query, path := url.Values{"state": {"PAUSED"}}, ""
	for page := range 30 {
		newer, older := neighbours("/ui/jobs", query, fmt.Sprint("t", page+1))
		if page == 0 != (newer == "") {
			t.Errorf("page %d: newer is %q", page, newer)
		}
		if page == 1 && newer != "/ui/jobs?state=PAUSED" || page > 1 && !strings.Contains(newer, fmt.Sprintf("page_token=t%d&", page-1)) {
			t.Errorf("page %d: newer is %q", page, newer)
		}
		path = older
		parsed := musttest.Make(t, url.Parse, older)
		query = parsed.Query()
	}
	if len(query["back"]) != maxBack || query.Get("page_token") != "t30" {
		t.Errorf("the last page is %s", path)
	}
	if _, older := neighbours("/ui/jobs", query, ""); older != "" {
		t.Errorf("after the last page there is %s", older)
	}
}

func TestJobsActions_CountFirstAndThenBegin(t *testing.T) {
	t.Parallel()
	for verb, path := range map[string]string{"cancel": "cancellations", "pause": "pausings", "resume": "resumptions"} {
		post := "POST /v1/admin/" + path
		b := newBrowser(t, map[string]any{post: api.OperationPreview{
			Matched: 12, Sample: []api.OperationSample{{JobID: "j1", TenantID: hostile, State: api.JobStatePaused}},
		}})
		form := b.get(t, "/ui/do/jobs-"+verb+"?service=ocr&state=PAUSED")
		b.asks(t, post+` {"dry_run":true,"reason":"preview","service":"ocr","state":"PAUSED"}`)
		has(t, form, "12 jobs match, such as these.", ">"+titled(verb)+" 12 jobs</button>", "&lt;script&gt;", "lucius jobs "+verb+" --service ocr --state PAUSED", `name="service" value="ocr"`)
		b.get(t, "/ui/do/jobs-"+verb)
		b.asks(t, post+` {"all":true,"dry_run":true,"reason":"preview"}`)
		ticked := b.get(t, "/ui/do/jobs-"+verb+"?ticked=1&job=j1&job=j2")
		b.asks(t, post+` {"dry_run":true,"job_ids":["j1","j2"],"reason":"preview"}`)
		has(t, ticked, "lucius jobs "+verb+" j1 j2", `name="job" value="j1"`, `name="job" value="j2"`)
		if w := b.send(http.MethodGet, "/ui/do/jobs-"+verb+"?ticked=1", nil); w.Code != http.StatusBadRequest {
			t.Errorf("%s of no ticked job is answered %d", verb, w.Code)
		}
		if verb == "cancel" {
			w := b.send(http.MethodPost, "/ui/do/jobs-cancel", url.Values{"job": {"j1,j2"}})
			has(t, w.Body.String(), "Give a reason")
		}
		b.set(post, api.Operation{OperationID: "op1"})
		if to := b.submits(t, "jobs-"+verb, url.Values{"job": {"j1,j2"}, "ticked": {"1"}, "reason": {"why"}}); to != "/ui/operations/op1" {
			t.Errorf("%s leads to %s", verb, to)
		}
		b.asks(t, post+` {"job_ids":["j1","j2"],"reason":"why"}`)
	}
}

// Each command that the console shows is one of the program, with its flags.
func TestCommands_AreThoseOfTheProgram(t *testing.T) {
	t.Parallel()
	answers := answersOf(runningJob(), ran(10, "ocr", 1)...)
	answers["GET /v1/work/j1.1.1"] = api.WorkItem{}
	answers["GET /v1/jobs"] = api.JobPage{Jobs: []api.Job{runningJob()}}
	for _, path := range []string{"cancellations", "pausings", "resumptions", "retries"} {
		answers["POST /v1/admin/"+path] = api.OperationPreview{Matched: 1}
	}
	b := newBrowser(t, answers)
	const filter = "?tenant_id=t%27s&service=s&request_type=r&error_code=a+b&created_after=2026-01-01T00:00:00Z&created_before=2026-01-02T00:00:00Z"
	seen := 0
	for _, target := range []string{
		"jobs" + filter + "&state=PAUSED&correlation_id=c", "jobs", "jobs/j1", "do/job-cancel?job=j1", "do/job-pause?job=j1", "do/job-resume?job=j1",
		"do/job-rerun?job=j1", "do/job-rerun?job=j1&from_step=ocr&payload_patch=%7B%22a%22%3A1%7D&protocol=current&callbacks=none&resolve:extract=s3://b/x",
		"do/jobs-cancel" + filter + "&state=PAUSED", "do/jobs-pause" + filter, "do/jobs-resume?ticked=1&job=j1&job=j2", "do/jobs-resume",
		"do/retry" + filter + "&step_type=OCR&ended_after=2026-01-01T00:00:00Z&ended_before=2026-01-02T00:00:00Z", "do/retry?job=j1&from=start",
		"do/retry?state=SUCCEEDED&request_type=r&created_before=2026-01-02T00:00:00Z&payload_patch=%7B%22a%22%3A1%7D&protocol=current" +
			"&from_step=ocr&callbacks=none&rate=5&after=op1",
	} {
		seen += commandsParse(t, b.get(t, "/ui/"+target))
	}
	if seen < 13 {
		t.Errorf("only %d commands are shown", seen)
	}
}

// commandsParse fails unless the program takes all commands that the page shows, and
// returns how many there are.
func commandsParse(t *testing.T, page string) (seen int) {
	t.Helper()
	for _, found := range regexp.MustCompile(`data-copy="(lucius [^"]*)"`).FindAllStringSubmatch(page, -1) {
		parses(t, strings.NewReplacer("&#39;", "'", "&#34;", `"`, "&amp;", "&").Replace(found[1]))
		seen++
	}
	return seen
}

// words splits a command line as a shell does, as far as the console writes such.
func words(line string) (words []string) {
	word, quoted, begun := "", false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\'':
			quoted, begun = !quoted, true
		case c == '\\' && !quoted:
			i++
			word += line[i : i+1]
		case c == ' ' && !quoted:
			words, word, begun = append(words, word), "", false
		default:
			word, begun = word+string(c), true
		}
	}
	if begun {
		words = append(words, word)
	}
	return words
}

// parses fails unless the program takes the command with these flags and arguments.
func parses(t *testing.T, line string) {
	t.Helper()
	root := cli.Root(&cli.Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard})
	cmd, rest, err := root.Find(words(line)[1:])
	if err != nil || cmd == root {
		t.Errorf("%s: there is no such command: %v", line, err)
		return
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%s: %v", line, err)
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		t.Errorf("%s: %v", line, err)
	}
}

func TestWords_AsAShellSplitsThem(t *testing.T) {
	t.Parallel()
	if got := words(`lucius jobs list --code 'a b' --tenant 'it'\''s' ''`); len(got) != 8 || got[4] != "a b" || got[6] != "it's" || got[7] != "" {
		t.Errorf("%q", got)
	}
}

func TestJobs_FindsThemByWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/jobs": api.JobPage{Jobs: []api.Job{runningJob()}}})
	page := b.get(t, "/ui/jobs?waiting=queued%2Cno_worker&protocol_id=p&step_type=OCR")
	b.asks(t, "GET /v1/jobs?waiting=queued,no_worker&protocol_id=p&step_type=OCR&limit=50")
	has(t, page, `<option value="queued,no_worker" selected>a worker</option>`, "lucius jobs list --waiting queued,no_worker --protocol p --step-type OCR")
	has(t, b.get(t, "/ui/jobs?waiting=silent%2Cqueued"), `<option value="silent,queued" selected>silent,queued</option>`)
}
