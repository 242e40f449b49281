package commands

import (
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Protocols is one consistent set of protocols.
type Protocols struct {
	// Services are the services that the protocols name, each with its step types, sorted. They are
	// read only.
	Services map[string][]string
	// LoadedAt is when the protocols were loaded.
	LoadedAt time.Time

	protocols     []*Protocol
	byRequestType map[string]*Protocol
	digest        string
}

// Lookup returns the protocol that claims the request type, or false.
//
// Source: Option B spec, 5.2, Protocol resolution from request_type.
func (r *Protocols) Lookup(requestType string) (*Protocol, bool) {
	found, ok := r.byRequestType[requestType]
	return found, ok
}

// Protocols returns all protocols, ordered by id. The caller owns the slice, not
// the protocols.
func (r *Protocols) Protocols() []*Protocol {
	protocols := slices.Clone(r.protocols)
	slices.SortFunc(protocols, func(a, b *Protocol) int { return strings.Compare(a.ID, b.ID) })
	return protocols
}

// Digest returns the SHA-256, in hexadecimal, of the names and contents of all
// files: two processes with the same digest accept the same commands.
func (r *Protocols) Digest() string { return r.digest }

// since returns the ids of the protocols that are new or differ from the
// registry before, and of those that are gone, ordered.
func (r *Protocols) since(before *Protocols) (changed, removed []string) {
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

// ProtocolHolder holds the registry that is in use. It is safe for concurrent use. Load the
// registry once for each command, so that all of the command is checked against the same
// protocols.
type ProtocolHolder struct{ atomic.Pointer[Protocols] }

// NewProtocolHolder returns a holder of the registry.
func NewProtocolHolder(registry *Protocols) *ProtocolHolder {
	h := new(ProtocolHolder)
	h.Store(registry)
	return h
}

// ProtocolFolder is a folder of protocol files, whose registry the holder puts into use. A watcher
// reloads it: all files as one set, or none.
type ProtocolFolder struct {
	Dir    string
	Holder *ProtocolHolder
}

// InUse returns the digest of the registry in use.
func (f ProtocolFolder) InUse() string { return f.Holder.Load().Digest() }

// Look reads the folder. It returns a digest of the files, and a function that puts
// exactly these into use, or returns the error of [LoadProtocols] and changes nothing.
func (f ProtocolFolder) Look() (string, func() ([]any, error)) {
	files := readProtocol(os.DirFS(f.Dir), f.Dir)
	return files.digest(), func() ([]any, error) {
		registry, err := files.registry()
		if err != nil {
			return nil, err
		}
		changed, removed := registry.since(f.Holder.Swap(registry))
		return []any{"dir", f.Dir, "changed", changed, "removed", removed}, nil
	}
}
