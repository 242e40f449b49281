package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// tokenIssuer is an OpenID Connect issuer on loopback. It publishes the Ed25519 keys a and b
// and the key rsa; the key of a stranger is not published.
type tokenIssuer struct {
	url   string
	own   map[string]ed25519.PrivateKey
	rsa   *rsa.PrivateKey
	asked atomic.Int64 // how often its keys were requested
}

func newTokenIssuer(t *testing.T) *tokenIssuer {
	t.Helper()
	m := &tokenIssuer{own: map[string]ed25519.PrivateKey{}}
	for _, id := range []string{"a", "b", "stranger"} {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		m.own[id] = private
	}
	var err error
	if m.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	routes := http.NewServeMux()
	server := httptest.NewServer(routes)
	t.Cleanup(server.Close)
	m.url = server.URL
	routes.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": m.url, "jwks_uri": m.url + "/keys"})
	})
	routes.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		m.asked.Add(1)
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{m.jwk("a"), m.jwk("b"), map[string]string{
			"kty": "RSA", "kid": "rsa", "alg": "RS256", "use": "sig",
			"n": base64.RawURLEncoding.EncodeToString(m.rsa.N.Bytes()),
			"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(m.rsa.E)).Bytes()),
		}}})
	})
	return m
}

// jwk returns the public key with that id.
func (m *tokenIssuer) jwk(id string) map[string]string {
	public, _ := m.own[id].Public().(ed25519.PublicKey)
	return map[string]string{
		"kty": "OKP", "crv": "Ed25519", "kid": id, "alg": "EdDSA", "use": "sig", "x": base64.RawURLEncoding.EncodeToString(public),
	}
}

// ed25519 returns a function that signs with the key of that id.
func (m *tokenIssuer) ed25519(id string) func([]byte) []byte {
	return func(text []byte) []byte { return ed25519.Sign(m.own[id], text) }
}

// encode returns one part of a token.
func encode(value any) string {
	text, _ := json.Marshal(value) // Strings, lists and numbers cannot fail.
	return base64.RawURLEncoding.EncodeToString(text)
}
