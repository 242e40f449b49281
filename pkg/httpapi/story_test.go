package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
)

var update = flag.Bool("update", false, "rewrite testdata/story.txt")

// story is a dialogue with a server, request by request. Names replace the values that
// differ in each run: ID1 is the first id that was answered, LEASE and TOKEN are the
// last lease id and page token.
type story struct {
	h    *harness
	told strings.Builder

	names []string // pairs of real value and name, for strings.NewReplacer
	lease string
	token string
	asked int
}

var (
	anyID     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	anyLease  = regexp.MustCompile(`"lease_id":"([^"]+)"`)
	anyDigest = regexp.MustCompile(`"lease_digest":"[0-9a-f]{24}"`)
	anyToken  = regexp.MustCompile(`"next_page_token":"([^"]+)"`)
)

// real replaces the names in a text by their values.
func (s *story) real(text string) string {
	for i := len(s.names) - 2; i >= 0; i -= 2 { // ID11 before ID1.
		text = strings.ReplaceAll(text, s.names[i+1], s.names[i])
	}
	return strings.NewReplacer("LEASE", s.lease, "TOKEN", s.token).Replace(text)
}

// named replaces values in a text by their names.
func (s *story) named(text string) string {
	for _, id := range anyID.FindAllString(text, -1) {
		if !strings.Contains(strings.Join(s.names, " "), id) {
			s.names = append(s.names, id, fmt.Sprintf("ID%d", len(s.names)/2+1))
		}
	}
	text = strings.NewReplacer(s.names...).Replace(text)
	if found := anyLease.FindStringSubmatch(text); found != nil {
		s.lease = found[1]
		text = strings.ReplaceAll(text, found[1], "LEASE")
	}
	text = anyDigest.ReplaceAllString(text, `"lease_digest":"DIGEST"`)
	if found := anyToken.FindStringSubmatch(text); found != nil {
		s.token = found[1]
		text = strings.ReplaceAll(text, `"`+found[1]+`"`, `"TOKEN"`)
	}
	return text
}

// ask sends a request one second after the previous one, and writes it down with its
// answer.
func (s *story) ask(t *testing.T, target, body string, headers ...string) {
	t.Helper()
	time.Sleep(time.Second)
	s.asked++
	method, path := split(s.real(target))
	got := s.h.do(t, method, path, s.real(body), append(headers, fmt.Sprintf("X-Request-Id: r%d", s.asked))...)
	fmt.Fprintf(&s.told, "%s %s\n", target, strings.Join(headers, ", "))
	if body != "" {
		fmt.Fprintf(&s.told, "%s\n", body)
	}
	answered := s.named(got.Body)
	var indented bytes.Buffer
	if json.Indent(&indented, []byte(answered), "  ", "  ") != nil {
		indented.WriteString(answered) // a backup is not JSON
	}
	fmt.Fprintf(&s.told, "  %d %s\n  %s\n", got.Status, s.named(got.Header.Get("Location")), bytes.TrimSpace(indented.Bytes()))
}

// relay publishes the waiting directives.
func (s *story) relay(t *testing.T) {
	t.Helper()
	_, err := s.h.relay.RunOnce(t.Context())
	musttest.NoError(t, err)
}

// Every endpoint decodes its request, calls its use case and encodes the answer.
// After an intended change, -update rewrites the story; read it.
func TestTheStoryOfTwoJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &story{h: newHarness(t)}
		s.tellOfCommands(t)
		s.tellOfWork(t)
		s.tellOfCallbacks(t)
		s.tellOfControls(t)
		s.tellOfOperators(t)
		s.tellOfOperations(t)
		musttest.Golden(t, "testdata/story.txt", s.told.String(), *update)
	})
}

func (s *story) tellOfCommands(t *testing.T) {
	t.Helper()
	const full = ` {"tenant_id":"t","request_type":"doc.ingest","schema_version":"1","doc_id":"d1","mode":"BURST", ` +
		`"payload":{"language":"en","n":1e2},"input_ref":{"uri":"s3://b/<in>&.pdf","etag":7},"output_ref":{"uri":"s3://b/out"},` +
		`"workspace_ref":{"uri":"s3://b/ws"},"callback_urls":["https://hooks.example/a"],"correlation_id":"corr"} `
	const trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	s.ask(t, "POST /v1/admin/pauses", `{"tenant_id":"t","reason":"quiet"}`)
	s.ask(t, "POST /v1/commands", full, "Idempotency-Key: a, b", trace)
	s.ask(t, "POST /v1/orchestrate", full, "Idempotency-Key: a, b", trace)
	s.ask(t, "GET /v1/jobs/ID1", "")
	s.ask(t, "GET /v1/jobs/ID1?wait=0.5s", "")
	s.ask(t, "GET /v1/jobs/ID1/events", "")
	s.ask(t, "GET /v1/jobs/ID1/webhooks", "")
	s.ask(t, "GET /v1/admin/outbox?state=PENDING&tenant_id=t&lane=1", "")
	s.ask(t, "GET /v1/admin/outbox?state=SENT", "")
	s.ask(t, "GET /v1/admin/outbox?tenant_id=o", "")
	s.ask(t, "GET /v1/admin/outbox?lane=9", "")
	s.ask(t, "POST /v1/admin/outbox/retry", `{"tenant_id":"o"}`)
	s.ask(t, "POST /v1/admin/outbox/retry", `{"tenant_id":"t","lane":9}`)
	s.ask(t, "POST /v1/admin/outbox/retry", `{"older_than_seconds":3600}`)
	s.ask(t, "POST /v1/admin/outbox/retry", `{"tenant_id":"t","lane":1,"older_than_seconds":1,"limit":5}`)
	s.ask(t, "POST /v1/admin/outbox/retry", `{"outbox_ids":["ID1.0.1","ID1.9.9"]}`)
	s.ask(t, "POST /v1/admin/pauses/tenant:t:resume", `{"ramp_seconds":0}`)
}

func (s *story) tellOfWork(t *testing.T) {
	t.Helper()
	s.relay(t)
	s.ask(t, "POST /v1/work:claim", `{"owner":"o","services":["embed"],"request_id":"c0"}`)
	s.ask(t, "POST /v1/work:claim", `{"owner":"o","step_types":["EMBED"],"request_id":"c1","wait_seconds":0.5}`)
	s.ask(t, "POST /v1/work:claim", `{"owner":"o","services":["ocr"],"step_types":["OCR"],"max":5,"lease_seconds":900,"request_id":"c2"}`)
	s.ask(t, "GET /v1/work/ID1.0.1", "")
	s.ask(t, "POST /v1/work/ID1.0.1:start", `{"owner":"o","expected_rev":2,"request_id":"s1"}`)
	s.ask(t, "POST /v1/work/ID1.0.1:heartbeat", `{"owner":"o","expected_rev":3,"request_id":"h1"}`)
	s.ask(t, "POST /v1/work/ID1.0.1:complete",
		`{"owner":"o","expected_rev":4,"request_id":"x1","output_ref":null,"result_ref":{"uri":"s3://b/r","n":1e2}}`)
	s.ask(t, "GET /v1/work/ID1.0.1/events?limit=3", "")
	s.ask(t, "GET /v1/work/ID1.0.1/events?page_token=TOKEN", "")
	s.ask(t, "GET /v1/jobs/ID1/steps", "")
}

func (s *story) tellOfCallbacks(t *testing.T) {
	t.Helper()
	s.relay(t)
	s.ask(t, "POST /v1/work:claim", `{"owner":"o","services":["embed"],"request_id":"c3"}`)
	const identity = `"jobId":"ID1","stepId":"embed","tenant_id":"t","attempt_no":1,"lease_id":"LEASE","timestamp":"2026-01-27T11:02:00+01:00"`
	s.ask(t, "POST /v1/callbacks/ack", `{`+identity+`,"lease_seconds":90}`)
	s.ask(t, "POST /v1/callbacks/ack", `{`+identity+`}`)
	s.ask(t, "POST /v1/callbacks/heartbeat", `{"type":"HEARTBEAT","correlation_id":"corr",`+identity+`}`)
	s.ask(t, "POST /v1/callbacks/result", `{`+identity+`,"status":"FAILED_RETRY","error":{"code":"busy","message":"Later."},`+
		`"output_ref":{"uri":"s3://b/o2", "n":1e2},"result_ref":null,"retry_after_seconds":90.5}`)
	s.ask(t, "GET /v1/jobs/ID1/steps", "")
	s.ask(t, "POST /v1/callbacks/result", `{"correlation_id":"corr",`+identity+`,"status":"SUCCEEDED"}`)
	s.ask(t, "GET /v1/jobs/ID1/rejected", "")
}

func (s *story) tellOfControls(t *testing.T) {
	t.Helper()
	s.ask(t, "POST /v1/jobs/ID1:pause", `{"reason":"lunch"}`)
	s.ask(t, "POST /v1/jobs/ID1:pause", "")
	s.ask(t, "POST /v1/jobs/ID1:resume", `{}`)
	s.ask(t, "POST /v1/jobs/ID1:cancel", `{"reason":"wrong"}`)
	s.ask(t, "POST /v1/jobs/ID1:cancel", "")
	s.ask(t, "GET /v1/jobs/ID1/events?limit=4", "")
	s.ask(t, "GET /v1/jobs/ID1/events?limit=1000&page_token=TOKEN", "")
	s.ask(t, "GET /v1/jobs/ID1/webhooks", "")
	s.ask(t, "POST /v1/commands:batch", `{"commands":[`+strings.Replace(command, `"t"`, `"o"`, 1)+`,{"tenant_id":"t"}]}`)
	s.ask(t, "GET /v1/jobs?tenant_id=t&state=CANCELLED&request_type=doc.ingest&correlation_id=corr&service=embed&created_before=2100-01-01T00:00:00Z", "")
	s.ask(t, "GET /v1/jobs?tenant_id=t&state=SUCCEEDED", "")
	s.ask(t, "GET /v1/jobs?tenant_id=t&correlation_id=none", "")
	s.ask(t, "GET /v1/jobs?tenant_id=t&request_type=none", "")
	s.ask(t, "GET /v1/jobs?tenant_id=t&created_after=2100-01-01T00:00:00Z", "")
	s.ask(t, "GET /v1/jobs?tenant_id=t&created_before=1999-01-01T00:00:00Z", "")
	s.ask(t, "GET /v1/jobs?waiting=queued,no_worker&protocol_id=doc_ingest_v1&step_type=OCR&limit=1", "")
	s.ask(t, "GET /v1/jobs?waiting=job_paused", "")
	s.ask(t, "GET /v1/jobs?ended_after=1999-01-01T00:00:00Z&ended_before=2100-01-01T00:00:00Z&step_type=OCR&limit=1", "")
	s.ask(t, "GET /v1/jobs?limit=1", "")
	s.ask(t, "GET /v1/jobs?limit=1&page_token=TOKEN", "")
	s.ask(t, "POST /v1/jobs/ID1:rerun", `{"from":"start","payload_patch":{"language":"de","n":null,"more":[1]},"output_ref":{"uri":"mem://out/2"},"dry_run":true}`)
	s.ask(t, "POST /v1/jobs/ID1:rerun", `{"from":"start","payload_patch":{"language":7},"dry_run":true}`)
	s.ask(t, "POST /v1/jobs/ID1:rerun", `{"from":"start","reason":"again"}`)
	s.ask(t, "POST /v1/jobs/ID1:rerun", `{"from":"start","dry_run":true}`)
	s.ask(t, "GET /v1/jobs/ID4/events", "")
	s.ask(t, "POST /v1/jobs/ID1:rerun", "")
	s.ask(t, "GET /v1/jobs/ID1/lineage", "")
	s.ask(t, "GET /v1/jobs/ID5", "")
	s.ask(t, "GET /v1/jobs/ID1", "")
}

func (s *story) tellOfOperators(t *testing.T) {
	t.Helper()
	for _, id := range []string{"ID4", "ID5"} {
		s.ask(t, "POST /v1/jobs/"+id+":cancel", "")
	}
	s.relay(t)
	s.ask(t, "POST /v1/work:claim", `{"owner":"o","services":["ocr"],"request_id":"c4","start":true}`)
	s.ask(t, "POST /v1/admin/work/ID3.0.1:stall", "{}")
	s.ask(t, "POST /v1/admin/work/ID3.0.1:stall", `{"expected_rev":3,"request_id":"q0","reason":"hangs"}`)
	s.ask(t, "POST /v1/admin/work/ID3.0.1:requeue", `{"expected_rev":1,"request_id":"q1","reason":"hangs"}`)
	s.ask(t, "POST /v1/admin/work/ID3.0.1:requeue", `{"expected_rev":4,"request_id":"q1","reason":"hangs"}`)
	s.ask(t, "GET /v1/work/ID3.0.1/events", "")
	s.relay(t)
	s.ask(t, "POST /v1/work:claim", `{"owner":"o","request_id":"c5","start":true}`)
	s.ask(t, "POST /v1/work/ID3.0.1:fail", `{"owner":"o","expected_rev":7,"request_id":"f1","error":{"code":"broken","message":"No."}}`)
	s.ask(t, "GET /v1/admin/failures?tenant_id=o&request_type=doc.ingest", "")
	s.ask(t, "GET /v1/admin/failures?tenant_id=t", "")
	s.ask(t, "GET /v1/admin/failures?service=ocr&step_type=OCR&error_code=broken&ended_after=1999-01-01T00:00:00Z", "")
	s.ask(t, "GET /v1/admin/failures?service=embed", "")
	s.ask(t, "GET /v1/admin/failures?step_type=EMBED", "")
	s.ask(t, "GET /v1/admin/failures?error_code=other", "")
	s.ask(t, "GET /v1/admin/failures?ended_after=2100-01-01T00:00:00Z", "")
	s.ask(t, "GET /v1/admin/failures?ended_before=1999-01-01T00:00:00Z", "")
	s.ask(t, "GET /v1/admin/failures?request_type=none", "")
	s.ask(t, "GET /v1/admin/failures?tenant_id=o&created_after=2100-01-01T00:00:00Z", "")
	s.ask(t, "GET /v1/admin/failures?tenant_id=o&created_before=1999-01-01T00:00:00Z", "")
	s.ask(t, "POST /v1/admin/retries", `{"tenant_id":"o","request_type":"doc.ingest","step_type":"OCR","error_code":"broken",`+
		`"created_after":"1999-01-01T00:00:00Z","from":"start","limit":7,"rate_per_second":3,"reason":"fixed"}`, "Idempotency-Key: k")
	s.ask(t, "POST /v1/admin/retries", `{"tenant_id":"o","error_code":"other"}`)
	s.ask(t, "POST /v1/admin/retries", `{"state":"SUCCEEDED","request_type":"doc.ingest","dry_run":true}`)
	s.ask(t, "POST /v1/admin/retries", `{"state":"FAILED_FINAL","service":"ocr","from_step":"ocr","payload_patch":{"language":"de"},"protocol":"current","callbacks":"none","dry_run":true}`)
	s.ask(t, "POST /v1/admin/retries", `{"service":"ocr","ended_after":"1999-01-01T00:00:00Z","ended_before":"2100-01-01T00:00:00Z","dry_run":true}`)
	s.ask(t, "POST /v1/admin/retries", `{"reason":"all of them?"}`)
	s.ask(t, "POST /v1/admin/retries", `{"job_ids":["ID3"]}`)
	s.ask(t, "GET /v1/admin/operations/ID6", "")
	s.ask(t, "GET /v1/admin/operations/ID6?outcome=failed", "")
	s.ask(t, "GET /v1/admin/operations/ID6?outcome=lost", "")
	s.ask(t, "GET /v1/admin/operations/ID6?outcome=failed&include=results", "")
	s.ask(t, "GET /v1/admin/operations/ID6?include=more", "")
	s.ask(t, "POST /v1/admin/operations/ID6:cancel", `{"reason":"stop"}`)
	s.ask(t, "POST /v1/admin/pauses", `{"tenant_id":"t","reason":"why"}`)
	s.ask(t, "POST /v1/admin/pauses", `{"protocol_id":"doc_ingest_v1","reason":"why"}`)
	s.ask(t, "POST /v1/admin/pauses", `{"lane":3,"reason":"why"}`)
	s.ask(t, "POST /v1/admin/pauses", `{"service":"ocr","reason":"OCR is down"}`)
	s.ask(t, "GET /v1/admin/pauses", "")
	s.ask(t, "POST /v1/admin/pauses/lane:3:resume", `{"ramp_seconds":2.5,"reason":"mended"}`)
	s.ask(t, "POST /v1/admin/marks", `{"finding_id":"error:ocr:busy","state":"acknowledged","note":"the vendor knows","for_seconds":60}`)
	s.ask(t, "POST /v1/admin/marks", `{"finding_id":"stuck","state":"open"}`)
	s.ask(t, "POST /v1/admin/marks", `{"finding_id":"stuck","state":"gone"}`)
	s.ask(t, "GET /v1/admin/marks", "")
	s.ask(t, "GET /v1/admin/webhooks?tenant_id=t", "")
	s.ask(t, "GET /v1/admin/services", "")
	s.ask(t, "GET /v1/admin/workers?owner=o", "")
	s.ask(t, "GET /v1/admin/overview", "")
	s.ask(t, "GET /v1/admin/stuck", "")
	s.ask(t, "POST /v1/admin/backup", "")
	s.ask(t, "GET /v1/admin/inbox", "")
	s.ask(t, "POST /v1/admin/inbox:retry", `{"command_ids":["c-1"],"reason":"mended"}`)
	s.ask(t, "POST /v1/admin/inbox:discard", `{"all":true,"reason":"sent by mistake"}`)
	s.ask(t, "GET /v1/protocols", "")
	s.ask(t, "GET /v1/whoami", "")
	s.ask(t, "GET /readyz", "")
	s.ask(t, "GET /healthz", "")
}

func (s *story) tellOfOperations(t *testing.T) {
	t.Helper()
	s.ask(t, "POST /v1/commands", strings.Replace(command, `"payload"`, `"idempotency_key":"live","correlation_id":"bulk","payload"`, 1))
	const filters = `"tenant_id":"t","request_type":"doc.ingest","state":"DISPATCHING","service":"ocr","step_type":"OCR",` +
		`"created_after":"1999-01-01T00:00:00Z","created_before":"2100-01-01T00:00:00Z"`
	s.ask(t, "POST /v1/admin/pausings", `{`+filters+`,"dry_run":true}`)
	s.ask(t, "POST /v1/admin/pausings", `{`+filters+`,"limit":3,"rate_per_second":7,"reason":"a storm"}`)
	s.ask(t, "POST /v1/admin/pausings", `{"service":"embed","dry_run":true}`)
	s.ask(t, "POST /v1/admin/pausings", `{"error_code":"broken","dry_run":true}`)
	s.ask(t, "POST /v1/admin/resumptions", `{"all":true,"dry_run":true}`)
	s.ask(t, "POST /v1/admin/resumptions", `{"all":true}`)
	s.ask(t, "POST /v1/admin/cancellations", `{"state":"DONE"}`)
	s.ask(t, "POST /v1/admin/cancellations", `{"tenant_id":"t"}`)
	s.ask(t, "POST /v1/admin/cancellations", `{"tenant_id":"t","error_code":"busy","reason":"wrong"}`)
	s.ask(t, "GET /v1/admin/operations?kind=cancel", "")
	s.ask(t, "GET /v1/admin/operations?kind=resume&tenant_id=t", "")
	s.ask(t, "GET /v1/admin/operations?kind=pause&tenant_id=t", "")
	s.ask(t, "GET /v1/admin/operations?kind=rerun", "")
	s.ask(t, "GET /v1/admin/retries?limit=1", "")
	s.ask(t, "GET /v1/admin/operations?limit=1", "")
	s.ask(t, "GET /v1/admin/operations?limit=1&page_token=TOKEN", "")
}
