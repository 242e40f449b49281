package auth_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
)

// take counts a request, and returns after how long a refused one may be sent again.
func take(l *auth.Limiter, key string, now time.Time) time.Duration {
	if err := l.Check("caller", key, now); err != nil {
		return apierror.From(err).RetryAfter
	}
	return 0
}

var noon = time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)

func TestLimiter_AllowsABurstAndThenTheRate(t *testing.T) {
	t.Parallel()
	l := auth.NewLimiter(auth.LimitConfig{Rate: 2, Burst: 3})
	for i := range 3 {
		if wait := take(l, "a", noon); wait != 0 {
			t.Errorf("request %d of the burst must wait %s", i, wait)
		}
	}
	for range 5 { // A refused request is not counted.
		if wait := take(l, "a", noon); wait != 500*time.Millisecond {
			t.Errorf("after the burst the wait is %s", wait)
		}
	}
	if wait := take(l, "b", noon); wait != 0 {
		t.Errorf("another key must wait %s", wait)
	}
	if wait := take(l, "a", noon.Add(500*time.Millisecond)); wait != 0 {
		t.Errorf("after the wait it must wait %s", wait)
	}
}

// The times of concurrent requests can be slightly out of order.
func TestLimiter_TimeThatGoesBackAllowsNothing(t *testing.T) {
	t.Parallel()
	l := auth.NewLimiter(auth.LimitConfig{Rate: 1000, Burst: 1})
	taken := 0
	for range 1000 {
		for _, at := range []time.Time{noon.Add(10 * time.Millisecond), noon} {
			if take(l, "a", at) == 0 {
				taken++
			}
		}
	}
	if taken != 1 {
		t.Errorf("%d requests at one time were allowed", taken)
	}
}

func TestLimiter_DoesNotCountConcurrentRefusals(t *testing.T) {
	t.Parallel()
	l := auth.NewLimiter(auth.LimitConfig{Rate: 1, Burst: 1})
	take(l, "a", noon)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 1000 {
				take(l, "a", noon)
			}
		})
	}
	group.Wait()
	if wait := take(l, "a", noon); wait != time.Second {
		t.Errorf("after a flood the wait is %s", wait)
	}
}

func TestLimiter_Check(t *testing.T) {
	t.Parallel()
	l := auth.NewLimiter(auth.LimitConfig{Rate: 0.1})
	if err := l.Check("tenant", "a", noon); err != nil {
		t.Errorf("the first request: %v", err)
	}
	fault := apierror.From(l.Check("tenant", "a", noon))
	if fault.Code != apierror.RateLimited || fault.RetryAfter != 10*time.Second || fault.Detail != "The tenant sends too many requests." {
		t.Errorf("answered %+v", fault)
	}
	if err := (*auth.Limiter)(nil).Check("tenant", "a", noon); err != nil {
		t.Errorf("without a limiter: %v", err)
	}
}

func TestLimiter_ForgetsTheKeyThatWasUsedLeastRecently(t *testing.T) {
	t.Parallel()
	l := auth.NewLimiter(auth.LimitConfig{Rate: 0.001})
	take(l, "a", noon)
	take(l, "b", noon)
	for i := range 10_000 - 2 {
		take(l, strconv.Itoa(i), noon)
	}
	take(l, "a", noon)
	take(l, "c", noon) // It replaces b.
	if take(l, "a", noon) == 0 || take(l, "c", noon) == 0 || take(l, "0", noon) == 0 {
		t.Error("a key that is in use was forgotten")
	}
	if take(l, "b", noon) != 0 {
		t.Error("the oldest key was not forgotten")
	}
}

func TestLimiter_IsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	l := auth.NewLimiter(auth.LimitConfig{Rate: 0.001, Burst: 100})
	var group sync.WaitGroup
	var mu sync.Mutex
	taken := map[string]int{}
	for i := range 400 {
		group.Go(func() {
			key := strconv.Itoa(i % 2)
			if take(l, key, noon) == 0 {
				mu.Lock()
				defer mu.Unlock()
				taken[key]++
			}
		})
	}
	group.Wait()
	if taken["0"] != 100 || taken["1"] != 100 {
		t.Errorf("the keys took %v", taken)
	}
}
