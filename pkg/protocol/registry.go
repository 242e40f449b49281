package protocol

import (
	"maps"
	"slices"
	"strings"
)

// Registry is one consistent set of protocols.
type Registry struct {
	protocols     []*Protocol
	byRequestType map[string]*Protocol
	digest        string
}

// Lookup returns the protocol that claims the request type, or false.
//
// Source: Option B spec, 5.2, Protocol resolution from request_type.
func (r *Registry) Lookup(requestType string) (*Protocol, bool) {
	found, ok := r.byRequestType[requestType]
	return found, ok
}

// Protocols returns all protocols, ordered by id. The caller owns the slice, not
// the protocols.
func (r *Registry) Protocols() []*Protocol {
	protocols := slices.Clone(r.protocols)
	slices.SortFunc(protocols, func(a, b *Protocol) int { return strings.Compare(a.ID, b.ID) })
	return protocols
}

// Digest returns the SHA-256, in hexadecimal, of the names and contents of all
// files: two processes with the same digest accept the same commands.
func (r *Registry) Digest() string { return r.digest }

// since returns the ids of the protocols that are new or differ from the
// registry before, and of those that are gone, ordered.
func (r *Registry) since(before *Registry) (changed, removed []string) {
	old := map[string]string{}
	for _, p := range before.protocols {
		old[p.ID] = p.Digest
	}
	for _, p := range r.Protocols() {
		if digest, known := old[p.ID]; !known || digest != p.Digest {
			changed = append(changed, p.ID)
		}
		delete(old, p.ID)
	}
	return changed, slices.Sorted(maps.Keys(old))
}
