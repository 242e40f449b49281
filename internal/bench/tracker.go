package bench

import (
	"sync"
	"time"
)

// tracker notifies each submitter when its job has ended. It knows jobs by the
// correlation id, which the submitter chose: a job may end before its submitter has
// read the job id. It is safe for concurrent use.
type tracker struct {
	mu      sync.Mutex
	waiting map[string]chan time.Time
}

func newTracker() *tracker { return &tracker{waiting: map[string]chan time.Time{}} }

// expect returns a channel that receives the time of the job's end.
func (t *tracker) expect(correlationID string) <-chan time.Time {
	ended := make(chan time.Time, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[correlationID] = ended
	return ended
}

// end records that a job ended. It ignores repetitions, and jobs left over from an
// earlier run.
func (t *tracker) end(correlationID string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ended, ok := t.waiting[correlationID]; ok {
		ended <- at // The channel has room for it, and gets no other.
		delete(t.waiting, correlationID)
	}
}
