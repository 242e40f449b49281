package auth

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// The delays after failed fetches in a row.
const (
	firstDelay = time.Second
	lastDelay  = 30 * time.Second
)

// keySet holds the keys of an issuer. It is immutable.
type keySet struct {
	byID    map[string][]jose.JSONWebKey
	fetched time.Time
}

// find returns the keys with the id that fit the algorithm.
func (s *keySet) find(id string, algorithm jose.SignatureAlgorithm) []jose.JSONWebKey {
	if s == nil {
		return nil
	}
	var found []jose.JSONWebKey
	for _, key := range s.byID[id] {
		if fits(key, algorithm) {
			found = append(found, key)
		}
	}
	return found
}

// fits reports whether the key is for the algorithm. A token names both, so without
// this check it could make the server use a key with the wrong algorithm.
func fits(key jose.JSONWebKey, algorithm jose.SignatureAlgorithm) bool {
	if key.Algorithm != "" && key.Algorithm != string(algorithm) {
		return false
	}
	switch key.Key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(string(algorithm), "RS") || strings.HasPrefix(string(algorithm), "PS")
	case *ecdsa.PublicKey:
		return strings.HasPrefix(string(algorithm), "ES")
	case ed25519.PublicKey:
		return algorithm == jose.EdDSA
	default:
		return false
	}
}

// lookup is the result of looking up a key.
type lookup struct {
	found []jose.JSONWebKey
	// any says that there are keys in use.
	any bool
	// wait says that the keys must not be used before the fetch has ended.
	wait bool
	// underway is closed when the fetch of new keys ends, nil without one.
	underway <-chan struct{}
	// failed is the error of the last fetch, or nil.
	failed error
}

// errUnknownKey is returned for a token whose key the issuer does not have.
var errUnknownKey = errors.New("the issuer has no such key for this algorithm")

// errNotAsked is returned if there are no keys and no failed fetch to report.
var errNotAsked = errors.New("the next fetch is not due yet")

// key returns the keys with the id that fit the algorithm. It fetches the keys again
// if the id is unknown, but a flood of made-up ids costs only one fetch in each
// interval. It returns [ErrIssuerUnavailable] if there are no keys at all, or if the
// issuer may have a new one that could not be fetched.
func (i *Issuer) key(ctx context.Context, id string, algorithm jose.SignatureAlgorithm) ([]jose.JSONWebKey, error) {
	now := i.look(id, algorithm, true)
	if now.wait && now.underway != nil {
		select {
		case <-now.underway:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, ctx.Err())
		}
		now = i.look(id, algorithm, false)
	}
	switch {
	case len(now.found) > 0:
		return now.found, nil
	case now.any && now.failed == nil:
		return nil, fmt.Errorf("key %.64q: %w", id, errUnknownKey)
	default:
		return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, cmp.Or(now.failed, errNotAsked))
	}
}

// look finds a key among those in use. With ask it begins a fetch if the key is not
// among them or they are old. Callers do not wait for the refresh of old keys, so
// that a slow issuer slows only tokens with new keys, unless the keys are so old that
// one may have been withdrawn.
func (i *Issuer) look(id string, algorithm jose.SignatureAlgorithm, ask bool) lookup {
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	keys := i.keys
	if keys != nil && now.Sub(keys.fetched) > maxKeyAge {
		keys = nil
	}
	found := lookup{found: keys.find(id, algorithm), any: keys != nil}
	if ask && (len(found.found) == 0 || now.Sub(keys.fetched) >= i.cfg.Refresh) {
		found.wait = len(found.found) == 0 || now.Sub(i.next) >= i.cfg.Refresh
		found.underway = i.begin(now)
	}
	found.failed = i.failed
	return found
}

// begin begins a fetch of the keys if one is due. It returns a channel that is closed
// when the fetch under way ends. The mutex is held.
func (i *Issuer) begin(now time.Time) <-chan struct{} {
	if i.underway == nil && !now.Before(i.next) {
		i.underway = make(chan struct{})
		go i.attempt(i.underway)
	}
	return i.underway
}

// attempt fetches the keys and puts them into use. It outlives the request that began
// it, because other requests wait for it as well.
func (i *Issuer) attempt(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	keys, err := i.fetch(ctx)
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.underway, i.failed = nil, err
	if err == nil {
		keys.fetched = now
		i.keys, i.failures, i.next = keys, 0, now.Add(i.cfg.Refetch)
	} else {
		i.failures++
		i.next = now.Add(min(firstDelay<<min(i.failures-1, 8), lastDelay))
	}
	close(done)
}
