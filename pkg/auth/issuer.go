package auth

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// DefaultRolesClaim is the claim that lists grants.
const DefaultRolesClaim = "lucius_roles"

// The times of the fetches of an issuer's keys.
const (
	// refetchInterval is the shortest time between two fetches, also if tokens name
	// unknown keys.
	refetchInterval = 10 * time.Second
	// refreshAge is the age at which keys are fetched again.
	refreshAge = time.Hour
	// maxKeyAge is how long keys stay in use while the issuer does not answer. Older
	// keys may have been withdrawn.
	maxKeyAge = 24 * time.Hour
	// fetchTimeout is how long a fetch may take.
	fetchTimeout = 5 * time.Second
	// firstDelay and lastDelay are the delays after failed fetches in a row.
	firstDelay = time.Second
	lastDelay  = 30 * time.Second
)

// The limits of an issuer's answers.
const (
	maxAnswer  = 1 << 20 // bytes
	maxKeys    = 256
	minRSABits = 2048
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

// Issuer checks the tokens of one OpenID Connect issuer. It sends the issuer no
// request before the first token. It is safe for concurrent use.
type Issuer struct {
	cfg    IssuerConfig
	client *http.Client

	mu sync.Mutex
	// keys are those of the last successful fetch by their ids, nil before the first.
	// invariant: a map in keys is never changed.
	keys map[string][]jose.JSONWebKey
	// fetched is when keys were fetched, the zero time before the first fetch.
	fetched time.Time
	// next is the earliest time of the next fetch.
	next time.Time
	// failures counts the failed fetches since the last success, failed is the last error.
	failures int
	failed   error
	// underway is closed when the current fetch ends, nil without one.
	underway chan struct{}
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
	return &Issuer{cfg: cfg, client: &http.Client{
		Transport: cfg.Transport,
		// It follows no redirect: keys come only from the configured place.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// key returns the keys with the id that fit the algorithm. It fetches the keys again
// if the id is unknown, but a flood of made-up ids costs only one fetch in each
// interval. It returns [ErrIssuerUnavailable] if there are no keys at all, or if the
// issuer may have a new one that could not be fetched.
//
// It does not wait for the refresh of old keys, so that a slow issuer slows only
// tokens with new keys, unless the keys are so old that one may have been withdrawn.
func (i *Issuer) key(ctx context.Context, id string, algorithm jose.SignatureAlgorithm) ([]jose.JSONWebKey, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	found := i.inUse(id, algorithm)
	if len(found) == 0 || now.Sub(i.fetched) >= refreshAge {
		wait := len(found) == 0 || now.Sub(i.next) >= refreshAge
		if i.underway == nil && !now.Before(i.next) {
			i.underway = make(chan struct{})
			go i.refresh(i.underway) //nolint:gosec // it outlives the request: others wait for it as well
		}
		if underway := i.underway; wait && underway != nil {
			var gone error
			i.mu.Unlock()
			select {
			case <-underway:
			case <-ctx.Done():
				gone = ctx.Err()
			}
			i.mu.Lock()
			if gone != nil {
				return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, gone)
			}
			found = i.inUse(id, algorithm)
		}
	}
	switch {
	case len(found) > 0:
		return found, nil
	case i.failed != nil:
		return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, i.failed)
	case time.Since(i.fetched) > maxKeyAge:
		return nil, fmt.Errorf("%w: the next fetch is not due yet", ErrIssuerUnavailable)
	default:
		return nil, fmt.Errorf("key %.64q: the issuer has no such key for this algorithm", id)
	}
}

// inUse returns those of the keys in use that have the id and fit the algorithm. The
// mutex is held.
func (i *Issuer) inUse(id string, algorithm jose.SignatureAlgorithm) []jose.JSONWebKey {
	if time.Since(i.fetched) > maxKeyAge {
		return nil
	}
	var found []jose.JSONWebKey
	for _, key := range i.keys[id] {
		if fits(key, algorithm) {
			found = append(found, key)
		}
	}
	return found
}

// fits reports whether the key is for the algorithm. A token names both, so without
// this check it could make the server use a key with the wrong algorithm.
func fits(key jose.JSONWebKey, algorithm jose.SignatureAlgorithm) bool {
	if key.Algorithm != "" && key.Algorithm != string(algorithm) {
		return false
	}
	switch key.Key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(string(algorithm), "RS") || strings.HasPrefix(string(algorithm), "PS")
	case *ecdsa.PublicKey:
		return strings.HasPrefix(string(algorithm), "ES")
	case ed25519.PublicKey:
		return algorithm == jose.EdDSA
	default:
		return false
	}
}

// refresh fetches the keys and puts them into use. It outlives the request that began
// it, because other requests wait for it as well.
func (i *Issuer) refresh(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	keys, err := i.fetch(ctx)
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.underway, i.failed = nil, err
	if err == nil {
		i.keys, i.fetched, i.failures, i.next = keys, now, 0, now.Add(refetchInterval)
	} else {
		i.failures++
		i.next = now.Add(min(firstDelay<<min(i.failures-1, 8), lastDelay))
	}
	close(done)
}

// discovery is what an issuer says about itself.
type discovery struct {
	Issuer           string `json:"issuer"`
	KeysURL          string `json:"jwks_uri"`
	AuthorizationURL string `json:"authorization_endpoint"`
	TokenURL         string `json:"token_endpoint"`
}

// discover asks the issuer about itself. The URLs in the answer are not checked yet.
//
// Source: OpenID Connect Discovery 1.0, section 4.
func (i *Issuer) discover(ctx context.Context) (found discovery, err error) {
	if err := i.get(ctx, strings.TrimSuffix(i.cfg.URL, "/")+"/.well-known/openid-configuration", &found); err != nil {
		return found, fmt.Errorf("discover the issuer: %w", err)
	}
	if found.Issuer != i.cfg.URL {
		return found, fmt.Errorf("discover the issuer: it calls itself %.256q", found.Issuer)
	}
	return found, nil
}

// checkEndpoint says what is wrong with a URL that the issuer gives under that name.
func (i *Issuer) checkEndpoint(name, endpoint string) error {
	if strings.HasPrefix(i.cfg.URL, "https:") && !strings.HasPrefix(endpoint, "https:") {
		return fmt.Errorf("discover the issuer: %s must be https", name)
	}
	if err := CheckIssuerURL(endpoint); err != nil {
		return fmt.Errorf("discover the issuer: %s %w", name, err)
	}
	return nil
}

// fetch asks the issuer for its keys, and returns by their ids the public keys for
// signatures that are long enough. It skips the others: an issuer may have keys for
// other purposes.
func (i *Issuer) fetch(ctx context.Context) (map[string][]jose.JSONWebKey, error) {
	discovery, err := i.discover(ctx)
	if err != nil {
		return nil, err
	}
	if err := i.checkEndpoint("jwks_uri", discovery.KeysURL); err != nil {
		return nil, err
	}
	var listed struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := i.get(ctx, discovery.KeysURL, &listed); err != nil {
		return nil, fmt.Errorf("get the issuer's keys: %w", err)
	}
	if len(listed.Keys) > maxKeys {
		return nil, fmt.Errorf("the issuer has %d keys; at most %d are taken", len(listed.Keys), maxKeys)
	}
	keys := map[string][]jose.JSONWebKey{}
	for _, text := range listed.Keys {
		var key jose.JSONWebKey
		if err := json.Unmarshal(text, &key); err != nil || key.KeyID == "" || !key.Valid() || key.Use != "" && key.Use != "sig" {
			continue
		}
		public, isRSA := key.Key.(*rsa.PublicKey)
		if key.IsPublic() && (!isRSA || public.N.BitLen() >= minRSABits) { // A shared secret is not public.
			keys[key.KeyID] = append(keys[key.KeyID], key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("none of the issuer's keys can be used")
	}
	return keys, nil
}

// get reads a JSON answer of limited size.
func (i *Issuer) get(ctx context.Context, url string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	status, answer, err := i.send(request)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("%s answered %d", url, status)
	}
	return json.Unmarshal(answer, into)
}

// send sends a request to the issuer, and returns an answer of limited size.
func (i *Issuer) send(request *http.Request) (status int, answer []byte, err error) {
	request.Header.Set("Accept", "application/json")
	response, err := i.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }() // It was only read.
	answer, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(answer) > maxAnswer {
		err = fmt.Errorf("%s answered more than %d bytes", request.URL, maxAnswer)
	}
	return response.StatusCode, answer, err
}
