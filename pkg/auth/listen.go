package auth

import (
	"errors"
	"net"
)

// ErrExposed is returned for an address that other hosts could reach if no credential
// is needed.
var ErrExposed = errors.New("must be a loopback address, such as 127.0.0.1:8080: neither a token file nor an issuer " +
	"is configured, so every client that reaches the server may do everything")

// errAddress is returned for a malformed address.
var errAddress = errors.New("must be host:port")

// CheckListen checks whether the server may listen on the address, host:port: on any
// if callers are configured ([Authenticator.Configured]), else only on loopback. It
// returns [ErrExposed], or an error for a malformed address.
func CheckListen(address string, configured bool) error {
	host, _, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return errAddress
	case configured || isLoopback(host):
		return nil
	default:
		return ErrExposed
	}
}

// isLoopback reports whether the host is this one.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
