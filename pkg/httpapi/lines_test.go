package httpapi_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// A repeat of a release is answered as the first, and changes nothing.
func TestReleaseLine_BeginsTheNextJob(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	line, blocker := h.line(t)
	head := ""
	for try := range 2 {
		got := decoded[api.Line](t, h.do(t, http.MethodPost, "/v1/lines/"+line+":release", `{"jobId":"`+blocker+`","reason":"known"}`))
		head = got.Head.JobID
		want := api.Line{
			LineID: line, TenantID: "t", OrderKey: "line1", State: api.LineStateMoving,
			Head: api.LineHead{JobID: head, State: api.JobStateDispatching},
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(api.Line{}, "AsOf", "Since")); diff != "" || head == blocker {
			t.Errorf("after release %d (-want +got):\n%s", try, diff)
		}
	}
	got := h.do(t, http.MethodPost, "/v1/lines/"+line+":release", `{"jobId":"`+head+`"}`)
	wantProblem(t, got, apierror.NotBlocking, "The job does not block this line.")
	for id, cause := range map[string]string{
		blocker: `"cause":"release of its line requested: known"`,
		head:    `"cause":"job ` + blocker + ` before it in its line was released by local: known","event_id":"000000000002-000"`,
	} {
		if events := h.do(t, http.MethodGet, "/v1/jobs/"+id+"/events", "").Body; strings.Count(events, cause) != 1 {
			t.Errorf("the history does not tell of one release: %s", events)
		}
	}
}

// A line of which the last job was released is missing. Its release can still be repeated by those who may
// release the job, and by them alone.
func TestReleaseLine_OfTheLastJobAnswersTheEmptyLine(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"submit:t", "submit:o", "submit:*"})
	line, blocker := g.line(t)
	g.as(t, "submit:t", "POST /v1/lines/"+line+":cancel", `{"reason":"why"}`)
	target, body := "POST /v1/lines/"+line+":release", `{"jobId":"`+blocker+`"}`
	want := api.Line{LineID: line, TenantID: "t", OrderKey: "line1", State: api.LineStateMoving}
	for _, caller := range []string{"submit:t", "submit:t", "submit:*"} {
		got := decoded[api.Line](t, g.as(t, caller, target, body))
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(api.Line{}, "AsOf")); diff != "" {
			t.Errorf("the empty line, for %s (-want +got):\n%s", caller, diff)
		}
	}
	for _, refused := range []struct{ caller, target, body string }{
		{"submit:o", target, body},
		{"submit:t", target, `{"jobId":"` + noJob + `"}`},
		{"submit:t", target, `{"jobId":"` + g.submitted(t) + `"}`},
		{"submit:t", target, `{"jobId":`},
		{"submit:t", "POST /v1/lines/" + noJob + ":release", body},
	} {
		wantProblem(t, g.as(t, refused.caller, refused.target, refused.body), apierror.LineNotFound, "No job is in such a line.")
	}
}

// The answers for a job of another line, of another tenant and for none differ in nothing.
func TestReleaseLine_TellsNothingOfOtherJobs(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"submit:t"})
	line, _ := g.line(t)
	other := g.submitted(t)
	cmd := ledgertest.Command("o", "k")
	cmd.Job.Order = statemachine.Order{Key: "line1", Mode: statemachine.OrderFIFO, Blocks: true}
	foreign, err := g.ledger.Accept(t.Context(), cmd)
	musttest.NoError(t, err)
	for _, id := range []string{other, foreign.Job.ID, noJob} {
		got := g.as(t, "submit:t", "POST /v1/lines/"+line+":release", `{"jobId":"`+id+`"}`)
		wantProblem(t, got, apierror.NotBlocking, "The job does not block this line.")
	}
	got := g.as(t, "submit:t", "POST /v1/lines/"+foreign.Job.Place.Line+":release", `{"jobId":"`+foreign.Job.ID+`"}`)
	wantProblem(t, got, apierror.LineNotFound, "No job is in such a line.")
}

// bodyThen is a body before which something happens.
type bodyThen struct {
	io.Reader

	first func()
}

func (b *bodyThen) Read(p []byte) (int, error) {
	b.first()
	return b.Reader.Read(p)
}

// Whether another tenant has a job in the line shows neither in whether the body is asked for, nor in the
// answer to one that comes after such a job.
func TestReleaseLine_TellsNothingOfOtherLines(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"submit:t"})
	own := g.submitted(t)
	accept := sync.OnceFunc(func() {
		cmd := ledgertest.Command("o", "k")
		cmd.Job.Order = statemachine.Order{Key: "key", Mode: statemachine.OrderFIFO}
		_, err := g.ledger.Accept(t.Context(), cmd)
		musttest.NoError(t, err)
	})
	foreign, body := ledger.LineID("o", "key"), `{"jobId":"`+own+`"}`
	request := newRequest(t, http.MethodPost, "/v1/lines/"+foreign+":release", body, "Authorization: Bearer "+g.tokens["submit:t"])
	request.Body = io.NopCloser(&bodyThen{request.Body, accept})
	wantProblem(t, g.send(t, g.Server, request, body), apierror.LineNotFound, "No job is in such a line.")

	address := listen(t, g.harness).Listener.Addr().String()
	for _, line := range []string{foreign, noJob} {
		conn := connect(t, address)
		sendRaw(t, conn, "POST /v1/lines/"+line+":release HTTP/1.1\r\nHost: lucius\r\nAuthorization: Bearer "+g.tokens["submit:t"]+
			"\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
		if first, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(first, "100 Continue") {
			t.Errorf("the release of line %s is answered first with %q, %v", line, first, err)
		}
	}
}

func TestListLines_ShowsEachLineOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	moving, released := h.line(t)
	h.given(t, "POST /v1/lines/"+moving+":release", `{"jobId":"`+released+`"}`)
	want := map[string]api.LineState{}
	for range 5 {
		blocked, _ := h.line(t)
		want[blocked] = api.LineStateBlocked
	}
	h.tenant = "o"
	foreign, _ := h.line(t)
	list := func(query string) map[string]api.LineState {
		t.Helper()
		found, token := map[string]api.LineState{}, ""
		for {
			page := decoded[api.LinePage](t, h.do(t, http.MethodGet, "/v1/lines?limit=2"+query+token, ""))
			for _, line := range page.Lines {
				if _, again := found[line.LineID]; again || line.Waiting > 1 || line.Head.JobID == "" || line.Since.IsZero() {
					t.Errorf("listed %+v", line)
				}
				found[line.LineID] = line.State
			}
			if page.NextPageToken == "" {
				return found
			}
			token = "&page_token=" + page.NextPageToken
		}
	}
	if diff := cmp.Diff(want, list("&tenant_id=t&state=blocked")); diff != "" {
		t.Errorf("blocked lines (-want +got):\n%s", diff)
	}
	for line := range list("&tenant_id=t&state=moving") {
		if line != moving {
			t.Errorf("line %s is listed as moving", line)
		}
	}
	want[foreign] = api.LineStateBlocked
	if diff := cmp.Diff(want, list("&state=blocked")); diff != "" {
		t.Errorf("blocked lines of all tenants (-want +got):\n%s", diff)
	}
}

// A line is found by its tenant and order key, also if it has one job, which no list shows.
func TestListLines_ByOrderKey(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	blocked, _ := h.line(t) // Its key is line1.
	alone := ledgertest.Command("t", "alone")
	alone.Job.Order = statemachine.Order{Key: "a key/with ü", Mode: statemachine.OrderFIFO}
	accepted, err := h.ledger.Accept(t.Context(), alone)
	musttest.NoError(t, err)
	for query, want := range map[string]string{
		"tenant_id=t&order_key=line1":                   blocked,
		"tenant_id=t&order_key=line1&state=blocked":     blocked,
		"tenant_id=t&order_key=line1&state=moving":      "",
		"tenant_id=o&order_key=line1":                   "",
		"tenant_id=t&order_key=Line1":                   "",
		"tenant_id=t&order_key=a%20key%2Fwith%20%C3%BC": accepted.Job.Place.Line,
	} {
		page := decoded[api.LinePage](t, h.do(t, http.MethodGet, "/v1/lines?"+query, ""))
		found := ""
		for i := range page.Lines {
			found += page.Lines[i].LineID
		}
		if found != want || page.NextPageToken != "" {
			t.Errorf("%s: found %+v, want line %q", query, page, want)
		}
	}
}

func TestListLines_RefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for query, want := range map[string]string{
		"?state=standing":                                      "parameter state must be blocked or moving.",
		"?page_token=nonsense":                                 "parameter page_token is invalid, or of another list: only limit may differ from the request that gave it.",
		"?page_token=" + pageToken("/v1/lines?", "99/"):        "page_token is invalid.",
		"?page_token=" + pageToken("/v1/lines?", "0/line:a:b"): "page_token is invalid.",
		"?order_key=line1":                                     "parameter tenant_id is required to find a line by its order key.",
	} {
		wantProblem(t, h.do(t, http.MethodGet, "/v1/lines"+query, ""), apierror.InvalidEnvelope, want)
	}
}

// pageToken is a token of that list for a position.
func pageToken(list, position string) string {
	digest := sha256.Sum256([]byte(list))
	return base64.RawURLEncoding.EncodeToString([]byte(string(digest[:6]) + position))
}

func TestListLineJobs_IsInTheirOrder(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	line, blocker := h.line(t)
	first := decoded[api.LineJobPage](t, h.do(t, http.MethodGet, "/v1/lines/"+line+"/jobs?limit=1", ""))
	second := decoded[api.LineJobPage](t, h.do(t, http.MethodGet, "/v1/lines/"+line+"/jobs?limit=1&page_token="+first.NextPageToken, ""))
	if len(first.Jobs) != 1 || first.Jobs[0].JobID != blocker || first.NextPageToken == "" {
		t.Errorf("the first page is %+v", first)
	}
	if len(second.Jobs) != 1 || second.NextPageToken != "" || second.Jobs[0].Waiting.Reason != api.WaitingReasonLineBlocked ||
		second.Jobs[0].Waiting.BlockedBy.ID != blocker {
		t.Errorf("the second page is %+v", second)
	}
	got := decoded[api.Line](t, h.do(t, http.MethodGet, "/v1/lines/"+line, ""))
	want := api.Line{
		LineID: line, TenantID: "t", OrderKey: "line1", State: api.LineStateBlocked, Waiting: 1,
		Head: api.LineHead{JobID: blocker, State: api.JobStateFailedFinal, ErrorCode: "bad_scan"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(api.Line{}, "AsOf", "Since")); diff != "" {
		t.Errorf("the line (-want +got):\n%s", diff)
	}
}

func TestCancelLine_LeavesWhatBlocks(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	line, blocker := h.line(t)
	for _, want := range []int{1, 0} {
		got := decoded[api.LineCancellation](t, h.do(t, http.MethodPost, "/v1/lines/"+line+":cancel", `{"reason":"why"}`))
		if got != (api.LineCancellation{LineID: line, Cancelled: want}) {
			t.Errorf("cancelled %+v, want %d", got, want)
		}
	}
	left := decoded[api.LineJobPage](t, h.do(t, http.MethodGet, "/v1/lines/"+line+"/jobs", ""))
	if len(left.Jobs) != 1 || left.Jobs[0].JobID != blocker {
		t.Errorf("left are %+v", left.Jobs)
	}
	if got := decoded[api.Line](t, h.do(t, http.MethodGet, "/v1/lines/"+line, "")); got.Waiting != 0 {
		t.Errorf("%d jobs wait", got.Waiting)
	}
}
