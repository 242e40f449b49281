package httpapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/httpapi"
)

// silent is a response writer that discards the response.
type silent struct{ header http.Header }

func (s silent) Header() http.Header          { return s.header }
func (silent) Write(data []byte) (int, error) { return len(data), nil }
func (silent) WriteHeader(int)                {}

// BenchmarkSubmit measures a command from its bytes to its 202, over a store in
// memory.
func BenchmarkSubmit(b *testing.B) {
	h := newHarness(b, func(c *httpapi.Config) { c.Log = quiet() })
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		body := strings.Replace(command, "{", fmt.Sprintf(`{"idempotency_key":"b%d",`, n), 1)
		request := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/commands", strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(silent{http.Header{}}, request)
	}
}
