package access

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/problem"
)

// ErrCrossSite is returned, within a problem, for a request that a browser sent
// because a page of somebody else made it.
var ErrCrossSite = errors.New("cross-site request")

// browserGuard keeps web pages from using what a browser can reach: a server on
// loopback that asks for no credential, or a client certificate that the browser
// sends along. It is safe for concurrent use.
type browserGuard struct {
	origins *http.CrossOriginProtection
	hosts   []string
}

func newBrowserGuard(hosts []string) *browserGuard {
	return &browserGuard{origins: http.NewCrossOriginProtection(), hosts: hosts}
}

// checkOrigin refuses a request that would change something and that a page of
// another origin made.
func (g *browserGuard) checkOrigin(r *http.Request) error {
	if err := g.origins.Check(r); err != nil {
		return crossSite("A page of another origin may not send this request.", err)
	}
	return nil
}

// checkHost refuses a request for a host that this one is not called. A page can
// have the name of its own server resolve to loopback, and is then of the same
// origin for the browser; but the browser still says that name.
func (g *browserGuard) checkHost(r *http.Request) error {
	host := hostOf(r.Host)
	if isLoopback(host) || slices.ContainsFunc(g.hosts, func(name string) bool { return strings.EqualFold(name, host) }) {
		return nil
	}
	return crossSite("This server answers to localhost and loopback addresses alone, because it asks nobody who they are.",
		fmt.Errorf("host %.256q is not of this server", host))
}

func crossSite(detail string, err error) error {
	return &problem.Error{Code: problem.Forbidden, Detail: detail, Err: fmt.Errorf("%w: %w", ErrCrossSite, err)}
}

// hostOf is the host without the port and without the brackets of IPv6.
func hostOf(hostPort string) string {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostPort, "["), "]")
	}
	return strings.ToLower(host)
}
