package console

import (
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis/diagnosistest"
)

func TestAttention_RanksAndCounts(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/services"] = api.ServiceList{Services: []api.Service{diagnosistest.OCRWork(now, 3000, 251*time.Second, 4*time.Minute)}}
	answers["GET /v1/admin/failures"] = api.FailureList{Groups: []api.FailureGroup{
		{Service: "<script>", StepType: "OCR", ErrorCode: "<b>", Count: 5000, FirstAt: ago(time.Hour), LastAt: ago(time.Minute), Histogram: []int{1, 5}},
	}}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/")
	has(t, page, "5,000 jobs", "&lt;script&gt;", "/ui/do/retry?error_code=%3Cb%3E", "no worker has polled for <time", "Everything else is well: 0/min accepted, 0 live jobs",
		`Attention <span class="hot">2</span>`, `<figure class="spark bad"><svg`, "Live jobs and steps are exact")
	hasNot(t, page, "<script>", "<b>:")
	if strings.Index(page, "5,000 jobs") > strings.Index(page, "3,000 directives") {
		t.Error("the smaller one comes first")
	}
	has(t, b.get(t, "/ui/pauses"), `Attention <span class="hot">2</span>`)
}

func TestAttention_OfAUserOfOneTenant(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/overview"] = refuse(403, "It is for all tenants.")
	answers["GET /v1/admin/pauses"] = api.PauseList{Pauses: []api.Pause{{PauseID: "tenant:tenant_a", TenantID: "tenant_a", State: api.PauseStatePaused, CreatedAt: ago(time.Hour)}}}
	b := newBrowser(t, answers)
	b.token = "bound"
	page := b.get(t, "/ui/")
	has(t, page, "<b>Tenant tenant_a</b> is paused for", "Nothing else needs attention at tenant_a.", "for users who may read all tenants", `Attention <span>1</span>`)
	has(t, b.get(t, "/ui/flow"), "counted for all tenants together")
	b.set("GET /v1/admin/pauses", api.PauseList{})
	has(t, b.get(t, "/ui/flow"), "counted for all tenants together")
}

func TestAttention_SaysWhichTenantsItLookedAt(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	b.token = "many"
	page := b.get(t, "/ui/")
	has(t, page, "Nothing needs attention at t00, t01,", ", t09.", "2 more tenants</a> of yours were not looked at.")
	hasNot(t, page, "t10")
}
