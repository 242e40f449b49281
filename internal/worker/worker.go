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

// ErrStopped ends a handler's context when the grace after a stop is over.
var ErrStopped = errors.New("the worker has stopped")

// Worker pulls and does work. Create it with [New].
type Worker struct{ cfg Config }

// New returns a worker. The error names the invalid field.
func New(cfg Config) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	cfg.setDefaults()
	return &Worker{cfg: cfg}, nil
}

// Run works until the context ends, then finishes the items in hand within the grace
// and returns nil. It returns an error, a [*RefusedError], only if the server refuses
// a claim, which it would refuse again.
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

// take takes all free slots, and waits for the first. It takes none once the context
// has ended.
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

// claim claims and starts up to most items, and waits for the first. A claim that is
// interrupted by the context's end may have succeeded, so it is repeated once with
// the same request id and no wait; otherwise its items would stay claimed.
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
		w.cfg.Log.WarnContext(ctx, "items may stay claimed: the last claim was not answered",
			"owner", w.cfg.Owner, "error", err)
	}
	return items, nil
}

// lastClaim is how long the repetition of an interrupted claim may take.
const lastClaim = 2 * time.Second

// claimOnce makes one claim and retries it until it is answered.
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

// afterwards returns a context that ends with [ErrStopped] when the grace after the
// given context's end is over.
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
