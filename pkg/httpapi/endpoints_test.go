package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/problem"
)

// asJSON returns the value as the server writes it.
func asJSON(t *testing.T, value any) string {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

func TestEmptyListsAreWrittenAsLists(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"GET /v1/jobs":                `{"jobs":[]}`,
		"GET /v1/jobs/$job/webhooks":  `{"webhooks":[]}`,
		"GET /v1/admin/outbox":        `{"outbox":[]}`,
		"GET /v1/admin/failures":      `{"groups":[],"truncated":false}`,
		"GET /v1/admin/pauses":        `{"pauses":[]}`,
		"GET /v1/admin/webhooks":      `{"webhooks":[]}`,
		"GET /v1/admin/stuck":         `{"checked":0,"repaired":0,"stuck":[]}`,
		"POST /v1/work:claim":         `{"items":[]}`,
		"POST /v1/admin/outbox/retry": `{"matched":0,"retried":0,"skipped":[]}`,
	} {
		h := newHarness(t)
		method, path := split(target)
		body := map[string]string{
			"POST /v1/work:claim": `{"owner":"o","request_id":"r"}`, "POST /v1/admin/outbox/retry": `{}`,
		}[target]
		if got := h.do(t, method, path, body).Body; got != want+"\n" {
			t.Errorf("%s: got %s, want %s", target, got, want)
		}
	}
	h := newHarness(t, func(c *httpapi.Config) {
		c.Ready = func(context.Context) ([]string, error) { return nil, nil }
	})
	if got := h.do(t, http.MethodGet, "/readyz", "").Body; got != `{"status":"ready","warnings":[]}`+"\n" {
		t.Errorf("without a warning: %s", got)
	}
}

// A claim holds the directive's message unchanged, except for its lease.
func TestADirectiveGoesOutByteForByte(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	item, _ := h.claimed(t, false)
	view, err := h.useCases.Queue.Get(t.Context(), item.WorkID)
	must(t, err)
	var answer struct{ Directive json.RawMessage }
	must(t, json.Unmarshal([]byte(h.do(t, http.MethodGet, "/v1/work/"+item.WorkID, "").Body), &answer))
	if diff := cmp.Diff(string(view.Directive), string(answer.Directive)); diff != "" {
		t.Errorf("(-stored +sent):\n%s", diff)
	}
}

func TestOperatorsBadParametersAreNamed(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"GET /v1/jobs?state=DONE":              "parameter state is not a state of a job",
		"GET /v1/jobs?limit=0":                 "parameter limit must be 1 to 1000",
		"GET /v1/jobs?created_after=yesterday": "parameter created_after has the wrong format",
		"GET /v1/admin/outbox?state=GONE":      "parameter state must be PENDING, SENT or FAILED_FINAL",
		"GET /v1/admin/outbox?lane=x":          "parameter lane has the wrong format",
	} {
		h := newHarness(t)
		method, path := split(target)
		found := problemOf(t, h.do(t, method, path, ""))
		if found.Code != problem.InvalidEnvelope || len(found.Errors) != 1 || found.Errors[0].Message != want {
			t.Errorf("%s: %+v, want %s", target, found, want)
		}
	}
}

func TestABatchAnswersEachCommandIndependently(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	body := `{"commands":[` + command + `, ` + strings.Replace(command, "doc.ingest", "doc.eat", 1) + `,` +
		strings.Replace(command, `"en"`, `"de"`, 1) + `]}`
	response := h.do(t, http.MethodPost, "/v1/commands:batch", body)
	result := decoded[api.BatchResult](t, response)
	var statuses []int32
	for _, item := range result.Results {
		statuses = append(statuses, item.Status)
	}
	if diff := cmp.Diff([]int32{202, 422, 202}, statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	// Each accepted command says whether it is a repeat.
	if n := strings.Count(response.Body, `"replayed":false`); n != 2 || result.Results[1].Replayed != nil {
		t.Errorf("%d of 2 say that they are no repeats: %s", n, response.Body)
	}
	if bad := result.Results[1]; bad.Error == nil || bad.Error.Code != problem.UnknownRequestType || bad.JobID != "" {
		t.Errorf("the refused command: %+v", bad)
	}
	good := result.Results[2]
	if good.Error != nil || good.State != api.JobStateDispatching || good.JobID == result.Results[0].JobID {
		t.Errorf("the command after it: %+v", good)
	}
	if got := h.do(t, http.MethodGet, "/v1/jobs/"+good.JobID, ""); got.Status != http.StatusOK {
		t.Errorf("its job is answered %d", got.Status)
	}
}

func TestABatchAsAWholeIsRefused(t *testing.T) {
	t.Parallel()
	many := make([]struct{}, api.MaxBatch+1)
	for body, want := range map[string]api.Problem{
		`{}`:              {Code: problem.InvalidEnvelope, Detail: "/commands is required and must not be empty."},
		`{"commands":[]}`: {Code: problem.InvalidEnvelope, Detail: "/commands is required and must not be empty."},
		asJSON(t, map[string]any{"commands": many}): {
			Code: problem.TooLarge, Detail: "/commands must not hold more than 100 entries.",
		},
	} {
		h := newHarness(t)
		found := problemOf(t, h.do(t, http.MethodPost, "/v1/commands:batch", body))
		if found.Code != want.Code || len(found.Errors) != 1 || found.Detail != want.Detail {
			t.Errorf("%.40s: %+v", body, found)
		}
		h.store.untouched(t, body)
	}
}

// The key of a retry operation is read as a command's key is: two spellings of a key
// name the same operation.
func TestTheKeyOfARetryOperation(t *testing.T) {
	t.Parallel()
	create := func(h *harness, key string) answer {
		return h.do(t, http.MethodPost, "/v1/admin/retries", `{"tenant_id":"t"}`, "Idempotency-Key: "+key)
	}
	long := strings.Repeat("k", 255)
	for _, keys := range [][2]string{{`k1`, `"k1"`}, {`a"b`, `"a\"b"`}, {long, long}} {
		h := newHarness(t)
		plain, quoted := decoded[api.Retry](t, create(h, keys[0])).RetryID, decoded[api.Retry](t, create(h, keys[1])).RetryID
		if plain == "" || plain != quoted {
			t.Errorf("%.20s: the operations are %q and %q", keys, plain, quoted)
		}
	}
	for key, want := range map[string]problem.Error{
		`"`:                       {Code: problem.InvalidEnvelope, Detail: "Idempotency-Key is malformed in the header: a quoted text must end with its quotation mark."},
		strings.Repeat("k", 5000): {Code: problem.TooLarge, Detail: "Idempotency-Key is 5000 bytes long; at most 255 are allowed."},
	} {
		h := newHarness(t)
		wantProblem(t, create(h, key), want.Code, want.Detail)
		h.store.untouched(t, key)
	}
}
