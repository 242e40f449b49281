package httpapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A caller with rights for one tenant sees only a worker's attempts for that tenant.
func TestWorkersOfOtherTenantsAreNotListed(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:t", "read:o", "read:*", "platform:*"})
	item, _ := g.claimed(t, true)
	body := fmt.Sprintf(`{"owner":"o","expected_rev":%d,"request_id":"f1","error":{"code":"broken"}}`, item.Rev)
	g.as(t, "platform:*", "POST /v1/work/"+item.WorkID+":fail", body)
	g.claimed(t, true)
	for grant, sees := range map[string]bool{"read:t": true, "read:o": false, "read:*": true} {
		for _, query := range []string{"", "?owner=o", "?service=ocr", "?service=embed", "?owner=another"} {
			list := decoded[api.WorkerList](t, g.as(t, grant, "GET /v1/admin/workers"+query, ""))
			want := 0
			if sees && !strings.Contains(query, "another") { // It asks for the work of any service.
				want = 1
			}
			if list.Total != want || len(list.Workers) != want {
				t.Errorf("%s sees by %q %+v", grant, query, list)
				continue
			}
			if want == 0 {
				continue
			}
			one := list.Workers[0]
			if counted := one.LastDay == (api.AttemptCounts{Ended: 1, Failed: 1}); counted != (grant == "read:*") || one.Holds != 1 {
				t.Errorf("%s sees by %q %+v", grant, query, one)
			}
			if all := len(one.Held)+len(one.Attempts) == 2; all != (query == "?owner=o") {
				t.Errorf("%s sees by %q %+v", grant, query, one)
			}
		}
	}
	long := strings.Repeat("x", 513)
	wantProblem(t, g.as(t, "read:*", "GET /v1/admin/workers?owner="+long, ""), apierror.InvalidEnvelope,
		"parameters owner and service must be at most 128 characters.")
}

// Workers choose their names: one that has the name of another tenant's worker learns nothing of it.
func TestAWorkerWithTheNameOfAnotherTenantsIsNotDescribed(t *testing.T) {
	t.Parallel()
	const own, other = "read:t platform:t", "read:o platform:o"
	g := newGuarded(t, []string{own, other, "read:*"})
	g.tenant = "t"
	g.submitted(t)
	_, err := g.relay.RunOnce(t.Context())
	musttest.NoError(t, err)
	claim := `{"owner":"o","request_id":"r","host":"HOST","services":["SERVICE"]}`
	claimed := g.as(t, own, "POST /v1/work:claim", strings.NewReplacer("HOST", "mine", "SERVICE", "ocr").Replace(claim))
	mine := decoded[api.ClaimedWork](t, claimed)
	if len(mine.Items) != 1 {
		t.Fatalf("claimed %+v", mine)
	}
	host := func(grant string) string {
		list := decoded[api.WorkerList](t, g.as(t, grant, "GET /v1/admin/workers", ""))
		if len(list.Workers) != 1 || list.Workers[0].Holds != 1 {
			t.Fatalf("%s sees %+v", grant, list)
		}
		one := list.Workers[0]
		return fmt.Sprint(one.Host, one.Services, one.LastPollAt.IsZero())
	}
	if got := host(own); got != "mine[ocr] false" {
		t.Errorf("its own worker is shown as %s", got)
	}
	g.as(t, other, "POST /v1/work:claim", strings.NewReplacer("HOST", "theirs", "SERVICE", "embed").Replace(claim))
	if got := host(own); got != "[] true" {
		t.Errorf("the worker of another tenant is shown as %s", got)
	}
	if got := host("read:*"); got != "theirs[embed ocr] false" {
		t.Errorf("with a role for all tenants the worker is shown as %s", got)
	}
}

// The filter by service does not reveal for which services the worker has attempts of other tenants.
func TestWorkersAreNotFoundByTheServicesOfOtherTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, []string{"read:t", "read:*", "platform:*"})
		claim := func(id, services string) api.WorkItem {
			_, err := g.relay.RunOnce(t.Context())
			musttest.NoError(t, err)
			body := `{"owner":"o","request_id":"` + id + `","start":true,"services":["` + services + `"]}`
			return decoded[api.ClaimedWork](t, g.as(t, "platform:*", "POST /v1/work:claim", body)).Items[0]
		}
		g.tenant = "other"
		g.submitted(t)
		first := claim("first", "ocr")
		g.as(t, "platform:*", "POST /v1/work/"+first.WorkID+":complete", verbBody(first.Rev))
		claim("second", "embed")
		time.Sleep(time.Hour) // Its claims are of another service now.
		g.tenant = "t"
		g.submitted(t)
		claim("third", "ocr")
		for query, want := range map[string][2]int{"read:t": {1, 0}, "read:*": {1, 1}} {
			for i, service := range []string{"ocr", "embed"} {
				list := decoded[api.WorkerList](t, g.as(t, query, "GET /v1/admin/workers?service="+service, ""))
				if list.Total != want[i] {
					t.Errorf("%s finds %d workers of %s", query, list.Total, service)
				}
			}
		}
	})
}

// Held attempts are those that their jobs confirm.
func TestWorkersHoldWhatTheirJobsSay(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	_, directive := h.claimed(t, true)
	ask := func() answer { return h.do(t, http.MethodGet, "/v1/admin/workers?owner=o", "") }
	held := decoded[api.WorkerList](t, ask()).Workers[0].Held
	if len(held) != 1 || held[0].JobID != directive.JobID || held[0].LeaseExpiresAt.IsZero() || held[0].LastHeartbeatAt.IsZero() {
		t.Errorf("%+v", held)
	}
	job, err := h.ledger.Job(t.Context(), directive.JobID)
	musttest.NoError(t, err)
	purged := *job
	purged.Job.ID = noJob
	h.useCases.Counts.Observe(&statemachine.Aggregate{}, &purged, nil)
	if one := decoded[api.WorkerList](t, ask()).Workers[0]; len(one.Held) != 1 || one.Holds != 1 {
		t.Errorf("with an attempt of a job that is gone: %+v", one)
	}
	h.given(t, "POST /v1/work:claim", `{"owner":"e","services":["embed"],"host":"h","version":"7","request_id":"e"}`, "User-Agent: mine")
	for service, want := range map[string]int{"ocr": 1, "embed": 2} {
		list := decoded[api.WorkerList](t, h.do(t, http.MethodGet, "/v1/admin/workers?service="+service, ""))
		if list.Total != want {
			t.Errorf("%s: %+v", service, list)
		}
		if one := list.Workers[0]; want == 2 && (one.Owner != "e" || one.Host != "h" || one.Version != "7" || one.Library != "mine") {
			t.Errorf("%+v", one)
		}
	}
	h.store.fail(tablestore.ErrUnavailable)
	if got := ask(); got.Status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}
