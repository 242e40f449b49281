package auth_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
)

func TestJWT_IsACaller(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]pair{
		"RS256": {"k", rsaKey(), jose.RS256}, "PS256": {"k", rsaKey(), jose.PS256}, "ES256": ecKey("k"), "EdDSA": edKey("k"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller, err := send(t, newIssuer(key.public()).checker(t), key.sign(t, claims(nil)))
			musttest.NoError(t, err)
			if caller.Name() != "oidc:alice" || caller.Origin() != auth.ByJWT || !caller.May(auth.Submit, "tenant_a") ||
				caller.May(auth.Submit, "tenant_b") || !caller.MayServe("x", "ocr") || caller.MayServe("x", "embed") {
				t.Errorf("the caller is %+v", caller)
			}
		})
	}
}

func TestJWT_IsAccepted(t *testing.T) {
	t.Parallel()
	key := ecKey("k")
	guarded := newIssuer(key.public()).checker(t)
	now := time.Now()
	for name, token := range map[string]string{
		"one audience of several":      key.sign(t, claims(map[string]any{"aud": []string{"x", "lucius"}})),
		"expired within the leeway":    key.sign(t, claims(map[string]any{"exp": now.Add(-30 * time.Second).Unix()})),
		"begun within the leeway":      key.sign(t, claims(map[string]any{"nbf": now.Add(30 * time.Second).Unix(), "iat": now.Add(30 * time.Second).Unix()})),
		"without nbf and iat":          key.sign(t, claims(map[string]any{"nbf": nil, "iat": nil})),
		"the type of access tokens":    key.sign(t, claims(nil), "typ", "at+jwt"),
		"the long type of them":        key.sign(t, claims(nil), "typ", "application/AT+JWT"),
		"other claims of any kind":     key.sign(t, claims(map[string]any{"x": map[string]any{"y": []int{1}}})),
		"a key in it that is not ours": key.sign(t, claims(nil), "jku", "https://attacker.example/keys"),
	} {
		if caller, err := send(t, guarded, token); err != nil || !caller.May(auth.Submit, "tenant_a") {
			t.Errorf("%s: answered %+v, %v", name, caller, err)
		}
	}
}

// raw returns a token that no library would make.
func raw(header, claims any, signature string) string {
	part := func(v any) string { return base64.RawURLEncoding.EncodeToString([]byte(encoded(v))) }
	return part(header) + "." + part(claims) + "." + signature
}

func TestJWT_Hostile(t *testing.T) {
	t.Parallel()
	ec, ed, rs := ecKey("ec"), edKey("ed"), pair{"rsa", rsaKey(), jose.RS256}
	thief := ecKey("ec")
	published := rs.public()
	published.Algorithm = ""
	secret := []byte(strings.Repeat("secret", 6))
	shared := map[string]any{"kty": "oct", "kid": "oct", "k": base64.RawURLEncoding.EncodeToString(secret), "use": "sig"}
	guarded := newIssuer(ec.public(), ed.public(), published, shared).checker(t)
	good := ec.sign(t, claims(nil))
	if _, err := send(t, guarded, good); err != nil {
		t.Fatalf("the good one is refused: %v", err)
	}
	parts := strings.Split(good, ".")
	rsaPublic, err := x509.MarshalPKIXPublicKey(rs.private.(*rsa.PrivateKey).Public())
	musttest.NoError(t, err)
	hour := time.Hour
	for name, token := range map[string]string{
		"alg none":                          raw(map[string]string{"alg": "none", "kid": "ec"}, claims(nil), ""),
		"alg None":                          raw(map[string]string{"alg": "None", "kid": "ec"}, claims(nil), parts[2]),
		"no alg":                            raw(map[string]string{"kid": "ec"}, claims(nil), parts[2]),
		"no signature":                      parts[0] + "." + parts[1] + ".",
		"no third part":                     parts[0] + "." + parts[1],
		"the signature of another":          raw(map[string]string{"alg": "ES256", "kid": "ec"}, claims(map[string]any{"sub": "root"}), parts[2]),
		"an encrypted token":                good + ".a.b",
		"JSON instead of dots":              `{"payload":"e30","signatures":[]}`,
		"HS256 with the public key":         pair{"rsa", rsaPublic, jose.HS256}.sign(t, claims(nil)),
		"HS256 with a published secret":     pair{"oct", secret, jose.HS256}.sign(t, claims(nil)),
		"an algorithm off the list":         pair{"rsa", rsaKey(), jose.RS512}.sign(t, claims(nil)),
		"a key of its own with a known kid": thief.sign(t, claims(nil)),
		"a key of its own in the header":    thief.signed(t, claims(nil), &jose.SignerOptions{EmbedJWK: true}),
		"the kid of another key":            pair{"rsa", ec.private, jose.ES256}.sign(t, claims(nil)),
		"swapped RSA keys":                  pair{"rsa", otherRSAKey(), jose.RS256}.sign(t, claims(nil)),
		"an algorithm of another key":       pair{"ec", rs.private, jose.RS256}.sign(t, claims(nil)),
		"no kid":                            pair{"", ec.private, jose.ES256}.sign(t, claims(nil)),
		"a huge kid":                        pair{strings.Repeat("k", 1000), ec.private, jose.ES256}.sign(t, claims(nil)),
		"a kid that is a path":              pair{"../../etc/passwd", ec.private, jose.ES256}.sign(t, claims(nil)),
		"an unknown critical header":        ec.signed(t, claims(nil), (&jose.SignerOptions{}).WithHeader("crit", []string{"x-lucius"}).WithHeader("x-lucius", true)),
		"a logout token":                    ec.sign(t, claims(nil), "typ", "logout+jwt"),
		"another issuer":                    ec.sign(t, claims(map[string]any{"iss": "https://attacker.example"})),
		"the issuer with a slash":           ec.sign(t, claims(map[string]any{"iss": issuerURL + "/"})),
		"no issuer":                         ec.sign(t, claims(map[string]any{"iss": nil})),
		"another audience":                  ec.sign(t, claims(map[string]any{"aud": "other"})),
		"no audience":                       ec.sign(t, claims(map[string]any{"aud": nil})),
		"expired":                           ec.sign(t, claims(map[string]any{"exp": time.Now().Add(-2 * time.Minute).Unix()})),
		"never expires":                     ec.sign(t, claims(map[string]any{"exp": nil})),
		"an expiry that is a text":          ec.sign(t, claims(map[string]any{"exp": "tomorrow"})),
		"not yet valid":                     ec.sign(t, claims(map[string]any{"nbf": time.Now().Add(hour).Unix()})),
		"from the future":                   ec.sign(t, claims(map[string]any{"iat": time.Now().Add(hour).Unix()})),
		"no subject":                        ec.sign(t, claims(map[string]any{"sub": nil})),
		"a huge subject":                    ec.sign(t, claims(map[string]any{"sub": strings.Repeat("s", 257)})),
		"a subject that forges log lines":   ec.sign(t, claims(map[string]any{"sub": "alice\nroot"})),
		"a subject that is a number":        ec.sign(t, claims(map[string]any{"sub": 7})),
		"roles that are a number":           ec.sign(t, claims(map[string]any{"lucius_roles": 7})),
		"claims that are a list":            ec.signed(t, []int{1}, &jose.SignerOptions{}),
		"a huge token":                      ec.sign(t, claims(map[string]any{"x": strings.Repeat("x", 17<<10)})),
		"many dots":                         strings.Repeat(".", 10_000),
		"nonsense":                          "nonsense",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller, err := send(t, guarded, token)
			refused(t, caller, err, auth.ErrInvalidCredential)
			if strings.Contains(err.Error(), token) {
				t.Errorf("the error repeats the token: %v", err)
			}
		})
	}
}

// signed returns a token with any payload and any header.
func (p pair) signed(t *testing.T, payload any, options *jose.SignerOptions) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: p.algorithm, Key: p.private}, options.WithHeader("kid", p.id))
	musttest.NoError(t, err)
	signed, err := signer.Sign([]byte(encoded(payload)))
	musttest.NoError(t, err)
	return must(signed.CompactSerialize())
}

func TestJWT_Roles(t *testing.T) {
	t.Parallel()
	key := ecKey("k")
	fake := newIssuer(key.public())
	guarded := fake.checker(t, func(c *auth.IssuerConfig) { c.RolesClaim = "perms" })
	for name, test := range map[string]struct {
		claim any
		want  string
	}{
		"a list":                     {[]string{"read:a", "admin:*"}, "read:a admin:*"},
		"a text":                     {"read:a  admin:*", "read:a admin:*"},
		"none":                       {nil, ""},
		"null":                       {json.RawMessage("null"), ""},
		"invalid grants are skipped": {[]string{"chef:*", "read:a", "platform:*:", "submit:*:ocr", ""}, "read:a"},
		"of another claim":           {"", ""},
		"the first hundred of many":  {append(make([]string, 100), "admin:*"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller, err := send(t, guarded, key.sign(t, claims(map[string]any{"perms": test.claim})))
			musttest.NoError(t, err)
			var got []string
			for _, text := range []string{"read:a", "admin:*", "submit:tenant_a", "submit:*", "platform:*"} {
				grant := grants(t, text)[0]
				if caller.May(grant.Role, strings.Join(grant.Tenants, "")) {
					got = append(got, text)
				}
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("the caller has %v, want %s", got, test.want)
			}
		})
	}
}

func TestNewIssuer_NamesTheInvalidField(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]auth.IssuerConfig{
		"URL must be an https URL":         {Audience: "a"},
		"URL must be https":                {URL: "http://issuer.example", Audience: "a"},
		"URL must be an https URL without": {URL: "https://u:p@issuer.example", Audience: "a"},
		"Audience is required":             {URL: issuerURL},
	} {
		if _, err := auth.NewIssuer(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("answered %v, want %q", err, want)
		}
	}
	if _, err := auth.NewIssuer(auth.IssuerConfig{URL: "http://127.0.0.1:5556/dex", Audience: "a"}); err != nil {
		t.Errorf("an issuer on this host: %v", err)
	}
}
