package auth_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/problem"
)

func limiter(t *testing.T, cfg auth.LimitConfig) *auth.Limiter {
	t.Helper()
	l, err := auth.NewLimiter(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var noon = time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)

func TestLimiter_TakesABurstAndThenTheRate(t *testing.T) {
	t.Parallel()
	l := limiter(t, auth.LimitConfig{Rate: 2, Burst: 3})
	for i := range 3 {
		if wait := l.Take("a", noon); wait != 0 {
			t.Errorf("request %d of the burst is to wait %s", i, wait)
		}
	}
	for range 5 { // What is refused is not counted.
		if wait := l.Take("a", noon); wait != 500*time.Millisecond {
			t.Errorf("after the burst the wait is %s", wait)
		}
	}
	if wait := l.Take("b", noon); wait != 0 {
		t.Errorf("another key is to wait %s", wait)
	}
	if wait := l.Take("a", noon.Add(500*time.Millisecond)); wait != 0 {
		t.Errorf("after the wait it is to wait %s", wait)
	}
}

// Requests side by side come with times that are out of order by a little.
func TestLimiter_TimeThatGoesBackGivesNothing(t *testing.T) {
	t.Parallel()
	l := limiter(t, auth.LimitConfig{Rate: 1000, Burst: 1})
	taken := 0
	for range 1000 {
		for _, at := range []time.Time{noon.Add(10 * time.Millisecond), noon} {
			if l.Take("a", at) == 0 {
				taken++
			}
		}
	}
	if taken != 1 {
		t.Errorf("%d requests at one time were let through", taken)
	}
}

func TestLimiter_WhatIsRefusedSideBySideIsNotCounted(t *testing.T) {
	t.Parallel()
	l := limiter(t, auth.LimitConfig{Rate: 1, Burst: 1})
	l.Take("a", noon)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 1000 {
				l.Take("a", noon)
			}
		})
	}
	group.Wait()
	if wait := l.Take("a", noon); wait != time.Second {
		t.Errorf("after a flood the wait is %s", wait)
	}
}

func TestLimiter_Check(t *testing.T) {
	t.Parallel()
	l := limiter(t, auth.LimitConfig{Rate: 0.1})
	if err := l.Check("tenant", "a", noon); err != nil {
		t.Errorf("the first request: %v", err)
	}
	fault := problem.From(l.Check("tenant", "a", noon))
	if fault.Code != problem.RateLimited || fault.RetryAfter != 10*time.Second || fault.Detail != "The tenant sends too many requests." {
		t.Errorf("answered %+v", fault)
	}
	if err := (*auth.Limiter)(nil).Check("tenant", "a", noon); err != nil {
		t.Errorf("without a limiter: %v", err)
	}
}

func TestLimiter_ForgetsTheKeyThatWasUsedLeastRecently(t *testing.T) {
	t.Parallel()
	l := limiter(t, auth.LimitConfig{Rate: 0.001, Keys: 2})
	for _, key := range []string{"a", "b", "a", "c"} { // b goes.
		l.Take(key, noon)
	}
	if l.Take("a", noon) == 0 || l.Take("c", noon) == 0 {
		t.Error("a key that is in use was forgotten")
	}
	if l.Take("b", noon) != 0 {
		t.Error("the oldest key was not forgotten")
	}
}

func TestLimiter_IsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	l := limiter(t, auth.LimitConfig{Rate: 0.001, Burst: 100, Keys: 8})
	var group sync.WaitGroup
	var mu sync.Mutex
	taken := map[string]int{}
	for i := range 400 {
		group.Go(func() {
			key := strconv.Itoa(i % 2)
			if l.Take(key, noon) == 0 {
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

func TestNewLimiter_NamesTheFieldThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]auth.LimitConfig{
		"Rate must": {}, "Rate must be": {Rate: 1e10}, "Burst and Keys": {Rate: 1, Burst: -1}, "Keys must": {Rate: 1, Keys: -1},
	} {
		if _, err := auth.NewLimiter(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: answered %v", cfg, err)
		}
	}
}
