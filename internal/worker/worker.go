package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
)

// ErrStopped ends a handler's context when the worker was told to stop and the
// time of grace is over.
var ErrStopped = errors.New("the worker has stopped")

// Worker pulls and does work. Create it with [New].
type Worker struct{ cfg Config }

// New returns a worker. The error names the field that makes no sense.
func New(cfg Config) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	cfg.setDefaults()
	return &Worker{cfg: cfg}, nil
}

// Run works until the context ends, then finishes what it has in hand, within
// the time of grace, and returns nil. It returns an error, a [*RefusedError],
// only where the server refuses to give any work: it would be refused again.
func (w *Worker) Run(ctx context.Context) error {
	finish, stop := afterwards(ctx, w.cfg.Grace)
	defer stop()
	slots := make(chan struct{}, w.cfg.Parallel)
	var inHand sync.WaitGroup
	defer inHand.Wait() // before stop
	for {
		free := take(ctx, slots)
		if free == 0 {
			return nil
		}
		items, err := w.claim(ctx, finish, free)
		for range free - len(items) {
			<-slots
		}
		if err != nil {
			return fmt.Errorf("worker %s: %w", w.cfg.Owner, err)
		}
		for i := range items {
			inHand.Go(func() {
				w.attend(finish, &items[i])
				<-slots
			})
		}
	}
}

// take takes all free slots, and waits for the first. It takes none when the
// context has ended.
func take(ctx context.Context, slots chan struct{}) int {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	if ctx.Err() != nil {
		<-slots
		return 0
	}
	for free := 1; ; free++ {
		select {
		case slots <- struct{}{}:
		default:
			return free
		}
	}
}

// claim takes and starts up to so many items, and waits for the first. A claim
// that the context's end cuts off may have been carried out: it is made once
// more under its request id, without a wait, so that nothing is left behind in
// this worker's name.
func (w *Worker) claim(ctx, finish context.Context, most int) ([]api.WorkItem, error) {
	request := api.ClaimRequest{
		Owner: w.cfg.Owner, Services: w.cfg.Services, Max: int32(most), WaitSeconds: w.cfg.ClaimWait.Seconds(),
		Start: true, RequestID: uuid.NewString(),
	}
	items, err := w.claimOnce(ctx, request)
	if ctx.Err() == nil || err == nil {
		return items, err
	}
	request.WaitSeconds = 0
	again, cancel := context.WithTimeout(finish, lastClaim)
	defer cancel()
	if items, err = w.claimOnce(again, request); err != nil {
		w.cfg.Log.WarnContext(ctx, "work may be left behind: the last claim was not answered",
			"owner", w.cfg.Owner, "error", err)
	}
	return items, nil
}

// lastClaim is how long the claim may take that looks after a cut-off one.
const lastClaim = 2 * time.Second

// claimOnce makes one claim, as often as it takes to be answered.
func (w *Worker) claimOnce(ctx context.Context, request api.ClaimRequest) (items []api.WorkItem, err error) {
	err = w.persist(ctx, func(ctx context.Context) (answer, error) {
		response, err := w.cfg.Client.ClaimWorkWithResponse(ctx, request)
		if err != nil {
			return answer{}, err
		}
		if response.JSON200 != nil {
			items = response.JSON200.Items
		}
		return answer{response.StatusCode(), response.Body, response.JSON200 != nil}, nil
	})
	return items, err
}

// afterwards is a context that ends so much later than the given one, with
// [ErrStopped].
func afterwards(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(ErrStopped)
		case <-later.Done():
		}
	})
	return later, func() {
		stop()
		cancel(ErrStopped)
	}
}
