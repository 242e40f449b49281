package main

import (
	"io"
	"strings"
	"testing"
	"time"
)

// TestVendor_SlidesItsWindow takes as many calls as the quota, and the next one as soon as the
// oldest has left the window.
func TestVendor_SlidesItsWindow(t *testing.T) {
	t.Parallel()
	v, begun := &vendor{quota: 2, window: time.Minute}, time.Unix(0, 0)
	for _, call := range []struct{ at, after time.Duration }{
		{0, 0},
		{10 * time.Second, 0},
		{20 * time.Second, 40 * time.Second},
		{59 * time.Second, time.Second},
		{60 * time.Second, 0},
		{60 * time.Second, 10 * time.Second},
		{70 * time.Second, 0},
	} {
		if after := v.take(begun.Add(call.at)); after != call.after {
			t.Errorf("a call at %s: the next in %s, want %s", call.at, after, call.after)
		}
	}
	if refused, taken := v.count(); refused != 3 || len(taken) != 4 || fullest(taken, v.window) != 2 {
		t.Errorf("%d refused, taken at %v", refused, taken)
	}
}

// TestReport_FindsABrokenPromise has results that break it in each way.
func TestReport_FindsABrokenPromise(t *testing.T) {
	t.Parallel()
	const quota, windows = 100, 10
	at := func(every time.Duration) (times []time.Time) { // All of a window come at its beginning.
		for i := range quota * windows {
			times = append(times, time.Unix(0, 0).Add(time.Duration(i/quota)*every))
		}
		return times
	}
	good, slow, fast := at(65*time.Second), at(70*time.Second), at(59*time.Second)
	for name, c := range map[string]struct {
		result result
		says   string
	}{
		"kept":                      {result{way: limited, succeeded: 1000, starts: good, taken: good, refused: 10}, ""},
		"a job failed":              {result{way: limited, succeeded: 999, lost: 1, starts: good, taken: good}, "1 jobs failed"},
		"too many starts":           {result{way: limited, succeeded: 1000, starts: fast, taken: good}, "200 attempts started in a window of 1m0s"},
		"too few starts":            {result{way: limited, succeeded: 1000, starts: good[1:], taken: good}, "999 starts of 1000 jobs are known"},
		"too many were refused":     {result{way: limited, succeeded: 1000, starts: good, taken: good, refused: 11}, "refused 1.09 % of the calls"},
		"too little was used":       {result{way: limited, succeeded: 1000, starts: good, taken: slow}, "only 85.7 % of the quota was used"},
		"another way keeps nothing": {result{way: neither, lost: 1000, starts: fast, taken: slow, refused: 5000}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := demo{jobs: quota * windows, quota: quota, window: time.Minute, out: io.Discard}
			err := d.report([]result{c.result})
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}
