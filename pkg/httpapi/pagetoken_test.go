package httpapi_test

import (
	"errors"
	"math"
	"net/http"
	"regexp"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/problem"
)

// urlSafe matches a text that needs no escaping in a query or in JSON.
var urlSafe = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func TestAPageTokenIsItsPositionAsURLSafeText(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"", "7/a\x00", "0197f0c2", "\xff\xfe", "ä b/?&=+%"} {
		token := httpapi.PageToken(place)
		if (token == "") != (place == "") || token != "" && !urlSafe.MatchString(token) {
			t.Errorf("the token for %q is %q", place, token)
		}
		if got, err := httpapi.PositionOf(token); err != nil || got != place {
			t.Errorf("%q is %q, %v, want %q", token, got, err, place)
		}
	}
}

func TestAPageTokenThatNoPageHasGivenIsRefused(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"A", "AA==", "AB", "A A", "AA\n", "\x00", "+/+/", "7/a"} {
		_, err := httpapi.PositionOf(token)
		wantNotGiven(t, token, err)
	}
}

func TestRevToken(t *testing.T) {
	t.Parallel()
	for _, rev := range []int64{0, 1, math.MaxInt64} {
		token := httpapi.RevToken(rev)
		place, err := httpapi.PositionOf(token)
		must(t, err)
		if got, err := httpapi.RevOf(place); err != nil || got != rev || (token == "") != (rev == 0) {
			t.Errorf("%d becomes %q, and that %d, %v", rev, token, got, err)
		}
	}
	for _, place := range []string{"0", "-1", "x", "1.0", "9223372036854775808"} {
		_, err := httpapi.RevOf(place)
		wantNotGiven(t, place, err)
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
// given, and names the parameter.
func wantNotGiven(t *testing.T, token string, err error) {
	t.Helper()
	var refused *problem.Error
	if !errors.As(err, &refused) || refused.Code != problem.InvalidEnvelope ||
		refused.Summary() != "page_token is invalid." {
		t.Errorf("%q: %v", token, err)
	}
}
