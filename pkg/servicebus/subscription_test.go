package servicebus_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// A reply that waits for the store holds a slot, and does not block others while
// slots are free.
func TestSubscription_ReceivesNoMoreThanItHasSlotsFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := newTopic(ack(nil), ack(nil), ack(nil), ack(nil), ack(nil))
		back := make(chan struct{})
		to := &useCase{answer: func(context.Context, int) (callbacks.Answer, error) {
			<-back
			return callbacks.Answer{}, nil
		}}
		c := consume(t, from, to, func(cfg *servicebus.RepliesConfig) { cfg.InHand = 3 })
		synctest.Wait()
		to.mu.Lock()
		begun := len(to.calls)
		to.mu.Unlock()
		if begun != 3 || len(from.replies) != 2 {
			t.Errorf("%d in hand and %d left, want 3 and 2", begun, len(from.replies))
		}
		if diff := cmp.Diff([]int{3, 2, 1}, from.asked); diff != "" {
			t.Errorf("it asked for (-want +got):\n%s", diff)
		}
		close(back)
		synctest.Wait()
		if len(c.deliveries()) != 5 || len(from.replies) != 0 {
			t.Errorf("%d delivered and %d left, want all", len(c.deliveries()), len(from.replies))
		}
	})
}

// Several replies may arrive in one receive, even together with an error.
func TestSubscription_HandlesAllThatCame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := newTopic()
		first := true
		from.receive = func(ctx context.Context) ([]*azservicebus.ReceivedMessage, error) {
			if first {
				first = false
				return []*azservicebus.ReceivedMessage{
					{MessageID: "m0", Body: []byte(ack(nil))}, {MessageID: "m1", Body: []byte(ack(nil))},
				}, errors.New("and then it broke")
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c := consume(t, from, &useCase{})
		synctest.Wait()
		if len(c.deliveries()) != 2 || len(c.Down()) != 0 {
			t.Errorf("%d delivered, down %v, want both and none", len(c.deliveries()), c.Down())
		}
	})
}

// A topic that cannot be read is listed until it can be read again.
func TestSubscription_ATopicThatBreaksAndRecovers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
		down bool // after one failure, and not only after two
	}{
		{"missing", said("amqp:not-found"), true},
		{"no right", coded(azservicebus.CodeUnauthorizedAccess), true},
		{"no connection", coded(azservicebus.CodeConnectionLost), true},
		{"nothing, and no error either", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := newTopic(ack(nil))
				var mu sync.Mutex
				broken := true
				from.receive = func(ctx context.Context) ([]*azservicebus.ReceivedMessage, error) {
					mu.Lock()
					defer mu.Unlock()
					if broken {
						return nil, test.err
					}
					select {
					case m := <-from.replies:
						return []*azservicebus.ReceivedMessage{m}, nil
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				}
				var log bytes.Buffer
				c := consume(t, from, &useCase{}, func(cfg *servicebus.RepliesConfig) {
					cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
				})
				synctest.Wait()
				if down := len(c.Down()) > 0; down != test.down {
					t.Errorf("after one failure: down %v, want it %t", c.Down(), test.down)
				}
				pass(10 * time.Minute)
				if diff := cmp.Diff([]string{"replies-0"}, c.Down()); diff != "" {
					t.Errorf("down (-want +got):\n%s", diff)
				}
				mu.Lock()
				broken = false
				mu.Unlock()
				pass(time.Minute)
				if got := c.deliveries(); len(got) != 1 || len(c.Down()) != 0 {
					t.Errorf("afterwards: %v, down %v", got, c.Down())
				}
				if n := strings.Count(log.String(), "cannot be read"); n != 1 || !strings.Contains(log.String(), "is read again") {
					t.Errorf("it was said %d times that it cannot be read:\n%s", n, log.String())
				}
			})
		})
	}
}

// Making a receiver is retried.
func TestSubscription_AReceiverThatCannotBeMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := repliesConfig()
		from := newTopic(ack(nil))
		tries := 0
		cfg.Random = func() float64 { return 0.5 }
		replies, err := servicebus.WithReceivers(cfg, func(string) (servicebus.Receiver, error) {
			if tries++; tries < 4 {
				var none *topic // The SDK's constructor returns a nil pointer with its error.
				return none, errors.New("closed")
			}
			return from, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- replies.Run(ctx) }()
		synctest.Wait()
		if diff := cmp.Diff([]string{"replies-0"}, replies.Down()); diff != "" {
			t.Errorf("down (-want +got):\n%s", diff)
		}
		pass(time.Minute)
		if tries != 4 || len(replies.Down()) != 0 || from.done() != "complete m0" {
			t.Errorf("after %d tries: %q, down %v", tries, from.done(), replies.Down())
		}
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// Hours without a reply are no failure.
func TestSubscription_AQuietTopicIsNotDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := newTopic()
		c := consume(t, from, &useCase{})
		pass(3*time.Hour + time.Second)
		if len(c.Down()) != 0 || len(from.asked) != 361 {
			t.Errorf("down %v after it asked %d times, want once in 30 s", c.Down(), len(from.asked))
		}
	})
}

// Receives from a broken topic are spaced by growing delays, which start over once
// it was readable.
func TestSubscription_AsksABrokenTopicWithGrowingDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at []time.Duration
		from := newTopic()
		from.receive = func(context.Context) ([]*azservicebus.ReceivedMessage, error) {
			at = append(at, time.Since(begin))
			if len(at) == 5 {
				return []*azservicebus.ReceivedMessage{{MessageID: "m0", Body: []byte(ack(nil))}}, nil
			}
			return nil, coded(azservicebus.CodeConnectionLost)
		}
		consume(t, from, &useCase{}, func(cfg *servicebus.RepliesConfig) { cfg.MinDelay, cfg.MaxDelay = time.Second, 3*time.Second })
		pass(11 * time.Second)
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 6 * time.Second, 9 * time.Second, 9 * time.Second, 10 * time.Second}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("it was asked at (-want +got):\n%s", diff)
		}
	})
}

// Delays have a jitter, so that topics and replicas do not retry together.
func TestSubscription_SpreadsItsDelays(t *testing.T) {
	t.Parallel()
	for random, want := range map[float64]time.Duration{0: 750 * time.Millisecond, 0.5: time.Second, 1: 1250 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			var at []time.Duration
			from := newTopic()
			from.receive = func(context.Context) ([]*azservicebus.ReceivedMessage, error) {
				at = append(at, time.Since(begin))
				return nil, coded(azservicebus.CodeConnectionLost)
			}
			consume(t, from, &useCase{}, func(cfg *servicebus.RepliesConfig) {
				cfg.MinDelay, cfg.MaxDelay, cfg.Random = time.Second, time.Second, func() float64 { return random }
			})
			pass(want)
			if diff := cmp.Diff([]time.Duration{0, want}, at); diff != "" {
				t.Errorf("at %v it was asked at (-want +got):\n%s", random, diff)
			}
		})
	}
}
