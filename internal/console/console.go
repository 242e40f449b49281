package console

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"github.com/klauspost/compress/gzip"

	"github.com/lucius-project/lucius/api"
)

// Path is where the console is served. Every URL of it begins with it.
const Path = "/ui/"

// Config is what a [Console] is made of.
type Config struct {
	// API serves the public API, in this process. Required.
	API http.Handler
	// Ended is closed when the server drains: pages that are live end then. Required.
	Ended <-chan struct{}
	// Log gets faults of the console itself. Required.
	Log *slog.Logger
	// Issuer lets people sign in at an identity provider. Optional: without one they enter a
	// token.
	Issuer Issuer
	// PublicURL is the URL of the server for browsers, without a slash at its end. Optional.
	// Defaults to that of each request.
	PublicURL string
	// Environment names the server's environment on every page, in Colour: grey, red, amber, green,
	// blue or violet. Optional.
	Environment, Colour string
	// Now is the clock. Optional. Defaults to [time.Now].
	Now func() time.Time
}

// Console serves the pages. It is safe for concurrent use.
type Console struct {
	config    Config
	mux       *http.ServeMux
	compress  func(http.Handler) http.HandlerFunc // for pages
	thin      func(http.Handler) http.HandlerFunc // for streams: it keeps no memory while nothing is sent
	origins   *http.CrossOriginProtection
	templates *template.Template
	feeds     *feeds
	memo      *memo
}

// New returns a console.
func New(config Config) (*Console, error) {
	if config.API == nil || config.Ended == nil || config.Log == nil {
		return nil, errors.New("console: API, Ended and Log are required")
	}
	if _, known := environmentColours[config.Colour]; config.Environment != "" && !known {
		return nil, fmt.Errorf("console: %q is no colour of an environment", config.Colour)
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	c := &Console{config: config, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(), feeds: newFeeds(), memo: newMemo()}
	var err error
	if c.templates, err = parseTemplates(&config); err != nil {
		return nil, err
	}
	c.mux.HandleFunc("GET "+Path+"assets/", serveAsset)
	c.mux.HandleFunc("GET "+Path+"sign-in", c.signIn)
	c.mux.HandleFunc("POST "+Path+"sign-in", c.signIn)
	c.mux.HandleFunc("POST "+Path+"sign-out", c.signOut)
	if config.Issuer != nil {
		c.mux.HandleFunc("GET "+signInPath+"/issuer", c.signInAtIssuer)
		c.mux.HandleFunc("GET "+signInPath+"/callback", c.signedInAtIssuer)
	}
	for _, p := range pages() {
		c.mux.Handle("GET "+Path+p.pattern, c.serve(&p))
	}
	for name, a := range allActions() {
		c.mux.Handle("GET "+Path+"do/"+name, c.serve(&page{show: a.form}))
		c.mux.Handle("POST "+Path+"do/"+name, c.serve(&page{show: a.carryOut}))
	}
	c.mux.Handle(Path, c.serve(&page{show: func(*request) (view, error) { return view{}, errNoPage }}))
	if c.compress, err = gzhttp.NewWrapper(gzhttp.EnableZstd(false)); err == nil { // Not all browsers know zstd.
		c.thin, err = gzhttp.NewWrapper(gzhttp.EnableZstd(false), gzhttp.CompressionLevel(gzip.StatelessCompression))
	}
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return c, nil
}

// maxFilled bounds the URL of a form with what was entered, in bytes.
const maxFilled = 8 << 10

// errNoPage is the answer for a path without a page.
var errNoPage = &refusal{Status: http.StatusNotFound, Problem: api.Problem{Detail: "There is no such page."}}

// ServeHTTP serves one request.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "+
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	if err := c.origins.Check(r); err != nil {
		http.Error(w, "A page of another origin may not send this request.", http.StatusForbidden)
		return
	}
	compress := c.compress
	if r.Header.Get("Accept") == eventStream {
		compress = c.thin
	}
	compress(c.mux)(flusher{w}, r)
}

// flusher lets gzhttp flush a writer that only wraps one that can.
type flusher struct{ http.ResponseWriter }

func (f flusher) Flush() { _ = http.NewResponseController(f.ResponseWriter).Flush() } // The next write fails as well.

func (f flusher) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// page is a page, or what an action shows.
type page struct {
	pattern string // behind [Path]
	title   string // in the navigation; empty for none
	// role is what a user must have for some tenant; any will do if it is empty. Others do
	// not see the page in the navigation.
	role api.GrantRole
	// all says that the page is of no tenant: only users who have the role for all of them
	// see it in the navigation.
	all bool
	// live pages are sent again when they change.
	live bool
	// changes of a live page tells when to render it, which otherwise is done rarely. The
	// channel may be closed at any time, and ends with the request's context. Optional.
	changes func(*request) <-chan struct{}
	show    func(*request) (view, error)
}

// view is what a page shows.
type view struct {
	Title    string
	Template string
	Data     any
	// Nav is the entry of the navigation that the page belongs to, if it is not its own.
	Nav string
	// Location is where to send the browser instead of an answer.
	Location string
	// Status is that of the answer. It defaults to 200.
	Status int
	// Still says that a live page changes no more.
	Still bool
}

// request is one request for a page, with what its user may see.
type request struct {
	*http.Request

	api    *api.Client
	Who    api.Identity
	Origin string // the server's URL as the browser knows it
	now    time.Time
	live   bool // It is rendered for a stream.
	fresh  bool // Of a live page that knows when it changes: it may have changed.
	memo   *memo
	own    *memo // It keeps answers about one object: the feed's if the request is live, else one that goes with it.
}

// May reports whether the user has the role for the tenant; the empty tenant means all.
func (r *request) May(role api.GrantRole, tenant string) bool {
	for i := range r.Who.Grants {
		grant := &r.Who.Grants[i]
		for _, covered := range grant.Tenants {
			if grant.Role == role && (covered == "*" || tenant != "" && covered == tenant) {
				return true
			}
		}
	}
	return false
}

// client returns a client of the API with the browser's rights, those of the token if
// there is one.
func (c *Console) client(r *http.Request, token string) (*api.Client, error) {
	client, err := api.NewClient("http://"+r.Host, api.WithHTTPClient(&http.Client{Transport: inProcess{c.config.API, r}}),
		api.WithRequestEditorFn(func(_ context.Context, inner *http.Request) error {
			inner.Header.Set("User-Agent", "lucius-console")
			if token != "" {
				inner.Header.Set("Authorization", "Bearer "+token)
			}
			return nil
		}))
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return client, nil
}

// request identifies the user. The error is that of the API.
func (c *Console) request(r *http.Request) (*request, error) {
	client, err := c.client(r, token(r))
	if err != nil {
		return nil, err
	}
	who, err := call[api.Identity](client.GetIdentity(r.Context()))
	return &request{Request: r, api: client, Who: who, Origin: c.origin(r), now: c.config.Now(), memo: c.memo, own: newMemo()}, err
}

// serve returns the handler of a page.
func (c *Console) serve(p *page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, err := c.request(r)
		if hasStatus(err, http.StatusUnauthorized) {
			c.askToSignIn(w, r)
			return
		}
		if err == nil && p.role != "" && len(user.tenants(p.role)) == 0 {
			c.render(w, r, http.StatusOK, &frame{request: user, View: missingRole(cmp.Or(p.title, "Not for you"), p.role)})
			return
		}
		if err == nil && p.live && r.Header.Get("Accept") == eventStream {
			c.stream(w, user, p)
			return
		}
		f := &frame{Live: p.live, request: user}
		if err == nil {
			f.View, err = p.show(user)
			f.Live = f.Live && !f.View.Still
		}
		if err != nil {
			f.View, f.Live = c.fault(r, err), false
		}
		if f.View.Location != "" {
			redirect(w, r, f.View.Location)
			return
		}
		c.render(w, r, f.View.Status, f)
	})
}

// askToSignIn sends the browser to the sign-in, and from there back to what it asked for. A
// form that htmx has sent stays instead, and says what to do.
func (c *Console) askToSignIn(w http.ResponseWriter, r *http.Request) {
	if token(r) != "" {
		c.setToken(w, r, "")
	}
	if r.Method == http.MethodPost && r.Header.Get("HX-Request") != "" {
		ended := &refusal{Status: http.StatusUnauthorized, Problem: api.Problem{
			Detail: "Your sign-in has ended, so nothing was done. Sign in again in another tab, then send this form again.",
		}}
		c.render(w, r, ended.Status, &frame{View: c.fault(r, ended)})
		return
	}
	next := r.URL.RequestURI()
	r.Body = http.MaxBytesReader(w, r.Body, maxFilled) // The caller is unknown.
	if r.Method == http.MethodPost && r.ParseForm() == nil {
		if filled := r.URL.Path + "?" + entered(r).Encode(); len(filled) <= maxFilled {
			next = filled
		}
	}
	redirect(w, r, Path+"sign-in?"+url.Values{"next": {next}}.Encode())
}

// redirect sends the browser to another page; htmx follows a header of its own, since it
// cannot see other redirects.
func redirect(w http.ResponseWriter, r *http.Request, location string) {
	if r.Header.Get("HX-Request") != "" {
		w.Header().Set("HX-Redirect", location)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	http.Redirect(w, r, location, http.StatusSeeOther)
}

// fault returns the page that says why there is no other.
func (c *Console) fault(r *http.Request, err error) view {
	refused, ok := errors.AsType[*refusal](err)
	if !ok {
		if r.Context().Err() == nil {
			c.config.Log.ErrorContext(r.Context(), "page of the console", "path", r.URL.Path, "error", err)
		}
		refused = &refusal{Status: http.StatusInternalServerError}
		refused.Problem.Detail = "The page could not be loaded. The server's log says why."
	}
	return view{Title: http.StatusText(refused.Status), Template: "fault", Data: refused, Status: refused.Status}
}

// render answers with the view in its frame.
func (c *Console) render(w http.ResponseWriter, r *http.Request, status int, f *frame) {
	if f.request == nil {
		f.request = &request{Request: r, now: c.config.Now()}
	}
	name := "frame"
	switch target, refused := r.Header.Get("HX-Target"), status >= http.StatusBadRequest; {
	case target == "dialog" && refused && r.Method == http.MethodPost: // The form stays, with what was entered.
		w.Header().Set("HX-Retarget", "find .refused")
		name = "refused"
	case target == "dialog":
		name = "dialog"
	case target == "count" && refused:
		name = "refused"
	case target == "count":
		name = "counted"
	default:
		f.Nav = c.navigation(f)
	}
	var out bytes.Buffer
	if err := c.templates.ExecuteTemplate(&out, name, f); err != nil {
		c.config.Log.ErrorContext(r.Context(), "render a page of the console", "path", r.URL.Path, "error", err)
		http.Error(w, "The page could not be rendered. The server's log says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(max(status, http.StatusOK))
	_, _ = out.WriteTo(w) // The browser went away.
}
