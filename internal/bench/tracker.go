package bench

import (
	"sync"
	"time"
)

// tracker tells each submitter when its job has ended. Jobs are known by their
// correlation id, which the submitter chose: a job may end before the answer
// that names its job id has been read. It is safe for concurrent use.
type tracker struct {
	mu      sync.Mutex
	waiting map[string]chan time.Time
}

func newTracker() *tracker { return &tracker{waiting: map[string]chan time.Time{}} }

// expect returns a channel that is sent the end of the job, once.
func (t *tracker) expect(correlationID string) <-chan time.Time {
	ended := make(chan time.Time, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[correlationID] = ended
	return ended
}

// end tells that a job ended. One that nobody waits for, left over from an
// earlier run, or one that is told again, is ignored.
func (t *tracker) end(correlationID string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended, ok := t.waiting[correlationID]; ok {
		ended <- at // It has room for one, and is sent no other.
		delete(t.waiting, correlationID)
	}
}
