package webhook

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// MaxURL is the most bytes in a callback URL.
const MaxURL = 2048

// RefusedError is returned when a URL, or the address that it resolves to, is not
// allowed. It is safe to show: it contains no address that is not in the URL.
type RefusedError struct {
	// Message says what is wrong, to be read after "callback URL".
	Message string
}

// Error returns "callback URL" and the message.
func (e *RefusedError) Error() string { return "callback URL " + e.Message }

func refuse(format string, args ...any) error {
	return &RefusedError{Message: fmt.Sprintf(format, args...)}
}

// notAllowed is the message about every address, so that it does not reveal which one.
const notAllowed = "leads to an address that is not allowed"

// GuardConfig configures a [Guard].
type GuardConfig struct {
	// AllowedPrefixes are private, loopback or other special networks to which webhooks
	// may be sent nevertheless. Optional.
	AllowedPrefixes []netip.Prefix
	// AllowHTTP accepts http URLs in addition to https ones. Optional.
	AllowHTTP bool
}

// Guard decides where webhooks may be sent. It is immutable, and so safe for concurrent
// use.
type Guard struct {
	allowed   []netip.Prefix
	allowHTTP bool
}

// NewGuard returns a guard. The error names the invalid prefix.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	for i, prefix := range cfg.AllowedPrefixes {
		if !prefix.IsValid() || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("webhook: AllowedPrefixes[%d] is %s and must be an IPv4 or IPv6 network", i, prefix)
		}
	}
	return &Guard{allowed: slices.Clone(cfg.AllowedPrefixes), allowHTTP: cfg.AllowHTTP}, nil
}

// CheckURL returns a [*RefusedError] unless webhooks may be sent to the URL, as far as it
// can tell without resolving the name. The URL must be absolute and use https (or http, if
// that is allowed), must not have a user name or fragment, and must name its host in ASCII
// or by an allowed IP address. The address of a name is checked at each connection.
func (g *Guard) CheckURL(raw string) error {
	if len(raw) > MaxURL {
		return refuse("is %d bytes long; at most %d are allowed", len(raw), MaxURL)
	}
	schemes := []string{"https"}
	if g.allowHTTP {
		schemes = []string{"http", "https"}
	}
	target, err := url.Parse(raw)
	if err != nil || !slices.Contains(schemes, target.Scheme) || target.Hostname() == "" {
		return refuse("must be an absolute %s URL", strings.Join(schemes, " or "))
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
	if addr, err := netip.ParseAddr(target.Hostname()); err == nil {
		return g.CheckAddr(addr)
	}
	return g.checkName(strings.TrimSuffix(strings.ToLower(target.Hostname()), "."))
}

// checkName returns a [*RefusedError] unless the text, in lower case, is a host name.
func (g *Guard) checkName(name string) error {
	// Host names must not contain underscores, but some do.
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-_"
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || strings.Trim(label, letters) != "" {
			return refuse("must name a host by a DNS name in ASCII or by an IP address")
		}
	}
	last := labels[len(labels)-1]
	_, err := strconv.ParseUint(last, 0, 64)
	switch {
	case len(name) > 253:
		return refuse("must name a host of at most 253 characters")
	case err == nil || strings.Trim(last, "0123456789") == "" || last == "0x":
		// Some resolvers read 127.1, 0x7f.1 and 2130706433 as addresses.
		return refuse("must write an IP address in its usual form")
	case last == "localhost" && g.CheckAddr(loopbackIPv4) != nil && g.CheckAddr(netip.IPv6Loopback()) != nil:
		return refuse(notAllowed)
	}
	return nil
}

// CheckAddr returns a [*RefusedError] unless webhooks may be sent to the address. An
// IPv4-mapped IPv6 address counts as the IPv4 address. Under an allowed NAT64 prefix,
// the embedded IPv4 address must be allowed, too.
func (g *Guard) CheckAddr(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	allowed := contains(g.allowed, addr)
	if allowed && nat64.Contains(addr) {
		bytes := addr.As16()
		return g.CheckAddr(netip.AddrFrom4([4]byte(bytes[12:])))
	}
	if allowed || (addr.Is4() || globalIPv6.Contains(addr)) && !contains(reserved, addr) {
		return nil
	}
	return refuse(notAllowed)
}

// control checks the address of a connection. The dialer calls it after it has resolved the
// name and before it connects, with the address that it connects to, so a name server cannot
// change the address in between.
func (g *Guard) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return refuse(notAllowed)
	}
	return g.CheckAddr(target.Addr())
}

// HostOf returns the key of the receiver's host: name and port. It is empty for a
// malformed URL.
func HostOf(raw string) string {
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

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(addr) })
}

func parsePrefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

var (
	loopbackIPv4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	// globalIPv6 is the part of IPv6 that is allocated to the internet. The rest
	// is unspecified, loopback, mapped, unique local, link-local or multicast.
	globalIPv6 = netip.MustParsePrefix("2000::/3")
	// nat64 is the prefix of addresses that a translator maps to IPv4.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")
	// reserved are the networks to which no webhook may be sent unless the operator allows
	// it: those of IANA's special-purpose registries that are not ordinary parts of the
	// internet, multicast, and cloud services at public addresses. IPv6 outside of
	// globalIPv6 is refused, too.
	reserved = parsePrefixes(
		"0.0.0.0/8",        // this network; 0.0.0.0 is the local host
		"10.0.0.0/8",       // private
		"100.64.0.0/10",    // carrier-grade NAT; metadata in one cloud
		"127.0.0.0/8",      // loopback
		"168.63.129.16/32", // Azure's own service to its machines
		"169.254.0.0/16",   // link-local; metadata in most clouds
		"172.16.0.0/12",    // private
		"192.0.0.0/24",     // protocol assignments; metadata in one cloud
		"192.0.2.0/24",     // documentation
		"192.88.99.0/24",   // 6to4 relays
		"192.168.0.0/16",   // private
		"198.18.0.0/15",    // benchmarks
		"198.51.100.0/24",  // documentation
		"203.0.113.0/24",   // documentation
		"224.0.0.0/4",      // multicast
		"240.0.0.0/4",      // reserved, and broadcast
		"2001::/23",        // protocol assignments: Teredo and others that lead elsewhere
		"2001:db8::/32",    // documentation
		"2002::/16",        // 6to4: any IPv4 address in disguise
		"3fff::/20",        // documentation
	)
)
