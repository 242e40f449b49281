package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lucius-project/lucius/api"
)

// connection is a server and how to call it, from the contexts file, flags or environment
// variables.
type connection struct {
	URL        string `json:"url,omitempty" yaml:"url,omitempty"`
	Token      string `json:"-" yaml:"token,omitempty"` // stored, but never shown
	TokenFile  string `json:"token_file,omitempty" yaml:"token_file,omitempty"`
	CAFile     string `json:"ca_file,omitempty" yaml:"ca_file,omitempty"`
	ClientCert string `json:"client_cert,omitempty" yaml:"client_cert,omitempty"`
	ClientKey  string `json:"client_key,omitempty" yaml:"client_key,omitempty"`
}

// register registers a flag for each part of the connection.
func (w *connection) register(flags *pflag.FlagSet) {
	flags.StringVar(&w.URL, "url", "", "URL of the server (LUCIUS_URL)")
	flags.StringVar(&w.Token, "token", "", "bearer token; other users of the host can see it: prefer a file (LUCIUS_TOKEN)")
	flags.StringVar(&w.TokenFile, "token-file", "", "file with the bearer token (LUCIUS_TOKEN_FILE)")
	flags.StringVar(&w.CAFile, "ca-file", "", "certificate authorities for the server's certificate, in PEM (LUCIUS_CA_FILE)")
	flags.StringVar(&w.ClientCert, "client-cert", "", "client certificate, in PEM (LUCIUS_CLIENT_CERT)")
	flags.StringVar(&w.ClientKey, "client-key", "", "key of the client certificate, in PEM (LUCIUS_CLIENT_KEY)")
}

// fields returns the parts by the names of their flags.
func (w *connection) fields() map[string]*string {
	return map[string]*string{
		"url": &w.URL, "token": &w.Token, "token-file": &w.TokenFile, "ca-file": &w.CAFile,
		"client-cert": &w.ClientCert, "client-key": &w.ClientKey,
	}
}

// connection returns how to call the server. Flags take precedence over the context that a
// flag names, that over environment variables, and those over the current context. The
// credentials of a context are sent only to the context's own server.
func (t *tool) connection() (connection, error) {
	contexts, err := t.readContexts()
	if err != nil {
		return connection{}, err
	}
	variables := connection{
		URL: t.get("LUCIUS_URL"), Token: t.get("LUCIUS_TOKEN"), TokenFile: t.get("LUCIUS_TOKEN_FILE"),
		CAFile: t.get("LUCIUS_CA_FILE"), ClientCert: t.get("LUCIUS_CLIENT_CERT"), ClientKey: t.get("LUCIUS_CLIENT_KEY"),
	}
	sources := []connection{t.flags, variables}
	if name := cmp.Or(t.context, t.get("LUCIUS_CONTEXT"), contexts.Current); name != "" {
		stored, err := contexts.named(name)
		if err != nil {
			return connection{}, err
		}
		switch other := cmp.Or(t.flags.URL, variables.URL); {
		case t.context != "" && (t.flags.URL == "" || t.flags.URL == stored.URL):
			sources = []connection{t.flags, stored, variables}
		case other == "" || other == stored.URL:
			sources = append(sources, stored)
		}
	}
	found := connection{}
	for _, source := range sources {
		if found.Token != "" || found.TokenFile != "" { // Do not mix a token and a token file of two sources.
			source.Token, source.TokenFile = "", ""
		}
		into := found.fields()
		for name, value := range source.fields() {
			if *into[name] == "" {
				*into[name] = *value
			}
		}
	}
	found.URL = cmp.Or(found.URL, t.DefaultURL)
	return found, nil
}

// TargetURL returns the URL of the server that a command without flags calls.
func (e *Env) TargetURL() (string, error) {
	at, err := (&tool{Env: *e}).connection()
	return at.URL, err
}

// open starts a session. The caller must close it.
func (t *tool) open(cmd *cobra.Command) (*session, error) {
	if err := t.output.Check(); err != nil {
		return nil, err
	}
	at, err := t.connection()
	if err != nil {
		return nil, err
	}
	server, err := parseServer(at.URL)
	if err != nil {
		return nil, err
	}
	token, err := at.token()
	if err != nil {
		return nil, err
	}
	secure, err := at.tls()
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, ForceAttemptHTTP2: true,
			DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second,
			ResponseHeaderTimeout: 2 * time.Minute, // The server may hold a request for a minute.
			IdleConnTimeout:       time.Minute,
		},
		// A redirect could send the token elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	s := &session{tool: t, cmd: cmd}
	s.Client, err = api.NewClient(server, api.WithHTTPClient(&retrier{client, &t.Env}), api.WithRequestEditorFn(
		func(_ context.Context, r *http.Request) error {
			r.Header.Set("User-Agent", "lucius-cli")
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			return nil
		}))
	if err != nil {
		return nil, usagef("the server's URL is invalid: %w", err)
	}
	return s, nil
}

// close closes the connections of the session.
func (s *session) close() {
	if doer, ok := s.Client.Client.(*retrier); ok {
		doer.CloseIdleConnections()
	}
}

// parseServer checks the URL of a server.
func parseServer(text string) (string, error) {
	parsed, err := url.Parse(text)
	switch {
	case text == "":
		return "", usagef("name the server with --url")
	case strings.Contains(text, "@"): // The error does not repeat the URL, which may hold a password.
		return "", usagef("the server's URL has a user: give a token with --token-file")
	case err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "":
		return "", usagef("the server is %q, it must be a URL such as http://127.0.0.1:8080", text)
	}
	return text, nil
}

// token returns the bearer token, "" without one.
func (w *connection) token() (string, error) {
	token := w.Token
	if token == "" && w.TokenFile != "" {
		text, err := os.ReadFile(w.TokenFile)
		if err != nil {
			return "", usagef("read the token file: %w", err)
		}
		if token = strings.TrimSpace(string(text)); token == "" {
			return "", usagef("the token file %s is empty", w.TokenFile)
		}
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c > '~' {
			return "", usagef("the token contains a space or another character that is not allowed in tokens")
		}
	}
	return token, nil
}

// tls returns the TLS settings.
func (w *connection) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if w.CAFile != "" {
		text, err := os.ReadFile(w.CAFile)
		if err != nil {
			return nil, usagef("read the CA file: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, usagef("the CA file %s contains no PEM certificate", w.CAFile)
		}
	}
	if (w.ClientCert == "") != (w.ClientKey == "") {
		return nil, usagef("--client-cert and --client-key must be given together")
	}
	if w.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(w.ClientCert, w.ClientKey)
		if err != nil {
			return nil, usagef("the client certificate cannot be used: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// retrier repeats requests that the server was too busy to handle.
type retrier struct {
	*http.Client

	env *Env
}

const (
	attempts     = 4                // the most times that a request is sent
	longestPause = 30 * time.Second // the longest Retry-After that is obeyed
)

// Do sends the request. A 429 means that the server did not handle it, so Do repeats it. A 503
// does not, so Do repeats only requests that change nothing.
func (p *retrier) Do(request *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		response, err := p.Client.Do(request) //nolint:gosec // The caller names the server.
		if err != nil {
			return nil, err
		}
		again := response.StatusCode == http.StatusTooManyRequests ||
			response.StatusCode == http.StatusServiceUnavailable && request.Method == http.MethodGet
		pause := time.Duration(attempt) * time.Second
		if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
			pause = time.Duration(seconds) * time.Second
		}
		if !again || attempt == attempts || pause > longestPause {
			return response, nil
		}
		if request.GetBody != nil {
			if request.Body, err = request.GetBody(); err != nil {
				return response, nil //nolint:nilerr // The request cannot be repeated.
			}
		}
		_ = response.Body.Close()
		if err := p.env.pause(request.Context(), pause); err != nil {
			return nil, err
		}
	}
}
