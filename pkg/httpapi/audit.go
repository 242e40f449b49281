package httpapi

import (
	"net"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/pkg/access"
)

// record writes the request into the audit log, where its rule says so.
func (s *Server) record(x *exchange, r *http.Request) {
	if s.audit == nil || !x.rule.Audited {
		return
	}
	s.audit.Write(r.Context(), access.Record{
		At: time.Now(), Caller: x.caller, From: from(r), Action: x.rule.Operation,
		Object: x.object, Tenant: x.tenant, Outcome: x.outcome(),
	})
}

// outcome is what became of the request.
func (x *exchange) outcome() access.Outcome {
	switch {
	case x.foreign, x.status == http.StatusUnauthorized, x.status == http.StatusForbidden:
		return access.Denied
	case x.status >= http.StatusBadRequest:
		return access.Failed
	default:
		return access.Done
	}
}

// from is the address that the request came from. What a proxy says of where it
// has it from is not looked at: anybody could say so.
func from(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
