//go:build !race

package main

import (
	"math/rand/v2"
	"testing"
	"time"
)

// kills is how often the server is killed while it is under load.
const kills = 20

// TestCrash_NothingAcknowledgedIsLost kills the real binary repeatedly, at random moments,
// while clients submit commands and workers carry them through three steps. Afterwards
// every command that got a 202 has a job that ended well, and no step of any job was
// applied twice.
func TestCrash_NothingAcknowledgedIsLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := s.start()
	l := startLoad(s, 5*time.Millisecond)
	for range kills {
		time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		server.kill()
		server = s.start()
	}
	jobs := l.drain()
	server.terminate()
	auditClean(t, s.data, jobs)
	t.Logf("%d commands accepted over %d kills", len(jobs), kills)
}
