package auth

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// maxLimited is how many keys a [Limiter] remembers. It should exceed the number of
// keys in use within the time that a burst takes to refill.
const maxLimited = 10_000

// LimitConfig configures a [Limiter].
type LimitConfig struct {
	// Rate is how many requests a second each key may make in the long run; 0 means no limit.
	Rate float64
	// Burst is how many requests a key may make in a burst. Optional. Defaults to one
	// second's worth, at least one.
	Burst int
}

// Limiter limits the rate of requests by key: a caller's name, or a tenant. It is
// safe for concurrent use. Limits are per process. When there are more than 10,000
// keys it forgets the least recently used one, which then starts again with a full
// burst.
type Limiter struct {
	cfg LimitConfig

	mu     sync.Mutex // Guards recent, and the order of each key's times.
	recent *simplelru.LRU[string, *limited]
}

// limited is the limiter of one key.
type limited struct {
	limiter *rate.Limiter
	last    time.Time // The latest time of a request.
}

// NewLimiter returns a limiter, nil if there is no limit.
func NewLimiter(cfg LimitConfig) *Limiter {
	if cfg.Rate == 0 {
		return nil
	}
	if cfg.Burst == 0 {
		cfg.Burst = max(1, int(cfg.Rate))
	}
	recent, _ := simplelru.NewLRU[string, *limited](maxLimited, nil) // It fails only for a size below 1.
	return &Limiter{cfg: cfg, recent: recent}
}

// Check counts one request of the key at that time, and returns nil if it is allowed.
// Otherwise it does not count the request, and returns a problem of code rate_limited
// that says after how long it may be sent again. what names the kind of key, such as
// "tenant". A nil limiter limits nothing.
func (l *Limiter) Check(what, key string, now time.Time) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k, known := l.recent.Get(key)
	if !known {
		k = &limited{limiter: rate.NewLimiter(rate.Limit(l.cfg.Rate), l.cfg.Burst)}
		l.recent.Add(key, k)
	}
	// One at a time, in the order of their times: otherwise a refused request would
	// give back more or less than it took, and time that goes back would count twice.
	if now.Before(k.last) {
		now = k.last
	}
	k.last = now
	reservation := k.limiter.ReserveN(now, 1)
	retryAfter := reservation.DelayFrom(now)
	if retryAfter == 0 {
		return nil
	}
	reservation.CancelAt(now)
	return &apierror.Error{
		Code: apierror.RateLimited, Detail: "The " + what + " sends too many requests.", RetryAfter: retryAfter,
	}
}
