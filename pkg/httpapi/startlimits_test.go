package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

// queued submits that many jobs, and publishes their first steps into the queue.
func (h *harness) queued(t *testing.T, jobs int) {
	t.Helper()
	for range jobs {
		h.submitted(t)
	}
	_, err := h.relay.RunOnce(t.Context())
	musttest.NoError(t, err)
}

// claims returns how many items a worker that waits for a while gets.
func (h *harness) claims(t *testing.T, id string) int {
	t.Helper()
	got := 0
	for i := range 5 {
		body := fmt.Sprintf(`{"owner":"o","request_id":"%s-%d","max":10,"wait_seconds":2}`, id, i)
		got += len(decoded[api.ClaimedWork](t, h.do(t, http.MethodPost, "/v1/work:claim", body)).Items)
	}
	return got
}

// A limit bounds the starts, a closure holds all of them, and whatever they held goes once they are gone.
func TestLimits_BoundWhatWorkersClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.useCases.Gate.Run(ctx) }()
		defer func() { stop(); musttest.NoError(t, <-ended) }()

		h.queued(t, 5)
		h.do(t, http.MethodPut, "/v1/admin/limits/service:ocr", `{"starts":{"count":2,"window":"1h"},"reason":"quota"}`)
		if got := h.claims(t, "limited"); got != 2 {
			t.Errorf("under a limit of 2 in an hour %d items of 5 are claimed", got)
		}
		shown := decoded[api.StartLimit](t, h.do(t, http.MethodGet, "/v1/admin/limits/service:ocr", ""))
		if *shown.Used != 2 {
			t.Errorf("%d starts are shown as used", *shown.Used)
		}

		if got := h.do(t, http.MethodDelete, "/v1/admin/limits/service:ocr", ""); got.Status != http.StatusOK {
			t.Errorf("DELETE: %d %s", got.Status, got.Body)
		}
		if got := h.claims(t, "free"); got != 3 {
			t.Errorf("after the limit was deleted %d of the 3 others are claimed", got)
		}

		h.queued(t, 5)
		h.do(t, http.MethodPost, "/v1/admin/limits/service:ocr:close", `{"for_seconds":3600,"reason":"away"}`)
		if got := h.claims(t, "closed"); got != 0 {
			t.Errorf("of a closed service %d items are claimed", got)
		}
		h.do(t, http.MethodPost, "/v1/admin/limits/service:ocr:open", "")
		if got := h.claims(t, "open"); got != 5 {
			t.Errorf("after the service was opened %d of 5 items are claimed", got)
		}
	})
}

// A limit of what runs at once lets so many attempts run, with its limit of starts or alone, and the
// third waits for it.
func TestLimits_OfWhatRunsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		set := decoded[api.StartLimit](t, h.do(t, http.MethodPut, "/v1/admin/limits/service:ocr", `{"max_running":2,"reason":"sessions"}`))
		if set.MaxRunning != 2 || set.Running == nil || *set.Running != 0 || set.Starts != nil {
			t.Errorf("set: %+v", set)
		}
		h.queued(t, 3)
		if got := h.claims(t, "first"); got != 2 {
			t.Errorf("%d items are claimed, 2 may run", got)
		}
		if shown := decoded[api.StartLimit](t, h.do(t, http.MethodGet, "/v1/admin/limits/service:ocr", "")); *shown.Running != 2 {
			t.Errorf("%d attempts are shown as running", *shown.Running)
		}
		if by := h.useCases.Gate.Blocks("ocr", "OCR", "tenant_a"); by == nil || by.ID != "service:ocr" || by.MaxRunning != 2 {
			t.Errorf("what holds the third job back: %+v", by)
		}
		both := decoded[api.StartLimit](t, h.do(t, http.MethodPut, "/v1/admin/limits/service:ocr",
			`{"max_running":3,"starts":{"count":5,"window":"1m"},"reason":"more"}`))
		if both.MaxRunning != 3 || *both.Running != 2 || both.Starts == nil || both.Starts.Count != 5 {
			t.Errorf("set to both: %+v", both)
		}
		if got := decoded[api.StartLimit](t, h.do(t, http.MethodDelete, "/v1/admin/limits/service:ocr", "")); got.MaxRunning != 0 {
			t.Errorf("deleted: %+v", got)
		}
		if got := h.claims(t, "free"); got != 1 {
			t.Errorf("after the limit was deleted %d of 1 items are claimed", got)
		}
	})
}

func TestLimits_AreShownWithUseAndClosure(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	list := func() []api.StartLimit {
		t.Helper()
		return decoded[api.StartLimitList](t, h.do(t, http.MethodGet, "/v1/admin/limits", "")).Limits
	}
	set := decoded[api.StartLimit](t, h.do(t, http.MethodPut, "/v1/admin/limits/service:ocr,step_type:OCR",
		`{"starts":{"count":600,"window":"90m"},"reason":"quota"}`))
	h.do(t, http.MethodPost, "/v1/admin/limits/service:embed:close", `{"until":"2999-01-01T00:00:00Z","reason":"away"}`)
	until := musttest.Make(t, func(text string) (time.Time, error) { return time.Parse(time.RFC3339, text) }, "2999-01-01T00:00:00Z")
	want := []api.StartLimit{
		{
			ID: "service:embed", Service: "embed",
			Closed: &api.Closure{Until: api.NewTime(until), By: "local", Reason: "away"},
		},
		{
			ID: "service:ocr,step_type:OCR", Service: "ocr", StepType: "OCR", Actor: "local", Reason: "quota",
			Starts: &api.Starts{Count: 600, Window: "1h30m"}, Used: new(0),
		},
	}
	times := cmpopts.IgnoreFields(api.StartLimit{}, "AsOf")
	since := cmpopts.IgnoreFields(api.Closure{}, "Since")
	if diff := cmp.Diff(want, list(), times, since); diff != "" {
		t.Errorf("the list (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[1], set, times); diff != "" {
		t.Errorf("the answer of PUT (-want +got):\n%s", diff)
	}

	// A scope may have both: one entry.
	both := decoded[api.StartLimit](t, h.do(t, http.MethodPut, "/v1/admin/limits/service:embed", `{"starts":{"count":1,"window":"1s"},"reason":"slow"}`))
	if both.Closed == nil || both.Closed.Reason != "away" || both.Reason != "slow" || len(list()) != 2 {
		t.Errorf("a closed scope that is limited: %+v", both)
	}
	if left := decoded[api.StartLimit](t, h.do(t, http.MethodDelete, "/v1/admin/limits/service:embed", "")); left.Starts != nil || left.Closed == nil {
		t.Errorf("a closure must outlive the limit: %+v", left)
	}
	h.do(t, http.MethodPost, "/v1/admin/limits/service:embed:open", `{"reason":"back"}`)
	if got := list(); len(got) != 1 {
		t.Errorf("after it was opened: %+v", got)
	}
	for _, target := range []string{
		"GET /v1/admin/limits/service:embed", "DELETE /v1/admin/limits/service:embed",
	} {
		method, path := split(target)
		wantProblem(t, h.do(t, method, path, ""), apierror.NotFound, "There is no such limit.")
	}
	wantProblem(t, h.do(t, http.MethodPost, "/v1/admin/limits/service:embed:open", ""), apierror.NotFound, "The scope is not closed.")
}

func TestLimits_ThatAreNotValidAreRefused(t *testing.T) {
	t.Parallel()
	const unknown = ": correct it, or set allow_unknown to use it all the same"
	fault := func(pointer, message string) []apierror.Violation {
		return []apierror.Violation{{Pointer: pointer, Message: message}}
	}
	for _, test := range []struct {
		name, target, body string
		want               []apierror.Violation
	}{
		{"neither starts nor max_running", "PUT service:ocr", `{"reason":"r"}`, fault("", "must hold starts, max_running or both")},
		{"too many at once", "PUT service:ocr", `{"max_running":10001,"reason":"r"}`, fault("/max_running", "must be at most 10000")},
		{"a negative number at once", "PUT service:ocr", `{"max_running":-1,"reason":"r"}`, fault("/max_running", "must be at least 1")},
		{"no count", "PUT service:ocr", `{"starts":{"window":"1m"},"reason":"r"}`, fault("/starts/count", "must be at least 1")},
		{
			"too large a count", "PUT service:ocr", `{"starts":{"count":1000000001,"window":"1m"},"reason":"r"}`,
			fault("/starts/count", "must be at most 1000000000"),
		},
		{
			"no duration", "PUT service:ocr", `{"starts":{"count":1,"window":"soon"},"reason":"r"}`,
			fault("/starts/window", "must be a duration such as 1s, 1m or 24h"),
		},
		{"too short", "PUT service:ocr", `{"starts":{"count":1,"window":"999ms"},"reason":"r"}`, fault("/starts/window", "must be from 1s to 24h")},
		{"too long", "PUT service:ocr", `{"starts":{"count":1,"window":"24h1s"},"reason":"r"}`, fault("/starts/window", "must be from 1s to 24h")},
		{"no reason", "PUT service:ocr", `{"starts":{"count":1,"window":"1s"}}`, fault("/reason", "is required and must not be empty")},
		{
			"an unknown service", "PUT service:scan", `{"starts":{"count":1,"window":"1s"},"reason":"r"}`,
			fault("", "the service in limitId must be one of embed, ocr"+unknown),
		},
		{
			"a step type of another service", "PUT service:ocr,step_type:EMBED", `{"starts":{"count":1,"window":"1s"},"reason":"r"}`,
			fault("", "the step type in limitId must be one of OCR"+unknown),
		},
		{"no end", "POST service:ocr:close", `{"reason":"r"}`, fault("", "must hold exactly one of for_seconds and until")},
		{
			"two ends", "POST service:ocr:close", `{"for_seconds":1,"until":"2999-01-01T00:00:00Z","reason":"r"}`,
			fault("", "must hold exactly one of for_seconds and until"),
		},
		{"no time", "POST service:ocr:close", `{"for_seconds":0,"reason":"r"}`, fault("/for_seconds", "must be at least 0.001")},
		{"no reason to close", "POST service:ocr:close", `{"for_seconds":1}`, fault("/reason", "is required and must not be empty")},
		{
			"an unknown service to close", "POST service:scan:close", `{"for_seconds":1,"reason":"r"}`,
			fault("", "the service in limitId must be one of embed, ocr"+unknown),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			method, id := split(test.target)
			found := problemOf(t, h.do(t, method, "/v1/admin/limits/"+id, test.body))
			if diff := cmp.Diff(test.want, found.Errors); diff != "" || found.Code != apierror.InvalidEnvelope {
				t.Errorf("%s (-want +got):\n%s", found.Code, diff)
			}
			h.store.unchanged(t, test.name)
		})
	}
	h := newHarness(t)
	past := problemOf(t, h.do(t, http.MethodPost, "/v1/admin/limits/service:ocr:close", `{"until":"2020-01-01T00:00:00Z","reason":"r"}`))
	if len(past.Errors) != 1 || !strings.HasPrefix(past.Errors[0].Message, "must be later than the server's time") {
		t.Errorf("a time that has passed: %+v", past)
	}
	for _, test := range []struct{ id, detail string }{
		{"tenant:t", `"tenant:t" is not the id of a limit: it must name a service.`},
		{"ocr", `"ocr" is not the id of a limit: its parts are "service:", "step_type:" and "tenant:", in this order.`},
		{"service:" + strings.Repeat("x", 129), `the names in "service:` + strings.Repeat("x", 129) + `" are too long.`},
	} {
		got := h.do(t, http.MethodPut, "/v1/admin/limits/"+test.id, `{"starts":{"count":1,"window":"1s"},"reason":"r"}`)
		wantProblem(t, got, apierror.NotFound, test.detail)
	}
}

// A service that no protocol names may be limited before its protocol is loaded.
func TestLimits_OfAnUnknownServiceAreAcceptedOnPurpose(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for target, body := range map[string]string{
		"PUT /v1/admin/limits/service:scan":        `{"starts":{"count":1,"window":"1s"},"reason":"r","allow_unknown":true}`,
		"POST /v1/admin/limits/service:scan:close": `{"for_seconds":1,"reason":"r","allow_unknown":true}`,
	} {
		method, path := split(target)
		if got := h.do(t, method, path, body); got.Status != http.StatusOK {
			t.Errorf("%s: %d %s", target, got.Status, got.Body)
		}
	}
}

// Every process reads the limits of all tenants, so a tenant has few: those of the services that there are.
func TestLimits_OfAnUnknownServiceTakeAllTenants(t *testing.T) {
	t.Parallel()
	const own, all = "admin:t", "admin:*"
	g := newGuarded(t, []string{own, all})
	for target, body := range map[string]string{
		"PUT /v1/admin/limits/service:SERVICE,tenant:t":        `{"starts":{"count":1,"window":"1s"},"reason":"r","allow_unknown":true}`,
		"POST /v1/admin/limits/service:SERVICE,tenant:t:close": `{"for_seconds":1,"reason":"r","allow_unknown":true}`,
	} {
		unknown := strings.Replace(target, "SERVICE", "scan", 1)
		wantProblem(t, g.as(t, own, unknown, body), apierror.Forbidden, "allow_unknown requires the role admin for all tenants.")
		if got := g.as(t, all, unknown, body); got.Status != http.StatusOK {
			t.Errorf("%s for all tenants: %d %s", unknown, got.Status, got.Body)
		}
		if got := g.as(t, own, strings.Replace(target, "SERVICE", "ocr", 1), body); got.Status != http.StatusOK {
			t.Errorf("%s of a known service: %d %s", target, got.Status, got.Body)
		}
	}
}

// Names of up to 128 bytes fit, if their escaped forms fit into a key.
func TestLimits_OfLongNames(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	long := admission.Scope{Service: strings.Repeat("s", 128), StepType: strings.Repeat("t", 128), TenantID: strings.Repeat("é", 32)}.ID()
	made := h.do(t, http.MethodPut, "/v1/admin/limits/"+long, `{"starts":{"count":1,"window":"1s"},"reason":"r","allow_unknown":true}`)
	if got := decoded[api.StartLimit](t, made); got.ID != long {
		t.Errorf("%d %s", made.Status, made.Body)
	}
	huge := admission.Scope{Service: strings.Repeat("é", 64), StepType: strings.Repeat("é", 64)}.ID()
	got := h.do(t, http.MethodPut, "/v1/admin/limits/"+huge, `{"starts":{"count":1,"window":"1s"},"reason":"r","allow_unknown":true}`)
	wantProblem(t, got, apierror.NotFound, fmt.Sprintf("the names in %q are too long.", huge))
}

// Service Bus is a bus that only closures of whole services hold back.
func TestLimits_OnServiceBus(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *httpapi.Config) {
		c.Circuits = func(context.Context) ([]breaker.Circuit, error) { return nil, nil }
	})
	wantProblem(t, h.do(t, http.MethodPut, "/v1/admin/limits/service:ocr", `{"starts":{"count":1,"window":"1s"},"reason":"r"}`),
		apierror.LimitUnsupported, "This server publishes to Service Bus, which limits no starts. Close the service instead, or pause it.")
	wantProblem(t, h.do(t, http.MethodPost, "/v1/admin/limits/service:ocr,step_type:OCR:close", `{"for_seconds":1,"reason":"r"}`),
		apierror.LimitUnsupported, "This server publishes to Service Bus, on which a closure is of all step types: leave out the step type.")
	for _, id := range []string{"service:ocr", "service:ocr,tenant:t"} {
		if got := h.do(t, http.MethodPost, "/v1/admin/limits/"+id+":close", `{"for_seconds":1,"reason":"r"}`); got.Status != http.StatusOK {
			t.Errorf("close %s: %d %s", id, got.Status, got.Body)
		}
	}
}

// The caller of a tenant sees and changes the limits of this tenant, and learns of no other.
func TestLimits_OfOtherTenantsAreHidden(t *testing.T) {
	t.Parallel()
	const own, all = "admin:t", "admin:*"
	g := newGuarded(t, []string{own, all})
	ids := []string{"service:ocr", "service:ocr,tenant:o", "service:ocr,tenant:t"}
	for _, id := range ids {
		g.given(t, "PUT /v1/admin/limits/"+id, `{"starts":{"count":1,"window":"1s"},"reason":"r"}`)
	}
	for grants, want := range map[string][]string{own: ids[2:], all: ids} {
		var got []string
		for _, one := range decoded[api.StartLimitList](t, g.as(t, grants, "GET /v1/admin/limits", "")).Limits {
			got = append(got, one.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s sees %q, want %q", grants, got, want)
		}
	}
	for _, id := range ids[:2] {
		got := g.as(t, own, "PUT /v1/admin/limits/"+id, `{"starts":{"count":9,"window":"1s"},"reason":"mine"}`)
		wantProblem(t, got, apierror.NotFound, "There is no such limit.")
	}
	set := decoded[api.StartLimit](t, g.as(t, own, "PUT /v1/admin/limits/"+ids[2], `{"starts":{"count":9,"window":"1s"},"reason":"mine"}`))
	if set.Actor != "caller-a" || set.Starts.Count != 9 {
		t.Errorf("%+v", set)
	}
}

func TestLimits_ChangesAreInTheAuditTrail(t *testing.T) {
	t.Parallel()
	audit := auth.NewAudit(nil)
	h := newHarness(t, func(c *httpapi.Config) { c.Audit = audit })
	const id = "service:ocr,tenant:t"
	h.do(t, http.MethodPut, "/v1/admin/limits/"+id, `{"starts":{"count":1,"window":"1s"},"reason":"quota"}`)
	h.do(t, http.MethodPost, "/v1/admin/limits/"+id+":close", `{"for_seconds":60,"reason":"away"}`)
	h.do(t, http.MethodPost, "/v1/admin/limits/"+id+":open", `{"reason":"back"}`)
	h.do(t, http.MethodDelete, "/v1/admin/limits/"+id, "")
	var got []string
	for _, r := range decoded[api.AuditTrail](t, h.do(t, http.MethodGet, "/v1/admin/audit-trail", "")).Records {
		got = append(got, strings.Join([]string{r.Action, r.Object, r.TenantID, string(r.Outcome), r.Reason}, " "))
	}
	want := []string{
		"deleteLimit " + id + " t done ", "openLimit " + id + " t done back", "closeLimit " + id + " t done away", "setLimit " + id + " t done quota",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the trail (-want +got):\n%s", diff)
	}
}
