package webhook_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/webhook"
)

func TestCheckURL_Takes(t *testing.T) {
	t.Parallel()
	g := guard(t, webhook.GuardConfig{})
	for _, raw := range []string{
		"https://example.com",
		"https://example.com/",
		"https://example.com:8443/hooks/lucius?a=b&c=%20d",
		"HTTPS://EXAMPLE.COM./x",
		"https://xn--bcher-kva.example/",
		"https://hook_1.example.com/ü",
		"https://8.8.8.8/",
		"https://[2606:4700::1111]:443/",
		"https://intranet/",
		"https://1and1.example/",
		"https://example.com:/",
		"https://example.com/" + strings.Repeat("x", webhook.MaxURL-len("https://example.com/")),
	} {
		if err := g.CheckURL(raw); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestCheckURL_Refuses(t *testing.T) {
	t.Parallel()
	const (
		absolute  = "must be an absolute https URL"
		address   = "leads to an address that is not allowed"
		name      = "must name a host by a DNS name in ASCII or by an IP address"
		usualForm = "must write an IP address in its usual form"
	)
	tests := []struct{ name, raw, want string }{
		{"empty", "", absolute},
		{"relative", "/hook", absolute},
		{"without scheme", "example.com/hook", absolute},
		{"protocol-relative", "//example.com/hook", absolute},
		{"http", "http://example.com/", absolute},
		{"another scheme", "ftp://example.com/", absolute},
		{"file", "file:///etc/passwd", absolute},
		{"opaque", "https:example.com", absolute},
		{"no host", "https:///hook", absolute},
		{"a port alone", "https://:443/", absolute},
		{"line break", "https://example.com/\r\nHost: x", absolute},
		{"space in the host", "https://exa mple.com/", absolute},
		{"port is no number", "https://example.com:https/", absolute},
		{"port 0", "https://example.com:0/", "has the port 0, which does not exist"},
		{"port too large", "https://example.com:65536/", "has the port 65536, which does not exist"},
		{"user", "https://user@example.com/", "must not carry a user name or password"},
		{"user and password", "https://user:secret@example.com/", "must not carry a user name or password"},
		{"host in the user's place", "https://example.com@127.0.0.1/", "must not carry a user name or password"},
		{"fragment", "https://example.com/#x", "must not have a fragment"},
		{"empty fragment", "https://example.com/#", "must not have a fragment"},
		{"too long", "https://example.com/" + strings.Repeat("x", webhook.MaxURL), "is 2068 bytes long; at most 2048 are allowed"},

		{"loopback", "https://127.0.0.1/", address},
		{"loopback, escaped", "https://%31%32%37.0.0.1/", absolute},
		{"metadata", "https://169.254.169.254/latest/meta-data/", address},
		{"private", "https://10.0.0.1:8443/", address},
		{"IPv6 loopback", "https://[::1]/", address},
		{"mapped", "https://[::ffff:127.0.0.1]/", address},
		{"mapped, in hexadecimal", "https://[::ffff:7f00:1]/", address},
		{"with a zone", "https://[fe80::1%25eth0]/", address},
		{"localhost", "https://localhost/", address},
		{"localhost, otherwise", "https://LocalHost.:8443/", address},
		{"below localhost", "https://x.localhost/", address},

		{"one number", "https://2130706433/", usualForm},
		{"hexadecimal", "https://0x7f000001/", usualForm},
		{"short", "https://127.1/", usualForm},
		{"octal", "https://0177.0.0.1/", usualForm},
		{"octal with nines", "https://1.2.3.09/", usualForm},
		{"hexadecimal at the end", "https://1.2.3.0x4/", usualForm},
		{"hexadecimal zero", "https://1.2.3.0x/", usualForm},
		{"address with a dot", "https://127.0.0.1./", usualForm},

		{"not ASCII", "https://bücher.example/", name},
		{"full-width digits", "https://１２７.0.0.1/", name},
		{"empty label", "https://example..com/", name},
		{"dot alone", "https://./", name},
		{"two dots at the end", "https://example.com../", name},
		{"wildcard", "https://*.example.com/", name},
		{"long label", "https://" + strings.Repeat("x", 64) + ".com/", name},
		{"long name", "https://" + strings.Repeat("x.", 127) + "com/", "must name a host of at most 253 characters"},
	}
	g := guard(t, webhook.GuardConfig{})
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := g.CheckURL(test.raw)
			refused, ok := errors.AsType[*webhook.RefusedError](err)
			if !ok || refused.Message != test.want {
				t.Errorf("CheckURL(%q) = %v, want %q", test.raw, err, test.want)
			}
		})
	}
}

func TestCheckURL_WhatIsConfigured(t *testing.T) {
	t.Parallel()
	g := guard(t, webhook.GuardConfig{
		AllowHTTP:       true,
		AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")},
	})
	for _, raw := range []string{"http://example.com/", "https://example.com", "http://127.0.0.1:8080/", "http://localhost/", "http://10.1.2.3/"} {
		if err := g.CheckURL(raw); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for raw, want := range map[string]string{
		"http://10.2.0.1/":     "callback URL leads to an address that is not allowed",
		"ftp://example.com/":   "callback URL must be an absolute http or https URL",
		"http://[::1]/":        "callback URL leads to an address that is not allowed",
		"http://a:b@localhost": "callback URL must not carry a user name or password",
	} {
		if err := g.CheckURL(raw); err == nil || err.Error() != want {
			t.Errorf("CheckURL(%q) = %v, want %q", raw, err, want)
		}
	}
}

func TestHostOf(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://Example.com/x":     "example.com:443",
		"https://example.com:443/y": "example.com:443",
		"https://example.com.":      "example.com:443",
		"http://example.com":        "example.com:80",
		"https://example.com:8443":  "example.com:8443",
		"https://[::1]/":            "[::1]:443",
		"nothing":                   "",
		"https://%zz/":              "",
	} {
		if got := webhook.HostOf(raw); got != want {
			t.Errorf("hostOf(%q) = %q, want %q", raw, got, want)
		}
	}
}
