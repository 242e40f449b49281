package httpapi_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// orderProtocols have one step each. A failed doc.edit blocks its line, and a failed doc.log does not.
var orderProtocols fs.FS = fstest.MapFS{
	"edit.yaml": {Data: []byte("protocol_id: edit_v1\nrequest_types: [doc.edit]\nsteps: [{step_id: edit, step_type: EDIT, service: edit}]\n")},
	"log.yaml": {Data: []byte("protocol_id: log_v1\nrequest_types: [doc.log]\norder: {on_failure: continue}\n" +
		"steps: [{step_id: log, step_type: LOG, service: log}]\n")},
}

// orderScript plays what an application, workers and operators do through the API.
type orderScript struct {
	*harness

	t     *testing.T
	loops []func() error    // what the program does by itself when time passes
	jobs  map[string]string // ids by name
	items map[string]api.WorkItem
	asked int
}

func newOrderScript(t *testing.T) *orderScript {
	s := &orderScript{harness: newHarness(t), t: t, jobs: map[string]string{}, items: map[string]api.WorkItem{}}
	s.useCases.Protocols.Swap(musttest.Make(t, commands.LoadProtocolsFS, orderProtocols))
	bulk := background.NewBulk(background.BulkConfig{Operations: s.useCases.Operations})
	s.loops = append(s.loops, func() error {
		_, err := bulk.RunOnce(t.Context())
		return err
	})
	for _, kind := range []ledger.Kind{ledger.Timer, ledger.Date} {
		sweeper := background.NewSweeper(background.SweeperConfig{Ledger: s.ledger, Kind: kind})
		s.loops = append(s.loops, func() error {
			_, err := sweeper.RunOnce(t.Context())
			return err
		})
	}
	s.loops = append(s.loops, func() error {
		_, err := s.relay.RunOnce(t.Context())
		return err
	})
	return s
}

// play plays a script, one action a line:
//
//	submit NAME KEY [continue|burst|in an hour]
//	claim [NAME]…               a worker that takes all there is gets these jobs, in any order
//	end|fail|retry NAME         a worker reports its job; retry is a failure that may pass
//	pause|resume|cancel NAME
//	release NAME
//	rerun NAME NEW
//	rerun all NAME…             one operation of these jobs, or of all failed ones; the rerun of a is a'
//	wait DURATION
//	is NAME STATE [REASON]
func (s *orderScript) play(script string) {
	s.t.Helper()
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		s.asked++
		s.act(words[0], words[1:])
		if s.t.Failed() {
			s.t.Fatalf("after %q", strings.TrimSpace(line))
		}
	}
}

func (s *orderScript) act(verb string, words []string) {
	s.t.Helper()
	switch verb {
	case "submit":
		s.submit(words[0], words[1], strings.Join(words[2:], " "))
	case "claim":
		s.claim(words)
	case "end", "fail", "retry":
		s.report(verb, words[0])
	case "pause", "resume", "cancel":
		s.given(s.t, "POST /v1/jobs/"+s.jobs[words[0]]+":"+verb, "")
	case "release":
		s.given(s.t, "POST /v1/lines/"+s.job(words[0]).LineID+":release", `{"jobId":"`+s.jobs[words[0]]+`"}`)
	case "rerun":
		s.rerun(words)
	case "wait":
		d, err := time.ParseDuration(words[0])
		musttest.NoError(s.t, err)
		s.pass(d)
	case "is":
		got := s.job(words[0])
		shown := []string{words[0], string(got.State)}
		if got.Waiting != nil && len(words) > 2 {
			shown = append(shown, string(got.Waiting.Reason))
		}
		if diff := cmp.Diff(words, shown); diff != "" {
			s.t.Errorf("the job is (-want +got):\n%s", diff)
		}
	default:
		s.t.Fatalf("what is %q?", verb)
	}
}

// pass lets time pass.
func (s *orderScript) pass(d time.Duration) {
	time.Sleep(d)
	for range 3 { // What one of them does may be work for another.
		for _, loop := range s.loops {
			musttest.NoError(s.t, loop())
		}
	}
}

func (s *orderScript) job(name string) api.Job {
	s.t.Helper()
	return decoded[api.Job](s.t, s.given(s.t, "GET /v1/jobs/"+s.jobs[name], ""))
}

func (s *orderScript) submit(name, key, how string) {
	s.t.Helper()
	cmd := map[string]any{
		"tenant_id": "t", "request_type": "doc.edit", "schema_version": "1", "payload": map[string]any{}, "order_key": key, "idempotency_key": name,
		"input_ref": map[string]any{"uri": "s3://in"}, "output_ref": map[string]any{"uri": "s3://out"},
	}
	switch how {
	case "continue":
		cmd["request_type"] = "doc.log"
	case "burst":
		cmd["mode"], cmd["doc_id"] = "BURST", name
	case "in an hour":
		cmd["delay_seconds"] = 3600
	}
	body, err := json.Marshal(cmd)
	musttest.NoError(s.t, err)
	s.jobs[name] = decoded[api.CommandAccepted](s.t, s.given(s.t, "POST /v1/commands", string(body))).JobID
}

// claim claims all work there is, and compares its jobs with the wanted ones.
func (s *orderScript) claim(want []string) {
	s.t.Helper()
	s.pass(time.Second)
	body := fmt.Sprintf(`{"owner":"o","request_id":"c%d","start":true,"max":100}`, s.asked)
	got := []string{}
	for _, item := range decoded[api.ClaimedWork](s.t, s.given(s.t, "POST /v1/work:claim", body)).Items {
		id := decoded[api.Directive](s.t, answer{Body: string(item.Directive)}).JobID
		for name, job := range s.jobs {
			if job == id {
				got, s.items[name] = append(got, name), item
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("claimed (-want +got):\n%s", diff)
	}
}

// report reports the outcome of a claimed job.
func (s *orderScript) report(outcome, name string) {
	s.t.Helper()
	item := s.items[name]
	verb, more := ":fail", fmt.Sprintf(`,"retryable":%t`, outcome == "retry")
	if outcome == "end" {
		verb, more = ":complete", `,"result_ref":{"uri":"s3://done"}`
	}
	s.given(s.t, "POST /v1/work/"+item.WorkID+verb, fmt.Sprintf(`{"owner":"o","expected_rev":%d,"request_id":"r%d"%s}`, item.Rev, s.asked, more))
}

// rerun reruns a job, or many in one operation.
func (s *orderScript) rerun(words []string) {
	s.t.Helper()
	if words[0] != "all" {
		s.given(s.t, "POST /v1/jobs/"+s.jobs[words[0]]+":rerun", `{"from":"failed"}`)
		s.jobs[words[1]] = s.job(words[0]).SupersededBy
		return
	}
	body := `{"tenant_id":"t"}`
	names := words[1:]
	if len(names) > 0 {
		ids := make([]string, len(names))
		for i, name := range names {
			ids[i] = s.jobs[name]
		}
		body = `{"job_ids":["` + strings.Join(ids, `","`) + `"]}`
	}
	s.given(s.t, "POST /v1/admin/retries", body)
	s.pass(time.Second)
	for name := range s.jobs {
		if by := s.job(name).SupersededBy; by != "" && s.jobs[name+"'"] == "" {
			s.jobs[name+"'"] = by
		}
	}
}

// What failed in other queues is played here: docs/use/order.md tells of each case. An audit of the store ends
// each, so that no job of a line began before those before it had ended.
func TestOrder_FailuresOfOtherQueues(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"river 971: jobs that wait after a failed one": `
			submit a k
			submit b k
			submit c k
			claim a
			fail a
			claim
			is b QUEUED line_blocked
			rerun all
			claim a'
			end a'
			claim b
			end b
			claim c
			end c`,
		"river 971: several failed jobs are rerun at once": `
			submit a k continue
			submit b k continue
			submit c k continue
			claim a
			fail a
			claim b
			fail b
			claim c
			fail c
			rerun all a b c
			claim a'
			is b' QUEUED behind
			end a'
			claim b'
			end b'
			claim c'
			end c'`,
		"river 971: several failed jobs, selected by a filter": `
			submit a k continue
			submit b k continue
			submit c k continue
			claim a
			fail a
			claim b
			fail b
			claim c
			fail c
			rerun all
			claim c'
			end c'
			claim b'
			end b'
			claim a'
			end a'`,
		"river 971: several failed jobs, and one that is new": `
			submit a k
			submit b k
			submit c k
			claim a
			fail a
			release a
			claim b
			fail b
			rerun all a b
			claim b'
			end b'
			claim c
			end c
			claim a'
			end a'`,
		"pg-boss 849 and 871: a job runs": `
			submit a k
			submit b k
			submit x l
			submit y m
			claim a x y
			submit z n
			claim z
			end a
			claim b`,
		"pg-boss 849 and 871: a job is retried": `
			submit a k
			submit b k
			claim a
			retry a
			submit x l
			submit y m
			claim x y
			is a IN_PROGRESS backoff
			is b QUEUED behind
			wait 2m
			claim a
			end a
			claim b`,
		"pg-boss 849 and 871: a job has failed": `
			submit a k
			submit b k
			claim a
			fail a
			submit x l
			submit y m
			claim x y
			is b QUEUED line_blocked
			release a
			claim b`,
		"pg-boss 849 and 871: a worker has died": `
			submit a k
			submit b k
			claim a
			submit x l
			wait 16m
			claim x
			is b QUEUED behind
			wait 2m
			claim a
			end a
			claim b`,
		"pg-boss 849: the newer job would be first elsewhere": `
			submit a k in an hour
			submit b k burst
			submit c k continue
			submit x l
			claim x
			end x
			is b QUEUED behind
			wait 1h
			claim a
			retry a
			pause b
			claim
			wait 2m
			claim a
			end a
			claim
			resume b
			claim b
			end b
			claim c`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newOrderScript(t)
				s.play(script)
				s.audit()
			})
		})
	}
}

// audit audits the store, as lucius audit does.
func (s *orderScript) audit() {
	s.t.Helper()
	tables := s.ledger.Tables()
	whole := struct {
		tablestore.Walker
		tablestore.Store
	}{s.store.all, s.store}
	report, err := audit.Run(s.t.Context(), audit.Config{Store: whole, Options: audit.Options{Tables: audit.Tables{
		Ledger: tables.Ledger, Schedule: tables.Schedule, Idempotency: tables.Idempotency, Index: tables.Index, Queue: tables.Queue,
	}, Clocks: 1}}) // There is one clock.
	musttest.NoError(s.t, err)
	for _, finding := range report.Findings {
		s.t.Errorf("audit: %s", finding)
	}
}
