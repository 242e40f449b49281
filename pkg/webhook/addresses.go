package webhook

import "net/netip"

// reserved are the networks that no webhook may go to unless configured: those of
// IANA's special-purpose registries that are not ordinary parts of the internet,
// multicast, and services of clouds at public addresses. All of IPv6 outside of
// globalIPv6 is refused as well.
var reserved = prefixes(
	"0.0.0.0/8",        // this network; 0.0.0.0 reaches the own host
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // carrier-grade NAT; metadata in one cloud
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // Azure's own service to its machines
	"169.254.0.0/16",   // link-local; metadata in most clouds
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocol assignments; metadata in one cloud
	"192.0.2.0/24",     // documentation
	"192.88.99.0/24",   // 6to4 relays
	"192.168.0.0/16",   // private
	"198.18.0.0/15",    // benchmarks
	"198.51.100.0/24",  // documentation
	"203.0.113.0/24",   // documentation
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, and broadcast
	"2001::/23",        // protocol assignments: Teredo and others that lead elsewhere
	"2001:db8::/32",    // documentation
	"2002::/16",        // 6to4: any IPv4 address in disguise
	"3fff::/20",        // documentation
)

// globalIPv6 is all of IPv6 that is allocated to the internet. The rest
// is unspecified, loopback, mapped, unique local, link-local or multicast.
var globalIPv6 = netip.MustParsePrefix("2000::/3")

// nat64 are the addresses through which a translator reaches IPv4.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

func containedIn(list []netip.Prefix, addr netip.Addr) bool {
	for _, prefix := range list {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// public reports whether the address is an ordinary part of the internet.
func public(addr netip.Addr) bool {
	return (addr.Is4() || globalIPv6.Contains(addr)) && !containedIn(reserved, addr)
}

// behindNAT64 returns the IPv4 address that a translated one leads to.
func behindNAT64(addr netip.Addr) (netip.Addr, bool) {
	if !nat64.Contains(addr) {
		return netip.Addr{}, false
	}
	bytes := addr.As16()
	return netip.AddrFrom4([4]byte(bytes[12:])), true
}
