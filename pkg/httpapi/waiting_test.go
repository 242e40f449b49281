package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
)

// waits returns what the job waits for, as each of the answers shows it.
func (h *harness) waits(t *testing.T, id string) *api.Waiting {
	t.Helper()
	job := decoded[api.Job](t, h.given(t, "GET /v1/jobs/"+id, ""))
	steps := decoded[api.StepList](t, h.given(t, "GET /v1/jobs/"+id+"/steps", ""))
	for name, list := range map[string][]api.Step{"the job": job.Steps, "its steps": steps.Steps} {
		shown := 0
		for i := range list {
			if list[i].Waiting == nil {
				continue
			}
			shown++
			if diff := cmp.Diff(job.Waiting, list[i].Waiting); diff != "" || !list[i].CompletedAt.IsZero() {
				t.Errorf("step %d of %s, %s, waits for another thing than the job (-job +step):\n%s", i, name, list[i].State, diff)
			}
		}
		if shown > 1 || (shown == 1) != (job.Waiting != nil) {
			t.Errorf("%d steps of %s wait", shown, name)
		}
	}
	listed := decoded[api.JobPage](t, h.given(t, "GET /v1/jobs?tenant_id=t", ""))
	for i := range listed.Jobs {
		shown := listed.Jobs[i].Waiting
		if listed.Jobs[i].JobID == id && ((shown == nil) != (job.Waiting == nil) || shown != nil && shown.Reason != job.Waiting.Reason) {
			t.Errorf("in the list it waits for %+v, and by itself for %+v", shown, job.Waiting)
		}
	}
	return job.Waiting
}

// A live job always says why it waits.
func TestALiveJobSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		expect := func(id, reason, detail string) {
			t.Helper()
			got := h.waits(t, id)
			if got == nil || string(got.Reason) != reason || !strings.Contains(got.Detail, detail) {
				t.Errorf("it waits for %+v, want %s %q", got, reason, detail)
			}
		}
		first := h.submitted(t)
		time.Sleep(time.Second)
		second := h.submitted(t)
		expect(first, "queued", "attempt 1 waits for a worker of service ocr, step type OCR, the first of its tenant")
		expect(second, "queued", ", with 1 of its tenant before it")
		time.Sleep(time.Minute)
		expect(first, "no_worker", "no worker has polled for service ocr, step type OCR since 2000-01-01T00:00:00.000Z")

		h.given(t, "POST /v1/work:claim", `{"owner":"w","services":["embed"],"request_id":"c1"}`)
		expect(first, "no_worker", "")
		h.given(t, "POST /v1/admin/pauses", `{"service":"ocr","reason":"OCR is down"}`)
		expect(first, "scope_paused", "paused by local: OCR is down")
		if by := h.waits(t, first).BlockedBy; by == nil || *by != (api.Blocker{Type: api.BlockerTypePause, ID: "service:ocr"}) {
			t.Errorf("it is blocked by %+v", by)
		}
		h.given(t, "POST /v1/admin/pauses/service:ocr:resume", `{"ramp_seconds":0}`)

		item := decoded[api.ClaimedWork](t, h.given(t, "POST /v1/work:claim", `{"owner":"w","services":["ocr"],"request_id":"c2"}`)).Items[0]
		expect(first, "delivered", "attempt 1 was delivered to w, and its ACK is due by")
		expect(second, "queued", "the first of its tenant")
		h.given(t, "POST /v1/work/"+item.WorkID+":start", `{"owner":"w","expected_rev":2,"request_id":"s"}`)
		expect(first, "running", "w runs attempt 1 and was last heard of at")
		if by := h.waits(t, first).BlockedBy; by == nil || *by != (api.Blocker{Type: api.BlockerTypeWorkItem, ID: item.WorkID}) {
			t.Errorf("it is blocked by %+v", by)
		}
		time.Sleep(8 * time.Minute)
		expect(first, "silent", "no heartbeat since")
		h.given(t, "POST /v1/work/"+item.WorkID+":heartbeat", `{"owner":"w","expected_rev":3,"request_id":"h"}`)
		expect(first, "running", "")
		h.given(t, "POST /v1/jobs/"+first+":pause", "")
		expect(first, "pausing", "")
		h.given(t, "POST /v1/jobs/"+first+":cancel", "")
		expect(first, "cancelling", "")
		h.given(t, "POST /v1/work/"+item.WorkID+":complete", `{"owner":"w","expected_rev":4,"request_id":"x"}`)
		if got := h.waits(t, first); got != nil {
			t.Errorf("it has ended, and waits for %+v", got)
		}
		h.given(t, "POST /v1/jobs/"+second+":pause", "")
		expect(second, "job_paused", "")
	})
}

// A list needs no extra reads to say why its jobs wait.
func TestAListReadsEachJobOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for range 5 {
		h.submitted(t)
	}
	h.do(t, http.MethodGet, "/v1/jobs?tenant_id=t&state=DISPATCHING", "")
	got := slices.DeleteFunc(h.store.read(), func(partition string) bool { return strings.HasPrefix(partition, "shard:") })
	if len(got) != 5 {
		t.Errorf("a list of 5 jobs reads %q", got)
	}
}
