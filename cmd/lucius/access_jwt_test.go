package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	neturl "net/url"
	"strings"
	"testing"
	"time"
)

// issuer is an OpenID Connect issuer on loopback with one key. It returns its URL
// and a function that signs claims in addition to the usual ones.
func issuer(t *testing.T) (url string, sign func(claims map[string]any) string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	answer := func(path string, value any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(value) })
	}
	answer("/.well-known/openid-configuration", map[string]string{
		"issuer": server.URL, "jwks_uri": server.URL + "/keys",
		"authorization_endpoint": server.URL + "/authorize", "token_endpoint": server.URL + "/token",
	})
	answer("/keys", map[string]any{"keys": []map[string]string{{
		"kty": "OKP", "crv": "Ed25519", "kid": "k", "alg": "EdDSA", "use": "sig", "x": base64.RawURLEncoding.EncodeToString(public),
	}}})
	part := func(value any) string {
		text, _ := json.Marshal(value) // Strings, lists and numbers cannot fail.
		return base64.RawURLEncoding.EncodeToString(text)
	}
	sign = func(claims map[string]any) string {
		all := map[string]any{"iss": server.URL, "aud": "lucius", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix()}
		maps.Copy(all, claims)
		signed := part(map[string]string{"alg": "EdDSA", "kid": "k", "typ": "JWT"}) + "." + part(all)
		return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(private, []byte(signed)))
	}
	// Everyone is signed in at once, as alice, who may read. The code is the PKCE challenge.
	mux.HandleFunc("/authorize", func(w http.ResponseWriter, r *http.Request) {
		back := r.FormValue("redirect_uri") + "?" + neturl.Values{"state": {r.FormValue("state")}, "code": {r.FormValue("code_challenge")}}.Encode()
		http.Redirect(w, r, back, http.StatusFound)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		verified := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		if r.FormValue("client_id") != "console" || r.FormValue("code") != base64.RawURLEncoding.EncodeToString(verified[:]) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"invalid_grant"}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{
			"access_token": "opaque", "id_token": sign(map[string]any{"lucius_roles": "read:*"}),
		})
	})
	return server.URL, sign
}

// A browser signs in to the console at the issuer.
func TestAccess_ConsoleSignsInAtTheIssuer(t *testing.T) {
	t.Parallel()
	url, _ := issuer(t)
	s := serveOn(t, t.TempDir(), "--storage-backend", "memory",
		"--oidc-issuer", url, "--oidc-audience", "lucius", "--oidc-client-id", "console")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	open := func(path string) (landed, page string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.Request.URL.RequestURI(), string(body)
	}
	if landed, page := open("/ui/failures"); landed != "/ui/sign-in?next=%2Fui%2Ffailures" || !strings.Contains(page, "/ui/sign-in/issuer") {
		t.Errorf("a stranger lands at %s: %s", landed, page)
	}
	if landed, page := open("/ui/sign-in/issuer?next=/ui/failures"); landed != "/ui/failures" || !strings.Contains(page, "oidc:alice") {
		t.Errorf("alice lands at %s: %s", landed, page)
	}
}

func TestAccess_JWT(t *testing.T) {
	t.Parallel()
	url, sign := issuer(t)
	s := serveOn(t, t.TempDir(), "--storage-backend", "memory",
		"--oidc-issuer", url, "--oidc-audience", "lucius", "--oidc-roles-claim", "perms")
	for name, test := range map[string]struct {
		claims map[string]any
		status int
	}{
		"with the role":            {map[string]any{"perms": []string{"read:tenant_a"}}, http.StatusOK},
		"with another role":        {map[string]any{"perms": []string{"submit:tenant_a"}}, http.StatusForbidden},
		"for another tenant":       {map[string]any{"perms": "read:tenant_b"}, http.StatusForbidden},
		"with roles elsewhere":     {map[string]any{"lucius_roles": "read:*"}, http.StatusForbidden},
		"for another audience":     {map[string]any{"perms": "read:*", "aud": "other"}, http.StatusUnauthorized},
		"of yesterday":             {map[string]any{"perms": "read:*", "exp": time.Now().Add(-24 * time.Hour).Unix()}, http.StatusUnauthorized},
		"in another one's name":    {map[string]any{"perms": "read:*", "iss": "https://issuer.example"}, http.StatusUnauthorized},
		"of a caller with no name": {map[string]any{"perms": "read:*", "sub": ""}, http.StatusUnauthorized},
	} {
		c := &caller{url: s.url, token: sign(test.claims), http: &http.Client{Transport: contracted(&http.Transport{DisableKeepAlives: true})}}
		if got := c.do(t, "GET", "/v1/jobs?tenant_id=tenant_a", ""); got.status != test.status {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, test.status)
		}
	}
}

// A server without access control still refuses requests from web pages.
func TestAccess_NothingConfigured(t *testing.T) {
	t.Parallel()
	s := serveOn(t, t.TempDir(), "--storage-backend", "memory")
	for name, test := range map[string]struct {
		host, origin string
		status       int
	}{
		"a program":                     {"", "", http.StatusAccepted},
		"a page of another origin":      {"", "https://evil.example", http.StatusForbidden},
		"a name that was made to point": {"evil.example", "", http.StatusForbidden},
		"that and its own page":         {"evil.example", "http://evil.example", http.StatusForbidden},
	} {
		body := ingestFor("tenant_a", name)
		body = body[:len(body)-len(`{}}`)] + `{"language":"en"}}`
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1/commands", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		if test.host != "" {
			request.Host = test.host
		}
		if test.origin != "" {
			request.Header.Set("Origin", test.origin)
		}
		response, err := (&http.Client{Transport: contracted(&http.Transport{DisableKeepAlives: true})}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != test.status {
			t.Errorf("%s is answered %d, want %d", name, response.StatusCode, test.status)
		}
	}
}
