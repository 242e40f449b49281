package auth

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// The limits of an issuer's answers.
const (
	maxAnswer  = 1 << 20 // bytes
	maxKeys    = 256
	minRSABits = 2048
)

// newClient returns the HTTP client for the issuer. It follows no redirect: keys come
// only from the configured place.
func newClient(transport http.RoundTripper) *http.Client {
	if transport == nil {
		transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 2, IdleConnTimeout: 30 * time.Second,
		}
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// fetch asks the issuer for its keys.
//
// Source: OpenID Connect Discovery 1.0, section 4.
func (i *Issuer) fetch(ctx context.Context) (*keySet, error) {
	var discovery struct {
		Issuer  string `json:"issuer"`
		KeysURL string `json:"jwks_uri"`
	}
	if err := i.get(ctx, strings.TrimSuffix(i.cfg.URL, "/")+"/.well-known/openid-configuration", &discovery); err != nil {
		return nil, fmt.Errorf("discover the issuer: %w", err)
	}
	if discovery.Issuer != i.cfg.URL {
		return nil, fmt.Errorf("discover the issuer: it calls itself %.256q", discovery.Issuer)
	}
	if err := checkKeysURL(discovery.KeysURL, i.cfg.URL); err != nil {
		return nil, fmt.Errorf("discover the issuer: jwks_uri %w", err)
	}
	var listed struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := i.get(ctx, discovery.KeysURL, &listed); err != nil {
		return nil, fmt.Errorf("get the issuer's keys: %w", err)
	}
	return readKeys(listed.Keys)
}

// checkKeysURL checks the URL of the keys. Only an issuer on this host may use plain
// http.
func checkKeysURL(keys, issuer string) error {
	if strings.HasPrefix(issuer, "https:") && !strings.HasPrefix(keys, "https:") {
		return errors.New("must be https")
	}
	return CheckIssuerURL(keys)
}

// errNoKeys is returned if an issuer has no usable key.
var errNoKeys = errors.New("none of the issuer's keys can be used")

// readKeys returns the keys that can check signatures, and skips the others: an
// issuer may have keys for other purposes.
func readKeys(listed []json.RawMessage) (*keySet, error) {
	if len(listed) > maxKeys {
		return nil, fmt.Errorf("the issuer has %d keys; at most %d are taken", len(listed), maxKeys)
	}
	keys := &keySet{byID: map[string][]jose.JSONWebKey{}}
	for _, text := range listed {
		var key jose.JSONWebKey
		if err := json.Unmarshal(text, &key); err != nil || !checksSignatures(&key) {
			continue
		}
		keys.byID[key.KeyID] = append(keys.byID[key.KeyID], key)
	}
	if len(keys.byID) == 0 {
		return nil, errNoKeys
	}
	return keys, nil
}

// checksSignatures reports whether the key is a public key for signatures, has an id,
// and is long enough. A shared secret does not count.
func checksSignatures(key *jose.JSONWebKey) bool {
	if key.KeyID == "" || !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" {
		return false
	}
	if public, ok := key.Key.(*rsa.PublicKey); ok {
		return public.N.BitLen() >= minRSABits
	}
	return true
}

// get reads a JSON answer of limited size.
func (i *Issuer) get(ctx context.Context, url string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	response, err := i.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // It was only read.
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return err
	}
	if len(answer) > maxAnswer {
		return fmt.Errorf("%s answered more than %d bytes", url, maxAnswer)
	}
	return json.Unmarshal(answer, into)
}
