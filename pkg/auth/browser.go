package auth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/problem"
)

// ErrCrossSite is wrapped in the problem of a request that a web page of another
// origin made a browser send.
var ErrCrossSite = errors.New("cross-site request")

// browserGuard keeps web pages from abusing what a browser can reach: a server on
// loopback that needs no credential, or a client certificate that the browser
// attaches. It is safe for concurrent use.
type browserGuard struct {
	origins *http.CrossOriginProtection
	hosts   []string
}

func newBrowserGuard(hosts []string) *browserGuard {
	return &browserGuard{origins: http.NewCrossOriginProtection(), hosts: hosts}
}

// checkOrigin refuses a request of a page of another origin, unless its method is
// safe.
func (g *browserGuard) checkOrigin(r *http.Request) error {
	if err := g.origins.Check(r); err != nil {
		return crossSite("A page of another origin may not send this request.", err)
	}
	return nil
}

// checkHost refuses a request for a foreign host name. A page can have its own
// server's name resolve to loopback (DNS rebinding), and the browser then takes the
// origins for the same; but it still sends that name as Host.
func (g *browserGuard) checkHost(r *http.Request) error {
	host := hostOf(r.Host)
	if isLoopback(host) || slices.ContainsFunc(g.hosts, func(name string) bool { return strings.EqualFold(name, host) }) {
		return nil
	}
	return crossSite("This server answers only to localhost and loopback addresses, because it asks for no credential.",
		fmt.Errorf("host %.256q is not of this server", host))
}

func crossSite(detail string, err error) error {
	return &problem.Error{Code: problem.Forbidden, Detail: detail, Err: fmt.Errorf("%w: %w", ErrCrossSite, err)}
}

// hostOf returns the host without the port and without the brackets of IPv6.
func hostOf(hostPort string) string {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostPort, "["), "]")
	}
	return strings.ToLower(host)
}
