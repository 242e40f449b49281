package lucius

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// ClientConfig configures a [Client]. Its zero value takes all from the environment.
type ClientConfig struct {
	// URL is the server's. Optional. Defaults to the variable LUCIUS_URL, else to
	// http://127.0.0.1:8080.
	URL string
	// Token is the bearer token. Optional. Defaults to the variable LUCIUS_TOKEN.
	Token string
	// TokenSource returns the bearer token, for each request: it should cache a token that
	// is expensive to get. A request without a token counts as one without an answer.
	// Optional, only without Token. Without either it defaults to one that reads the file
	// that the variable LUCIUS_TOKEN_FILE names, else there is no token.
	TokenSource func(context.Context) (string, error)
	// HTTPClient makes the requests. Its Timeout must be longer than the longest wait of
	// a call, a minute. Optional. Defaults to one that keeps its connections.
	HTTPClient *http.Client
	// RetryFor is how long a call of the client is repeated without success. Optional.
	// Defaults to a minute; below 0 no call is repeated. A call ends with its context in
	// any case.
	RetryFor time.Duration
}

// Client calls the server. Create it with [NewClient]. It is safe for concurrent use.
type Client struct {
	base     string
	address  string // base without a password, for people
	token    string
	source   func(context.Context) (string, error) // nil if the token never changes
	http     *http.Client
	retryFor time.Duration
	sent     atomic.Pointer[string] // the last token
}

// NewClient returns a client. It does not connect yet. The error says what is wrong with
// the configuration.
func NewClient(cfg ClientConfig) (*Client, error) {
	base := strings.TrimSuffix(cmp.Or(cfg.URL, os.Getenv("LUCIUS_URL"), "http://127.0.0.1:8080"), "/")
	parsed, err := url.Parse(base)
	if err != nil {
		return nil, errors.New("lucius: the URL of the server cannot be read") // It may hold a password.
	}
	if parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
		return nil, fmt.Errorf("lucius: the URL of the server is %q, it must begin with http:// or https:// and a host", parsed.Redacted())
	}
	if cfg.Token != "" && cfg.TokenSource != nil {
		return nil, errors.New("lucius: Token cannot be used with TokenSource")
	}
	c := &Client{
		base: base, address: parsed.Redacted(), token: cfg.Token, source: cfg.TokenSource, http: cfg.HTTPClient,
		retryFor: cmp.Or(cfg.RetryFor, time.Minute),
	}
	if c.source == nil {
		c.token = cmp.Or(c.token, os.Getenv("LUCIUS_TOKEN"))
		if file := os.Getenv("LUCIUS_TOKEN_FILE"); c.token == "" && file != "" {
			c.source = tokenFile(file)
		}
		if strings.ContainsFunc(strings.TrimSpace(c.token), func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, errors.New("lucius: the token has characters that a header cannot hold")
		}
	}
	if c.http == nil {
		c.http = &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute,
			// Otherwise all calls would go on over a connection whose other end vanished.
			HTTP2: &http.HTTP2Config{SendPingTimeout: pingInterval, PingTimeout: callTimeout},
		}, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // A POST would become a GET.
		}}
	}
	return c, nil
}

// tokenFile returns a source that reads the file each time, so that the token can be replaced.
func tokenFile(path string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		text, err := os.ReadFile(path) //nolint:gosec // The operator names the file.
		if err == nil && len(bytes.TrimSpace(text)) == 0 {
			err = fmt.Errorf("%s is empty", path)
		}
		return string(text), err
	}
}

// pingInterval is how long a connection of HTTP/2 may be silent before it is tested.
const pingInterval = 15 * time.Second

// Close closes the connections that are not in use.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// callTimeout is how long one try of a call may take, in addition to its wait: a server
// that received the request and then crashed never answers.
const callTimeout = 10 * time.Second

// call is one call of the server, which may be repeated.
type call struct {
	method, path string
	// body is encoded as JSON. Optional.
	body any
	// header is sent as well. Optional.
	header http.Header
	// wait is how long the server may take to answer because the call asks it to wait.
	wait time.Duration
	// timeout replaces callTimeout. Optional.
	timeout time.Duration
	// answer receives the decoded body. Optional.
	answer any
}

// do makes the call, and repeats it for at most the client's time.
func (c *Client) do(ctx context.Context, what call) error {
	return c.repeat(ctx, func(ctx context.Context) error { return c.try(ctx, what) })
}

// repeat repeats the call for at most the client's time.
func (c *Client) repeat(ctx context.Context, try func(context.Context) error) error {
	begun := time.Now()
	again := func(_ int, wait time.Duration, _ error) bool { return time.Since(begun)+wait <= c.retryFor }
	return retry(ctx, longestWait, try, mayPass, again)
}

// The delays between the tries of one call: the first is so short that a restart of
// the server costs little, and the longest limits the calls during an outage.
const (
	firstDelay = 50 * time.Millisecond
	lastDelay  = 2 * time.Second
	// longestWait is the longest that a server or proxy can ask for.
	longestWait = time.Minute
)

// retry repeats the call until it succeeds or its error is not one that passes, for as
// long as again, which gets the number of the try, from 1, and its error, agrees to wait. It
// waits at most longest between two tries.
func retry(ctx context.Context, longest time.Duration, try func(context.Context) error,
	passes func(error) bool, again func(n int, wait time.Duration, err error) bool,
) error {
	delay := firstDelay
	for n := 1; ; n++ {
		err := try(ctx)
		if err == nil || ctx.Err() == nil && !passes(err) {
			return err
		}
		wait := delay/2 + rand.N(delay/2) //nolint:gosec // Jitter is not a secret.
		if refused, ok := errors.AsType[*Error](err); ok {
			wait = max(wait, refused.RetryAfter)
		}
		wait = min(wait, longest)
		if ctx.Err() == nil && !again(n, wait, err) {
			return err
		}
		if !pause(ctx, wait) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		delay = min(2*delay, lastDelay)
	}
}

// try makes one try of a call. The error is an [*Error] if the server answered.
func (c *Client) try(ctx context.Context, what call) error {
	ctx, cancel := context.WithTimeout(ctx, what.wait+cmp.Or(what.timeout, callTimeout))
	defer cancel()
	response, err := c.send(ctx, what)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // It was only read from.
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", what.method, what.path, err)
	}
	if response.StatusCode/100 != 2 {
		return errorOf(response.StatusCode, response.Header, text)
	}
	if what.answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, what.answer); err != nil {
		// A proxy answered in the server's place. That may pass.
		return fmt.Errorf("%s %s: decode the answer: %w", what.method, what.path, err)
	}
	return nil
}

// lastToken returns the last token that was sent, empty if there is none.
func (c *Client) lastToken() string {
	if token := c.sent.Load(); token != nil {
		return *token
	}
	return ""
}

// send sends the call. The caller closes the answer's body.
func (c *Client) send(ctx context.Context, what call) (*http.Response, error) {
	var body bytes.Buffer
	if what.body != nil {
		if err := json.NewEncoder(&body).Encode(what.body); err != nil {
			return nil, &Error{Problem: Problem{Detail: "the request cannot be encoded: " + err.Error()}}
		}
	}
	request, err := http.NewRequestWithContext(ctx, what.method, c.base+what.path, &body)
	if err != nil {
		return nil, err
	}
	maps.Copy(request.Header, what.header)
	request.Header.Set("User-Agent", "lucius-go")
	if what.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	token := c.token
	if c.source != nil {
		if token, err = c.source(ctx); err != nil {
			return nil, fmt.Errorf("get the token: %w", err)
		}
	}
	token = strings.TrimSpace(token)
	c.sent.Store(&token)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if parent := Traceparent(ctx); parent != "" {
		request.Header.Set("Traceparent", parent)
	}
	return c.http.Do(request)
}
