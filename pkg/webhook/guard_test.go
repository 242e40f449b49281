package webhook_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/webhook"
)

func TestCheckURL_Accepts(t *testing.T) {
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

func TestCheckURL_FollowsTheConfiguration(t *testing.T) {
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
			t.Errorf("HostOf(%q) = %q, want %q", raw, got, want)
		}
	}
}

// TestCheckAddr lists the first and last address of each refused network, and their
// neighbours.
func TestCheckAddr(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, refused, taken string }{
		{"this network", "0.0.0.0 0.255.255.255", "1.0.0.0"},
		{"private", "10.0.0.0 10.255.255.255", "9.255.255.255 11.0.0.0"},
		{"private", "172.16.0.0 172.31.255.255", "172.15.255.255 172.32.0.0"},
		{"private", "192.168.0.0 192.168.255.255", "192.167.255.255 192.169.0.0"},
		{"carrier-grade NAT", "100.64.0.0 100.100.100.200 100.127.255.255", "100.63.255.255 100.128.0.0"},
		{"loopback", "127.0.0.0 127.0.0.1 127.255.255.255", "126.255.255.255 128.0.0.0"},
		{"link-local", "169.254.0.0 169.254.169.254 169.254.255.255", "169.253.255.255 169.255.0.0"},
		{"Azure", "168.63.129.16", "168.63.129.15 168.63.129.17"},
		{"protocol assignments", "192.0.0.0 192.0.0.192 192.0.0.255", "191.255.255.255 192.0.1.0"},
		{"documentation", "192.0.2.1 198.51.100.1 203.0.113.255", "192.0.3.0 198.51.101.0 203.0.114.0"},
		{"6to4 relays", "192.88.99.1", "192.88.98.255 192.88.100.0"},
		{"benchmarks", "198.18.0.0 198.19.255.255", "198.17.255.255 198.20.0.0"},
		{"multicast", "224.0.0.0 239.255.255.255", "223.255.255.255"},
		{"reserved and broadcast", "240.0.0.0 255.255.255.255", ""},

		{"IPv6 unspecified and loopback", ":: ::1", ""},
		{"IPv4-compatible", "::7f00:1 ::808:808", ""},
		{"mapped", "::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254", "::ffff:8.8.8.8"},
		{"translated", "64:ff9b::808:808 64:ff9b::a00:1 64:ff9b:1::1", ""},
		{"discard", "100::1", ""},
		{"protocol assignments", "2001::1 2001:1ff:ffff::1", "2001:200::1"},
		{"documentation", "2001:db8::1 3fff::1", "2001:db9::1"},
		{"6to4", "2002:7f00:1::1 2002:808:808::1", "2003::1"},
		{"unique local", "fc00::1 fd00:ec2::254 fdff:ffff::1", ""},
		{"link-local", "fe80::1 fe80::1%eth0 febf::1", ""},
		{"site-local", "fec0::1", ""},
		{"multicast", "ff02::1", ""},
		{"outside of the allocated networks", "1fff::1 4000::1 5f00::1", "2606:4700::1111 3ffe::1"},
	}
	g := guard(t, webhook.GuardConfig{})
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for text := range strings.FieldsSeq(test.refused) {
				if err := g.CheckAddr(netip.MustParseAddr(text)); err == nil {
					t.Errorf("%s is taken", text)
				} else if strings.Contains(err.Error(), text) {
					t.Errorf("the error shows the address: %v", err)
				}
			}
			for text := range strings.FieldsSeq(test.taken) {
				if err := g.CheckAddr(netip.MustParseAddr(text)); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			}
		})
	}
	if err := g.CheckAddr(netip.Addr{}); err == nil {
		t.Error("the zero address is taken")
	}
}

func TestCheckAddr_AllowedPrefixes(t *testing.T) {
	t.Parallel()
	tests := []struct{ prefixes, taken, refused string }{
		{"10.1.0.0/16", "10.1.2.3 ::ffff:10.1.2.3 8.8.8.8", "10.2.0.1 127.0.0.1 ::1"},
		{"127.0.0.0/8 ::1/128", "127.0.0.1 ::1", "10.0.0.1 ::2"},
		{"169.254.169.254/32", "169.254.169.254", "169.254.169.253"},
		{"fe80::/10", "fe80::1 fe80::1%eth0", "fec0::1"},
		{"64:ff9b::/96", "64:ff9b::808:808", "64:ff9b::a00:1 64:ff9b::7f00:1"},
		{"64:ff9b::/96 10.0.0.0/8", "64:ff9b::a00:1", "64:ff9b::7f00:1"},
		{"10.0.0.0/8", "10.0.0.1", "64:ff9b::a00:1"},
		{"0.0.0.0/0", "10.0.0.1 127.0.0.1 255.255.255.255", "::1"},
	}
	for _, test := range tests {
		t.Run(test.prefixes, func(t *testing.T) {
			t.Parallel()
			var cfg webhook.GuardConfig
			for text := range strings.FieldsSeq(test.prefixes) {
				cfg.AllowedPrefixes = append(cfg.AllowedPrefixes, netip.MustParsePrefix(text))
			}
			g := guard(t, cfg)
			for text := range strings.FieldsSeq(test.taken) {
				if err := g.CheckAddr(netip.MustParseAddr(text)); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			}
			for text := range strings.FieldsSeq(test.refused) {
				if err := g.CheckAddr(netip.MustParseAddr(text)); err == nil {
					t.Errorf("%s is taken", text)
				}
			}
		})
	}
}

func TestNewGuard_NamesTheInvalidPrefix(t *testing.T) {
	t.Parallel()
	good := netip.MustParsePrefix("10.0.0.0/8")
	for name, bad := range map[string]netip.Prefix{
		"zero": {}, "mapped": netip.MustParsePrefix("::ffff:10.0.0.0/104"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := webhook.NewGuard(webhook.GuardConfig{AllowedPrefixes: []netip.Prefix{good, bad}})
			if err == nil || !strings.Contains(err.Error(), "AllowedPrefixes[1]") {
				t.Errorf("NewGuard: %v, want an error about AllowedPrefixes[1]", err)
			}
		})
	}
}
