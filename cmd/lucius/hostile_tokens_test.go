//go:build !race

package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/auth"
)

// header and claims are the parts of a token.
type (
	header map[string]any
	claims map[string]any
)

// forgeries are tokens that are forged or no longer valid.
func forgeries(m *tokenIssuer) map[string]string {
	with := func(h header, c claims) string { return m.token(h, c, m.ed25519("a")) }
	year := 365 * 24 * time.Hour
	own := header{"jwk": m.jwk("stranger"), "kid": "stranger"}
	good := with(nil, nil)
	parts := strings.Split(good, ".")
	rsaKey, _ := x509.MarshalPKIXPublicKey(m.rsa.Public()) // An RSA key cannot fail.
	return map[string]string{
		"alg none":                    m.token(header{"alg": "none"}, nil, unsigned),
		"alg none in another case":    m.token(header{"alg": "nOnE"}, nil, unsigned),
		"alg none with a signature":   with(header{"alg": "none"}, nil),
		"no alg":                      with(header{"alg": ""}, nil),
		"no signature":                parts[0] + "." + parts[1] + ".",
		"two parts":                   parts[0] + "." + parts[1],
		"other claims":                parts[0] + "." + encode(claims{"sub": "root", "lucius_roles": "admin:*"}) + "." + parts[2],
		"another issuer":              with(nil, claims{"iss": "https://issuer.example"}),
		"an issuer that looks alike":  with(nil, claims{"iss": m.url + "/"}),
		"no issuer":                   with(nil, claims{"iss": nil}),
		"another audience":            with(nil, claims{"aud": "other"}),
		"no audience":                 with(nil, claims{"aud": nil}),
		"expired":                     with(nil, claims{"exp": time.Now().Add(-time.Hour).Unix()}),
		"never to expire":             with(nil, claims{"exp": nil}),
		"not yet valid":               with(nil, claims{"nbf": time.Now().Add(year).Unix()}),
		"issued in the future":        with(nil, claims{"iat": time.Now().Add(year).Unix()}),
		"nobody":                      with(nil, claims{"sub": ""}),
		"a name with a line break":    with(nil, claims{"sub": "alice\nroot"}),
		"swapped keys":                with(header{"kid": "b"}, nil),
		"swapped keys and algorithms": with(header{"kid": "rsa", "alg": "RS256"}, nil),
		"an unknown key":              m.token(header{"kid": "stranger"}, nil, m.ed25519("stranger")),
		"a key of its own":            m.token(own, nil, m.ed25519("stranger")),
		"a key at its own place":      m.token(header{"jku": "http://127.0.0.1:1/keys", "kid": "stranger"}, nil, m.ed25519("stranger")),
		"the public key as a secret":  m.token(header{"alg": "HS256", "kid": "rsa"}, nil, hs256(rsaKey)),
		"a header that is critical":   with(header{"crit": []string{"x"}, "x": 1}, nil),
		"a deep header":               m.token(header{"x": deep(3000)}, nil, m.ed25519("b")),
		"another type of token":       with(header{"typ": "logout+jwt"}, nil),
		"too long":                    with(nil, claims{"x": strings.Repeat("x", 20<<10)}),
		"no token at all":             "x",
		"dots":                        strings.Repeat(".", 1000),
		"a token that was not made":   auth.NewToken(),
		"half a token":                auth.NewToken()[:20],
	}
}

// TestHostile_Tokens calls with invalid tokens, many at a time. All get the same answer,
// and the issuer is not asked about each.
func TestHostile_Tokens(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	good := f.as(f.issuer.token(nil, nil, f.issuer.ed25519("a")))
	good.want(t, http.StatusOK, http.MethodGet, "/v1/jobs?tenant_id=tenant_a", "")
	forged := forgeries(f.issuer)
	f.while(func() {
		var strangers sync.WaitGroup
		for name, token := range forged {
			strangers.Go(func() {
				stranger := f.as(token)
				for range 20 {
					got := stranger.do(t, http.MethodGet, "/v1/jobs?tenant_id=tenant_a", "")
					f.expectProblem(http.MethodGet, "/v1/jobs?tenant_id=tenant_a", got, "unauthenticated")
					if detail := got.field(t, "detail"); detail != "The credential is not valid." || got.header.Get("WWW-Authenticate") == "" {
						t.Errorf("%s: answered %q, %v", name, detail, got.header)
					}
				}
			})
		}
		strangers.Wait()
	})
	good.want(t, http.StatusOK, http.MethodGet, "/v1/jobs?tenant_id=tenant_a", "")
	if asked := f.issuer.asked.Load(); asked > 20 {
		t.Errorf("the issuer was asked %d times about %d tokens", asked, 20*len(forged))
	}
}

// TestHostile_Credentials sends headers that hold no token.
func TestHostile_Credentials(t *testing.T) {
	t.Parallel()
	f := startAttacked(t)
	f.while(func() {
		for _, values := range [][]string{
			{""}, {"Bearer"}, {"Bearer "}, {"Basic Z29vZDpnb29k"}, {"Bearer " + f.token + " " + f.token},
			{"Bearer " + f.token, "Bearer " + f.token}, {"bearer\t" + f.token}, {strings.Repeat("Bearer ", 1000)},
			{"Bearer " + strings.ToUpper(f.token)}, {"Bearer \xff", "x"},
		} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/v1/jobs", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header["Authorization"] = values
			got, err := f.send(request)
			if err != nil {
				t.Fatal(err)
			}
			f.expectProblem(http.MethodGet, "/v1/jobs", got, "unauthenticated")
		}
	})
}

// unsigned signs nothing.
func unsigned([]byte) []byte { return nil }

// hs256 signs with a shared secret.
func hs256(secret []byte) func([]byte) []byte {
	return func(text []byte) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write(text)
		return mac.Sum(nil)
	}
}

// deep returns a deeply nested value.
func deep(n int) any {
	var value any
	for range n {
		value = []any{value}
	}
	return value
}

// token returns a token with those parts in addition to the usual ones; nil removes one.
func (m *tokenIssuer) token(h header, c claims, sign func([]byte) []byte) string {
	head := header{"alg": "EdDSA", "kid": "a", "typ": "JWT"}
	body := claims{
		"iss": m.url, "aud": "lucius", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix(), "lucius_roles": "read:*",
	}
	maps.Copy(head, h)
	maps.Copy(body, c)
	maps.DeleteFunc(body, func(_ string, value any) bool { return value == nil })
	text := encode(head) + "." + encode(body)
	return text + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(text)))
}
