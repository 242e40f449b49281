package access

import (
	"errors"
	"net"
)

// ErrExposed is returned for an address that others could reach where nobody is
// asked who they are.
var ErrExposed = errors.New("must be a loopback address, such as 127.0.0.1:8080: neither a token file nor an issuer " +
	"is configured, so whoever can reach the server may do everything")

// errAddress is returned for what is no address.
var errAddress = errors.New("must be host:port")

// CheckListen says whether the server may listen on the address, host:port:
// anywhere when it is configured who may call ([Authenticator.Configured]), else
// on loopback alone. It returns [ErrExposed], or an error for what is no address.
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
