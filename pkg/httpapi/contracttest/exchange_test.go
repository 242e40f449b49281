package contracttest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
)

const (
	command = `{"tenant_id":"t","request_type":"doc.ingest","schema_version":"1","payload":{},` +
		`"input_ref":{"uri":"in"},"output_ref":{"uri":"out"}}`
	receipt  = `{"jobId":"j1","state":"DISPATCHING","replayed":false,"correlation_id":"c"}`
	notFound = `{"type":"urn:lucius:problem:job_not_found","title":"No such job","status":404,"code":"job_not_found",` +
		`"instance":"urn:lucius:request:r"}`
)

func newContract(t *testing.T) *contracttest.Contract {
	t.Helper()
	contract, err := contracttest.New()
	if err != nil {
		t.Fatal(err)
	}
	return contract
}

// exchange returns a documented exchange, except for the test's changes.
func exchange(target, sent string, status int, received string, headers ...string) *contracttest.Exchange {
	method, path, _ := strings.Cut(target, " ")
	request := httptest.NewRequest(method, path, http.NoBody)
	if sent != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	header := http.Header{
		"X-Request-Id": {"r"}, "X-Content-Type-Options": {"nosniff"}, "Content-Type": {"application/json"},
	}
	if status >= http.StatusBadRequest {
		header.Set("Content-Type", "application/problem+json")
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		if header.Set(name, value); value == "" {
			header.Del(name)
		}
	}
	return &contracttest.Exchange{
		Request: request, Sent: []byte(sent), Status: status, Header: header, Received: []byte(received),
	}
}

func TestExchangesAreCheckedAgainstTheDocument(t *testing.T) {
	t.Parallel()
	const location = "Location: /v1/jobs/j1"
	for _, test := range []struct {
		name     string
		exchange *contracttest.Exchange
		want     string // A part of the fault; empty if there is none.
	}{
		{"accepted", exchange("POST /v1/commands", command, 202, receipt, location), ""},
		{"a field that is null is not there", exchange("POST /v1/commands",
			strings.Replace(command, "{", `{"doc_id":null,`, 1), 202, receipt, location), ""},
		{"refused", exchange("GET /v1/jobs/j1", "", 404, notFound), ""},
		{"refused with a status that is not documented", exchange("POST /v1/commands", "{", 404, notFound), "status is not supported"},
		{"a path that is not documented", exchange("GET /v2", "", 404, notFound), ""},
		{"HEAD has no body", exchange("HEAD /v1/jobs/j1", "", 404, ""), ""},

		{"no request id", exchange("GET /v1/jobs/j1", "", 404, notFound, "X-Request-Id: "), "X-Request-Id"},
		{"may be sniffed", exchange("GET /v1/jobs/j1", "", 404, notFound, "X-Content-Type-Options: "), "sniffed"},
		{"a status that is not documented", exchange("GET /v1/jobs/j1", "", 418, "{}"), "status is not supported"},
		{"a header that is missing", exchange("POST /v1/commands", command, 202, receipt), "Location"},
		{"a field that is missing", exchange("POST /v1/commands", command, 202, `{"jobId":"j1"}`, location), "state"},
		{"a value that is not documented", exchange("POST /v1/commands", command, 202,
			strings.Replace(receipt, "DISPATCHING", "DREAMING", 1), location), "/state"},
		{"a field that is not documented", exchange("POST /v1/commands", command, 202,
			strings.Replace(receipt, "{", `{"lease_id":"l",`, 1), location), "/lease_id"},
		{"a field of an entry that is not documented", exchange("GET /v1/jobs/j1/webhooks", "", 200,
			`{"webhooks":[{"secret":"s"}]}`), "/webhooks/0/secret"},
		{"a response that is no JSON", exchange("GET /v1/jobs/j1", "", 200, "{"), "no JSON"},
		{"a problem of another type", exchange("GET /v1/jobs/j1", "", 404, notFound, "Content-Type: text/plain"), "text/plain"},
		{"a problem that is no JSON", exchange("GET /v1/jobs/j1", "", 404, "no"), "no JSON"},
		{"a problem with a code of its own", exchange("GET /v1/jobs/j1", "", 404,
			strings.Replace(notFound, `"job_not_found"`, `"gone_fishing"`, 1)), "/code"},
		{"a problem of another status", exchange("GET /v1/jobs/j1", "", 404,
			strings.Replace(notFound, "404", "409", 1)), "says that the status is 409"},
		{"a path that is not documented is answered", exchange("GET /v2", "", 200, "{}"), "no such operation"},
		{"a method that is not documented, without Allow", exchange("PUT /v1/jobs/j1", "", 405,
			strings.Replace(notFound, "404", "405", 1)), "Allow"},
		{"a request that should have been refused", exchange("POST /v1/commands", `{"tenant_id":7}`, 202, receipt, location),
			"and was accepted"},
		{"a parameter that should have been refused", exchange("GET /v1/jobs?limit=0", "", 200, `{"jobs":[]}`), "and was accepted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := newContract(t).Check(test.exchange)
			if err == nil && test.want != "" || err != nil && (test.want == "" || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("fault %v, want one of %q", err, test.want)
			}
		})
	}
}

func TestACommandWithoutItsFieldsMustNotBeAccepted(t *testing.T) {
	t.Parallel()
	sent := exchange("POST /v1/commands", "{}", 202, receipt, "Location: /v1/jobs/j1")
	if err := newContract(t).Check(sent); err == nil {
		t.Error("a command without fields is as documented")
	}
}

func TestRequestsAreCheckedAgainstTheDocument(t *testing.T) {
	t.Parallel()
	contract := newContract(t)
	for _, test := range []struct {
		target, sent string
		valid        bool
	}{
		{"POST /v1/commands", command, true},
		{"POST /v1/commands", "", false},
		{"POST /v1/commands", strings.Replace(command, "{", `{"tenant":"t",`, 1), false},
		{"POST /v1/commands:batch", `{"commands":[` + strings.Replace(command, "{", `{"doc_id":null,`, 1) + `]}`, true},
		{"POST /v1/jobs/j1:cancel", "", true},
		{"POST /v1/jobs/j1:cancel", `{"why":"x"}`, false},
		{"GET /v1/jobs/j1?wait=1m0.5s", "", true},
		{"GET /v1/jobs/j1?wait=soon", "", false},
		{"GET /v1/protocols?%zz", "", false},
		{"GET /v1/jobs?limit=1;tenant_id=t", "", false},
		{"GET /v2", "", false},
	} {
		made := exchange(test.target, test.sent, 200, "")
		if err := contract.CheckRequest(made.Request, made.Sent); (err == nil) != test.valid {
			t.Errorf("%s %s: %v", test.target, test.sent, err)
		}
	}
}

func TestOnlyDocumentedExchangesAreCounted(t *testing.T) {
	t.Parallel()
	contract := newContract(t)
	for _, made := range []*contracttest.Exchange{
		exchange("GET /healthz", "", 200, `{"status":"ok"}`),
		exchange("GET /v1/jobs/j1", "", 404, notFound),
		exchange("GET /v1/jobs/j1", "", 200, "{}"),
	} {
		_ = contract.Check(made)
	}
	report := contract.Report()
	missing := map[contracttest.Pair]bool{}
	for _, pair := range report.Missing() {
		missing[pair] = true
	}
	want := map[contracttest.Pair]bool{
		{Operation: "getHealth", Status: 200}: false, {Operation: "getJob", Status: 404}: false, {Operation: "getJob", Status: 200}: true,
	}
	got := map[contracttest.Pair]bool{}
	for pair := range want {
		got[pair] = missing[pair]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if seen, documented := report.Seen(); seen != 2 || documented != seen+len(report.Missing()) {
		t.Errorf("%d of %d were seen", seen, documented)
	}
	text := report.String()
	for _, part := range []string{"getHealth         GET  /healthz", "  404 ", " (200)", "2 of "} {
		if !strings.Contains(text, part) {
			t.Errorf("the report has no %q:\n%s", part, text)
		}
	}
}
