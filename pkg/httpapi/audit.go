package httpapi

import (
	"net"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/pkg/auth"
)

// record writes the request to the audit log if its rule says so.
func (s *Server) record(state *requestState, r *http.Request) {
	if s.audit == nil || !state.rule.Audited {
		return
	}
	s.audit.Write(r.Context(), auth.Record{
		At: time.Now(), Caller: state.caller, From: from(r), Action: state.rule.Operation,
		Object: state.object, Tenant: state.tenant, Outcome: state.outcome(),
	})
}

// outcome returns the outcome of the request for the audit log.
func (state *requestState) outcome() auth.Outcome {
	switch {
	case state.foreign, state.status == http.StatusUnauthorized, state.status == http.StatusForbidden:
		return auth.Denied
	case state.status >= http.StatusBadRequest:
		return auth.Failed
	default:
		return auth.Done
	}
}

// from returns the address that the request came from. It ignores the headers of
// proxies: any client could send them.
func from(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
