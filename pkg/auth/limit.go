package auth

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

// LimitConfig configures a [Limiter].
type LimitConfig struct {
	// Rate is how many requests a second each key may make in the long run.
	// Required.
	Rate float64
	// Burst is how many requests a key may make in a burst. Optional. Defaults to one
	// second's worth, at least one.
	Burst int
	// Keys is how many keys are remembered. Optional. Defaults to
	// [DefaultLimitKeys].
	Keys int
}

// Validate names the first invalid field.
func (c LimitConfig) Validate() error {
	if !(c.Rate > 0 && c.Rate <= 1e9) {
		return errors.New("auth: Rate must be more than 0, and at most 1e9")
	}
	if c.Burst < 0 || c.Keys < 0 {
		return errors.New("auth: Burst and Keys must not be negative")
	}
	return nil
}

// Limiter limits the rate of requests by key: a caller's name, or a tenant. It is
// safe for concurrent use. Limits are per process.
//
// When there are too many keys it forgets the least recently used one, which then
// starts again with a full burst. So Keys should exceed the number of keys in use
// within the time that a burst takes to refill.
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

// NewLimiter returns a limiter. The error names the invalid field.
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

// Take counts one request of the key at that time and returns 0 if it is allowed.
// Otherwise it does not count the request, and returns after how long it may be sent
// again. A nil limiter limits nothing.
func (l *Limiter) Take(key string, now time.Time) (retryAfter time.Duration) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// One at a time, in the order of their times: otherwise a refused request would
	// give back more or less than it took, and time that goes back would count twice.
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

// Check is Take that returns a problem of code rate_limited for a refused request.
// what names the kind of key, such as "tenant".
func (l *Limiter) Check(what, key string, now time.Time) error {
	retryAfter := l.Take(key, now)
	if retryAfter == 0 {
		return nil
	}
	return &problem.Error{
		Code: problem.RateLimited, Detail: "The " + what + " sends too many requests.", RetryAfter: retryAfter,
	}
}

// of returns the limiter of the key and makes it the most recent. The mutex is held.
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
