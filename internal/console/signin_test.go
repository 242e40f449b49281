package console

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// provider is an identity provider that returns these tokens for the code "the code".
type provider struct {
	tokens          []string
	down            bool
	redirect, state string
	verifier        string
}

func (p *provider) AuthorizationURL(_ context.Context, redirect, state, verifier string) (string, error) {
	if p.down {
		return "", errors.New("a secret of the provider")
	}
	p.redirect, p.state, p.verifier = redirect, state, verifier
	return "https://provider.example/authorize?state=" + state, nil
}

func (p *provider) Exchange(_ context.Context, redirect, code, verifier string) ([]string, error) {
	if code != "the code" || redirect != p.redirect || verifier != p.verifier {
		return nil, errors.New("a secret of the provider")
	}
	return p.tokens, nil
}

// signingIn returns a browser without a token whose console knows the provider.
func signingIn(t *testing.T, p *provider, change ...func(*Config)) *browser {
	t.Helper()
	b := newBrowser(t, quiet())
	b.scripted.token = true
	config := b.console.config
	config.Issuer = p
	for _, f := range change {
		f(&config)
	}
	var err error
	if b.console, err = New(config); err != nil {
		t.Fatal(err)
	}
	return b
}

// comesBack sends the browser back from the provider with its cookies.
func (b *browser) comesBack(target string, cookies ...*http.Cookie) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for _, cookie := range cookies {
		r.AddCookie(cookie)
	}
	w := httptest.NewRecorder()
	b.console.ServeHTTP(w, r)
	return w
}

// cookieOf returns the cookie of that name in the response.
func cookieOf(t *testing.T, w *httptest.ResponseRecorder, name string) *http.Cookie {
	t.Helper()
	for _, cookie := range w.Result().Cookies() {
		if cookie.Name == name {
			return cookie
		}
	}
	t.Fatalf("the response sets no cookie %s: %v", name, w.Header())
	return nil
}

func TestSignIn_AtTheIssuer(t *testing.T) {
	t.Parallel()
	p := &provider{tokens: []string{"an opaque one", "good"}}
	b := signingIn(t, p)
	has(t, b.get(t, "/ui/sign-in?next=/ui/jobs"), `href="/ui/sign-in/issuer?next=%2fui%2fjobs"`)
	w := b.send(http.MethodGet, "/ui/sign-in/issuer?next=/ui/jobs", nil)
	if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "https://provider.example/authorize?state="+p.state {
		t.Fatalf("it is answered %d, sent to %s", w.Code, to)
	}
	if p.redirect != "http://example.com/ui/sign-in/callback" || len(p.verifier) < 43 || len(p.state) < 26 {
		t.Errorf("it comes back to %s, the verifier has %d characters", p.redirect, len(p.verifier))
	}
	pending := cookieOf(t, w, signInCookie)
	if !pending.HttpOnly || pending.SameSite != http.SameSiteLaxMode || pending.MaxAge != int((10*time.Minute).Seconds()) ||
		pending.Path != "/ui/sign-in" {
		t.Errorf("the cookie is %+v", pending)
	}
	w = b.comesBack("/ui/sign-in/callback?code=the+code&state="+p.state, pending)
	if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "/ui/jobs" {
		t.Fatalf("it is answered %d, sent to %s: %s", w.Code, to, w.Body)
	}
	if token := cookieOf(t, w, cookieName); token.Value != "good" || !token.HttpOnly {
		t.Errorf("the cookie is %+v", token)
	}
	if gone := cookieOf(t, w, signInCookie); gone.MaxAge >= 0 {
		t.Errorf("the sign-in can be repeated: %+v", gone)
	}
}

func TestSignIn_RefusesWhatThisBrowserHasNotBegun(t *testing.T) {
	t.Parallel()
	p := &provider{tokens: []string{"bad"}}
	b := signingIn(t, p)
	pending := cookieOf(t, b.send(http.MethodGet, "/ui/sign-in/issuer?next=//evil.example/", nil), signInCookie)
	for name, test := range map[string]struct {
		target string
		cookie *http.Cookie
		says   string
	}{
		"no cookie":            {"?code=the+code&state=" + p.state, &http.Cookie{Name: "x"}, "not started in this browser"},
		"another state":        {"?code=the+code&state=x", pending, "not started in this browser"},
		"an empty state":       {"?code=the+code&state=", &http.Cookie{Name: signInCookie, Value: "e30"}, "not started in this browser"},
		"a refusal":            {"?error=access_denied&error_description=" + url.QueryEscape(hostile) + "&state=" + p.state, pending, "&lt;script&gt;"},
		"a code that is none":  {"?code=x&state=" + p.state, pending, "issued no token"},
		"a token of no caller": {"?code=the+code&state=" + p.state, pending, "does not accept its tokens: No caller has this token."},
	} {
		w := b.comesBack("/ui/sign-in/callback"+test.target, test.cookie)
		if body := w.Body.String(); w.Code != http.StatusUnauthorized || !strings.Contains(body, test.says) ||
			strings.Contains(body, hostile) || strings.Contains(body, "secret") || !strings.Contains(body, `name="next" value="/ui/"`) {
			t.Errorf("%s is answered %d: %s", name, w.Code, body)
		}
	}
	p.down = true
	w := b.send(http.MethodGet, "/ui/sign-in/issuer", nil)
	has(t, w.Body.String(), "does not answer")
	hasNot(t, w.Body.String(), "secret")
}

func TestSignIn_ComesBackToThePublicURL(t *testing.T) {
	t.Parallel()
	p := &provider{}
	signingIn(t, p, func(config *Config) { config.PublicURL = "https://lucius.example" }).send(http.MethodGet, "/ui/sign-in/issuer", nil)
	if p.redirect != "https://lucius.example/ui/sign-in/callback" {
		t.Errorf("it comes back to %s", p.redirect)
	}
	r := httptest.NewRequest(http.MethodGet, "/ui/sign-in/issuer", nil)
	r.Header.Set("X-Forwarded-Proto", "https")
	signingIn(t, p).console.ServeHTTP(httptest.NewRecorder(), r)
	if p.redirect != "https://example.com/ui/sign-in/callback" {
		t.Errorf("it comes back to %s", p.redirect)
	}
	if w := newBrowser(t, quiet()).send(http.MethodGet, "/ui/sign-in/issuer", nil); w.Code != http.StatusNotFound {
		t.Errorf("without a provider it is answered %d", w.Code)
	}
}

// Behind a proxy that does not forward the browser's scheme, the public URL has it.
func TestSignIn_CookiesAreForTheSchemeOfThePublicURL(t *testing.T) {
	t.Parallel()
	for public, secure := range map[string]bool{"": false, "http://lucius.example": false, "https://lucius.example": true} {
		b := signingIn(t, &provider{}, func(config *Config) { config.PublicURL = public })
		w := b.send(http.MethodPost, "/ui/sign-in", url.Values{"token": {"good"}})
		if cookie := cookieOf(t, w, cookieName); cookie.Secure != secure {
			t.Errorf("with the public URL %q the session's cookie is %+v", public, cookie)
		}
		w = b.send(http.MethodGet, "/ui/sign-in/issuer", nil)
		if cookie := cookieOf(t, w, signInCookie); cookie.Secure != secure {
			t.Errorf("with the public URL %q the sign-in's cookie is %+v", public, cookie)
		}
	}
}

func TestSignIn_RefusesATokenThatNoCookieHolds(t *testing.T) {
	t.Parallel()
	b := signingIn(t, &provider{tokens: []string{strings.Repeat("x", 5000)}})
	pending := cookieOf(t, b.send(http.MethodGet, "/ui/sign-in/issuer", nil), signInCookie)
	w := b.comesBack("/ui/sign-in/callback?code=the+code&state="+b.console.config.Issuer.(*provider).state, pending)
	if w.Code != http.StatusUnauthorized {
		t.Errorf("it is answered %d", w.Code)
	}
	has(t, w.Body.String(), "This token has 5,000 bytes, but the console accepts at most 3,800", "fewer groups")
	if len(w.Result().Cookies()) != 1 {
		t.Errorf("it sets %v", w.Result().Cookies())
	}
}
