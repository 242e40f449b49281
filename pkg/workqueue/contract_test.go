package workqueue_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/queuetest"
)

// The queue meets the contract of all queues, with a real ledger, on a store that applies a
// change atomically and on one that always splits it.
func TestQueue_HoldsTheContract(t *testing.T) {
	t.Parallel()
	for name, split := range map[string]bool{"atomic": false, "split": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queuetest.RunWithin(t, synctest.Test, func(t testing.TB) queuetest.Harness {
				u := &underTest{bundle: setup(t, split), messages: map[string]ledger.Message{}, items: map[string]string{}}
				return queuetest.Harness{
					Queue: u, Now: time.Now, Advance: time.Sleep, Message: u.accepted, Redispatch: u.redispatched,
				}
			})
		})
	}
}

// underTest adapts the queue to the suite. Its messages belong to real jobs, since the
// ledger decides about them.
type underTest struct {
	*bundle
	mu       sync.Mutex
	messages map[string]ledger.Message // by message id
	items    map[string]string         // the item that a requeue's message id goes to
}

// accepted makes a job; its first directive represents the suite's message. Its row is
// PENDING, so that the suite can choose when it is enqueued.
func (u *underTest) accepted(_ testing.TB, m statemachine.ItemMessage) statemachine.ItemMessage {
	u.pending.Store(true)
	defer u.pending.Store(false)
	got := u.accept(m.TenantID, m.Service, m.StepType)
	u.keep(&got, got.OutboxID)
	m.DedupeKey, m.JobID, m.StepID = got.MessageID(), got.JobID, got.StepID
	m.ItemDirective = directiveOf(&got)
	return m
}

// redispatched makes the ledger create the next attempt of a stalled item's step. Its row
// is PENDING, too.
func (u *underTest) redispatched(t testing.TB, item statemachine.Item) statemachine.ItemDirective {
	u.pending.Store(true)
	defer u.pending.Store(false)
	agg, err := u.ledger.Job(t.Context(), item.JobID)
	musttest.NoError(t, err)
	if agg.Steps[0].State == statemachine.StepFailedRetry {
		result, err := u.ledger.Change(t.Context(), item.JobID, statemachine.Retry{StepID: item.StepID})
		musttest.NoError(t, err)
		agg = &result.Job
	}
	message, err := u.ledger.Message(t.Context(), agg)
	musttest.NoError(t, err)
	u.keep(message, item.WorkID)
	return directiveOf(message)
}

func (u *underTest) keep(m *ledger.Message, workID string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.messages[m.MessageID()], u.items[m.MessageID()] = *m, workID
}

func (u *underTest) kept(messageID string) (ledger.Message, string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.messages[messageID], u.items[messageID]
}

func directiveOf(m *ledger.Message) statemachine.ItemDirective {
	return statemachine.ItemDirective{MessageID: m.MessageID(), AttemptNo: m.AttemptNo, LeaseID: m.LeaseID}
}

// Enqueue is the relay's mark of the row.
func (u *underTest) Enqueue(ctx context.Context, m statemachine.ItemMessage) (statemachine.Item, error) {
	message, workID := u.kept(m.MessageID)
	if err := u.published(ctx, &message); err != nil {
		return statemachine.Item{}, err
	}
	return u.Get(ctx, workID)
}

func (u *underTest) published(ctx context.Context, m *ledger.Message) error {
	_, err := u.ledger.Change(ctx, m.JobID, statemachine.Published{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo})
	return err
}

func (u *underTest) ClaimNext(ctx context.Context, c queuetest.Claim) ([]statemachine.Item, error) {
	views, err := u.Claim(ctx, workqueue.ClaimRequest{
		Owner: c.Owner, RequestID: c.RequestID, Max: c.Max, Lease: c.Lease, Start: c.Start,
		Services: c.Filter.Services, StepTypes: c.Filter.StepTypes,
	})
	items := make([]statemachine.Item, len(views))
	for i := range views {
		items[i] = views[i].Item
	}
	return items, err
}

func (u *underTest) Start(ctx context.Context, workID string, r statemachine.ItemRequest) (statemachine.Item, error) {
	return itemOf(u.Queue.Start(ctx, workID, r))
}

func (u *underTest) Heartbeat(ctx context.Context, workID string, r statemachine.ItemRequest) (statemachine.Item, error) {
	return itemOf(u.Queue.Heartbeat(ctx, workID, r, nil))
}

func (u *underTest) Complete(ctx context.Context, workID string, r statemachine.ItemRequest, result json.RawMessage,
) (statemachine.Item, error) {
	var refs struct {
		Output json.RawMessage `json:"output_ref"`
		Result json.RawMessage `json:"result_ref"`
	}
	if err := json.Unmarshal(result, &refs); err != nil {
		return statemachine.Item{}, err
	}
	return itemOf(u.Queue.Complete(ctx, workID, r, statemachine.Product{OutputRef: refs.Output, ResultRef: refs.Result}))
}

func (u *underTest) Fail(ctx context.Context, workID string, r statemachine.ItemRequest, f statemachine.ItemFailure) (statemachine.Item, error) {
	return itemOf(u.Queue.Fail(ctx, workID, r, workqueue.Failure{Code: f.Code, Message: f.Message}))
}

func (u *underTest) Stall(ctx context.Context, workID string, r statemachine.ItemRequest) (statemachine.Item, error) {
	return itemOf(u.Queue.Stall(ctx, workID, r))
}

// Requeue is the operator's request, followed by the relay's mark of the ledger's row for
// the step: no caller names a directive.
func (u *underTest) Requeue(ctx context.Context, workID string, r statemachine.ItemRequest, next statemachine.ItemDirective,
) (statemachine.Item, error) {
	item, err := u.Get(ctx, workID)
	if err == nil && item.MessageID == next.MessageID && item.Status == statemachine.StatusStalled {
		return statemachine.Item{}, errors.New("the ledger has no such directive to publish")
	}
	if item, err = itemOf(u.Queue.Requeue(ctx, workID, r)); err != nil {
		return statemachine.Item{}, err
	}
	if message, _ := u.kept(next.MessageID); message.JobID != "" {
		if err := u.published(ctx, &message); err != nil {
			return statemachine.Item{}, err
		}
		return u.Get(ctx, workID)
	}
	return item, nil
}

func (u *underTest) Get(ctx context.Context, workID string) (statemachine.Item, error) {
	return itemOf(u.Queue.Get(ctx, workID))
}

func (u *underTest) Events(ctx context.Context, workID string) ([]statemachine.ItemEvent, error) {
	events, _, err := u.Queue.Events(ctx, workID, 0, 1000)
	return events, refusal(err)
}

// itemOf returns the item of an answer.
func itemOf(view workqueue.View, err error) (statemachine.Item, error) {
	return view.Item, refusal(err)
}

// refusal returns the lifecycle's error for a refusal: the ledger's refusals do not wrap
// it.
func refusal(err error) error {
	known, ok := errors.AsType[*apierror.Error](err)
	if ok && known.Code == apierror.IllegalTransition && known.Err == nil {
		return errors.Join(statemachine.ErrIllegalTransition, err)
	}
	return err
}
