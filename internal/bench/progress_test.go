package bench

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// Without a terminal, there is a line every two seconds, and none after the end.
func TestProgressOfARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&out)
		start := time.Now().Add(3 * time.Second)
		stop := p.follow(t.Context(), "one step", "jobs", window{start, start.Add(2 * time.Second)})
		for range 60 {
			p.count()
			time.Sleep(101 * time.Millisecond)
		}
		stop()
		time.Sleep(time.Minute)
		want := "one step: warming up, 20 jobs, 10 a second\n" +
			"one step: 1s of 2s, 40 jobs, 10 a second\n" +
			"one step: waiting for the last, 60 jobs, 10 a second\n"
		if out.String() != want {
			t.Errorf("got\n%swant\n%s", &out, want)
		}
	})
}

// A terminal shows one line, which is rewritten and, at the end, removed.
func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &progress{out: &out, terminal: true}
		stop := p.follow(t.Context(), "ceiling", "requests", window{time.Now(), time.Now().Add(time.Second)})
		time.Sleep(300 * time.Millisecond)
		stop()
		want := "\r\x1b[Kceiling: 0s of 1s, 0 requests, 0 a second\r\x1b[K"
		if out.String() != want {
			t.Errorf("got %q, want %q", &out, want)
		}
	})
}
