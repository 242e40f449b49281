package auth

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// maxToken is the longest bearer token, in bytes.
const maxToken = 16 << 10

var (
	// ErrNoCredential is wrapped in the problem of a request without the credential
	// that it needs.
	ErrNoCredential = errors.New("no credential")
	// ErrInvalidCredential is wrapped in the problem of a credential that belongs to no
	// caller. Only the log says what is wrong with it.
	ErrInvalidCredential = errors.New("credential refused")
	// ErrCrossSite is wrapped in the problem of a request that a web page of another
	// origin made a browser send.
	ErrCrossSite = errors.New("cross-site request")
)

// errUnknownToken is returned for a token that no caller has.
var errUnknownToken = errors.New("no caller has the token")

// Config configures an [Authenticator].
type Config struct {
	// File holds the callers with bearer tokens and client certificates. Optional.
	File *File
	// Issuer checks JWTs. Optional.
	Issuer *Issuer
	// Hosts are host names, without a port, that requests may name in addition to
	// those of this host while neither File nor Issuer is set. Optional. List here
	// what a proxy in front passes on as Host.
	Hosts []string
}

// Authenticator identifies the caller of a request. It is safe for concurrent use.
type Authenticator struct {
	cfg     Config
	origins *http.CrossOriginProtection
}

// New returns an authenticator. Without a File and an Issuer every caller may do
// everything, so the server must listen on loopback only: see [CheckListen].
func New(cfg Config) *Authenticator {
	return &Authenticator{cfg: cfg, origins: http.NewCrossOriginProtection()}
}

// Configured reports whether callers need a credential.
func (a *Authenticator) Configured() bool { return a.cfg.File != nil || a.cfg.Issuer != nil }

// local is the caller if nothing is configured: it may do everything.
var local = NewCaller("local", ByLocal,
	Grant{Role: Submit, All: true}, Grant{Role: Read, All: true}, Grant{Role: Platform, All: true}, Grant{Role: Admin, All: true})

// Authenticate returns the caller of the request: by its bearer token if it has one,
// else by its client certificate. Call it for every operation that is not public.
//
// The error is a [apierror.Error] that wraps [ErrNoCredential], [ErrInvalidCredential],
// [ErrIssuerUnavailable] or [ErrCrossSite]. [Challenge] returns the header for it.
func (a *Authenticator) Authenticate(r *http.Request) (Caller, error) {
	if !a.Configured() {
		if err := a.checkHost(r.Host); err != nil {
			return Caller{}, err
		}
		return local, a.checkOrigin(r)
	}
	var caller Caller
	var err error
	if _, sent := r.Header["Authorization"]; sent {
		caller, err = a.byBearer(r)
	} else if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return Caller{}, &apierror.Error{
			Code: apierror.Unauthenticated, Detail: "Send a token in the header Authorization: Bearer.", Err: ErrNoCredential,
		}
	} else if caller, err = a.cfg.File.byCertificate(r.TLS.VerifiedChains[0][0]); err == nil {
		// A browser attaches a certificate to the requests of any web page, but never
		// a token.
		return caller, a.checkOrigin(r)
	}
	switch {
	case errors.Is(err, ErrIssuerUnavailable):
		return Caller{}, &apierror.Error{
			Code: apierror.IssuerUnavailable, RetryAfter: 5 * time.Second, Err: err,
			Detail: "The token cannot be checked at the moment: its issuer does not answer. Send the request again.",
		}
	case err != nil:
		// The client is not told why: the credential could be stolen or guessed.
		return Caller{}, &apierror.Error{
			Code: apierror.Unauthenticated, Detail: "The credential is not valid.", Err: fmt.Errorf("%w: %w", ErrInvalidCredential, err),
		}
	}
	return caller, nil
}

// byBearer returns the caller of the request's token. The error is for the log.
func (a *Authenticator) byBearer(r *http.Request) (Caller, error) {
	values := r.Header.Values("Authorization")
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	switch {
	case len(values) != 1, !strings.EqualFold(scheme, "Bearer"), token == "", strings.Contains(token, " "):
		return Caller{}, errors.New("the Authorization header is not one bearer token")
	case len(token) > maxToken:
		return Caller{}, errors.New("the token is too long")
	case strings.HasPrefix(token, TokenPrefix):
		return a.cfg.File.byToken(token)
	case a.cfg.Issuer == nil:
		return Caller{}, errUnknownToken
	}
	return a.cfg.Issuer.authenticate(r.Context(), token)
}

// Challenge returns the value of the header WWW-Authenticate for an error of
// [Authenticator.Authenticate], empty if the answer needs none.
//
// Source: RFC 6750, section 3.
func Challenge(err error) string {
	const realm = `Bearer realm="lucius"`
	switch {
	case err == nil || apierror.From(err).Code != apierror.Unauthenticated:
		return ""
	case errors.Is(err, ErrInvalidCredential):
		return realm + `, error="invalid_token"`
	default:
		return realm
	}
}

// checkOrigin refuses a request of a web page of another origin, unless its method is
// safe.
func (a *Authenticator) checkOrigin(r *http.Request) error {
	if err := a.origins.Check(r); err != nil {
		return crossSite("A page of another origin may not send this request.", err)
	}
	return nil
}

// checkHost refuses a request for a foreign host name. A page can have its own
// server's name resolve to loopback (DNS rebinding), and the browser then treats both
// as one origin; but it still sends that name as Host.
func (a *Authenticator) checkHost(hostPort string) error {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil { // It has no port.
		host = strings.TrimSuffix(strings.TrimPrefix(hostPort, "["), "]")
	}
	host = strings.ToLower(host)
	if isLoopback(host) || slices.ContainsFunc(a.cfg.Hosts, func(name string) bool { return strings.EqualFold(name, host) }) {
		return nil
	}
	return crossSite("This server answers only to localhost and loopback addresses, because it asks for no credential.",
		fmt.Errorf("host %.256q is not of this server", host))
}

func crossSite(detail string, err error) error {
	return &apierror.Error{Code: apierror.Forbidden, Detail: detail, Err: fmt.Errorf("%w: %w", ErrCrossSite, err)}
}

// ErrExposed is returned for an address that other hosts could reach if no credential
// is needed.
var ErrExposed = errors.New("must be a loopback address, such as 127.0.0.1:8080: neither a token file nor an issuer " +
	"is configured, so every client that reaches the server may do everything")

// CheckListen checks whether the server may listen on the address, host:port: on any
// if callers are configured ([Authenticator.Configured]), else only on loopback. It
// returns [ErrExposed], or an error for a malformed address.
func CheckListen(address string, configured bool) error {
	host, _, err := net.SplitHostPort(address)
	switch {
	case err != nil:
		return errors.New("must be host:port")
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
