package httpapi_test

import (
	"errors"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// urlSafe matches a text that needs no escaping in a query or in JSON.
var urlSafe = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func TestAPageTokenIsItsPositionAsURLSafeText(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"", "7/a\x00", "0197f0c2", "\xff\xfe", "ä b/?&=+%"} {
		token := httpapi.PageToken("/list", place)
		if (token == "") != (place == "") || token != "" && !urlSafe.MatchString(token) {
			t.Errorf("the token for %q is %q", place, token)
		}
		if got, err := httpapi.CursorOf("/list", token); err != nil || httpapi.After(got) != place {
			t.Errorf("%q is %q, %v, want %q", token, httpapi.After(got), err, place)
		}
	}
}

func TestAPageTokenThatNoPageHasGivenIsRefused(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"A", "AA==", "AB", "A A", "AA\n", "\x00", "+/+/", "7/a", httpapi.PageToken("/list", strings.Repeat("x", 1024))} {
		_, err := httpapi.CursorOf("/list", token)
		wantNotGiven(t, token, err)
	}
}

func TestRevToken(t *testing.T) {
	t.Parallel()
	start, err := httpapi.CursorOf("/list", "")
	musttest.NoError(t, err)
	for _, rev := range []int64{0, 1, math.MaxInt64} {
		token := httpapi.RevToken(start, rev)
		at, err := httpapi.CursorOf("/list", token)
		musttest.NoError(t, err)
		if got, err := httpapi.Rev(at); err != nil || got != rev || (token == "") != (rev == 0) {
			t.Errorf("%d becomes %q, and that %d, %v", rev, token, got, err)
		}
	}
	for _, place := range []string{"0", "-1", "x", "1.0", "9223372036854775808"} {
		at, err := httpapi.CursorOf("/list", httpapi.PageToken("/list", place))
		musttest.NoError(t, err)
		_, err = httpapi.Rev(at)
		wantNotGiven(t, place, err)
	}
}

// A page continues only the list of the page before: with other filters it would silently
// leave out or repeat entries.
func TestAPageTokenIsOfOneList(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	job := h.submitted(t)
	h.submitted(t)
	token := decoded[api.JobPage](t, h.do(t, http.MethodGet, "/v1/jobs?tenant_id=t&state=DISPATCHING&limit=1", "")).NextPageToken
	for _, same := range []string{"/v1/jobs?tenant_id=t&state=DISPATCHING", "/v1/jobs?state=DISPATCHING&limit=7&tenant_id=t"} {
		got := h.do(t, http.MethodGet, same+"&page_token="+token, "")
		if page := decoded[api.JobPage](t, got); got.Status != http.StatusOK || len(page.Jobs) != 1 || page.Jobs[0].JobID != job {
			t.Errorf("%s: %d %s", same, got.Status, got.Body)
		}
	}
	for _, other := range []string{
		"/v1/jobs?tenant_id=t", "/v1/jobs?tenant_id=t&state=QUEUED", "/v1/jobs?tenant_id=o&state=DISPATCHING",
		"/v1/jobs?tenant_id=t&state=DISPATCHING&request_type=x", "/v1/admin/webhooks?tenant_id=t", "/v1/jobs/" + job + "/events?limit=3",
	} {
		wantProblem(t, h.do(t, http.MethodGet, other+"&page_token="+token, ""), apierror.InvalidEnvelope,
			"parameter page_token is invalid, or of another list: only limit may differ from the request that gave it.")
	}
}

// The outbox continues after a row key of the store, which may hold any bytes.
func TestTheOutboxIsPagedByURLSafeTokens(t *testing.T) {
	t.Parallel()
	const rows = 5
	h := newHarness(t)
	for range rows {
		h.submitted(t)
	}
	found, token := 0, ""
	for {
		page := decoded[api.OutboxPage](t, h.do(t, http.MethodGet, "/v1/admin/outbox?limit=1&page_token="+token, ""))
		found += len(page.Outbox)
		if token = page.NextPageToken; token == "" {
			break
		}
		if !urlSafe.MatchString(token) {
			t.Fatalf("next_page_token is %q", token)
		}
	}
	if found != rows {
		t.Errorf("%d rows were listed, want %d", found, rows)
	}
}

// wantNotGiven fails the test unless the error refuses a page token that no page has
// returned, and names the parameter.
func wantNotGiven(t *testing.T, token string, err error) {
	t.Helper()
	var refused *apierror.Error
	if !errors.As(err, &refused) || refused.Code != apierror.InvalidEnvelope ||
		strings.TrimPrefix(refused.Summary(), "parameter ") != "page_token is invalid." {
		t.Errorf("%q: %v", token, err)
	}
}
