package protocol

import (
	"sync/atomic"
	"time"
)

// Holder holds the registry that is in use. It is safe for concurrent use.
type Holder struct{ current atomic.Pointer[held] }

// held is a registry and when it was put into use.
type held struct {
	registry *Registry
	since    time.Time
}

// NewHolder returns a holder of the registry.
func NewHolder(registry *Registry) *Holder {
	h := new(Holder)
	h.current.Store(&held{registry, time.Now()})
	return h
}

// Current returns the registry in use. Take it once for each command, so that
// all of the command is checked against the same protocols.
func (h *Holder) Current() *Registry { return h.current.Load().registry }

// LoadedAt returns when the registry in use was put into use.
func (h *Holder) LoadedAt() time.Time { return h.current.Load().since }

// Replace puts another registry into use and returns the one before.
func (h *Holder) Replace(registry *Registry) *Registry {
	return h.current.Swap(&held{registry, time.Now()}).registry
}

// List describes the protocols in use, ordered by id, with the time at which
// they were put into use. The caller owns the result.
func (h *Holder) List() []Description {
	now := h.current.Load()
	list := now.registry.List()
	for i := range list {
		list[i].LoadedAt = now.since.UTC()
	}
	return list
}
