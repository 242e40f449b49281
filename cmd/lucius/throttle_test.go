//go:build integration && !race

package main

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
)

// frontDoor is a storage account with a proxy in front of it that can throttle or deny
// access, and that can answer with a wrong clock.
type frontDoor struct {
	account    *azurite.Server
	address    string
	connection string
	throttles  atomic.Bool
	denies     atomic.Value // the suffix of the paths to which it denies access, if it does
	refused    atomic.Int64
	clock      atomic.Int64 // how far its clock is ahead, in nanoseconds
}

func newFrontDoor(t *testing.T) *frontDoor {
	t.Helper()
	account, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(account.Stop)
	d := &frontDoor{account: account}
	target := &url.URL{Scheme: "http", Host: account.Addr()}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
		ModifyResponse: func(r *http.Response) error {
			at := time.Now().Add(time.Duration(d.clock.Load()))
			r.Header.Set("Date", at.UTC().Format(http.TimeFormat))
			return nil
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		suffix, denies := d.denies.Load().(string)
		switch {
		case d.throttles.Load():
			d.refused.Add(1)
			w.Header().Set("X-Ms-Error-Code", "ServerBusy")
			w.WriteHeader(http.StatusServiceUnavailable)
		case denies && strings.HasSuffix(r.URL.Path, suffix):
			w.Header().Set("X-Ms-Error-Code", "AuthorizationPermissionMismatch")
			w.WriteHeader(http.StatusForbidden)
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	d.address = server.Listener.Addr().String()
	d.connection = strings.ReplaceAll(account.ConnectionString(), account.Addr(), d.address)
	return d
}

// TestServe_BearsAnAccountThatThrottles has clients and background work use an account that
// answers only 503. The account gets fewer requests than there are commands, the log a few
// lines, and the metrics show the outage. Afterwards work continues.
func TestServe_BearsAnAccountThatThrottles(t *testing.T) {
	t.Parallel()
	d, s := newFrontDoor(t), newSite(t)
	p := s.start(append(longTimeouts, "--storage-backend", config.BackendLedger, "--table-connection", d.connection, "--log-level", "warn")...)
	l := &load{t: t, site: s, accepted: map[string]string{}}
	for _, key := range []string{"a", "b", "c"} {
		l.mustSubmit("tenant_a", key)
	}
	d.throttles.Store(true)
	const commands, outage = 400, 12 * time.Second // The outage is longer than a circuit stays open.
	var clients sync.WaitGroup
	var asked atomic.Int64
	began := time.Now()
	for range 16 {
		clients.Go(func() {
			for asked.Add(1) <= commands || time.Since(began) < outage {
				l.submit(t.Context(), "tenant_a", "refused")
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	clients.Wait()
	lasted := time.Since(began)
	t.Logf("in %s, %d commands and the background work sent %d requests to a throttling account", lasted, asked.Load(), d.refused.Load())
	// Each command alone would send several. The first ones come in parallel, and then a few probes in ten seconds.
	if n := d.refused.Load(); n >= asked.Load() {
		t.Errorf("%d commands and the background work sent %d requests to a throttling account", asked.Load(), n)
	}
	metrics := func() string { return scrapeURL(t, "http://"+s.address.Load().(string)) }
	text := metrics()
	for _, want := range []string{
		`lucius_store_requests_total{operation="commit",outcome="throttled"}`, `lucius_store_requests_total{operation="scan",outcome="held"}`,
		`lucius_store_request_seconds_count{operation="get"}`, "lucius_store_outage_seconds ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
	const over = "lucius_store_outage_seconds 0\n"
	if strings.Contains(text, over) {
		t.Error("the metrics have no outage")
	}
	d.throttles.Store(false)
	waittest.Until(t, "the server notices that the account is back", func() bool { return strings.Contains(metrics(), over) })
	l.finish()
	p.terminate()
	all := time.Since(began) // The end of the outage may be noticed late.
	if lines := strings.Count(p.said.String(), "\n"); lines > 60+int(all.Seconds()) || !strings.Contains(p.said.String(), "storage account is out of service") ||
		!strings.Contains(p.said.String(), "lines about an unavailable store left out") {
		t.Errorf("%d lines of the log: %.4000s", lines, p.said.String())
	}
}

// TestServe_IsNotReadyWhileTheAccountDeniesAccess takes rights away from a server: it is not
// ready, clients are told that an operator has to act, and the log says what the account
// answers. Once it has them again it continues by itself, and no job has failed.
func TestServe_IsNotReadyWhileTheAccountDeniesAccess(t *testing.T) {
	t.Parallel()
	d, s := newFrontDoor(t), newSite(t)
	p := s.start("--storage-backend", config.BackendLedger, "--table-connection", d.connection, "--log-level", "warn")
	l := &load{t: t, site: s, accepted: map[string]string{}}
	l.mustSubmit("tenant_a", "a")
	const nothing = "?"                              // No path ends with it.
	for _, suffix := range []string{"/$batch", ""} { // writes, and all requests
		d.denies.Store(suffix)
		submitted, err := s.client.SubmitCommandWithResponse(t.Context(), nil, commandOf("tenant_a", "refused"))
		if err != nil || submitted.StatusCode() != http.StatusServiceUnavailable ||
			!strings.Contains(string(submitted.Body), "The store denies the server access until an operator acts.") {
			t.Errorf("access to %q denied, a command: %v, %s", suffix, err, bodyOf(submitted))
		}
		s.expectUnready()
		ready, err := s.client.GetReadinessWithResponse(t.Context())
		if err != nil || !strings.Contains(string(ready.Body), "it denies the server access until an operator acts; the log says why.") {
			t.Errorf("access to %q denied, readyz: %v, %s", suffix, err, bodyOf(ready))
		}
		d.denies.Store(nothing)
		s.expectReady()
	}
	l.finish()
	p.terminate()
	expectSays(t, "the log", p.said.String(), "the store denies the server access: HTTP 403 AuthorizationPermissionMismatch")
}
