package auth_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
)

// signIn returns a sign-in at the issuer, whose token endpoint answers like this.
func (i *issuer) signIn(t *testing.T, token func(r *http.Request) *http.Response, change ...func(*auth.SignInConfig)) *auth.SignIn {
	t.Helper()
	i.discovery["authorization_endpoint"], i.discovery["token_endpoint"] = issuerURL+"/authorize", issuerURL+"/token"
	i.answer = func(r *http.Request) *http.Response {
		if strings.HasSuffix(r.URL.Path, "/token") {
			return token(r)
		}
		return answer(http.StatusOK, encoded(i.discovery))
	}
	trusted := musttest.Make(t, auth.NewIssuer, auth.IssuerConfig{URL: issuerURL, Audience: "lucius", Transport: i})
	cfg := auth.SignInConfig{Issuer: trusted, ClientID: "console"}
	for _, f := range change {
		f(&cfg)
	}
	return musttest.Make(t, auth.NewSignIn, cfg)
}

const callback = "https://lucius.example/ui/sign-in/callback"

func TestSignIn_ExchangesACodeForTokens(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	musttest.WriteFile(t, secret, "s/3cret\n")
	var sent url.Values
	var user, password string
	fake := newIssuer()
	signIn := fake.signIn(t, func(r *http.Request) *http.Response {
		_ = r.ParseForm()
		sent = r.PostForm
		user, password, _ = r.BasicAuth()
		return answer(http.StatusOK, `{"access_token":"a","id_token":"i"}`)
	}, func(cfg *auth.SignInConfig) { cfg.SecretFile, cfg.Scopes = secret, "openid api" })
	at, err := signIn.AuthorizationURL(t.Context(), callback, "the state", "the verifier")
	musttest.NoError(t, err)
	challenge := sha256.Sum256([]byte("the verifier"))
	want := issuerURL + "/authorize?" + url.Values{
		"response_type": {"code"}, "client_id": {"console"}, "redirect_uri": {callback}, "scope": {"openid api"}, "state": {"the state"},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(challenge[:])}, "code_challenge_method": {"S256"},
	}.Encode()
	if at != want {
		t.Errorf("it begins at\n%s, want\n%s", at, want)
	}
	tokens, err := signIn.Exchange(t.Context(), callback, "the code", "the verifier")
	if err != nil || !slices.Equal(tokens, []string{"a", "i"}) {
		t.Errorf("the tokens are %q, %v", tokens, err)
	}
	wantForm := url.Values{
		"grant_type": {"authorization_code"}, "code": {"the code"}, "redirect_uri": {callback},
		"code_verifier": {"the verifier"},
	}
	if sent.Encode() != wantForm.Encode() || user != "console" || password != "s%2F3cret" {
		t.Errorf("it sent %v as %s:%s", sent, user, password)
	}
	if n := fake.discoveries(); n != 1 {
		t.Errorf("the issuer was asked %d times about itself", n)
	}
}

func TestSignIn_SaysWhyThereIsNoToken(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		body   string
		says   string
	}{
		"the code is refused": {http.StatusBadRequest, `{"error":"invalid_grant"}`, "invalid_grant"},
		"it is no JSON":       {http.StatusOK, "<html>", "no token"},
		"it holds no token":   {http.StatusOK, "{}", "no token"},
		"it is too large":     {http.StatusOK, `{"x":"` + strings.Repeat("x", 1<<20) + `","access_token":"a"}`, "no token"},
	} {
		signIn := newIssuer().signIn(t, func(*http.Request) *http.Response { return answer(test.status, test.body) })
		if _, err := signIn.Exchange(t.Context(), callback, "c", "v"); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	signIn := newIssuer().signIn(t, nil, func(cfg *auth.SignInConfig) { cfg.SecretFile = "/nowhere" })
	if _, err := signIn.Exchange(t.Context(), callback, "c", "v"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file of the secret: %v", err)
	}
	if _, err := auth.NewSignIn(auth.SignInConfig{ClientID: "console"}); err == nil {
		t.Error("a sign-in without an issuer was made")
	}
}

func TestSignIn_TrustsNoEndpointInTheClear(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"authorization_endpoint", "token_endpoint"} {
		fake := newIssuer()
		signIn := fake.signIn(t, nil)
		fake.discovery[endpoint] = "http://issuer.example/realm/x"
		if _, err := signIn.AuthorizationURL(t.Context(), callback, "s", "v"); !errors.Is(err, auth.ErrIssuerUnavailable) {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	fake := newIssuer()
	signIn := fake.signIn(t, nil)
	fake.discovery["authorization_endpoint"] = issuerURL + "/authorize?p=policy"
	if at, err := signIn.AuthorizationURL(t.Context(), callback, "s", "v"); err != nil || !strings.Contains(at, "?p=policy&client_id=console") {
		t.Errorf("with a query: %s, %v", at, err)
	}
}

func TestSignIn_AsksAnIssuerThatIsDownOnceInAnInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := newIssuer()
		signIn := fake.signIn(t, nil)
		fake.set(func() { fake.down = errors.New("down") })
		begin := func() error { _, err := signIn.AuthorizationURL(t.Context(), callback, "s", "v"); return err }
		for range 10 {
			if err := begin(); !errors.Is(err, auth.ErrIssuerUnavailable) {
				t.Error(err)
			}
		}
		if n := fake.discoveries(); n != 1 {
			t.Errorf("it was asked %d times", n)
		}
		fake.set(func() { fake.down = nil })
		time.Sleep(refetch)
		if err := begin(); err != nil {
			t.Error(err)
		}
		fake.set(func() { fake.down = errors.New("down") })
		if err := begin(); err != nil { // The endpoints are known.
			t.Error(err)
		}
		if _, err := signIn.Exchange(t.Context(), callback, "c", "v"); !errors.Is(err, auth.ErrIssuerUnavailable) {
			t.Error(err)
		}
	})
}
