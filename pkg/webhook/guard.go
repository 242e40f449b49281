package webhook

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// RefusedError is returned when a URL, or the address that it resolves to, is not
// allowed. It is safe to show: it holds no address that is not in the URL.
type RefusedError struct {
	// Message says what is wrong, as the continuation of "callback URL …".
	Message string
}

// Error returns the message as a sentence.
func (e *RefusedError) Error() string { return "callback URL " + e.Message }

// notAllowed is the only message about an address.
const notAllowed = "leads to an address that is not allowed"

// GuardConfig configures a [Guard].
type GuardConfig struct {
	// AllowedPrefixes are networks that webhooks may go to although they are private,
	// loopback or otherwise not part of the internet. Optional.
	AllowedPrefixes []netip.Prefix
	// AllowHTTP accepts http URLs in addition to https ones. Optional.
	AllowHTTP bool
}

// Guard decides where webhooks may go. It is immutable, and safe for concurrent
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

// CheckAddr returns a [*RefusedError] unless webhooks may go to the address. An
// IPv4-mapped IPv6 address counts as the IPv4 address; under an allowed NAT64 prefix,
// the embedded IPv4 address must be allowed as well.
func (g *Guard) CheckAddr(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	if inner, ok := behindNAT64(addr); ok && containedIn(g.allowed, addr) {
		return g.CheckAddr(inner)
	}
	if public(addr) || containedIn(g.allowed, addr) {
		return nil
	}
	return &RefusedError{Message: notAllowed}
}

// control is called with the address of each connection after the name was resolved
// and before it is dialed. It sees the very address that is dialed, so a name server
// cannot change it in between.
func (g *Guard) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return &RefusedError{Message: notAllowed}
	}
	return g.CheckAddr(target.Addr())
}
