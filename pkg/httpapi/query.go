package httpapi

import (
	"net/http"
	"net/url"
	"strings"
)

// wholeQuery refuses a request of the API whose query does not parse. The glue would
// drop the unreadable parameters, and without its tenant filter a list would show
// all tenants.
func (p *responder) wholeQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
				p.problem(w, r, invalid("the query must be percent-encoded name=value pairs, joined by ampersands", err))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
