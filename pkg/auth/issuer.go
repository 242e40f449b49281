package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
)

// DefaultRolesClaim is the claim that lists grants.
const DefaultRolesClaim = "lucius_roles"

// The limits of the requests to an issuer.
const (
	// refetchInterval is the shortest time between two fetches of keys, also if tokens name
	// unknown keys, and between two discoveries.
	refetchInterval = 10 * time.Second
	// refreshAge is the age at which endpoints and keys are fetched again.
	refreshAge = time.Hour
	// maxKeyAge is how long keys stay in use while the issuer does not answer. Older
	// keys may have been withdrawn.
	maxKeyAge = 24 * time.Hour
	// fetchTimeout is how long a request may take.
	fetchTimeout = 5 * time.Second
	// maxAnswer is the largest answer, in bytes.
	maxAnswer = 1 << 20
)

// IssuerConfig configures an [Issuer].
type IssuerConfig struct {
	// URL is the issuer's URL, exactly as its tokens have it in iss. It must be
	// https, or http on this host. Required.
	URL string
	// Audience is what a token must have in aud. Required.
	Audience string
	// RolesClaim is the claim that lists a caller's grants as [ParseGrant] reads
	// them. Optional. Defaults to [DefaultRolesClaim].
	RolesClaim string
	// Transport sends the requests to the issuer. Optional. Defaults to one with
	// the proxy of the environment.
	Transport http.RoundTripper
}

// Validate names the first field that is missing or invalid.
func (c IssuerConfig) Validate() error {
	if err := CheckIssuerURL(c.URL); err != nil {
		return fmt.Errorf("auth: URL %w", err)
	}
	if c.Audience == "" {
		return errors.New("auth: Audience is required with an issuer: otherwise its tokens for other services would be accepted")
	}
	return nil
}

// CheckIssuerURL says what is wrong with the URL of an issuer, as the end of a
// sentence.
func CheckIssuerURL(text string) error {
	parsed, err := url.Parse(text)
	switch {
	case err != nil || parsed.Host == "" || parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "":
		return errors.New("must be an https URL without user, query and fragment")
	case parsed.Scheme == "https", parsed.Scheme == "http" && isLoopback(parsed.Hostname()):
		return nil
	default:
		return errors.New("must be https: an attacker who can change the keys in transit can forge tokens")
	}
}

// ErrIssuerUnavailable is returned when a token cannot be checked because the issuer's
// keys could not be fetched. The token may be valid.
var ErrIssuerUnavailable = errors.New("the issuer's keys cannot be fetched")

// errTooSoon is returned for a fetch of keys within refetchInterval of the last one, if
// that one succeeded.
var errTooSoon = errors.New("the keys were fetched just now")

// Issuer checks the tokens of one OpenID Connect issuer. It sends the issuer no
// request before the first token. It is safe for concurrent use.
type Issuer struct {
	cfg    IssuerConfig
	client *http.Client
	keys   *http.Client // It fetches keys only, at most one set in each interval.

	refreshes singleflight.Group

	mu     sync.Mutex // Guards all below.
	known  *trusted   // The result of the last refresh that succeeded, nil before the first.
	next   time.Time  // The earliest time of the next refresh.
	failed error      // The error of the last refresh.
}

// trusted is what an issuer said about itself, with its keys. The key set fetches them
// again for a token that none of them verifies.
type trusted struct {
	endpoint oauth2.Endpoint
	keys     *oidc.RemoteKeySet
	at       time.Time
}

// NewIssuer returns an issuer. The error names the invalid field.
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.RolesClaim = cmp.Or(cfg.RolesClaim, DefaultRolesClaim)
	if cfg.Transport == nil {
		cfg.Transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 2, IdleConnTimeout: 30 * time.Second,
		}
	}
	client := func(limit *rate.Limiter) *http.Client {
		return &http.Client{
			Transport: &boundedTransport{next: cfg.Transport, limit: limit}, Timeout: fetchTimeout,
			// It follows no redirect: keys come only from the configured place.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	every := rate.NewLimiter(rate.Every(refetchInterval), 1)
	return &Issuer{cfg: cfg, client: client(nil), keys: client(every)}, nil
}

// boundedTransport bounds the answers and, with a limit, the number of the requests: those
// beyond it fail like the last one, or with errTooSoon if that one succeeded.
type boundedTransport struct {
	next  http.RoundTripper
	limit *rate.Limiter

	mu   sync.Mutex
	last error
}

// RoundTrip implements [http.RoundTripper].
func (b *boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.limit != nil && !b.limit.Allow() {
		b.mu.Lock()
		defer b.mu.Unlock()
		return nil, cmp.Or(b.last, errTooSoon)
	}
	response, err := b.next.RoundTrip(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last = err; err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		b.last = fmt.Errorf("%s answered %d", r.URL, response.StatusCode)
	}
	response.Body = http.MaxBytesReader(nil, response.Body, maxAnswer)
	return response, nil
}

// current returns the issuer's endpoints and keys. It refreshes them once they are an hour
// old, and waits for that only if there are none, or if no token asked for them within that
// hour: a key may have been withdrawn. So a slow issuer does not slow tokens with known
// keys. It returns [ErrIssuerUnavailable] if there are none that are at most a day old.
func (i *Issuer) current(ctx context.Context) (*trusted, error) {
	known, next, failed := i.state()
	now := time.Now()
	if (known == nil || now.Sub(known.at) >= refreshAge) && !now.Before(next) {
		refreshed := i.refreshes.DoChan("", i.refresh)
		if known == nil || now.Sub(next) >= refreshAge {
			select {
			case <-refreshed:
				known, _, failed = i.state()
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, ctx.Err())
			}
		}
	}
	if known == nil {
		return nil, fmt.Errorf("%w: %s", ErrIssuerUnavailable, Printable(failed.Error()))
	}
	return known, nil
}

// state returns the fields that a refresh changes; known is nil if it is too old.
func (i *Issuer) state() (known *trusted, next time.Time, failed error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known = i.known; known != nil && time.Since(known.at) > maxKeyAge {
		known = nil
	}
	return known, i.next, i.failed
}

// probe is a JWS with the payload {} that no key verifies: checking it makes a key set
// fetch its keys.
const probe = "eyJhbGciOiJFUzI1NiJ9.e30.AAAA"

// refresh discovers the issuer and fetches its keys. It outlives the request that began
// it, because other requests wait for it as well.
func (i *Issuer) refresh() (any, error) {
	if _, next, _ := i.state(); time.Now().Before(next) {
		return nil, nil // Another one has ended since the caller looked.
	}
	found, err := i.discover(context.Background())
	if err == nil {
		if _, unverified := found.keys.VerifySignature(context.Background(), probe); notFetched(unverified) {
			err = unverified
		}
	}
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.next, i.failed = now.Add(refetchInterval), err
	if err == nil {
		found.at = now
		i.known = found
	}
	return nil, err
}

// discover asks the issuer about itself. It does not check the endpoints for sign-in.
func (i *Issuer) discover(ctx context.Context) (*trusted, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("discover the issuer: %w", err)
	}
	var more struct {
		KeysURL string `json:"jwks_uri"`
	}
	if err := errors.Join(provider.Claims(&more), i.checkEndpoint("jwks_uri", more.KeysURL)); err != nil {
		return nil, fmt.Errorf("discover the issuer: %w", err)
	}
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(ctx, i.keys), more.KeysURL)
	return &trusted{endpoint: provider.Endpoint(), keys: keys}, nil
}

// checkEndpoint says what is wrong with a URL that the issuer gives under that name.
func (i *Issuer) checkEndpoint(name, endpoint string) error {
	if strings.HasPrefix(i.cfg.URL, "https:") && !strings.HasPrefix(endpoint, "https:") {
		return fmt.Errorf("%s must be https", name)
	}
	if err := CheckIssuerURL(endpoint); err != nil {
		return fmt.Errorf("%s %w", name, err)
	}
	return nil
}

// notFetched reports whether an error of a key set is one of fetching keys, which it wraps.
// That no key verifies a token is an error without a cause.
func notFetched(err error) bool { return errors.Unwrap(err) != nil }
