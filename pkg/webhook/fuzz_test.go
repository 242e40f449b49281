package webhook_test

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/webhook"
)

// parseRetryAfter rejects any header or returns a duration that is not negative, and always
// the same one.
func FuzzRetryAfter(f *testing.F) {
	for _, value := range []string{"120", "0", " 1 ", "99999999999999999999", "Sun, 01 Mar 2026 12:00:30 GMT", "-1", "soon"} {
		f.Add(value, int64(1772366400))
	}
	f.Fuzz(func(t *testing.T, value string, seconds int64) {
		now := time.Unix(seconds, 0)
		after, ok := webhook.ParseRetryAfter(value, now)
		if after < 0 || !ok && after != 0 {
			t.Errorf("parseRetryAfter(%q) = %s, %t", value, after, ok)
		}
		if again, still := webhook.ParseRetryAfter(value, now); again != after || still != ok {
			t.Errorf("parseRetryAfter(%q) = %s, then %s", value, after, again)
		}
	})
}

// CheckURL refuses any URL with a message that is safe to show, or a request can be made to
// it, without hidden parts, and to a name or an allowed address.
func FuzzCheckURL(f *testing.F) {
	for _, raw := range []string{
		"https://example.com/x?a=b", "https://[::ffff:7f00:1]:443/", "https://0x7f.1/", "https://a@b/", "https://%31.0.0.1",
		"https://localhost.", "https://[fe80::1%25eth0]/", "https://１２７.0.0.1/", "http://example.com", "https:///", "https://x/#",
	} {
		f.Add(raw)
	}
	g := guard(f, webhook.GuardConfig{})
	f.Fuzz(func(t *testing.T, raw string) {
		if err := g.CheckURL(raw); err != nil {
			if refused, ok := errors.AsType[*webhook.RefusedError](err); !ok || refused.Message == "" {
				t.Errorf("CheckURL(%q) = %v, which is not to be shown", raw, err)
			}
			return
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, raw, http.NoBody)
		if err != nil {
			t.Fatalf("%q is taken, but no request can be made: %v", raw, err)
		}
		checkTaken(t, g, request.URL)
		if webhook.HostOf(raw) == "" {
			t.Errorf("%q has no host", raw)
		}
	})
}

func checkTaken(t *testing.T, g *webhook.Guard, target *url.URL) {
	t.Helper()
	host := target.Hostname()
	if target.Scheme != "https" || target.User != nil || target.Fragment != "" || host == "" {
		t.Errorf("%s is taken", target)
	}
	if strings.TrimRight(strings.ToLower(host), ".") == "localhost" {
		t.Errorf("%s leads to this machine", target)
	}
	if addr, err := netip.ParseAddr(host); err == nil && g.CheckAddr(addr) != nil {
		t.Errorf("%s is an address that is not allowed", target)
	}
	for _, c := range host {
		if c <= ' ' || c > '~' || strings.ContainsRune(`/\@?#%"<>`, c) {
			t.Errorf("the host %q has %q", host, c)
		}
	}
}
