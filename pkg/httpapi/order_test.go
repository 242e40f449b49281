package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A job shows its key, mode and line, and has none of the members without a key.
func TestJobOf_ShowsItsOrder(t *testing.T) {
	t.Parallel()
	ordered := statemachine.Job{
		Order: statemachine.Order{Key: "customer:42", Mode: statemachine.OrderFIFO, Blocks: true},
		Place: statemachine.Place{Line: "ab12", Epoch: "e", Seq: 7},
	}
	for _, test := range []struct {
		job  statemachine.Job
		want map[string]any
	}{
		{statemachine.Job{}, map[string]any{}},
		{ordered, map[string]any{"order_key": "customer:42", "order_mode": "fifo", "line_id": "ab12"}},
	} {
		text, err := json.Marshal(httpapi.JobOf(&search.Shown{Aggregate: &statemachine.Aggregate{Job: test.job}}))
		musttest.NoError(t, err)
		var all map[string]any
		musttest.NoError(t, json.Unmarshal(text, &all))
		got := map[string]any{}
		for _, name := range []string{"order_key", "order_mode", "line_id"} {
			if value, ok := all[name]; ok {
				got[name] = value
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
	}
}

// inLine returns a command of the tenant with the order key, if it is not empty, and an idempotency key.
func inLine(tenant, order, key string) string {
	members := `{"idempotency_key":"` + key + `",`
	if order != "" {
		members += `"order_key":"` + order + `",`
	}
	return strings.Replace(strings.Replace(command, `{`, members, 1), `"t"`, `"`+tenant+`"`, 1)
}

// ofBatch returns what became of each command: accepted, or the code of its problem.
func ofBatch(t *testing.T, response answer) (outcomes []string) {
	t.Helper()
	for _, item := range decoded[api.BatchResult](t, response).Results {
		if item.Error != nil {
			outcomes = append(outcomes, string(item.Error.Code))
			continue
		}
		outcomes = append(outcomes, "accepted")
	}
	return outcomes
}

// A second accept of a line begins after the first has ended, so the calls of the store at a time are those
// of one accept.
func TestABatchAcceptsTheCommandsOfALineInTheirOrder(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	var calls, most atomic.Int64
	h.store.on(func(context.Context) error {
		defer calls.Add(-1)
		if now := calls.Add(1); now > most.Load() {
			most.Store(now)
		}
		time.Sleep(time.Millisecond)
		return nil
	})
	var texts, want []string
	for i := range 50 {
		texts, want = append(texts, inLine("t", "customer-42", fmt.Sprint(i))), append(want, fmt.Sprint(i))
	}
	ofBatch(t, h.do(t, http.MethodPost, "/v1/commands:batch", `{"commands":[`+strings.Join(texts, ",")+`]}`))
	if most.Load() >= 25 {
		t.Errorf("%d calls of the store at a time", most.Load())
	}
	var got []string
	for _, job := range decoded[api.JobPage](t, h.do(t, http.MethodGet, "/v1/jobs?tenant_id=t&limit=100", "")).Jobs {
		got = append(got, job.IdempotencyKey)
	}
	slices.Reverse(got) // They are listed from the newest.
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the jobs of the line in the order of their accepts (-want +got):\n%s", diff)
	}
}

// A command that fails for good holds up none of its line, and one that may pass the rest of it.
func TestABatchLeavesTheRestOfALineAfterAFailureThatPasses(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	bad := strings.Replace(inLine("t", "a", "bad"), `"en"`, "7", 1)
	body := `{"commands":[` + strings.Join([]string{
		bad, inLine("t", "a", "1"), inLine("t", "b", "2"), inLine("t", "", "3"), inLine("o", "a", "4"), inLine("t", "a", "5"),
		inLine("t", "a", "6"), inLine("t", "b", "7"),
	}, ",") + `]}`
	h.store.fail(tablestore.ErrUnavailable)
	lost := h.do(t, http.MethodPost, "/v1/commands:batch", body)
	const down, left = "store_unavailable", "predecessor_refused"
	if diff := cmp.Diff([]string{down, down, down, down, down, left, left, left}, ofBatch(t, lost)); diff != "" {
		t.Errorf("without a store (-want +got):\n%s", diff)
	}
	refused := decoded[api.BatchResult](t, lost).Results[5]
	want := "Command 1 of the batch, which comes before it in its line, was not accepted: repeat both in this order."
	if refused.Status != http.StatusConflict || refused.Error.Detail != want {
		t.Errorf("%d %+v", refused.Status, refused.Error)
	}
	h.store.fail(nil)
	if diff := cmp.Diff([]string{"payload_invalid", "accepted", "accepted", "accepted", "accepted", "accepted", "accepted", "accepted"},
		ofBatch(t, h.do(t, http.MethodPost, "/v1/commands:batch", body))); diff != "" {
		t.Errorf("with it (-want +got):\n%s", diff)
	}
}

// A command that was refused before its line was known may be in any line.
func TestABatchLeavesAllLinesAfterACommandThatIsNotKnown(t *testing.T) {
	t.Parallel()
	callers := []string{"submit:*"}
	g := newGuarded(t, callers, func(c *httpapi.Config) { c.TenantLimit = atMost(t, 1) })
	response := g.as(t, callers[0], "POST /v1/commands:batch", `{"commands":[`+strings.Join([]string{
		inLine("t", "a", "1"), inLine("t", "a", "2"), inLine("o", "b", "3"), inLine("p", "", "4"),
	}, ",")+`]}`)
	got := ofBatch(t, response)
	if limited := slices.Contains(got[:2], string(apierror.RateLimited)); !limited || got[2] != string(apierror.PredecessorRefused) || got[3] != "accepted" {
		t.Errorf("answered %v: %s", got, response.Body)
	}
}
