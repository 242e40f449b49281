package lucius

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// lease keeps the lease of one item.
type lease struct {
	run  *run
	item *WorkItem // Only the heartbeats change it, until they have stopped.
	task *Task
	log  *slog.Logger // of the attempt
	// length is how long the lease lasts from each heartbeat on, and ends when it ends by the
	// worker's monotonic clock. They say when to send heartbeats: the server may have extended
	// the lease, so that only its answer ends it.
	length time.Duration
	ends   time.Time
	// giveUp ends the handler's context.
	giveUp context.CancelCauseFunc
	// lost is why the lease is lost, nil if it is not. It may be read after stop.
	lost error

	mu       sync.Mutex
	progress *Progress // not sent yet

	changed chan struct{} // has room for one: there is progress to send
	cancel  context.CancelFunc
	done    chan struct{}
}

const (
	// minBeat and maxBeat bound the time between heartbeats. The latter is how late a
	// handler may hear that its job is cancelled or paused.
	minBeat = 10 * time.Millisecond
	maxBeat = 30 * time.Second
	// progressInterval is the least time between two heartbeats that are sent early
	// because of progress: each is a write to the ledger.
	progressInterval = 5 * time.Second
	// minBeatTimeout is the least that one try of a heartbeat may take.
	minBeatTimeout = 200 * time.Millisecond
)

// keepLease extends the item's lease, which began at that time or later, until stop is called or
// the server refuses to.
func (r *run) keepLease(
	ctx context.Context, item *WorkItem, since time.Time, task *Task, log *slog.Logger, giveUp context.CancelCauseFunc,
) *lease {
	l := &lease{
		run: r, item: item, task: task, log: log, giveUp: giveUp, changed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	task.paused, task.progress = make(chan struct{}), l.setProgress
	l.adopt(item, since)
	ctx, l.cancel = context.WithCancel(ctx)
	go l.keep(ctx)
	return l
}

// stop ends the heartbeats, and waits for one in progress: it may raise the item's rev.
func (l *lease) stop() {
	l.cancel()
	<-l.done
}

// adopt takes the lease from an answer. Its length is computed from the server's times alone,
// because the worker's clock may differ.
func (l *lease) adopt(answer *WorkItem, asked time.Time) {
	l.item.Rev, l.item.Lease, l.item.UpdatedAt = answer.Rev, answer.Lease, answer.UpdatedAt
	if answer.Lease != nil {
		l.length = max(answer.Lease.ExpiresAt.Sub(answer.UpdatedAt), 0)
		l.ends = asked.Add(l.length)
	}
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

// keep sends heartbeats until the context ends or the lease is lost.
func (l *lease) keep(ctx context.Context) {
	defer close(l.done)
	var last time.Time // when the last heartbeat was sent
	for l.item.Lease != nil && l.await(ctx, last) {
		last = time.Now()
		if err := l.extend(ctx); err != nil && ctx.Err() == nil {
			l.lost = err
			l.giveUp(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			l.log.WarnContext(ctx, "lease lost", "error", err)
			return
		}
	}
}

// await waits until the next heartbeat is due: after a third of what is left of the lease,
// or earlier if there is progress. It reports false if the context ends first.
func (l *lease) await(ctx context.Context, last time.Time) bool {
	due := time.Now().Add(min(max(time.Until(l.ends)/3, minBeat), maxBeat))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	changed := l.changed
	for {
		select {
		case <-timer.C:
			return true
		case <-changed:
			changed = nil // The heartbeat takes what is newest by then.
			if early := last.Add(progressInterval); early.Before(due) {
				timer.Reset(time.Until(early))
			}
		case <-ctx.Done():
			return false
		}
	}
}

// errGone says that the answer to a heartbeat is about another attempt, or a stalled one: the
// heartbeat is remembered from before.
var errGone = errors.New("the item was taken from the worker")

// extend sends one heartbeat and repeats it until it is answered. While the server is away the
// handler goes on, and the server decides what becomes of its attempt.
func (l *lease) extend(ctx context.Context) error {
	try := min(max(l.length/3, minBeatTimeout), callTimeout)
	beat := WorkHeartbeat{Owner: l.run.Owner, Progress: l.takeProgress()}
	var extended WorkItem
	var asked time.Time // when the request was first sent: a repetition has the answer of the first
	err := l.run.atRev(ctx, l.item, "heartbeat", func(ctx context.Context, rev int64, requestID string) error {
		if beat.RequestID != requestID {
			asked = time.Now()
		}
		extended = WorkItem{}
		beat.ExpectedRev, beat.RequestID = rev, requestID
		return l.run.Client.try(ctx, call{
			method: http.MethodPost, path: workPath(l.item.WorkID, ":heartbeat"), body: beat, answer: &extended, timeout: try,
		})
	})
	if err != nil {
		return err
	}
	if extended.Lease == nil || extended.Attempt != l.item.Attempt {
		return errGone
	}
	l.adopt(&extended, asked)
	if isTrue(extended.CancelRequested) {
		l.giveUp(ErrCancelled)
	}
	if isTrue(extended.PauseRequested) {
		l.task.pause.Do(func() { close(l.task.paused) })
	}
	return nil
}

func isTrue(flag *bool) bool { return flag != nil && *flag }

// workPath returns the path of a verb on a work item.
func workPath(workID, verb string) string { return "/v1/work/" + url.PathEscape(workID) + verb }
