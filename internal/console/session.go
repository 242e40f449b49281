package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// cookieName is the name of the cookie that holds the user's token. Browsers send it to the
// console's pages only, and scripts cannot read it. Since it is the token itself, no replica
// keeps sessions, and a revoked token stops working at once.
const cookieName = "lucius_console"

// maxCookie is the longest token that fits into a cookie, in bytes: browsers drop a cookie of
// more than 4,096 bytes, and its name and attributes may count.
const maxCookie = 3800

// maxSignIn bounds the form of the sign-in, in bytes: a token, and where to go next.
const maxSignIn = 2 * maxFilled

// token returns the token of the browser's cookie, empty without one.
func token(r *http.Request) string {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return ""
	}
	return cookie.Value
}

// setToken sets or, if it is empty, removes the browser's token.
func (c *Console) setToken(w http.ResponseWriter, r *http.Request, token string) {
	cookie := &http.Cookie{ //nolint:gosec // On loopback there is no TLS.
		Name: cookieName, Value: token, Path: Path, HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: c.secure(r),
	}
	if token == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}

// secure reports whether the browser uses TLS, to this server or to a proxy in front of it.
func (c *Console) secure(r *http.Request) bool {
	return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" || strings.HasPrefix(c.config.PublicURL, "https://")
}

// origin returns the server's URL as the browser knows it.
func (c *Console) origin(r *http.Request) string {
	scheme := "http://"
	if c.secure(r) {
		scheme = "https://"
	}
	return cmp.Or(c.config.PublicURL, scheme+r.Host)
}

// signInForm is the data of the sign-in page.
type signInForm struct {
	Next  string
	Fault string
	// Issuer says that users can sign in at the identity provider.
	Issuer bool
}

// signIn shows the sign-in page, or takes the token that its form sends.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxSignIn)
	next, fault := local(r.FormValue("next")), ""
	if r.Method == http.MethodPost {
		err := c.tryToken(w, r, strings.TrimSpace(r.PostFormValue("token")))
		if err == nil {
			http.Redirect(w, r, next, http.StatusSeeOther)
			return
		}
		fault = err.Error()
	}
	c.showSignIn(w, r, next, fault)
}

// tryToken sets the cookie if the API accepts the token. The error is shown to the user.
func (c *Console) tryToken(w http.ResponseWriter, r *http.Request, token string) error {
	switch {
	case token == "":
		return errors.New("Enter a token.") //nolint:revive,staticcheck // It is a sentence for the page.
	case len(token) > maxCookie:
		const sentence = "This token has %s bytes, but the console accepts at most %s, which fit into a cookie. " +
			"Have the identity provider put less into it, such as fewer groups, or enter another token."
		return fmt.Errorf(sentence, diagnosis.Number(len(token)), diagnosis.Number(maxCookie)) //nolint:staticcheck // The same.
	}
	client, err := c.client(r, token)
	if err != nil {
		return err
	}
	if _, err := call[api.Identity](client.GetIdentity(r.Context())); err != nil {
		if hasStatus(err, http.StatusUnauthorized) {
			return errors.New("No caller has this token.") //nolint:revive,staticcheck // The same.
		}
		return err
	}
	c.setToken(w, r, token)
	return nil
}

// signOut removes the token.
func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	c.setToken(w, r, "")
	http.Redirect(w, r, Path+"sign-in", http.StatusSeeOther)
}

// local returns the URL if it is one of the console's, and otherwise that of the first page.
// A browser resolves dots, even escaped ones, and takes a backslash for a slash, so a path
// that contains either, or an empty segment, may lead elsewhere.
func local(next string) string {
	parsed, err := url.Parse(next)
	if err != nil || parsed.Scheme != "" || parsed.Host != "" || !strings.HasPrefix(parsed.Path, Path) ||
		path.Clean(parsed.Path) != strings.TrimSuffix(parsed.Path, "/") || strings.Contains(next+parsed.Path, `\`) {
		return Path
	}
	return next
}
