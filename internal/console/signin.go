package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"
)

// Issuer lets people sign in at an identity provider.
type Issuer interface {
	// AuthorizationURL returns the provider's URL at which the browser starts. The provider
	// sends the browser back to redirect with the state and a code.
	AuthorizationURL(ctx context.Context, redirect, state, verifier string) (string, error)
	// Exchange returns the tokens that the provider gives for the code, the best first.
	Exchange(ctx context.Context, redirect, code, verifier string) ([]string, error)
}

// The cookie of a sign-in under way at the identity provider. It shows that the browser that
// comes back is the one that started the sign-in.
const (
	signInCookie = "lucius_sign_in"
	signInPath   = Path + "sign-in"
	signInTime   = 10 * time.Minute
	// maxNext is the longest URL, in bytes, that fits into the cookie however JSON escapes it.
	maxNext = 400
)

// pendingSignIn is the content of the cookie.
type pendingSignIn struct {
	State    string `json:"state"`
	Verifier string `json:"verifier"`
	Next     string `json:"next"`
}

// callbackURL returns the URL that the identity provider sends the browser back to.
func (c *Console) callbackURL(r *http.Request) string {
	return c.origin(r) + signInPath + "/callback"
}

// setPending sets or, if the value is empty, removes the cookie of a pending sign-in.
func (c *Console) setPending(w http.ResponseWriter, r *http.Request, value string) {
	cookie := &http.Cookie{ //nolint:gosec // On loopback there is no TLS.
		Name: signInCookie, Value: value, Path: signInPath, MaxAge: int(signInTime.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: c.secure(r),
	}
	if value == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}

// signInAtIssuer sends the browser to the identity provider.
func (c *Console) signInAtIssuer(w http.ResponseWriter, r *http.Request) {
	pending := pendingSignIn{State: rand.Text(), Verifier: rand.Text() + rand.Text(), Next: local(r.FormValue("next"))}
	to, err := c.config.Issuer.AuthorizationURL(r.Context(), c.callbackURL(r), pending.State, pending.Verifier)
	if err != nil {
		c.config.Log.WarnContext(r.Context(), "sign-in at the issuer", "error", err)
		c.showSignIn(w, r, pending.Next, "The identity provider does not answer. Try again, or enter a token.")
		return
	}
	if len(pending.Next) > maxNext {
		pending.Next = Path // The browser would drop the whole cookie.
	}
	text, _ := json.Marshal(pending) // Marshalling strings cannot fail.
	c.setPending(w, r, base64.RawURLEncoding.EncodeToString(text))
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// signedInAtIssuer completes the sign-in of a browser that comes back from the identity
// provider, with the first of its tokens that the API accepts.
func (c *Console) signedInAtIssuer(w http.ResponseWriter, r *http.Request) {
	var pending pendingSignIn
	if cookie, err := r.Cookie(signInCookie); err == nil {
		text, _ := base64.RawURLEncoding.DecodeString(cookie.Value)
		_ = json.Unmarshal(text, &pending) // A cookie that is not ours has no state.
	}
	c.setPending(w, r, "")
	next := local(pending.Next)
	query := r.URL.Query()
	if pending.State == "" || subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(pending.State)) != 1 {
		c.showSignIn(w, r, next, "This sign-in was not started in this browser, or was started more than ten minutes ago. Start again.")
		return
	}
	if refused := query.Get("error"); refused != "" {
		c.showSignIn(w, r, next, "The identity provider did not sign you in: "+cmp.Or(query.Get("error_description"), refused))
		return
	}
	tokens, err := c.config.Issuer.Exchange(r.Context(), c.callbackURL(r), query.Get("code"), pending.Verifier)
	if err != nil {
		c.config.Log.WarnContext(r.Context(), "sign-in at the issuer", "error", err)
		c.showSignIn(w, r, next, "The identity provider issued no token. The server's log says why.")
		return
	}
	for _, token := range tokens {
		if err = c.tryToken(w, r, token); err == nil {
			http.Redirect(w, r, next, http.StatusSeeOther)
			return
		}
	}
	c.config.Log.WarnContext(r.Context(), "sign-in at the issuer: no token was accepted", "error", err)
	c.showSignIn(w, r, next, "The identity provider knows you, but this server does not accept its tokens: "+err.Error())
}

// showSignIn shows the form, and what went wrong.
func (c *Console) showSignIn(w http.ResponseWriter, r *http.Request, next, fault string) {
	status := http.StatusOK
	if fault != "" {
		status = http.StatusUnauthorized
	}
	form := signInForm{Next: next, Fault: fault, Issuer: c.config.Issuer != nil}
	c.render(w, r, status, &frame{View: view{Template: "signin", Title: "Sign in", Data: form}})
}
