package auth

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// The defaults of an [IssuerConfig].
const (
	// DefaultRolesClaim is the claim that lists grants.
	DefaultRolesClaim = "lucius_roles"
	// DefaultLeeway is how far the issuer's clock may be off.
	DefaultLeeway = time.Minute
	// DefaultRefetch is the shortest time between two fetches of the issuer's keys.
	DefaultRefetch = 10 * time.Second
	// DefaultRefresh is the age at which keys are fetched again.
	DefaultRefresh = time.Hour
)

// maxKeyAge is how long keys stay in use while the issuer does not answer. Older keys
// may have been withdrawn.
const maxKeyAge = 24 * time.Hour

// fetchTimeout is how long a fetch of the issuer's keys may take.
const fetchTimeout = 5 * time.Second

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
	// Algorithms are the signature algorithms that a token may use: RS256, RS384,
	// RS512, PS256, PS384, PS512, ES256, ES384, ES512 or EdDSA. Optional. Defaults
	// to all of these except those with SHA-384 and SHA-512.
	Algorithms []string
	// Leeway is how far the issuer's clock may be off. Optional. Defaults to
	// [DefaultLeeway].
	Leeway time.Duration
	// Refetch is the shortest time between two fetches of the issuer's keys, also
	// if tokens name unknown ones. Optional. Defaults to [DefaultRefetch].
	Refetch time.Duration
	// Refresh is the age at which keys are fetched again. Optional. Defaults
	// to [DefaultRefresh].
	Refresh time.Duration
	// Transport sends the requests to the issuer. Optional. Defaults to one with
	// the proxy of the environment.
	Transport http.RoundTripper
}

// asymmetric are the algorithms that Algorithms may list: none uses a shared secret.
var asymmetric = []jose.SignatureAlgorithm{
	jose.RS256, jose.PS256, jose.ES256, jose.EdDSA,
	jose.RS384, jose.RS512, jose.PS384, jose.PS512, jose.ES384, jose.ES512,
}

// usual is how many of them are allowed by default.
const usual = 4

// Validate names the first field that is missing or invalid.
func (c IssuerConfig) Validate() error {
	if err := CheckIssuerURL(c.URL); err != nil {
		return fmt.Errorf("auth: URL %w", err)
	}
	if c.Audience == "" {
		return errors.New("auth: Audience is required with an issuer: otherwise its tokens for other services would be accepted")
	}
	for _, algorithm := range c.Algorithms {
		if !slices.Contains(asymmetric, jose.SignatureAlgorithm(algorithm)) {
			return fmt.Errorf("auth: Algorithms has %q and must be some of %s", algorithm, oneOf(asymmetric))
		}
	}
	for name, field := range map[string]time.Duration{"Leeway": c.Leeway, "Refetch": c.Refetch, "Refresh": c.Refresh} {
		if field < 0 {
			return fmt.Errorf("auth: %s must not be negative", name)
		}
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
// keys could not be fetched. The token may be valid: the request may be repeated
// later.
var ErrIssuerUnavailable = errors.New("the issuer's keys cannot be fetched")

// Issuer checks the tokens of one OpenID Connect issuer. It sends the issuer no
// request before the first token. It is safe for concurrent use.
type Issuer struct {
	cfg        IssuerConfig
	algorithms []jose.SignatureAlgorithm
	client     *http.Client

	mu sync.Mutex
	// keys are from the last successful fetch, nil before the first.
	keys *keySet
	// next is the earliest time of the next fetch.
	next time.Time
	// failures counts the failed fetches since the last success, failed is the last error.
	failures int
	failed   error
	// underway is closed when the fetch that is under way ends.
	underway chan struct{}
}

// NewIssuer returns an issuer. The error names the invalid field.
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.RolesClaim = cmp.Or(cfg.RolesClaim, DefaultRolesClaim)
	cfg.Leeway = cmp.Or(cfg.Leeway, DefaultLeeway)
	cfg.Refetch = cmp.Or(cfg.Refetch, DefaultRefetch)
	cfg.Refresh = cmp.Or(cfg.Refresh, DefaultRefresh)
	i := &Issuer{cfg: cfg, client: newClient(cfg.Transport), algorithms: asymmetric[:usual]}
	if len(cfg.Algorithms) > 0 {
		i.algorithms = nil
		for _, algorithm := range cfg.Algorithms {
			i.algorithms = append(i.algorithms, jose.SignatureAlgorithm(algorithm))
		}
	}
	return i, nil
}
