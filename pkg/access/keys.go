package access

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

// The delays after attempts that failed in a row.
const (
	firstDelay = time.Second
	lastDelay  = 30 * time.Second
)

// keySet is the keys of an issuer. It is immutable.
type keySet struct {
	byID    map[string][]jose.JSONWebKey
	fetched time.Time
}

// find returns the keys with that id that fit the algorithm.
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

// fits reports whether the key is one for the algorithm. A token names both, so
// without this it could have a key used in a way that was never meant.
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

// lookup is what was found when a key was looked for.
type lookup struct {
	found []jose.JSONWebKey
	// any says that there are keys in use.
	any bool
	// wait says that the keys are not to be used before that attempt has ended.
	wait bool
	// underway is closed when the attempt to get others ends, nil without one.
	underway <-chan struct{}
	// failed is why the last attempt failed, or nil.
	failed error
}

// errUnknownKey is returned for a token whose key the issuer does not have.
var errUnknownKey = errors.New("the issuer has no such key for this algorithm")

// errNotAsked is returned where there are no keys, nor a failure to get them.
var errNotAsked = errors.New("it is not asked again yet")

// key returns the keys with the id that fit the algorithm. It asks the issuer
// where the id is unknown, but no more often than it may: a flood of made-up ids
// costs one look at the issuer in each interval. It returns
// [ErrIssuerUnavailable] where there are no keys at all, and where the issuer may
// have a new one that it could not be asked for.
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

// look finds a key among those in use. With ask it begins an attempt to get
// others where the key is not among them, or where they are old. Nobody waits
// for the latter, so that an issuer that is slow slows only tokens with new keys;
// but where none was asked for since long, nobody knows whether one was withdrawn.
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

// begin begins an attempt to get the keys, where one is due, and returns what is
// closed when it, or the one that is under way, ends. The mutex is held.
func (i *Issuer) begin(now time.Time) <-chan struct{} {
	if i.underway == nil && !now.Before(i.next) {
		i.underway = make(chan struct{})
		go i.attempt(i.underway)
	}
	return i.underway
}

// attempt gets the keys and puts them into use. It outlives the request that it
// was begun for, since others wait for it as well.
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
