package httpapi

import (
	"slices"

	"github.com/lucius-project/lucius/pkg/problem"
)

// probes are the paths of a process that does not serve the API, for its operator.
var probes = []string{"/healthz", "/readyz", "/metrics"}

// errNoAPI says that the request reached the wrong process. Nothing was done.
var errNoAPI = &problem.Error{
	Code:   problem.NotFound,
	Detail: "This process does not serve the API, only /healthz, /readyz and /metrics: send the request to one that has the role api.",
}

// serves reports whether the server serves the path.
func (s *Server) serves(path string) bool { return !s.probesOnly || slices.Contains(probes, path) }
