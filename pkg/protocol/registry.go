package protocol

import (
	"slices"
	"strings"
	"sync/atomic"
)

// Registry is one consistent set of protocols.
type Registry struct {
	protocols     []*Protocol
	byRequestType map[string]*Protocol
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

// Holder holds the registry that is in use. It is safe for concurrent use.
type Holder struct{ current atomic.Pointer[Registry] }

// NewHolder returns a holder of the registry.
func NewHolder(registry *Registry) *Holder {
	h := new(Holder)
	h.current.Store(registry)
	return h
}

// Current returns the registry in use. Take it once for each command, so that
// all of the command is checked against the same protocols.
func (h *Holder) Current() *Registry { return h.current.Load() }

// Replace puts another registry into use and returns the one before.
func (h *Holder) Replace(registry *Registry) *Registry { return h.current.Swap(registry) }
