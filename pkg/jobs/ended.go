package jobs

import "sync"

// Ended wakes readers that wait for jobs that end in this process. The zero value
// is ready; it is safe for concurrent use.
type Ended struct {
	mu      sync.Mutex
	waiting map[string][]chan struct{}
}

// Tell wakes the readers that wait for the job. It does not block.
func (e *Ended) Tell(jobID string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, signal := range e.waiting[jobID] {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
}

// watch returns a channel that gets a value when the job ends, and a function
// that ends the watch.
func (e *Ended) watch(jobID string) (<-chan struct{}, func()) {
	signal := make(chan struct{}, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == nil {
		e.waiting = map[string][]chan struct{}{}
	}
	e.waiting[jobID] = append(e.waiting[jobID], signal)
	return signal, func() { e.forget(jobID, signal) }
}

func (e *Ended) forget(jobID string, signal chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := e.waiting[jobID][:0:0]
	for _, other := range e.waiting[jobID] {
		if other != signal {
			kept = append(kept, other)
		}
	}
	if len(kept) == 0 {
		delete(e.waiting, jobID)
		return
	}
	e.waiting[jobID] = kept
}
