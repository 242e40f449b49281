package auth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
)

const issuerURL = "https://issuer.example/realm"

// issuer is an OpenID Connect issuer without a network.
type issuer struct {
	mu sync.Mutex
	// discovery is its answer about itself, keys its answer for the keys.
	discovery map[string]any
	keys      []any
	// down is the error of each request to the issuer; answer replaces its answers.
	down   error
	answer func(r *http.Request) *http.Response
	// takes is how long the issuer takes to answer.
	takes time.Duration
	asked map[string]int
}

func newIssuer(keys ...any) *issuer {
	return &issuer{
		discovery: map[string]any{"issuer": issuerURL, "jwks_uri": issuerURL + "/keys"},
		keys:      keys, asked: map[string]int{},
	}
}

func (i *issuer) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

// fetches returns how often the issuer was asked for its keys, discoveries how often about
// itself.
func (i *issuer) fetches() int     { return i.count("/realm/keys") }
func (i *issuer) discoveries() int { return i.count("/realm/.well-known/openid-configuration") }

func (i *issuer) count(path string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked[path]
}

// RoundTrip answers as the issuer.
func (i *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	i.mu.Lock()
	takes := i.takes
	i.asked[r.URL.Path]++
	i.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.down != nil:
		return nil, i.down
	case i.answer != nil:
		return i.answer(r), nil
	case r.URL.String() == issuerURL+"/.well-known/openid-configuration":
		return answer(http.StatusOK, encoded(i.discovery)), nil
	case r.URL.String() == issuerURL+"/keys":
		return answer(http.StatusOK, encoded(map[string]any{"keys": i.keys})), nil
	default:
		return answer(http.StatusNotFound, "none"), nil
	}
}

func answer(status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Status: http.StatusText(status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

func encoded(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// checker returns an authenticator that trusts the issuer.
func (i *issuer) checker(t testing.TB, change ...func(*auth.IssuerConfig)) *auth.Authenticator {
	t.Helper()
	cfg := auth.IssuerConfig{URL: issuerURL, Audience: "lucius", Transport: i}
	for _, f := range change {
		f(&cfg)
	}
	trusted := musttest.Make(t, auth.NewIssuer, cfg)
	return auth.New(auth.Config{Issuer: trusted})
}

// pair is a key of an issuer.
type pair struct {
	id        string
	private   any
	algorithm jose.SignatureAlgorithm
}

// public returns the key as the issuer publishes it.
func (p pair) public() jose.JSONWebKey {
	signer := p.private.(crypto.Signer)
	return jose.JSONWebKey{Key: signer.Public(), KeyID: p.id, Algorithm: string(p.algorithm), Use: "sig"}
}

// The RSA keys of all tests: they take long to generate.
var (
	rsaKey      = sync.OnceValue(func() any { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	otherRSAKey = sync.OnceValue(func() any { return must(rsa.GenerateKey(rand.Reader, 2048)) })
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func ecKey(id string) pair {
	return pair{id, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), jose.ES256}
}

func edKey(id string) pair {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	return pair{id, must(private, err), jose.EdDSA}
}

// claims returns those of a token that is valid now, with changes: nil removes a
// claim.
func claims(changes map[string]any) map[string]any {
	now := time.Now()
	all := map[string]any{
		"iss": issuerURL, "aud": "lucius", "sub": "alice", "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"lucius_roles": []string{"submit:tenant_a", "platform:*:ocr"},
	}
	for name, value := range changes {
		all[name] = value
		if value == nil {
			delete(all, name)
		}
	}
	return all
}

// sign returns a token with those claims, and headers in turn as name and value.
func (p pair) sign(t testing.TB, claims any, headers ...string) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	if p.id != "" {
		options = options.WithHeader("kid", p.id)
	}
	for i := 0; i < len(headers); i += 2 {
		options = options.WithHeader(jose.HeaderKey(headers[i]), headers[i+1])
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: p.algorithm, Key: p.private}, options)
	musttest.NoError(t, err)
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	musttest.NoError(t, err)
	return token
}

// send authenticates a request with the token.
func send(t testing.TB, guarded *auth.Authenticator, token string) (auth.Caller, error) {
	t.Helper()
	return guarded.Authenticate(request(t, http.MethodPost, "Authorization", "Bearer "+token))
}
