package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// someLimits are a closed service, a limit that is used up, and one of a tenant.
func someLimits() api.StartLimitList {
	return api.StartLimitList{Limits: []api.StartLimit{
		{
			ID: "service:embed,tenant:tenant_a", Service: "embed", TenantID: "tenant_a",
			Starts: &api.Starts{Count: 1200, Window: "1m"}, Used: new(1100), Actor: "ops-1", Reason: hostile,
		},
		{ID: "service:extract", Service: "extract", Starts: &api.Starts{Count: 5, Window: "1s"}, Used: new(5)},
		{ID: "service:embed", Service: "embed", MaxRunning: 40, Running: new(40)},
		{
			ID: "service:ocr", Service: "ocr",
			Closed: &api.Closure{Until: ago(-5 * time.Minute), Since: ago(time.Minute), By: "ops-2", Reason: "the vendor answers 503"},
		},
	}}
}

func TestLimits_ShowsUseAndClosures(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/limits"] = someLimits()
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/limits")
	has(t, page, "<b>Service embed, for tenant tenant_a</b> starts at most 1,200 in 1m",
		`<progress value="1100" max="1200" aria-label="starts used of service:embed,tenant:tenant_a">`, "1,100 of 1,200 used in 1m",
		"5 of 5 used in 1s, none is free now", "&lt;script&gt;",
		"<b>Service ocr</b> is closed, and opens <time", "in 5 min</time>", "by ops-2: “the vendor answers 503”",
		"/ui/do/limit-open?limit=service%3Aocr", "/ui/do/limit-close?limit=service%3Aocr",
		"/ui/do/limit-set?limit=service%3Aextract", "/ui/do/limit-delete?limit=service%3Aextract", "lucius limit list")
	hasNot(t, page, hostile, "/ui/do/limit-delete?limit=service%3Aocr")
	if strings.Index(page, "Service ocr") > strings.Index(page, "Service embed") {
		t.Error("what is closed must come first")
	}
	has(t, b.get(t, "/ui/"), "Service ocr</b> is closed, and opens", "/ui/do/limit-open?limit=service%3Aocr")

	b.token = "bound"
	page = b.get(t, "/ui/limits")
	has(t, page, "/ui/do/limit-set?limit=service%3Aembed%2Ctenant%3Atenant_a", "which only an operator of all tenants sees")
	hasNot(t, page, "/ui/do/limit-open?limit=service%3Aocr")

	b = newBrowser(t, quiet())
	has(t, b.get(t, "/ui/limits"), "Nothing is limited or closed.", "lucius limit set service:ocr --starts 600/1m")
	b.token = "reader"
	hasNot(t, b.get(t, "/ui/"), `href="/ui/limits"`)
}

func TestServices_ShowLimitsAndClosures(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/limits"] = someLimits()
	answers["GET /v1/admin/services"] = api.ServiceList{Services: []api.Service{
		{Service: "embed", StepType: "EMBED"}, {Service: "extract", StepType: "EXTRACT"}, {Service: "ocr", StepType: "OCR"},
	}}
	b := newBrowser(t, answers)
	has(t, b.get(t, "/ui/services"), `<a href="/ui/limits#limit-service%3aocr">closed</a>`, `<a href="/ui/limits#limit-service%3aextract">5/1s</a>`,
		">1200/1m for tenant_a</a>")
	has(t, b.get(t, "/ui/services/ocr"), "is closed, and opens", "Limits and closures", "/ui/do/limit-open?limit=service%3Aocr")
	hasNot(t, b.get(t, "/ui/services/extract"), "is closed")
}

func TestLimits_AreSetAndDeleted(t *testing.T) {
	t.Parallel()
	const id = "service:ocr,step_type:a~2Cb,tenant:tenant_a"
	b := newBrowser(t, map[string]any{
		"PUT /v1/admin/limits/service:ocr": api.StartLimit{}, "PUT /v1/admin/limits/" + id: api.StartLimit{},
		"DELETE /v1/admin/limits/service:ocr": api.StartLimit{},
		"GET /v1/admin/limits/service:ocr":    api.StartLimit{Starts: &api.Starts{Count: 600, Window: "1m"}, MaxRunning: 40},
	})
	has(t, b.get(t, "/ui/do/limit-set"), "Limit a service?", `name="running"`, `name="service"`, `name="step_type"`, `name="tenant_id"`,
		"lucius limit set LIMIT --reason WHY")
	form := b.get(t, "/ui/do/limit-set?limit=service:ocr")
	has(t, form, "Limit service:ocr?", `value="600/1m"`, `value="40"`, "lucius limit set service:ocr --starts 600/1m --running 40 --reason WHY",
		"what is empty is no longer limited")
	hasNot(t, form, `name="service"`)
	has(t, b.get(t, "/ui/do/limit-set?limit=service:new"), "Limit service:new?", "lucius limit set service:new --reason WHY")
	if to := b.submits(t, "limit-set", url.Values{"limit": {"service:ocr"}, "starts": {"600 / 1m"}, "reason": {"quota"}}); to != "/ui/limits" {
		t.Errorf("it leads to %s", to)
	}
	b.asks(t, `PUT /v1/admin/limits/service:ocr {"reason":"quota","starts":{"count":600,"window":"1m"}}`)
	b.submits(t, "limit-set", url.Values{
		"service": {"ocr"}, "step_type": {"a,b"}, "tenant_id": {"tenant_a"}, "starts": {"1/1s"}, "reason": {"fair"},
	})
	b.asks(t, "PUT /v1/admin/limits/"+strings.ReplaceAll(id, ",", "%2C")+` {"reason":"fair","starts":{"count":1,"window":"1s"}}`)
	b.submits(t, "limit-set", url.Values{"limit": {"service:ocr"}, "running": {"40"}, "reason": {"sessions"}})
	b.asks(t, `PUT /v1/admin/limits/service:ocr {"max_running":40,"reason":"sessions"}`)
	asked := len(b.requests())
	for says, form := range map[string]url.Values{
		"The attempts that run at once are a ":  {"service": {"ocr"}, "running": {"0"}, "reason": {"x"}},
		"Name the service.":                     {"starts": {"1/1s"}, "reason": {"x"}},
		"The starts are a number and a window ": {"service": {"ocr"}, "starts": {"many"}, "reason": {"x"}},
		"Give a reason":                         {"service": {"ocr"}, "starts": {"1/1s"}},
	} {
		has(t, b.send(http.MethodPost, "/ui/do/limit-set", form).Body.String(), says)
	}
	if len(b.requests()) != asked {
		t.Errorf("a form with a mistake was sent: %q", b.requests()[asked:])
	}
	has(t, b.get(t, "/ui/do/limit-delete?limit=service:ocr"), "Delete the limit of service:ocr?", "lucius limit delete service:ocr")
	b.submits(t, "limit-delete", url.Values{"limit": {"service:ocr"}})
	b.asks(t, "DELETE /v1/admin/limits/service:ocr")
}

func TestLimits_AreClosedAndOpened(t *testing.T) {
	t.Parallel()
	const path = "POST /v1/admin/limits/service:ocr"
	b := newBrowser(t, map[string]any{path + ":close": api.StartLimit{}, path + ":open": api.StartLimit{}})
	has(t, b.get(t, "/ui/do/limit-close?limit=service:ocr&for=5m"), "Close service:ocr?", "lucius limit close service:ocr --for 5m --reason WHY")
	b.submits(t, "limit-close", url.Values{"service": {"ocr"}, "for": {"5 m"}, "reason": {"503"}})
	b.asks(t, path+`:close {"for_seconds":300,"reason":"503"}`)
	for says, after := range map[string]string{
		"How long it is closed is a number with a unit": "soon", "A closure lasts at most 365d.": "366d",
	} {
		has(t, b.send(http.MethodPost, "/ui/do/limit-close", url.Values{"service": {"ocr"}, "for": {after}, "reason": {"x"}}).Body.String(), says)
	}
	has(t, b.get(t, "/ui/do/limit-open?limit=service:ocr"), "Open service:ocr?", "lucius limit open service:ocr")
	b.submits(t, "limit-open", url.Values{"limit": {"service:ocr"}, "reason": {"fixed"}})
	b.asks(t, path+`:open {"reason":"fixed"}`)
}

// The scopes of all tenants are not for an operator of some, whose form names its own.
func TestLimits_OfTheOperatorOfATenant(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, nil)
	b.token = "bound"
	has(t, b.get(t, "/ui/do/limit-set"), `name="tenant_id" value="tenant_a"`)
	for target, want := range map[string]int{
		"limit-set?limit=service:ocr,tenant:tenant_a": 200, "limit-close?limit=service:ocr,tenant:tenant_b": 403, "limit-open?limit=service:ocr": 403,
	} {
		if got := b.send(http.MethodGet, "/ui/do/"+target, nil).Code; got != want {
			t.Errorf("%s: %d, want %d", target, got, want)
		}
	}
}
