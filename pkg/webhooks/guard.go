package webhooks

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// RefusedError is returned when a URL or the address behind it is not allowed. It
// is meant to be shown: it holds no address that the one who gave the URL did not
// give.
type RefusedError struct {
	// Message says what is wrong, and goes on where "callback URL" begins.
	Message string
}

// Error returns the message as a sentence.
func (e *RefusedError) Error() string { return "callback URL " + e.Message }

// notAllowed is what is said of an address, and no more.
const notAllowed = "leads to an address that is not allowed"

// GuardConfig is what a [Guard] is made of.
type GuardConfig struct {
	// AllowedPrefixes are networks to which webhooks may go although they are
	// private, loopback or otherwise no part of the internet. Optional.
	AllowedPrefixes []netip.Prefix
	// AllowHTTP takes http URLs beside https ones. Optional.
	AllowHTTP bool
}

// Guard decides where webhooks may go. It is immutable, and safe for concurrent
// use.
type Guard struct {
	allowed   []netip.Prefix
	allowHTTP bool
}

// NewGuard returns a guard. The error names the prefix that makes no sense.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	for i, prefix := range cfg.AllowedPrefixes {
		if !prefix.IsValid() || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("webhooks: AllowedPrefixes[%d] is %s and must be an IPv4 or IPv6 network", i, prefix)
		}
	}
	return &Guard{allowed: slices.Clone(cfg.AllowedPrefixes), allowHTTP: cfg.AllowHTTP}, nil
}

// CheckAddr returns a [*RefusedError] unless webhooks may go to the address. An
// IPv4 address in an IPv6 one counts as what it is; behind a NAT64 prefix that is
// allowed, the IPv4 address must be as well.
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

// control is called with the address of each connection before it is opened,
// after the name was resolved. What it lets pass is what is dialed, so no answer
// of a name server can come in between.
func (g *Guard) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return &RefusedError{Message: notAllowed}
	}
	return g.CheckAddr(target.Addr())
}
