package webhook

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// MaxURL is the largest length of a callback URL in bytes.
const MaxURL = 2048

// CheckURL returns a [*RefusedError] unless webhooks may be sent to the URL, as
// far as it can tell without a name server: an absolute https URL (or http, if that
// is allowed) without user name and fragment, with a host name in ASCII or an allowed
// IP address. The address of a name is checked at each connection.
func (g *Guard) CheckURL(raw string) error {
	if len(raw) > MaxURL {
		return refuse("is %d bytes long; at most %d are allowed", len(raw), MaxURL)
	}
	target, err := url.Parse(raw)
	if err != nil || !g.takes(target.Scheme) || target.Hostname() == "" {
		return refuse("must be an absolute %s URL", g.schemes())
	}
	switch {
	case target.User != nil:
		return refuse("must not carry a user name or password")
	case strings.Contains(raw, "#"):
		return refuse("must not have a fragment")
	}
	if port := target.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return refuse("has the port %s, which does not exist", port)
		}
	}
	return g.checkHost(target)
}

func refuse(format string, args ...any) error {
	return &RefusedError{Message: fmt.Sprintf(format, args...)}
}

func (g *Guard) takes(scheme string) bool {
	return scheme == "https" || g.allowHTTP && scheme == "http"
}

func (g *Guard) schemes() string {
	if g.allowHTTP {
		return "http or https"
	}
	return "https"
}

func (g *Guard) checkHost(target *url.URL) error {
	host := target.Hostname()
	if addr, err := netip.ParseAddr(host); err == nil {
		return g.CheckAddr(addr)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if !isLabel(label) {
			return refuse("must name a host by a DNS name in ASCII or by an IP address")
		}
	}
	last := labels[len(labels)-1]
	switch {
	case len(name) > 253:
		return refuse("must name a host of at most 253 characters")
	case isNumber(last):
		// Some resolvers read 127.1, 0x7f.1 and 2130706433 as addresses.
		return refuse("must write an IP address in its usual form")
	case last == "localhost" && !g.allowsLoopback():
		return refuse(notAllowed)
	}
	return nil
}

// isLabel reports whether the text may be a label of a host name.
// Underscores are not allowed in host names, but some hosts have them.
func isLabel(text string) bool {
	if text == "" || len(text) > 63 {
		return false
	}
	for _, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// isNumber reports whether a C library would parse the label as a number.
func isNumber(label string) bool {
	if _, err := strconv.ParseUint(label, 0, 64); err == nil {
		return true
	}
	return strings.Trim(label, "0123456789") == "" || label == "0x"
}

func (g *Guard) allowsLoopback() bool {
	return g.CheckAddr(netip.AddrFrom4([4]byte{127, 0, 0, 1})) == nil || g.CheckAddr(netip.IPv6Loopback()) == nil
}

// hostOf returns the key of the receiver's host: name and port. It is empty for a
// malformed URL.
func hostOf(raw string) string {
	target, err := url.Parse(raw)
	if err != nil || target.Hostname() == "" {
		return ""
	}
	port := target.Port()
	switch {
	case port == "" && target.Scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.ToLower(target.Hostname()), "."), port)
}
