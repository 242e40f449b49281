package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// FuzzPageToken checks that a page token that no page has returned, or with a position at
// which no page has ended, is either accepted as some position or refused as the client's
// mistake. It never causes an internal error, and no answer reveals its position.
func FuzzPageToken(f *testing.F) {
	h := newHarness(f)
	job, retry := h.failed(f), h.retrying(f)
	h.exhausted(f)
	lists := []string{
		"/v1/jobs?tenant_id=t&", "/v1/jobs?", "/v1/jobs/" + job + "/events?", "/v1/admin/outbox?", "/v1/admin/outbox?tenant_id=t&",
		"/v1/admin/webhooks?", "/v1/admin/webhooks?tenant_id=t&", "/v1/admin/operations/" + retry + "?",
	}
	for _, token := range []string{
		"", "0", "1", "-1", "9223372036854775807", "9223372036854775808", "x", "3:", ":", "3:live", "16:", "\x00", "a/b", "%41",
		"0196b2f1-0000-7000-8000-000000000000", strings.Repeat("9", 1024), "tenant_a:0196b2f1-0000-7000-8000-000000000000",
	} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		for _, list := range lists {
			for _, token := range []string{token, httpapi.PageToken(list, token)} {
				if len(token) > api.MaxPageToken {
					continue // Refused before.
				}
				path := list + "limit=2&page_token=" + url.QueryEscape(token)
				recorder := httptest.NewRecorder()
				h.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
				if recorder.Code >= http.StatusInternalServerError {
					t.Errorf("%s, token %q: %d %s", list, token, recorder.Code, recorder.Body)
				}
				if recorder.Code >= http.StatusBadRequest && len(token) > 8 && strings.Contains(recorder.Body.String(), token) {
					t.Errorf("%s: the answer repeats the token: %s", list, recorder.Body)
				}
			}
		}
	})
}
