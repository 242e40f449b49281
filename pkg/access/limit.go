package access

import (
	"container/list"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/lucius-project/lucius/pkg/problem"
)

// DefaultLimitKeys is how many keys a [Limiter] remembers.
const DefaultLimitKeys = 10_000

// LimitConfig is what a [Limiter] is made of.
type LimitConfig struct {
	// Rate is how many requests a second each key may make in the long run.
	// Required.
	Rate float64
	// Burst is how many requests a key may make at once. Optional. Defaults to one
	// second's worth, at least one.
	Burst int
	// Keys is how many keys are remembered. Optional. Defaults to
	// [DefaultLimitKeys].
	Keys int
}

// Validate reports the first field that makes no sense, by name.
func (c LimitConfig) Validate() error {
	if !(c.Rate > 0 && c.Rate <= 1e9) {
		return errors.New("access: Rate must be more than 0, and at most 1e9")
	}
	if c.Burst < 0 || c.Keys < 0 {
		return errors.New("access: Burst and Keys must not be negative")
	}
	return nil
}

// Limiter limits the rate of requests by key: a caller's name, or a tenant. It is
// safe for concurrent use. Limits are per process.
//
// It forgets the key that was used least recently when there are too many. Such
// a key starts with a full burst, so Keys should be more than the keys that are
// in use in the time in which a burst refills.
type Limiter struct {
	cfg LimitConfig

	mu     sync.Mutex
	byKey  map[string]*list.Element
	recent *list.List // of *keyed, the most recent first
}

// keyed is the limiter of one key.
type keyed struct {
	key     string
	limiter *rate.Limiter
	last    time.Time // The latest time of a request.
}

// NewLimiter returns a limiter. The error names the field that makes no sense.
func NewLimiter(cfg LimitConfig) (*Limiter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Burst == 0 {
		cfg.Burst = max(1, int(cfg.Rate))
	}
	if cfg.Keys == 0 {
		cfg.Keys = DefaultLimitKeys
	}
	return &Limiter{cfg: cfg, byKey: map[string]*list.Element{}, recent: list.New()}, nil
}

// Take counts one request of the key at that time, and returns 0 where it may go
// on, or else after which time it may be sent again; it is not counted then. A
// nil limiter limits nothing.
func (l *Limiter) Take(key string, now time.Time) (retryAfter time.Duration) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// One at a time, and in the order of their times: else what is given back of a
	// refused one is not what it took, and time that goes back counts twice.
	k := l.of(key)
	if now.Before(k.last) {
		now = k.last
	}
	k.last = now
	reservation := k.limiter.ReserveN(now, 1)
	retryAfter = reservation.DelayFrom(now)
	if retryAfter > 0 {
		reservation.CancelAt(now)
	}
	return retryAfter
}

// Check is Take with a problem of code rate_limited where the request may not go
// on. What says whose limit it is, such as "tenant".
func (l *Limiter) Check(what, key string, now time.Time) error {
	retryAfter := l.Take(key, now)
	if retryAfter == 0 {
		return nil
	}
	return &problem.Error{
		Code: problem.RateLimited, Detail: "The " + what + " sends too many requests.", RetryAfter: retryAfter,
	}
}

// of returns the limiter of the key, which is now the most recent. The mutex is
// held.
func (l *Limiter) of(key string) *keyed {
	if element, ok := l.byKey[key]; ok {
		l.recent.MoveToFront(element)
		return element.Value.(*keyed)
	}
	if l.recent.Len() >= l.cfg.Keys {
		oldest := l.recent.Back()
		delete(l.byKey, l.recent.Remove(oldest).(*keyed).key)
	}
	made := &keyed{key: key, limiter: rate.NewLimiter(rate.Limit(l.cfg.Rate), l.cfg.Burst)}
	l.byKey[key] = l.recent.PushFront(made)
	return made
}
