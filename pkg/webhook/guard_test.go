package webhook_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/webhook"
)

// TestCheckAddr lists the first and last address of what is refused, and their
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
		{"outside of what is given out", "1fff::1 4000::1 5f00::1", "2606:4700::1111 3ffe::1"},
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

func TestNewGuard_NamesTheBadPrefix(t *testing.T) {
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
