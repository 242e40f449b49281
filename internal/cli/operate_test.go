package cli_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// shows runs a command line whose only request, the target, gets that answer. It compares the
// text for people with a golden file, and the output for programs with the answer.
func shows[T any](t *testing.T, name, target string, answer T, commandLine string) {
	t.Helper()
	path, _, _ := strings.Cut(target, "?")
	path, _, _ = strings.Cut(path, " {")
	server := newScripted(t, map[string][]any{path: {answer}})
	l := newLine(t, server.url)
	args := strings.Split(commandLine, " ")
	out, err := l.run(t, args...)
	if err != nil {
		t.Errorf("%s: %v", commandLine, err)
	}
	server.wantAsked(t, strings.Replace(target, "?", " ", 1))
	golden(t, name+".txt", out)
	forPrograms(t, l, answer, args...)
}

func serviceList() api.ServiceList {
	return api.ServiceList{Exact: true, AsOf: at(time.Second), Since: at(time.Hour), Services: []api.Service{
		{Service: "embed", StepType: "EMBED", Backlog: 999, OldestWaitingAt: at(time.Hour), OldestWaitingSeconds: 3600, Workers: []api.ServiceWorker{}},
		{
			Service: "ocr", StepType: "OCR", Backlog: 3, Running: 2, Claimed: 1, Backoff: 4, Dispatching: 5, WorkersTotal: 3,
			OldestWaitingSeconds: 61, OldestWaitingAt: at(61 * time.Second),
			Attempts: api.Rates{
				Total: 2000, LastMinute: api.Rate{Count: 12, Failed: 3, ErrorRate: 0.25, PerSecond: 0.2, OverSeconds: 60},
				LastHour: api.Rate{Count: 1410, Failed: 410, ErrorRate: 0.2908, PerSecond: 0.4, OverSeconds: 3600},
			},
			DurationSeconds:  api.Percentiles{Count: 1410, P50: 0.00042, P95: 2.3456, P99: 1234},
			QueueWaitSeconds: api.Percentiles{Count: 1410, P50: 1, P95: 59.9, P99: 90061},
			Workers: []api.ServiceWorker{
				{Owner: "worker-1", Polling: true, LastPollAt: at(0)}, {Owner: "worker-2\x1b[2J", LastPollAt: at(90 * time.Second)},
			},
		},
	}, UnmatchedWorkers: []api.UnmatchedWorker{
		{Owner: "worker-3", Services: []string{"extrakt"}, StepTypes: []string{}, LastPollAt: at(time.Minute)},
		{Owner: "worker-4", Services: []string{}, StepTypes: []string{"OCRR", "EMBEDD"}, LastPollAt: at(0), Polling: true},
	}}
}

func TestServices(t *testing.T) {
	t.Parallel()
	limits := api.StartLimitList{Limits: []api.StartLimit{startLimit("ocr", "600/1m", "the vendor's quota"), startLimit("scan", "50/5s", "")}}
	l := newLine(t, newScripted(t, map[string][]any{"GET /v1/admin/services": {serviceList()}, "GET /v1/admin/limits": {limits}}).url)
	out := l.must(t, "services")
	golden(t, "services.txt", out)
	if one := l.must(t, "services", "--service", "ocr"); !strings.Contains(one, "service:ocr") || strings.Contains(one, "service:scan") {
		t.Errorf("the limits of another service are shown:\n%s", one)
	}
	if out := l.must(t, "services", "-o", "json"); !strings.Contains(out, `"service:ocr"`) {
		t.Errorf("programs get no limits:\n%s", out)
	}
	// A token that may not see limits sees the services.
	server := newScripted(t, map[string][]any{"GET /v1/admin/services": {serviceList()}, "GET /v1/admin/limits": {apierror.Forbidden}})
	l = newLine(t, server.url)
	forPrograms(t, l, serviceList(), "services")
	var text []string
	for i, name := range []string{"embed", "ocr"} {
		out := l.must(t, "services", "--service", name)
		text = append(text, out)
		one := serviceList()
		one.Services = one.Services[i : i+1]
		forPrograms(t, l, one, "services", "--service", name)
	}
	golden(t, "service.txt", strings.Join(text, "\n"))
	if _, err := l.run(t, "services", "--service", "none"); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("a service that is not there: %v", err)
	}
}

func TestStuck(t *testing.T) {
	t.Parallel()
	list := api.StuckList{Checked: 4711, Repaired: 1, RoundEndedAt: at(30 * time.Second), Stuck: []api.StuckJob{
		{JobID: jobID, State: api.JobStateInProgress, FoundAt: at(time.Hour), Reason: "no schedule entry"},
	}}
	shows(t, "stuck", "GET /v1/admin/stuck", list, "stuck")
	list.Stuck = []api.StuckJob{}
	shows(t, "stuck-none", "GET /v1/admin/stuck", list, "stuck")
	shows(t, "stuck-unknown", "GET /v1/admin/stuck", api.StuckList{Stuck: []api.StuckJob{}}, "stuck")
}

func TestAuditTrail(t *testing.T) {
	t.Parallel()
	list := api.AuditTrail{Since: at(time.Hour), NextPageToken: "more", Records: []api.AuditRecord{
		{At: at(time.Minute), Caller: "ops-1", Origin: "token", From: "192.0.2.7", Action: "cancelJob", Object: jobID, TenantID: "tenant_a", Outcome: api.AuditOutcomeDone, Reason: "wrong input"},
		{At: at(time.Minute), From: "192.0.2.8", Action: "createPause", Outcome: api.AuditOutcomeDenied},
	}}
	shows(t, "audit-trail", "GET /v1/admin/audit-trail?caller=ops-1&limit=2", list, "audit-trail --caller ops-1 --limit 2")
}

func TestProtocols(t *testing.T) {
	t.Parallel()
	one := api.Protocol{
		ProtocolID: "doc_ingest_v1", Version: "2", RequestTypes: []string{"doc.ingest", "doc.scan"}, SchemaVersions: []string{"1"},
		File: "doc.yaml", Digest: "sha256:abc", Steps: []api.ProtocolStep{
			{StepID: "ocr", StepType: "OCR", Service: "ocr"}, {StepID: "embed", StepType: "EMBED", Service: "embed"},
		},
	}
	list := api.ProtocolList{LoadedAt: at(time.Hour), Protocols: []api.Protocol{one}}
	shows(t, "protocols", "GET /v1/protocols", list, "protocols list")
	l := newLine(t, newScripted(t, map[string][]any{"GET /v1/protocols": {list}}).url)
	golden(t, "protocol.txt", l.must(t, "protocols", "show", "doc_ingest_v1"))
	forPrograms(t, l, one, "protocols", "show", "doc_ingest_v1")
	if _, err := l.run(t, "protocols", "show", "none"); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("a protocol that is not there: %v", err)
	}
	l.Environment = append(l.Environment, "LUCIUS_URL="+l.DefaultURL)
	for line, want := range map[string]string{
		"protocols show ": "doc_ingest_v1\tdoc.ingest, doc.scan\n", "services --service ": "ocr\nembed\n", "failures --service ": "ocr\nembed\n",
	} {
		if out, err := l.run(t, append([]string{"__complete"}, strings.Split(line, " ")...)...); err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%q: %v, %q", line, err, out)
		}
	}
}

func TestPauses(t *testing.T) {
	t.Parallel()
	ocr := api.Pause{PauseID: "service:ocr", Service: "ocr", State: api.PauseStatePaused, Actor: "ops-1", Reason: "OCR is down", CreatedAt: at(time.Hour)}
	everything := api.Pause{PauseID: "all", State: api.PauseStatePaused, Actor: "system", Reason: "start", CreatedAt: at(time.Minute)}
	everything.Until = at(-2 * time.Hour)
	lane := api.Pause{PauseID: "lane:3", Lane: new(int32(3)), State: api.PauseStateRamping, Actor: "ops-1", CreatedAt: at(time.Minute)}
	shows(t, "pauses", "GET /v1/admin/pauses", api.PauseList{Pauses: []api.Pause{ocr, everything, lane}}, "pauses list")
	shows(t, "pauses-none", "GET /v1/admin/pauses", api.PauseList{Pauses: []api.Pause{}}, "pauses list")
	for flags, body := range map[string]string{
		"--service ocr":                `"reason":"why","service":"ocr"`,
		"--tenant tenant_a":            `"reason":"why","tenant_id":"tenant_a"`,
		"--protocol p --allow-unknown": `"allow_unknown":true,"protocol_id":"p","reason":"why"`,
		"--lane 0":                     `"lane":0,"reason":"why"`,
		"--all --yes":                  `"all":true,"reason":"why"`,
		"--service ocr -y":             `"reason":"why","service":"ocr"`,
	} {
		shows(t, "pause", "POST /v1/admin/pauses {"+body+"}", ocr, "pause --reason why "+flags)
	}
	for flags, body := range map[string]string{
		"--for 2h":                          `"all":true,"for_seconds":7200,"reason":"why"`,
		"--for 1d":                          `"all":true,"for_seconds":86400,"reason":"why"`,
		"--until 2026-01-27T20:00:00+02:00": `"all":true,"reason":"why","until":"2026-01-27T18:00:00.000Z"`,
	} {
		shows(t, "pause-until", "POST /v1/admin/pauses {"+body+"}", everything, "pause --all --yes --reason why "+flags)
	}
	shows(t, "resume", "POST /v1/admin/pauses/service:ocr:resume {}", ocr, "resume service:ocr")
	shows(t, "resume", `POST /v1/admin/pauses/service:ocr:resume {"ramp_seconds":0,"reason":"fixed"}`, ocr, "resume service:ocr --ramp 0 --reason fixed")
	for flags, id := range map[string]string{"--service ocr": "service:ocr", "--all": "all", "--lane 3 --ramp 90s": "lane:3"} {
		path, body := "POST /v1/admin/pauses/"+id+":resume", "{}"
		server := newScripted(t, map[string][]any{path: {ocr}})
		newLine(t, server.url).must(t, append([]string{"resume"}, strings.Split(flags, " ")...)...)
		if strings.Contains(flags, "ramp") {
			body = `{"ramp_seconds":90}`
		}
		server.wantAsked(t, path+" "+body)
	}
	l := newLine(t, newScripted(t, map[string][]any{
		"GET /v1/work/a": {api.WorkItem{}}, "GET /v1/work/b": {api.WorkItem{}},
		"POST /v1/admin/pauses/service:ocr:resume": {apierror.NotFound}, "POST /v1/admin/pauses/all:resume": {apierror.NotFound},
	}).url)
	for line, code := range map[string]int{
		"pause --reason x":                                                     cli.ExitUsage,
		"pause --service ocr":                                                  cli.ExitUsage,
		"pause --service ocr --reason x --for 0s":                              cli.ExitUsage,
		"pause --service ocr --reason x --for 2":                               cli.ExitUsage,
		"pause --service ocr --reason x --until 2h":                            cli.ExitUsage,
		"pause --service ocr --reason x --for 1h --until 2026-01-27T18:00:00Z": cli.ExitUsage,
		"pause --service ocr --all --reason x":                                 cli.ExitUsage,
		"pause --all --reason x":                                               cli.ExitUsage, // There is no terminal.
		"resume":                                                               cli.ExitUsage,
		"resume lane:3 --lane 3":                                               cli.ExitUsage,
		"resume --service ocr":                                                 cli.ExitNotFound,
		"resume --all":                                                         cli.ExitNotFound,
		"outbox retry":                                                         cli.ExitUsage,
		"outbox retry a --job b":                                               cli.ExitUsage,
		"outbox retry --all":                                                   cli.ExitUsage,
		"outbox retry --lane 3":                                                cli.ExitUsage,
		"work stall a":                                                         cli.ExitUsage, // There is no terminal.
		"work stall a b":                                                       cli.ExitUsage,
		"webhooks replay a b":                                                  cli.ExitUsage,
		"webhooks list --job a --tenant t":                                     cli.ExitUsage,
		"inbox retry":                                                          cli.ExitUsage,
		"inbox retry a --all":                                                  cli.ExitUsage,
		"inbox discard a --reason x":                                           cli.ExitUsage, // There is no terminal.
		"inbox discard --all --yes":                                            cli.ExitUsage, // A reason is required.
		"inbox list --state accepted":                                          cli.ExitUsage,
		"inbox retry a b --reason corrected":                                   cli.ExitUsage,
	} {
		if _, err := l.run(t, strings.Split(line, " ")...); cli.ExitCode(err) != code {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestOutbox(t *testing.T) {
	t.Parallel()
	page := api.OutboxPage{Outbox: []api.OutboxRow{
		{
			OutboxID: jobID + ".0.1", JobID: jobID, TenantID: "tenant_a", StepID: "ocr", AttemptNo: 2, Lane: 15, Topic: "global-bus-p15",
			State: api.OutboxStatePending, CreatedAt: at(time.Hour), UpdatedAt: at(time.Minute), NextAttemptAt: at(-time.Minute),
			LastErrorCode: "rejected", LastErrorMessage: "the message is too large",
		},
		{OutboxID: jobID + ".1.1", JobID: jobID, TenantID: "tenant_a", StepID: "embed", AttemptNo: 1, State: api.OutboxStateSent, UpdatedAt: at(time.Minute)},
	}}
	shows(t, "outbox", "GET /v1/admin/outbox?state=PENDING&tenant_id=tenant_a&lane=0&limit=7", page, "outbox list --state pending --tenant tenant_a --lane 0 --limit 7")
	const retry = "POST /v1/admin/outbox/retry"
	result := api.OutboxRetryResult{Matched: 3, Retried: 2, Skipped: []api.OutboxSkip{{OutboxID: "a", Reason: "The row is SENT."}}}
	for flags, body := range map[string]string{
		"a b":                                `{"outbox_ids":["a","b"]}`,
		"--job j":                            `{"jobId":"j"}`,
		"--all --yes":                        `{}`,
		"--tenant t --older-than 1m --yes":   `{"older_than_seconds":60,"tenant_id":"t"}`,
		"--lane 0 --limit 5 --yes":           `{"lane":0,"limit":5}`,
		"--job j --tenant t --older-than 1s": `{"jobId":"j","older_than_seconds":1,"tenant_id":"t"}`,
	} {
		shows(t, "outbox-retry", retry+" "+body, result, "outbox retry "+flags)
	}
	shows(t, "outbox-retry-none-yet", retry+" {}", api.OutboxRetryResult{More: true}, "outbox retry --all --yes")
	shows(t, "outbox-retry-more", retry+" {}", api.OutboxRetryResult{Matched: 7, Retried: 7, More: true}, "outbox retry --all --yes")
}

// The list has jobs with an item, of all states in which a job may have one.
func TestWork_List(t *testing.T) {
	t.Parallel()
	running := api.Step{
		StepID: "ocr", Service: "ocr", WorkID: "w1", Owner: "worker-1\x1b[2J", State: api.StepStateInProgress, UpdatedAt: at(time.Minute),
		Progress: &api.Progress{Fraction: 0.4, Message: "page 4"},
	}
	ended := api.Step{StepID: "split", Service: "ocr", WorkID: "w0", Owner: "worker-1", State: api.StepStateSucceeded, CompletedAt: at(time.Hour)}
	queued := api.Step{StepID: "ocr", Service: "ocr", WorkID: "w2", State: api.StepStateAwaitingAck, UpdatedAt: at(time.Hour)}
	elsewhere := api.Step{StepID: "embed", Service: "embed", WorkID: "w3", State: api.StepStateAwaitingAck, UpdatedAt: at(time.Hour)}
	first := api.Job{
		JobID: jobID, TenantID: "tenant_a", State: api.JobStateInProgress, Steps: []api.Step{ended, running},
		Waiting: &api.Waiting{Reason: api.WaitingReasonRunning},
	}
	second := api.Job{
		JobID: "other", TenantID: "tenant_a", State: api.JobStateDispatching, Steps: []api.Step{queued},
		Waiting: &api.Waiting{Reason: api.WaitingReasonQueued},
	}
	between := api.Job{JobID: "between", State: api.JobStateInProgress, Steps: []api.Step{ended, {StepID: "ocr", Service: "ocr"}}}
	answers := func(omitted bool) map[string][]any {
		return map[string][]any{"GET /v1/jobs": {
			api.JobPage{Jobs: []api.Job{first, between}, TenantsOmitted: omitted},
			api.JobPage{Jobs: []api.Job{second, {JobID: "embedding", Steps: []api.Step{elsewhere}}}}, api.JobPage{Jobs: []api.Job{}},
		}}
	}
	server := newScripted(t, answers(false))
	l := newLine(t, server.url)
	golden(t, "work-list.txt", l.must(t, "work", "list", "--service", "ocr", "--tenant", "tenant_a"))
	var states []string
	for _, asked := range server.asked {
		states = append(states, strings.TrimPrefix(asked, "GET /v1/jobs tenant_id=tenant_a&"))
	}
	want := []string{
		"state=IN_PROGRESS&limit=50", "state=DISPATCHING&limit=49", "state=PAUSING&limit=48", "state=CANCELLING&limit=48", "state=PAUSED&limit=48",
	}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	out, err := newLine(t, newScripted(t, answers(true)).url).run(t, "work", "list", "--limit", "1")
	if err != nil || !strings.Contains(out, "w1") || strings.Contains(out, "w2") || !strings.Contains(out, "more than these 1") ||
		!strings.Contains(out, "Of more than 1,000 tenants") {
		t.Errorf("a list that is cut: %v\n%s", err, out)
	}
	for _, owner := range []string{"worker-1\x1b[2J", "worker-2"} {
		l := newLine(t, newScripted(t, answers(true)).url)
		out, err := l.run(t, "work", "list", "--owner", owner, "-o", "json")
		var list api.JobPage
		if err != nil || json.Unmarshal([]byte(out), &list) != nil {
			t.Fatalf("%v, %s", err, out)
		}
		if n := map[bool]int{true: 1}[owner == running.Owner]; len(list.Jobs) != n || !list.TenantsOmitted {
			t.Errorf("%q has %d items, want %d, of some tenants", owner, len(list.Jobs), n)
		}
	}
}

func TestWork(t *testing.T) {
	t.Parallel()
	directive, err := json.Marshal(map[string]any{"jobId": jobID, "stepId": "ocr", "service": "ocr", "tenant_id": "tenant_a"})
	musttest.NoError(t, err)
	item := api.WorkItem{
		WorkID: "w1", Status: api.WorkStatusRunning, Attempt: 2, Rev: 5, Owner: "worker-1\x1b[2J", Directive: directive,
		Lease: &api.WorkLease{ExpiresAt: at(-time.Minute)}, Error: &api.ReportedError{Code: "bad_scan", Message: "The page is blank."},
		CreatedAt: at(time.Hour), UpdatedAt: at(time.Minute),
	}
	shows(t, "work", "GET /v1/work/w1", item, "work get w1")
	events := api.WorkEventPage{Events: []api.WorkEvent{
		{EventID: "1", At: at(time.Hour), Type: "created", Actor: "lucius", To: api.WorkStatusQueued, Rev: 1},
		{EventID: "2", At: at(time.Minute), Type: "claimed", Actor: "worker-1", Caller: "ocr-workers", From: api.WorkStatusQueued, To: api.WorkStatusClaimed, Attempt: 1, Rev: 2, Detail: "x"},
	}}
	shows(t, "work-events", "GET /v1/work/w1/events?limit=1000", events, "work events w1")

	for _, verb := range []string{"stall", "requeue"} {
		path := "POST /v1/admin/work/w1:" + verb
		server := newScripted(t, map[string][]any{path: {item}, "GET /v1/work/w1": {item}, "GET /v1/work/w2": {item}, "GET /v1/work/w3": {apierror.WorkNotFound}})
		l := newLine(t, server.url)
		asked := func(request int) (body api.AdminWorkRequest) {
			t.Helper()
			musttest.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(server.asked[request], path)), &body))
			return body
		}
		out, err := l.run(t, "work", verb, "w1", "--reason", "it hangs", "--yes")
		if err != nil || out != "Item w1 is running\n" {
			t.Errorf("%v, %q", err, out)
		}
		if body := asked(1); body.RequestID == "" || body.Reason != "it hangs" || body.ExpectedRev != item.Rev {
			t.Errorf("%+v", body)
		}
		l.must(t, "work", verb, "w1", "--expected-rev", "4", "--request-id", "again")
		if body := asked(2); body.RequestID != "again" || body.ExpectedRev != 4 {
			t.Errorf("%+v", body)
		}
		for flags, want := range map[string]string{
			"w1":                        "w1 (running by worker-1\ufffd[2J, rev 5)? There is no terminal to ask on",
			"w1 w2":                     "rev 5), w2 (running by ",
			"w1 w2 --expected-rev 4":    "are for one item",
			"w1 w2 --request-id r":      "are for one item",
			"w1 --expected-rev 4 w3 -y": "are for one item",
			"w3 -y":                     "item w3: ",
		} {
			if _, err := l.run(t, append([]string{"work", verb}, strings.Fields(flags)...)...); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s answered %v", flags, err)
			}
		}
		forPrograms(t, l, item, "work", verb, "w1", "--yes")
	}
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	hook := api.Webhook{
		WebhookID: "wh1", JobID: jobID, TenantID: "tenant_a", Event: "job.failed_final", State: api.WebhookStateExhausted, Attempts: 8,
		LastStatus: 503, LastError: "circuit open\x1b[2J", URL: "https://example.com/hook", CreatedAt: at(time.Hour), UpdatedAt: at(time.Minute),
	}
	page := api.WebhookPage{Webhooks: []api.Webhook{hook, {WebhookID: "wh2", State: api.WebhookStatePending, NextAttemptAt: at(-time.Minute)}}}
	shows(t, "webhooks", "GET /v1/admin/webhooks?tenant_id=tenant_a&limit=50", page, "webhooks list --tenant tenant_a")
	shows(t, "webhooks", "GET /v1/jobs/"+jobID+"/webhooks", page, "webhooks list --job "+jobID)
	shows(t, "webhooks-replay", `POST /v1/admin/webhooks/wh1:replay {"reason":"fixed"}`, hook, "webhooks replay wh1 --reason fixed")
}

func TestInbox(t *testing.T) {
	t.Parallel()
	refused := func(id string) api.InboxCommand {
		return api.InboxCommand{
			CommandID: id, TenantID: "acme", State: api.InboxStateRefused, SubmittedBy: "shop\x1b[2J", SubmittedAt: at(time.Hour),
			RefusedAt: at(time.Hour),
			Code:      "unknown_request_type", Detail: `/request_type "x" belongs to no protocol.`, Body: "{}",
		}
	}
	shows(t, "inbox", "GET /v1/admin/inbox?limit=100", api.InboxPage{Commands: []api.InboxCommand{refused("c-1"), refused("c-2")}}, "inbox list")
	shows(t, "inbox-none", "GET /v1/admin/inbox?limit=5", api.InboxPage{
		Commands: []api.InboxCommand{}, Counts: api.InboxCounts{Waiting: 3, OldestWaitingAt: at(time.Minute)},
	}, "inbox list --limit 5")
	waiting := func(id, reason string) api.InboxCommand {
		return api.InboxCommand{
			CommandID: id, TenantID: "acme", State: api.InboxStateWaiting, SubmittedBy: "shop", SubmittedAt: at(time.Hour),
			DueAt: at(-20 * time.Second), Code: "tenant_limit", Detail: "The tenant's limit is reached.", DiscardReason: reason, Body: "{}",
		}
	}
	shows(t, "inbox-waiting", "GET /v1/admin/inbox?state=waiting&limit=100", api.InboxPage{
		Commands: []api.InboxCommand{waiting("c-1", ""), waiting("c-2", "sent by mistake")},
		Counts:   api.InboxCounts{Waiting: 2, OldestWaitingAt: at(time.Hour), Refused: 1, OldestRefusedAt: at(24 * time.Hour)},
	}, "inbox list --state waiting")
	result := api.InboxResult{Handled: []api.HandledInboxCommand{
		{CommandID: "c-1", Outcome: api.InboxOutcomeRetried}, {CommandID: "c-2", Outcome: api.InboxOutcomeDiscarding},
	}}
	shows(t, "inbox-retry", `POST /v1/admin/inbox:retry {"command_ids":["c-1","c-2"],"reason":"x"}`, result, "inbox retry c-1 c-2 --reason x --yes")
	shows(t, "inbox-retry", `POST /v1/admin/inbox:discard {"command_ids":["c-1"],"reason":"x"}`, result, "inbox discard c-1 --reason x --yes")

	// That one is absent is an error, unless it was there when it was listed.
	result.Handled[1].Outcome = api.InboxOutcomeAbsent
	l := newLine(t, newScripted(t, map[string][]any{"POST /v1/admin/inbox:retry": {result}}).url)
	out, err := l.run(t, "inbox", "retry", "c-1", "c-2", "--yes")
	if cli.ExitCode(err) != cli.ExitNotFound || fmt.Sprint(err) != "1 of 2 commands are absent, or in another state" || !strings.Contains(out, "absent") {
		t.Errorf("of an absent one: %v\n%s", err, out)
	}

	// --all takes 101 in two requests.
	var commands []api.InboxCommand
	var ids []string
	for i := range api.MaxInbox + 1 {
		commands = append(commands, refused(fmt.Sprint(i)))
		ids = append(ids, fmt.Sprint(i))
	}
	const list, retry = "GET /v1/admin/inbox", "POST /v1/admin/inbox:retry"
	server := newScripted(t, map[string][]any{
		list:  {api.InboxPage{Commands: commands[:100], NextPageToken: "next"}, api.InboxPage{Commands: commands[100:]}},
		retry: {result, result},
	})
	l = newLine(t, server.url)
	l.Interactive, l.Stdin = true, strings.NewReader("y\n")
	if _, err := l.run(t, "inbox", "retry", "--all"); err != nil || l.notes.String() != "Retry 101 commands? [y/N] " {
		t.Errorf("%v, %q", err, l.notes.String())
	}
	server.wantAsked(t, list+" limit=100", list+" limit=100&page_token=next",
		retry+` {"command_ids":`+encode(t, ids[:100])+`}`, retry+` {"command_ids":["100"]}`)
	const discard = "POST /v1/admin/inbox:discard"
	server.answers[list] = []any{api.InboxPage{Commands: []api.InboxCommand{waiting("c-1", "")}}}
	server.answers[discard] = []any{result}
	l.must(t, "inbox", "discard", "--all", "--state", "waiting", "--reason", "x", "--yes")
	server.wantAsked(t, list+" state=waiting&limit=100", discard+` {"command_ids":["c-1"],"reason":"x"}`)
	server.answers[list], server.answers[retry] = []any{apierror.NotFound}, []any{apierror.StoreUnavailable}
	if _, err := l.run(t, "inbox", "list"); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("without PostgreSQL: %v", err)
	}
	if _, err := l.run(t, "inbox", "retry", "--all"); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("without PostgreSQL: %v", err)
	}
	if _, err := l.run(t, "inbox", "retry", "c-1"); cli.ExitCode(err) != cli.ExitUnavailable {
		t.Errorf("without a database: %v", err)
	}
}
