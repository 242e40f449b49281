package lucius

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// lease keeps the lease of one item.
type lease struct {
	run  *run
	item *WorkItem // Only the heartbeats change it, until they have stopped.
	// giveUp ends the handler's context.
	giveUp context.CancelCauseFunc

	mu       sync.Mutex
	progress *Progress // not sent yet

	changed       chan struct{} // has room for one: there is progress to send
	stopped, done chan struct{}
}

const (
	// minBeat bounds the heartbeats of very short leases.
	minBeat = 10 * time.Millisecond
	// progressInterval is the least time between two heartbeats that are sent early
	// because of progress: each is a write to the ledger.
	progressInterval = 5 * time.Second
)

// keepLease extends the item's lease, each time after a third of it, until stop is called.
func (r *run) keepLease(ctx context.Context, item *WorkItem, giveUp context.CancelCauseFunc) *lease {
	l := &lease{
		run: r, item: item, giveUp: giveUp,
		changed: make(chan struct{}, 1), stopped: make(chan struct{}), done: make(chan struct{}),
	}
	go l.beat(ctx)
	return l
}

// stop ends the heartbeats. It waits for one in flight, which may raise the item's rev.
func (l *lease) stop() {
	close(l.stopped)
	<-l.done
}

// setProgress has the progress sent.
func (l *lease) setProgress(progress Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = &progress
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// takeProgress returns the progress that is to be sent, nil if there is none.
func (l *lease) takeProgress() *Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	progress := l.progress
	l.progress = nil
	select {
	case <-l.changed: // It asks for what is taken here.
	default:
	}
	return progress
}

// interval returns the time until the next heartbeat: a third of the lease, by the
// server's clock alone, since the worker's may differ.
func (l *lease) interval() time.Duration {
	return max(l.item.Lease.ExpiresAt.Sub(l.item.UpdatedAt)/3, minBeat)
}

// beat sends heartbeats until stop is called or the context ends.
func (l *lease) beat(ctx context.Context) {
	defer close(l.done)
	var last time.Time // when the last heartbeat was sent
	for l.item.Lease != nil {
		due := time.Now().Add(l.interval())
		timer := time.NewTimer(time.Until(due))
		changed := l.changed
	wait:
		for {
			select {
			case <-timer.C:
				break wait
			case <-changed:
				changed = nil // The heartbeat takes what is newest by then.
				if early := last.Add(progressInterval); early.Before(due) {
					timer.Reset(time.Until(early))
				}
			case <-l.stopped:
				timer.Stop()
				return
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
		last = time.Now()
		if err := l.extend(ctx); err != nil {
			l.giveUp(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			return
		}
	}
}

// extend sends one heartbeat and repeats it until it is answered.
func (l *lease) extend(ctx context.Context) error {
	beat := WorkHeartbeat{
		Owner: l.run.Owner, ExpectedRev: l.item.Rev, RequestID: rand.Text(), Progress: l.takeProgress(),
	}
	var extended WorkItem
	err := l.run.persist(ctx, "heartbeat", func(ctx context.Context) error {
		return l.run.Client.try(ctx, call{
			method: http.MethodPost, path: workPath(l.item.WorkID, ":heartbeat"), body: beat, answer: &extended,
		})
	})
	if err != nil {
		return err
	}
	l.item.Rev, l.item.Lease, l.item.UpdatedAt = extended.Rev, extended.Lease, extended.UpdatedAt
	switch {
	case isTrue(extended.CancelRequested):
		l.giveUp(ErrCancelled)
	case isTrue(extended.PauseRequested):
		l.giveUp(ErrPaused)
	}
	return nil
}

func isTrue(flag *bool) bool { return flag != nil && *flag }

// workPath returns the path of a verb on a work item.
func workPath(workID, verb string) string { return "/v1/work/" + url.PathEscape(workID) + verb }
