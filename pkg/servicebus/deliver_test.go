package servicebus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

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
func unavailable() error { return problem.Newf(problem.StoreUnavailable, "The store does not answer.") }

func TestDeliver_IsSettledByWhatBecameOfIt(t *testing.T) {
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
		{"stale", callbacks.Answer{}, problem.Newf(problem.StaleAttempt, "Stale."), servicebus.ReplyRefused, "complete m0", ""},
		{"stale, wrapped", callbacks.Answer{}, fmt.Errorf("ack: %w", problem.Newf(problem.StaleAttempt, "Stale.")), servicebus.ReplyRefused, "complete m0", ""},
		{"contradictory", callbacks.Answer{}, problem.Newf(problem.ContradictoryResult, "No."), servicebus.ReplyRefused, "complete m0", ""},
		{"too late", callbacks.Answer{}, problem.Newf(problem.IllegalTransition, "No."), servicebus.ReplyRefused, "complete m0", ""},
		{"about no job", callbacks.Answer{}, problem.Newf(problem.JobNotFound, "None."), servicebus.ReplyDeadLettered, "dead-letter m0", "job_not_found: None."},
		{"about no step", callbacks.Answer{}, problem.Newf(problem.StepNotFound, "None."), servicebus.ReplyDeadLettered, "dead-letter m0", "step_not_found: None."},
		{"too large for a row", callbacks.Answer{}, problem.Newf(problem.TooLarge, "Large."), servicebus.ReplyDeadLettered, "dead-letter m0", "too_large: Large."},
		{"refused for another reason", callbacks.Answer{}, problem.Newf(problem.RefInvalid, "No."), servicebus.ReplyDeadLettered, "dead-letter m0", "ref_invalid: No."},
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

// A clean-up may fail after the commit; the commit stands, and the log says so.
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
	deliver(t, ack(nil), answers(callbacks.Answer{}, problem.Newf(problem.StaleAttempt, "Attempt 1 is over.")), func(cfg *servicebus.RepliesConfig) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	for _, want := range []string{"topic=replies-0", "message_id=m0", "type=ACK", "reason=stale_attempt", "Attempt 1 is over."} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log: %s", want, log.String())
		}
	}
}

// An outage of the store may outlast any number of deliveries, so a reply is not
// abandoned: the bus would dead-letter it in the end.
func TestDeliver_IsHeldWhileTheStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
	}{
		{"no answer", unavailable()},
		{"conflicts", problem.Newf(problem.Conflict, "Others were first.")},
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
func TestDeliver_AnUnforeseenErrorIsGivenBackAfterSomeTries(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		to    *useCase
		calls int
		want  string
	}{
		{"each time", answers(callbacks.Answer{}, errors.New("a bug")), 4, "abandon m0"},
		{"each time, by its code", answers(callbacks.Answer{}, problem.Newf(problem.Internal, "")), 4, "abandon m0"},
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

// A stop does not interrupt the call of a reply in hand, and the reply is settled.
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
func TestDeliver_AStopGivesBackWhatTheStoreDidNotTake(t *testing.T) {
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
