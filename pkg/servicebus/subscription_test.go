package servicebus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// A reply that waits for the store holds a permit, and does not block others while
// permits are free.
func TestSubscription_ReceivesNoMoreThanItHasPermitsFor(t *testing.T) {
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
		name   string
		err    error
		down   bool // after one failure, and not only after two
		reason string
	}{
		{"missing", said("amqp:not-found"), true, "*Error{Condition: amqp:not-found, Description: so it is, Info: map[]}"},
		{"no right", coded(azservicebus.CodeUnauthorizedAccess), true, "access is denied " +
			"(it needs the right Listen, or the role Azure Service Bus Data Receiver): (unauthorized): unknown error"},
		{"no connection", coded(azservicebus.CodeConnectionLost), true, "(connlost): unknown error"},
		{"nothing, and no error either", nil, false, ""},
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
				if diff := cmp.Diff([]callbacks.UnreadTopic{{Topic: "replies-0", Reason: test.reason}}, c.Down()); diff != "" {
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
		if diff := cmp.Diff([]callbacks.UnreadTopic{{Topic: "replies-0", Reason: "closed"}}, replies.Down()); diff != "" {
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

// After a reply that cannot be decoded, replies come one at a time for ten minutes. The topic is
// not down.
func TestSubscription_ReceivesSinglyAfterAReplyThatCannotBeDecoded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := newTopic()
		from.receive = func(ctx context.Context) ([]*azservicebus.ReceivedMessage, error) {
			if len(from.asked) == 1 {
				panic("no text")
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c := consume(t, from, &useCase{})
		pass(10*time.Minute + time.Second)
		want := append(append([]int{16}, slices.Repeat([]int{1}, 20)...), 16)
		if diff := cmp.Diff(want, from.asked); diff != "" || len(c.Down()) > 0 {
			t.Errorf("down %v, it asked for (-want +got):\n%s", c.Down(), diff)
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

// answers returns a use case that always gives this answer.
func answers(answer callbacks.Answer, err error) *useCase {
	return &useCase{answer: func(context.Context, int) (callbacks.Answer, error) { return answer, err }}
}

// failing returns a use case whose first n calls fail with this error.
func failing(n int, err error) *useCase {
	return &useCase{answer: func(_ context.Context, call int) (callbacks.Answer, error) {
		if call < n {
			return callbacks.Answer{}, err
		}
		return callbacks.Answer{Outcome: statemachine.Applied}, nil
	}}
}

// unavailable is the error of a store that does not answer.
func unavailable() error {
	return apierror.Newf(apierror.StoreUnavailable, "The store does not answer.")
}

func TestDeliver_IsSettledByItsOutcome(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		answer  callbacks.Answer
		err     error
		want    servicebus.DeliveryOutcome
		settled string
		reason  string // in the dead letters
	}{
		{"applied", callbacks.Answer{Outcome: statemachine.Applied}, nil, servicebus.ReplyApplied, "complete m0", ""},
		{"a duplicate", callbacks.Answer{Outcome: statemachine.Duplicate}, nil, servicebus.ReplyDuplicate, "complete m0", ""},
		{"applied, but for the clean-up", callbacks.Answer{Outcome: statemachine.Applied, PostErr: errors.New("later")}, nil, servicebus.ReplyApplied, "complete m0", ""},
		{"stale", callbacks.Answer{}, apierror.Newf(apierror.StaleAttempt, "Stale."), servicebus.ReplyRefused, "complete m0", ""},
		{"stale, wrapped", callbacks.Answer{}, fmt.Errorf("ack: %w", apierror.Newf(apierror.StaleAttempt, "Stale.")), servicebus.ReplyRefused, "complete m0", ""},
		{"contradictory", callbacks.Answer{}, apierror.Newf(apierror.ContradictoryResult, "No."), servicebus.ReplyRefused, "complete m0", ""},
		{"too late", callbacks.Answer{}, apierror.Newf(apierror.IllegalTransition, "No."), servicebus.ReplyRefused, "complete m0", ""},
		{"about no job", callbacks.Answer{}, apierror.Newf(apierror.JobNotFound, "None."), servicebus.ReplyDeadLettered, "dead-letter m0", "job_not_found: None."},
		{"about no step", callbacks.Answer{}, apierror.Newf(apierror.StepNotFound, "None."), servicebus.ReplyDeadLettered, "dead-letter m0", "step_not_found: None."},
		{"too large for a row", callbacks.Answer{}, apierror.Newf(apierror.TooLarge, "Large."), servicebus.ReplyDeadLettered, "dead-letter m0", "too_large: Large."},
		{"refused for another reason", callbacks.Answer{}, apierror.Newf(apierror.RefInvalid, "No."), servicebus.ReplyDeadLettered, "dead-letter m0", "ref_invalid: No."},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			to := answers(test.answer, test.err)
			delivered, from := deliver(t, ack(nil), to)
			if delivered.Outcome != test.want || from.done() != test.settled || len(to.calls) != 1 {
				t.Errorf("%s, %q, %d calls, want %s, %q and one call", delivered.Outcome, from.done(), len(to.calls), test.want, test.settled)
			}
			if test.reason != "" && *from.reason.Reason+": "+*from.reason.ErrorDescription != test.reason {
				t.Errorf("put aside for %s: %s, want %s", *from.reason.Reason, *from.reason.ErrorDescription, test.reason)
			}
		})
	}
}

// If the clean-up after a commit fails, the commit stands and the failure is logged.
func TestDeliver_ACleanUpThatFailsIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	deliver(t, ack(nil), answers(callbacks.Answer{PostErr: errors.New("the item stays")}, nil), func(cfg *servicebus.RepliesConfig) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	if !strings.Contains(log.String(), "the item stays") || !strings.Contains(log.String(), "topic=replies-0") {
		t.Errorf("log: %s", log.String())
	}
}

// The sender gets no answer, so refusals are logged.
func TestDeliver_ARefusalIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	deliver(t, ack(nil), answers(callbacks.Answer{}, apierror.Newf(apierror.StaleAttempt, "Attempt 1 is over.")), func(cfg *servicebus.RepliesConfig) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	for _, want := range []string{"topic=replies-0", "message_id=m0", "type=ACK", "reason=stale_attempt", "Attempt 1 is over."} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log: %s", want, log.String())
		}
	}
}

// An outage of the store may outlast any number of deliveries, so a reply is not abandoned:
// the bus would eventually dead-letter it.
func TestDeliver_IsHeldWhileTheStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
	}{
		{"no answer", unavailable()},
		{"conflicts", apierror.Newf(apierror.Conflict, "Others were first.")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from, to := newTopic(ack(nil)), failing(200, test.err)
				c := consume(t, from, to)
				pass(10 * time.Minute)
				if len(c.deliveries()) != 0 || from.done() != "" {
					t.Fatalf("after ten minutes: %v, %q", c.deliveries(), from.done())
				}
				if n := from.renewals(); n < 10 || n > 30 {
					t.Errorf("the lock of a minute was renewed %d times in ten", n)
				}
				pass(10 * time.Minute)
				want := []servicebus.Delivery{{Type: servicebus.ReplyAck, Outcome: servicebus.ReplyApplied}}
				if diff := cmp.Diff(want, c.deliveries()); diff != "" || from.done() != "complete m0" {
					t.Errorf("after the outage %q (-want +got):\n%s", from.done(), diff)
				}
			})
		})
	}
}

// The delays grow to the longest, and no further.
func TestDeliver_TriesAgainWithGrowingDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at []time.Duration
		to := &useCase{answer: func(_ context.Context, call int) (callbacks.Answer, error) {
			at = append(at, time.Since(begin))
			if call < 5 {
				return callbacks.Answer{}, unavailable()
			}
			return callbacks.Answer{}, nil
		}}
		consume(t, newTopic(ack(nil)), to, func(cfg *servicebus.RepliesConfig) {
			cfg.MinDelay, cfg.MaxDelay = time.Second, 5*time.Second
		})
		pass(time.Minute)
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 12 * time.Second, 17 * time.Second}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("calls at (-want +got):\n%s", diff)
		}
	})
}

func TestDeliver_ALockThatIsLostEndsTheTrying(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error // of each renewal
		once bool  // and then no more
	}{
		{"the bus says so", coded(azservicebus.CodeLockLost), true},
		{"it cannot be renewed until it has run out", errors.New("no connection"), false},
		{"the connection is lost", coded(azservicebus.CodeConnectionLost), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from, to := newTopic(ack(nil)), answers(callbacks.Answer{}, unavailable())
				from.fail = func(_ context.Context, verb string) error {
					if verb == "renew" {
						return test.err
					}
					return nil
				}
				c := consume(t, from, to)
				pass(10 * time.Minute)
				want := []servicebus.Delivery{{Type: servicebus.ReplyAck, Outcome: servicebus.ReplyLockLost}}
				if diff := cmp.Diff(want, c.deliveries()); diff != "" || from.done() != "" {
					t.Errorf("%q (-want +got):\n%s", from.done(), diff)
				}
				if n := from.renewals(); (n == 1) != test.once {
					t.Errorf("it was renewed %d times", n)
				}
			})
		})
	}
}

// A failed renewal is retried as long as the lock holds.
func TestDeliver_ARenewalThatFailsOnceIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from, to := newTopic(ack(nil)), failing(30, unavailable())
		renewals := 0
		from.fail = func(_ context.Context, verb string) error {
			if verb != "renew" {
				return nil
			}
			if renewals++; renewals < 3 {
				return errors.New("no connection")
			}
			return nil
		}
		c := consume(t, from, to)
		pass(10 * time.Minute)
		if got := c.deliveries(); len(got) != 1 || got[0].Outcome != servicebus.ReplyApplied || renewals < 3 {
			t.Errorf("%v after %d renewals", got, renewals)
		}
	})
}

// If the message does not tell when its lock ends, the lock is renewed each time.
func TestDeliver_ALockOfUnknownLength(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from, to := newTopic(), failing(3, unavailable())
		first := true
		from.receive = func(ctx context.Context) ([]*azservicebus.ReceivedMessage, error) {
			if first {
				first = false
				return []*azservicebus.ReceivedMessage{{MessageID: "m0", Body: []byte(ack(nil))}}, nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c := consume(t, from, to)
		pass(time.Minute)
		if got := c.deliveries(); len(got) != 1 || got[0].Outcome != servicebus.ReplyApplied || from.renewals() == 0 {
			t.Errorf("%v after %d renewals", got, from.renewals())
		}
	})
}

// An unforeseen error may recur each time, and then the bus must dead-letter the
// reply.
func TestDeliver_AnUnforeseenErrorIsAbandonedAfterSomeTries(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		to    *useCase
		calls int
		want  string
	}{
		{"each time", answers(callbacks.Answer{}, errors.New("a bug")), 4, "abandon m0"},
		{"each time, by its code", answers(callbacks.Answer{}, apierror.Newf(apierror.Internal, "")), 4, "abandon m0"},
		{"until the last try", failing(3, errors.New("a bug")), 4, "complete m0"},
		{"without an end", &useCase{answer: func(ctx context.Context, _ int) (callbacks.Answer, error) {
			<-ctx.Done()
			return callbacks.Answer{}, ctx.Err()
		}}, 4, "abandon m0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := newTopic(ack(nil))
				c := consume(t, from, test.to, func(cfg *servicebus.RepliesConfig) { cfg.Tries = 4 })
				pass(10 * time.Minute)
				if from.done() != test.want || len(test.to.calls) != test.calls || len(c.deliveries()) != 1 {
					t.Errorf("%q after %d calls, want %q after %d", from.done(), len(test.to.calls), test.want, test.calls)
				}
			})
		})
	}
}

// A stop does not interrupt the call for a reply in progress, and the reply is settled.
func TestDeliver_AStopFinishesWhatIsInHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := newTopic(ack(nil), ack(nil))
		to := &useCase{answer: func(ctx context.Context, _ int) (callbacks.Answer, error) {
			time.Sleep(5 * time.Second)
			return callbacks.Answer{}, ctx.Err()
		}}
		c := consume(t, from, to, func(cfg *servicebus.RepliesConfig) { cfg.InHand = 1 })
		pass(time.Second)
		c.stop()
		synctest.Wait()
		select {
		case <-c.over:
			t.Fatal("it returned while a reply was in hand")
		default:
		}
		<-c.over
		want := []servicebus.Delivery{{Type: servicebus.ReplyAck, Outcome: servicebus.ReplyApplied}}
		if diff := cmp.Diff(want, c.deliveries()); diff != "" || from.done() != "complete m0" {
			t.Errorf("%q (-want +got):\n%s", from.done(), diff)
		}
	})
}

// After a stop, another consumer gets the replies that the store did not accept.
func TestDeliver_AStopAbandonsWhatTheStoreDidNotAccept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from, to := newTopic(ack(nil)), answers(callbacks.Answer{}, unavailable())
		c := consume(t, from, to)
		pass(20 * time.Second)
		c.stop()
		<-c.over
		if got := c.deliveries(); len(got) != 1 || got[0].Outcome != servicebus.ReplyAbandoned || from.done() != "abandon m0" {
			t.Errorf("%v, %q, want it abandoned", got, from.done())
		}
	})
}

// A reply that was handled but not settled is redelivered, and is then a duplicate.
func TestSettle_AFailedSettlement(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	broken := func(context.Context, string) error { return errors.New("no connection") }
	lost := func(context.Context, string) error { return coded(azservicebus.CodeLockLost) }
	closed := func(context.Context, string) error { return coded(azservicebus.CodeClosed) }
	for _, test := range []struct {
		name string
		body string
		to   *useCase
		fail func(context.Context, string) error
		verb string
		want servicebus.DeliveryOutcome
	}{
		{"applied, no connection", ack(nil), &useCase{}, broken, "complete m0", servicebus.ReplyUnsettled},
		{"applied, closed", ack(nil), &useCase{}, closed, "complete m0", servicebus.ReplyUnsettled},
		{"applied, no answer", ack(nil), &useCase{}, hang, "complete m0", servicebus.ReplyUnsettled},
		{"applied, the lock is lost", ack(nil), &useCase{}, lost, "complete m0", servicebus.ReplyLockLost},
		{"stale", ack(nil), answers(callbacks.Answer{}, apierror.Newf(apierror.StaleAttempt, "")), broken, "complete m0", servicebus.ReplyUnsettled},
		{"unreadable, no connection", "", &useCase{}, broken, "dead-letter m0", servicebus.ReplyUnsettled},
		{"unreadable, the lock is lost", "", &useCase{}, lost, "dead-letter m0", servicebus.ReplyLockLost},
		{"abandoned, no connection", ack(nil), answers(callbacks.Answer{}, errors.New("a bug")), broken, "abandon m0", servicebus.ReplyUnsettled},
		{"abandoned, the lock is lost", ack(nil), answers(callbacks.Answer{}, errors.New("a bug")), lost, "abandon m0", servicebus.ReplyLockLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := newTopic(test.body)
				from.fail = test.fail
				c := consume(t, from, test.to, func(cfg *servicebus.RepliesConfig) { cfg.Tries = 1 })
				pass(time.Minute)
				if got := c.deliveries(); len(got) != 1 || got[0].Outcome != test.want || from.done() != test.verb {
					t.Errorf("%v, %q, want %s by %q", got, from.done(), test.want, test.verb)
				}
			})
		})
	}
}

// If the link that delivered a reply is gone, the reply is settled by its lock's token, and
// its lock is renewed first. It fails only if that does.
func TestSettle_WithoutTheLinkThatDeliveredIt(t *testing.T) {
	t.Parallel()
	gone := coded(azservicebus.CodeConnectionLost)
	for _, test := range []struct {
		name  string
		first map[string]error // The errors of the first calls.
		want  servicebus.DeliveryOutcome
		verbs string
	}{
		{"by its token", map[string]error{"complete": gone}, servicebus.ReplyApplied, "complete m0, renew m0, complete m0"},
		{"the lock is lost", map[string]error{"complete": gone, "renew": coded(azservicebus.CodeLockLost)}, servicebus.ReplyLockLost, "complete m0, renew m0"},
		{"no connection", map[string]error{"complete": gone, "renew": gone}, servicebus.ReplyUnsettled, "complete m0, renew m0"},
		{"the bus says no", map[string]error{"complete": coded(azservicebus.CodeLockLost)}, servicebus.ReplyLockLost, "complete m0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := newTopic(ack(nil))
				from.fail = func(_ context.Context, verb string) error {
					err := test.first[verb]
					delete(test.first, verb)
					return err
				}
				c := consume(t, from, &useCase{})
				pass(time.Minute)
				if got := c.deliveries(); len(got) != 1 || got[0].Outcome != test.want || strings.Join(from.log, ", ") != test.verbs {
					t.Errorf("%v by %q, want %s by %q", got, from.log, test.want, test.verbs)
				}
			})
		})
	}
}

// A reply is settled even during a stop.
func TestSettle_IsNotInterruptedByAStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := newTopic(ack(nil))
		from.fail = func(ctx context.Context, _ string) error {
			time.Sleep(5 * time.Second)
			return ctx.Err()
		}
		c := consume(t, from, &useCase{})
		pass(time.Second)
		c.stop()
		<-c.over
		if got := c.deliveries(); len(got) != 1 || got[0].Outcome != servicebus.ReplyApplied {
			t.Errorf("%v, want it applied and settled", got)
		}
	})
}

// The bus accepts descriptions up to a length; they are cut between characters.
func TestSettle_ALongDescriptionIsCut(t *testing.T) {
	t.Parallel()
	for _, text := range []string{strings.Repeat("x", 5000), strings.Repeat("ä", 3000), "xx" + strings.Repeat("€", 3000)} {
		_, from := deliver(t, ack(nil), answers(callbacks.Answer{}, &apierror.Error{Code: apierror.JobNotFound, Detail: text}))
		got := *from.reason.ErrorDescription
		if len(got) > 4096 || len(got) < 4093 || !utf8.ValidString(got) || !strings.HasPrefix(text, got) {
			t.Errorf("%d bytes of %q are %d, ending in %q", len(text), text[:5], len(got), got[max(0, len(got)-5):])
		}
	}
}
