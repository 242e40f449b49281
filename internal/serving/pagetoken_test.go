package serving

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// urlSafe is a text that goes into a query and comes out of JSON as it is.
var urlSafe = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func TestAPageTokenIsItsPlaceAsURLSafeText(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"", "7/a\x00", "0197f0c2", "\xff\xfe", "ä b/?&=+%"} {
		token := pageToken(place)
		if (token == "") != (place == "") || token != "" && !urlSafe.MatchString(token) {
			t.Errorf("the token for %q is %q", place, token)
		}
		if got, err := placeOf(token); err != nil || got != place {
			t.Errorf("%q is %q, %v, want %q", token, got, err, place)
		}
	}
}

func TestWhatNoPageHasGivenIsRefused(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"A", "AA==", "AB", "A A", "AA\n", "\x00", "+/+/", "7/a"} {
		_, err := placeOf(token)
		wantNotGiven(t, token, err)
	}
}

func TestRevToken(t *testing.T) {
	t.Parallel()
	for _, rev := range []int64{0, 1, math.MaxInt64} {
		token := revToken(rev)
		if got, err := revOf(token); err != nil || got != rev || (token == "") != (rev == 0) {
			t.Errorf("%d becomes %q, and that %d, %v", rev, token, got, err)
		}
	}
	for _, place := range []string{"0", "-1", "x", "1.0", "9223372036854775808"} {
		_, err := revOf(pageToken(place))
		wantNotGiven(t, place, err)
	}
	_, err := revOf("1")
	wantNotGiven(t, "1", err)
}

// The outbox goes on behind a row key of the store, which may hold any bytes.
func TestTheOutboxIsPagedByURLSafeTokens(t *testing.T) {
	t.Parallel()
	const rows = 5
	l, err := ledger.Open(t.Context(), ledger.Config{Store: memstore.New(memstore.Options{}), Hold: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		_, err := l.Accept(t.Context(), ledger.Command{
			Job:     statemachine.Job{TenantID: "tenant_a", IdempotencyHash: strconv.Itoa(i)},
			Steps:   []statemachine.Step{{ID: "s", Type: "T", Service: "s", Policy: statemachine.Policy{MaxAttempts: 1}}},
			Payload: []byte(`{}`),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	port := adminPort{operator: outbox.NewOperator(l)}
	found, token := 0, ""
	for {
		page, err := port.Outbox(t.Context(), api.ListOutboxParams{}, httpapi.Page{Limit: 1, Token: token})
		if err != nil {
			t.Fatal(err)
		}
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

// wantNotGiven fails the test unless the error is that of a page token which no page
// has given, and names the parameter.
func wantNotGiven(t *testing.T, token string, err error) {
	t.Helper()
	var refused *problem.Error
	if !errors.As(err, &refused) || refused.Code != problem.InvalidEnvelope ||
		refused.Summary() != "page_token is not one that a page has given." {
		t.Errorf("%q: %v", token, err)
	}
}
