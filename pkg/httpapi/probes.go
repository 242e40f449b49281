package httpapi

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/problem"
)

// probes are what a process answers that does not serve the API: whoever runs it
// asks after it there, and nobody else.
var probes = []string{"/healthz", "/readyz", "/metrics"}

// errNoAPI says that the request is at the wrong process. Nothing was done.
var errNoAPI = &problem.Error{
	Code:   problem.NotFound,
	Detail: "This process does not serve the API, only /healthz, /readyz and /metrics: send the request to one that has the role api.",
}

// serves reports whether there may be something at the path.
func (s *Server) serves(path string) bool { return !s.probesOnly || slices.Contains(probes, path) }
