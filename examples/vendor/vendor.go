package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// vendor is a service over HTTP with a quota. It takes a call if it has taken fewer than quota in
// the window that ends now, and else answers 429 and says when it takes the next. It is safe for
// concurrent use.
type vendor struct {
	quota  int
	window time.Duration
	call   time.Duration // how long a call takes

	mu      sync.Mutex
	taken   []time.Time // ascending
	refused int
}

// ServeHTTP answers a call.
func (v *vendor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if after := v.take(time.Now()); after > 0 {
		seconds := int((after + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
		http.Error(w, "the quota is used", http.StatusTooManyRequests)
		return
	}
	select {
	case <-time.After(v.call):
	case <-r.Context().Done():
	}
}

// take counts a call, or returns how long it takes until there is room for one.
func (v *vendor) take(now time.Time) (after time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if oldest := len(v.taken) - v.quota; oldest >= 0 {
		if after = v.taken[oldest].Add(v.window).Sub(now); after > 0 {
			v.refused++
			return after
		}
	}
	v.taken = append(v.taken, now)
	return 0
}

// count returns how many calls were refused, and the times of those that were not.
func (v *vendor) count() (refused int, taken []time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.refused, slices.Clone(v.taken)
}

// serve serves the vendor on a free port of the loopback until stop is called.
func (v *vendor) serve(ctx context.Context) (url string, stop func(), err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: v, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // A listener on the loopback does not fail.
		}
	}()
	return "http://" + listener.Addr().String(), func() {
		_ = server.Close() // All calls have ended.
		<-ended
	}, nil
}

// fullest returns the most of the times, which ascend, that lie in a window. Its ends count once.
func fullest(times []time.Time, window time.Duration) (most int) {
	first := 0
	for i, at := range times {
		for at.Sub(times[first]) >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// pace returns how many of the times, which ascend, there are in a window, on average. The first
// of a quota come at once, so the average begins with the last of these.
func pace(times []time.Time, quota int, window time.Duration) float64 {
	if len(times) <= quota {
		return 0
	}
	took := times[len(times)-1].Sub(times[quota-1])
	return float64(len(times)-quota) / took.Seconds() * window.Seconds()
}
