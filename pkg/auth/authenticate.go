package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/problem"
)

// maxToken is the longest bearer token, in bytes.
const maxToken = 16 << 10

// retryIssuer is the Retry-After for a token that could not be checked.
const retryIssuer = 5 * time.Second

// ErrNoCredential is wrapped in the problem of a request without the credential that
// it needs.
var ErrNoCredential = errors.New("no credential")

// ErrInvalidCredential is wrapped in the problem of a credential that belongs to no
// caller. Only the log says what is wrong with it.
var ErrInvalidCredential = errors.New("credential refused")

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
	browser *browserGuard
}

// New returns an authenticator. Without a File and an Issuer every caller may do
// everything, so the server must listen on loopback only: see [CheckListen].
func New(cfg Config) *Authenticator {
	return &Authenticator{cfg: cfg, browser: newBrowserGuard(cfg.Hosts)}
}

// Configured reports whether callers need a credential.
func (a *Authenticator) Configured() bool { return a.cfg.File != nil || a.cfg.Issuer != nil }

// Authenticate returns the caller of the request: by its bearer token if it has one,
// else by its client certificate. Call it for every operation that is not public.
//
// The error is a [problem.Error]: code unauthenticated, which wraps
// [ErrNoCredential] or [ErrInvalidCredential]; code issuer_unavailable, which
// wraps [ErrIssuerUnavailable]; or code forbidden for a request that a foreign web
// page made a browser send, which wraps [ErrCrossSite]. [Challenge] returns the
// header for it.
func (a *Authenticator) Authenticate(r *http.Request) (Caller, error) {
	if !a.Configured() {
		if err := a.browser.checkHost(r); err != nil {
			return Caller{}, err
		}
		return loopback, a.browser.checkOrigin(r)
	}
	if _, sent := r.Header["Authorization"]; sent {
		return a.byBearer(r)
	}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return Caller{}, &problem.Error{
			Code: problem.Unauthenticated, Detail: "Send a token in the header Authorization: Bearer.", Err: ErrNoCredential,
		}
	}
	caller, err := a.byCertificate(r)
	if err != nil {
		return Caller{}, refused(err)
	}
	// A browser attaches a certificate to the requests of any web page, but never a
	// token.
	return caller, a.browser.checkOrigin(r)
}

// byBearer returns the caller of the request's token.
func (a *Authenticator) byBearer(r *http.Request) (Caller, error) {
	token, err := bearerToken(r)
	if err != nil {
		return Caller{}, refused(err)
	}
	caller, err := a.byToken(r.Context(), token)
	switch {
	case errors.Is(err, ErrIssuerUnavailable):
		return Caller{}, &problem.Error{
			Code: problem.IssuerUnavailable, RetryAfter: retryIssuer, Err: err,
			Detail: "The token cannot be checked at the moment: its issuer does not answer. Send the request again.",
		}
	case err != nil:
		return Caller{}, refused(err)
	}
	return caller, nil
}

// refused returns the problem of an invalid credential. It does not tell the client
// why: the credential could be stolen or guessed.
func refused(err error) error {
	return &problem.Error{
		Code: problem.Unauthenticated, Detail: "The credential is not valid.", Err: fmt.Errorf("%w: %w", ErrInvalidCredential, err),
	}
}

// The reasons to refuse a credential, in addition to those of a JWT. They are for the
// log.
var (
	errScheme       = errors.New("the Authorization header is not one bearer token")
	errTokenSize    = errors.New("the token is too long")
	errUnknownToken = errors.New("no caller has the token")
	errUnknownName  = errors.New("no caller has a name of the client certificate")
	errEnded        = errors.New("the client certificate has expired")
)

// bearerToken returns the request's token.
func bearerToken(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	switch {
	case len(values) != 1, !strings.EqualFold(scheme, "Bearer"), token == "", strings.Contains(token, " "):
		return "", errScheme
	case len(token) > maxToken:
		return "", errTokenSize
	}
	return token, nil
}

// byToken returns the caller of a token, which its prefix tells from a JWT.
func (a *Authenticator) byToken(ctx context.Context, token string) (Caller, error) {
	if strings.HasPrefix(token, TokenPrefix) {
		if a.cfg.File != nil {
			if caller, ok := a.cfg.File.byToken(token); ok {
				return caller, nil
			}
		}
		return Caller{}, errUnknownToken
	}
	if a.cfg.Issuer == nil {
		return Caller{}, errUnknownToken
	}
	return a.cfg.Issuer.authenticate(ctx, token)
}

// byCertificate returns the caller of the request's client certificate, which
// the handshake has verified.
func (a *Authenticator) byCertificate(r *http.Request) (Caller, error) {
	leaf := r.TLS.VerifiedChains[0][0]
	if time.Now().After(leaf.NotAfter) {
		return Caller{}, errEnded // It may have expired since the handshake.
	}
	if a.cfg.File != nil {
		if caller, ok := a.cfg.File.byCertificate(leaf); ok {
			return caller, nil
		}
	}
	return Caller{}, errUnknownName
}

// Challenge returns the value of the header WWW-Authenticate for an error of
// [Authenticator.Authenticate], empty if the answer needs none.
//
// Source: RFC 6750, section 3.
func Challenge(err error) string {
	const realm = `Bearer realm="lucius"`
	switch {
	case err == nil || problem.From(err).Code != problem.Unauthenticated:
		return ""
	case errors.Is(err, ErrInvalidCredential):
		return realm + `, error="invalid_token"`
	default:
		return realm
	}
}
