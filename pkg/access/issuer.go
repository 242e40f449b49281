package access

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
	// DefaultRefetch is the shortest time between two looks at the issuer's keys.
	DefaultRefetch = 10 * time.Second
	// DefaultRefresh is how old keys are when they are looked at again.
	DefaultRefresh = time.Hour
)

// maxKeyAge is for how long keys are in use when the issuer cannot be asked
// again. Beyond it nobody knows whether one was withdrawn.
const maxKeyAge = 24 * time.Hour

// fetchTimeout is how long the issuer may take to tell its keys.
const fetchTimeout = 5 * time.Second

// IssuerConfig is what an [Issuer] is made of.
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
	// to all of these but the ones with SHA-384 and SHA-512.
	Algorithms []string
	// Leeway is how far the issuer's clock may be off. Optional. Defaults to
	// [DefaultLeeway].
	Leeway time.Duration
	// Refetch is the shortest time between two looks at the issuer's keys, whatever
	// tokens name. Optional. Defaults to [DefaultRefetch].
	Refetch time.Duration
	// Refresh is how old keys are when they are looked at again. Optional. Defaults
	// to [DefaultRefresh].
	Refresh time.Duration
	// Transport carries the requests to the issuer. Optional. Defaults to one with
	// the proxy of the environment.
	Transport http.RoundTripper
}

// asymmetric are the algorithms that may be allowed at all: none of them has a
// secret that this side shares.
var asymmetric = []jose.SignatureAlgorithm{
	jose.RS256, jose.PS256, jose.ES256, jose.EdDSA,
	jose.RS384, jose.RS512, jose.PS384, jose.PS512, jose.ES384, jose.ES512,
}

// usual is how many of them are allowed unless something else is asked for.
const usual = 4

// Validate reports the first field that makes no sense, by name.
func (c IssuerConfig) Validate() error {
	if err := CheckIssuerURL(c.URL); err != nil {
		return fmt.Errorf("access: URL %w", err)
	}
	if c.Audience == "" {
		return errors.New("access: Audience is required with an issuer: without it a token for anyone would do")
	}
	for _, algorithm := range c.Algorithms {
		if !slices.Contains(asymmetric, jose.SignatureAlgorithm(algorithm)) {
			return fmt.Errorf("access: Algorithms has %q and must be some of %s", algorithm, oneOf(asymmetric))
		}
	}
	for name, field := range map[string]time.Duration{"Leeway": c.Leeway, "Refetch": c.Refetch, "Refresh": c.Refresh} {
		if field < 0 {
			return fmt.Errorf("access: %s must not be negative", name)
		}
	}
	return nil
}

// CheckIssuerURL says what is wrong with a URL that keys are to come from, as the
// end of a sentence.
func CheckIssuerURL(text string) error {
	parsed, err := url.Parse(text)
	switch {
	case err != nil || parsed.Host == "" || parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "":
		return errors.New("must be an https URL without user, query and fragment")
	case parsed.Scheme == "https", parsed.Scheme == "http" && isLoopback(parsed.Hostname()):
		return nil
	default:
		return errors.New("must be https: whoever can change the keys on their way can make tokens")
	}
}

// ErrIssuerUnavailable is returned when a token cannot be checked because the
// issuer did not tell its keys. The token may be good: the request may be sent
// again later.
var ErrIssuerUnavailable = errors.New("the issuer's keys cannot be had")

// Issuer checks the tokens of one OpenID Connect issuer. It asks the issuer
// nothing before the first token. It is safe for concurrent use.
type Issuer struct {
	cfg        IssuerConfig
	algorithms []jose.SignatureAlgorithm
	client     *http.Client

	mu sync.Mutex
	// keys are those of the last success, nil before the first.
	keys *keySet
	// next is when the issuer may be asked again.
	next time.Time
	// failures counts the attempts since the last success, failed is the last one.
	failures int
	failed   error
	// underway is closed when the attempt that is under way ends.
	underway chan struct{}
}

// NewIssuer returns an issuer. The error names the field that makes no sense.
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
