package httpapi_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// posts are all operations that take a body, each with a valid one.
var posts = map[string]string{
	"/v1/commands":                    command,
	"/v1/orchestrate":                 command,
	"/v1/callbacks/ack":               callbackBody("$of", 1, ""),
	"/v1/callbacks/heartbeat":         callbackBody("$of", 1, ""),
	"/v1/callbacks/result":            callbackBody("$of", 1, `,"status":"SUCCEEDED"`),
	"/v1/work:claim":                  `{"owner":"o","request_id":"r"}`,
	"/v1/work/$claimed:start":         atRev(""),
	"/v1/work/$running:heartbeat":     atRev(""),
	"/v1/work/$running:complete":      atRev(""),
	"/v1/work/$running:fail":          atRev(""),
	"/v1/jobs/$job:cancel":            `{}`,
	"/v1/jobs/$job:pause":             `{}`,
	"/v1/jobs/$job:resume":            `{}`,
	"/v1/lines/$line:cancel":          `{"reason":"why"}`,
	"/v1/lines/$line:release":         `{"jobId":"$blocker"}`,
	"/v1/admin/outbox/retry":          `{}`,
	"/v1/admin/work/$claimed:stall":   operatorsBody("$rev", "x2"),
	"/v1/admin/work/$stalled:requeue": operatorsBody("3", "x2"),
}

func TestBodiesMustBeDeclaredAsJSON(t *testing.T) {
	t.Parallel()
	const wrongType = "Content-Type must be application/json."
	for _, test := range []struct {
		name   string
		header string
		detail string // Empty if the body is accepted.
	}{
		{"JSON", "Content-Type: application/json", ""},
		{"JSON with a charset", "Content-Type: application/json; charset=UTF-8", ""},
		{"in capitals", "Content-Type: Application/JSON", ""},
		{"as it is", "Content-Encoding: identity", ""},
		{"no type", "Content-Type: ", wrongType},
		{"a form", "Content-Type: application/x-www-form-urlencoded", wrongType},
		{"text", "Content-Type: text/plain", wrongType},
		{"a kind of JSON", "Content-Type: application/problem+json", wrongType},
		{"another charset", "Content-Type: application/json; charset=latin1", wrongType},
		{"no media type", "Content-Type: ;;", wrongType},
		{"compressed", "Content-Encoding: gzip", "Content-Encoding must be absent."},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for path, body := range posts {
				response := newHarness(t).do(t, http.MethodPost, path, body, test.header)
				switch {
				case test.detail != "":
					wantProblem(t, response, apierror.UnsupportedMediaType, test.detail)
				case response.Status >= http.StatusMultipleChoices:
					t.Errorf("%s: %s", path, response.Body)
				}
			}
		})
	}
}

func TestBodiesAreLimited(t *testing.T) {
	t.Parallel()
	limited := func(c *httpapi.Config) { c.MaxBodyBytes = 400 }
	for path, body := range posts {
		h := newHarness(t, limited)
		path, body := h.fill(t, path, body)
		padded := body + strings.Repeat(" ", 400-len(body))
		if response := h.do(t, http.MethodPost, path, padded); response.Status >= 300 {
			t.Errorf("%s: a body of the limit is refused: %s", path, response.Body)
		}
		for name, header := range map[string]string{"declared": "", "not declared": "Transfer-Encoding: chunked"} {
			h := newHarness(t, limited)
			response := h.do(t, http.MethodPost, path, padded+" ", header)
			wantProblem(t, response, apierror.TooLarge, "The body is larger than 400 bytes.")
			if response.Header.Get("Connection") != "close" {
				t.Errorf("%s, %s: the rest of the body would be read", path, name)
			}
			h.store.uncalled(t, path+", "+name)
		}
	}
}

func TestFaultsInABodyNameTheirPlace(t *testing.T) {
	t.Parallel()
	const complete = `{"owner":"o","expected_rev":2,"request_id":"r"}`
	for _, test := range []struct {
		name   string
		path   string
		body   string
		code   apierror.Code
		detail string
		errors []apierror.Violation
	}{
		{
			"not JSON", "/v1/jobs/$job:cancel", "{\n  \"reason\": oops}", apierror.InvalidJSON,
			"The body is not valid JSON at line 2, column 13: a character that must not be there.", nil,
		},
		{
			"a missing comma", "/v1/callbacks/ack", `{"jobId":"ä" "stepId":"s"}`, apierror.InvalidJSON,
			"The body is not valid JSON at line 1, column 15: a character that must not be there.", nil,
		},
		{
			"cut off", "/v1/jobs/$job:cancel", "{\"reason\":\n", apierror.InvalidJSON,
			"The body is not valid JSON at line 2, column 1: it ends too early.", nil,
		},
		{
			"blank", "/v1/jobs/$job:cancel", " ", apierror.InvalidJSON,
			"The body is not valid JSON at line 1, column 2: it ends too early.", nil,
		},
		{
			"two values", "/v1/work/$claimed:start", complete + "\n" + complete, apierror.InvalidJSON,
			"The body is not valid JSON at line 2, column 1: text after the value.", nil,
		},
		{
			"not an object", "/v1/jobs/$job:cancel", `["reason"]`, apierror.InvalidEnvelope,
			"must be an object.", []apierror.Violation{{Message: "must be an object"}},
		},
		{
			"a number for a string", "/v1/callbacks/result", `{"error":{"code":404}}`, apierror.InvalidEnvelope,
			"/error/code must be a string.", []apierror.Violation{{Pointer: "/error/code", Message: "must be a string"}},
		},
		{
			"a string for an object", "/v1/callbacks/result", `{"error":"broken"}`, apierror.InvalidEnvelope,
			"/error must be an object.", []apierror.Violation{{Pointer: "/error", Message: "must be an object"}},
		},
		{
			"a fraction", "/v1/callbacks/ack", `{"attempt_no":1.5}`, apierror.InvalidEnvelope,
			"/attempt_no must be a whole number of at most 32 bits.",
			[]apierror.Violation{{Pointer: "/attempt_no", Message: "must be a whole number of at most 32 bits"}},
		},
		{
			"a huge number", "/v1/work/$claimed:start", `{"expected_rev":92233720368547758080}`, apierror.InvalidEnvelope,
			"/expected_rev must be a whole number of at most 64 bits.",
			[]apierror.Violation{{Pointer: "/expected_rev", Message: "must be a whole number of at most 64 bits"}},
		},
		{
			"a string for a number", "/v1/work:claim", `{"wait_seconds":"20s"}`, apierror.InvalidEnvelope,
			"/wait_seconds must be a number.", []apierror.Violation{{Pointer: "/wait_seconds", Message: "must be a number"}},
		},
		{
			"a string for a list", "/v1/work:claim", `{"services":"ocr"}`, apierror.InvalidEnvelope,
			"/services must be an array.", []apierror.Violation{{Pointer: "/services", Message: "must be an array"}},
		},
		{
			"a string for a flag", "/v1/work/$running:fail", `{"retryable":"yes"}`, apierror.InvalidEnvelope,
			"/retryable must be true or false.", []apierror.Violation{{Pointer: "/retryable", Message: "must be true or false"}},
		},
		{
			"a throttle without a time", "/v1/callbacks/result", callbackBody("$of", 1, `,"status":"FAILED_RETRY","scope":"service"`),
			apierror.InvalidEnvelope, "/retry_after_seconds is required with scope, and must be more than 0.",
			[]apierror.Violation{{Pointer: "/retry_after_seconds", Message: "is required with scope, and must be more than 0"}},
		},
		{
			"a throttle of an unknown scope", "/v1/work/$running:fail", atRev(`,"retryable":true,"scope":"lane","retry_after_seconds":1`),
			apierror.InvalidEnvelope, "/scope must be service or tenant.",
			[]apierror.Violation{{Pointer: "/scope", Message: "must be service or tenant"}},
		},
		{
			"a throttle that is final", "/v1/work/$running:fail", atRev(`,"scope":"service","retry_after_seconds":1`),
			apierror.InvalidEnvelope, "/scope must not be set unless retryable is true.",
			[]apierror.Violation{{Pointer: "/scope", Message: "must not be set unless retryable is true"}},
		},
		{
			"a throttle that succeeds", "/v1/callbacks/result",
			callbackBody("$of", 1, `,"status":"SUCCEEDED","scope":"tenant","retry_after_seconds":1`),
			apierror.InvalidEnvelope, "/scope must not be set unless status is FAILED_RETRY.",
			[]apierror.Violation{{Pointer: "/scope", Message: "must not be set unless status is FAILED_RETRY"}},
		},
		{
			"no time", "/v1/callbacks/ack", `{"timestamp":"yesterday"}`, apierror.InvalidEnvelope,
			"/timestamp must be a time as in RFC 3339.",
			[]apierror.Violation{{Pointer: "/timestamp", Message: "must be a time as in RFC 3339"}},
		},
		{
			"a fault after an unknown field", "/v1/callbacks/ack", `{"extra":1,"attempt_no":"1"}`, apierror.InvalidEnvelope,
			"/attempt_no must be a whole number of at most 32 bits.",
			[]apierror.Violation{{Pointer: "/attempt_no", Message: "must be a whole number of at most 32 bits"}},
		},
		{
			"limits of its own", "/v1/work/$claimed:start", `{"owner":"","expected_rev":0,"request_id":"r"}`, apierror.InvalidEnvelope,
			"/owner is required and must not be empty. There are 2 violations in all.",
			[]apierror.Violation{
				{Pointer: "/owner", Message: "is required and must not be empty"},
				{Pointer: "/expected_rev", Message: "must be at least 1"},
			},
		},
		{
			"null", "/v1/work/$claimed:start", `null`, apierror.InvalidEnvelope,
			"/owner is required and must not be empty. There are 3 violations in all.",
			[]apierror.Violation{
				{Pointer: "/owner", Message: "is required and must not be empty"},
				{Pointer: "/expected_rev", Message: "must be at least 1"},
				{Pointer: "/request_id", Message: "is required and must not be empty"},
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			response := h.do(t, http.MethodPost, test.path, test.body)
			wantProblem(t, response, test.code, test.detail)
			if diff := cmp.Diff(test.errors, problemOf(t, response).Errors); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			h.store.uncalled(t, test.name)
		})
	}
}

func TestUnknownFieldsAreRefusedInControlAndAdminRequests(t *testing.T) {
	t.Parallel()
	for path := range posts {
		if !strings.HasPrefix(path, "/v1/jobs/") && !strings.HasPrefix(path, "/v1/admin/") {
			continue
		}
		response := newHarness(t).do(t, http.MethodPost, path, `{"re/a~son":1}`)
		wantProblem(t, response, apierror.InvalidEnvelope, "/re~1a~0son is unknown.")
		want := []apierror.Violation{{Pointer: "/re~1a~0son", Message: "is unknown"}}
		if diff := cmp.Diff(want, problemOf(t, response).Errors); diff != "" {
			t.Errorf("%s: errors (-want +got):\n%s", path, diff)
		}
	}
}

func TestUnknownFieldsAreIgnoredAndCountedInCallbacksAndWork(t *testing.T) {
	t.Parallel()
	for path, body := range posts {
		if !strings.HasPrefix(path, "/v1/callbacks/") && !strings.HasPrefix(path, "/v1/work") {
			continue
		}
		h := newHarness(t)
		response := h.do(t, http.MethodPost, path, `{"extra":{"a":[1]},"more":2,`+strings.TrimPrefix(body, "{"))
		if response.Status != http.StatusOK {
			t.Errorf("%s: %s", path, response.Body)
		}
		route := object.ReplaceAllString(path, "{workId}")
		h.measures(t, `lucius_http_unknown_fields_total{route="`+route+`"} 1`)
	}
}

// The use case reports what is wrong with a command.
func TestTheUseCaseDecodesTheCommand(t *testing.T) {
	t.Parallel()
	response := newHarness(t).do(t, http.MethodPost, "/v1/commands", `{"tenant_id": oops`)
	wantProblem(t, response, apierror.InvalidJSON, "The body is not valid JSON at line 1, column 15: a character that must not be there.")
}

// The problem of a body that is not JSON must not repeat the body.
func TestProblemsDoNotRepeatABodyThatIsNotJSON(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"Ω", `{"reason":Ω}`, `{"reason":"\Ω"}`, `{"reason":"Ω" Ω}`, `{"reason":"x"}Ω`, `{"Ω":`, "{\"Ω\":\"\xff\"}"} {
		response := newHarness(t).do(t, http.MethodPost, "/v1/jobs/$job:cancel", body)
		found := problemOf(t, response)
		if found.Code != apierror.InvalidJSON || strings.ContainsAny(response.Body, "Ω'") || !strings.Contains(found.Detail, "line 1, column ") {
			t.Errorf("%s: %s", body, response.Body)
		}
	}
}

func TestAnExceededLimitIsTooLarge(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", api.MaxReason+1)
	for _, test := range []struct{ path, body, detail string }{
		{"/v1/jobs/$job:cancel", `{"reason":"` + long + `"}`, "/reason must not be longer than 1024 characters."},
		{
			"/v1/work:claim", `{"owner":"o","request_id":"r","services":["` + strings.Repeat(`s","`, api.MaxFilters) + `s"]}`,
			"/services must not hold more than 64 entries.",
		},
		{
			"/v1/callbacks/ack", "{\n\"x\":" + strings.Repeat("[", 128),
			"The body is beyond a limit at line 2, column 132: it is nested deeper than 128 levels.",
		},
	} {
		h := newHarness(t)
		wantProblem(t, h.do(t, http.MethodPost, test.path, test.body), apierror.TooLarge, test.detail)
		h.store.uncalled(t, test.path)
	}
	// A body that is also malformed is refused as malformed.
	wantProblem(t, newHarness(t).do(t, http.MethodPost, "/v1/work:claim", `{"owner":"`+long+`"}`), apierror.InvalidEnvelope,
		"/owner must not be longer than 128 characters. There are 2 violations in all.")
}

func TestAReferenceWithoutAURIIsRefused(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{
		"/v1/work/$running:complete": `{"owner":"o","expected_rev":2,"request_id":"r",%q:{}}`,
		"/v1/callbacks/result":       strings.Replace(callbackBody(noJob, 1, ""), "{", `{"status":"SUCCEEDED",%q:{},`, 1),
	} {
		for _, field := range []string{"output_ref", "result_ref"} {
			h := newHarness(t)
			response := h.do(t, http.MethodPost, path, fmt.Sprintf(body, field))
			wantProblem(t, response, apierror.RefInvalid, "/"+field+"/uri is required.")
			want := []apierror.Violation{{Pointer: "/" + field + "/uri", Message: "is required"}}
			if diff := cmp.Diff(want, problemOf(t, response).Errors); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", path, diff)
			}
			h.store.untouched(t, path)
		}
	}
}

// FuzzResult checks that any body from a platform service is answered as documented,
// and reaches the use case only within the contract's limits.
func FuzzResult(f *testing.F) {
	h := newHarness(f)
	_, result := h.fill(f, "", posts["/v1/callbacks/result"])
	for _, seed := range []string{
		result, `{`, ``, `null`, `[]`, `{"a":1}`, "\xff", `{"status":"FAILED_RETRY","error":{"code":1}}`,
		strings.Replace(result, "{", `{"output_ref":[{}],`, 1), `{"timestamp":"2026-01-27T10:02:00Z"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		h.store.reset()
		request := newRequest(t, http.MethodPost, "/v1/callbacks/result", body)
		request.Header.Set("Content-Type", "application/json")
		response := h.send(t, h.Server, request, body)
		switch response.Status {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge,
			http.StatusUnprocessableEntity:
		default:
			t.Errorf("%q: %d", body, response.Status)
		}
		var callback api.ResultCallback
		if err := json.Unmarshal([]byte(body), &callback); err != nil || len(callback.Check()) > 0 {
			h.store.untouched(t, body)
		}
	})
}

// A client that sends its whole body before it reads must see why it was refused, not a
// broken connection.
func TestAClientThatIsStillSendingSeesWhyItsBodyIsRefused(t *testing.T) {
	t.Parallel()
	server := listen(t, newHarness(t))
	for name, header := range map[string]string{
		"declared": "Content-Length: 6291456\r\n", "chunked": "Transfer-Encoding: chunked\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connection, err := net.Dial("tcp", server.Listener.Addr().String())
			musttest.NoError(t, err)
			defer func() { _ = connection.Close() }()
			body := strings.Repeat("x", 6<<20)
			if name == "chunked" {
				body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
			}
			_, err = fmt.Fprintf(connection, "POST /v1/commands HTTP/1.1\r\nHost: lucius\r\nContent-Type: application/json\r\n%s\r\n%s", header, body)
			if err != nil {
				t.Fatalf("send: %v", err)
			}
			answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
			if err != nil {
				t.Fatalf("read the answer: %v", err)
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("answered %d", answer.StatusCode)
			}
		})
	}
}
