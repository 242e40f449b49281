package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
)

// ErrCancelled ends a handler's context when the job is being cancelled, so that its
// result is not needed any more.
var ErrCancelled = errors.New("the job is being cancelled")

// ErrLeaseLost ends a handler's context when the server says that the attempt no
// longer belongs to this worker. Its result is not reported.
var ErrLeaseLost = errors.New("the lease is lost")

// minBeat prevents a busy loop when a lease is very short, or looks so because the
// server's clock is late.
const minBeat = 10 * time.Millisecond

// heart extends the lease of one item for as long as its handler runs.
type heart struct {
	w       *Worker
	workID  string
	giveUp  context.CancelCauseFunc
	stopped chan struct{}
	done    chan struct{}
	// rev is the item's rev; it may be read once done is closed.
	rev int64
}

// startHeart starts heartbeats, each after a third of the rest of the lease. giveUp
// ends the handler's context.
func (w *Worker) startHeart(ctx context.Context, item *api.WorkItem, giveUp context.CancelCauseFunc) *heart {
	h := &heart{
		w: w, workID: item.WorkID, giveUp: giveUp, rev: item.Rev,
		stopped: make(chan struct{}), done: make(chan struct{}),
	}
	go h.beat(ctx, item.Lease)
	return h
}

// stop ends the heartbeats and returns the item's rev. It waits for a heartbeat in
// flight, which may raise the rev.
func (h *heart) stop() int64 {
	close(h.stopped)
	<-h.done
	return h.rev
}

func (h *heart) beat(ctx context.Context, lease *api.WorkLease) {
	defer close(h.done)
	for lease != nil {
		timer := time.NewTimer(max(time.Until(lease.ExpiresAt.Time)/3, minBeat))
		select {
		case <-timer.C:
		case <-h.stopped:
			timer.Stop()
			return
		case <-ctx.Done():
			timer.Stop()
			return
		}
		item, err := h.extend(ctx)
		if err != nil {
			h.giveUp(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			return
		}
		h.rev, lease = item.Rev, item.Lease
		if item.CancelRequested != nil && *item.CancelRequested {
			h.giveUp(ErrCancelled)
		}
	}
}

// extend makes one heartbeat.
func (h *heart) extend(ctx context.Context) (item *api.WorkItem, err error) {
	verb := api.WorkVerb{Owner: h.w.cfg.Owner, ExpectedRev: h.rev, RequestID: uuid.NewString()}
	err = h.w.persist(ctx, func(ctx context.Context) (answer, error) {
		response, err := h.w.cfg.Client.HeartbeatWorkWithResponse(ctx, h.workID, verb)
		if err != nil {
			return answer{}, err
		}
		item = response.JSON200
		return answer{response.StatusCode(), response.Body, item != nil}, nil
	})
	return item, err
}
