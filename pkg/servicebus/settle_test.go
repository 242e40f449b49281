package servicebus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

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
		{"stale", ack(nil), answers(callbacks.Answer{}, problem.Newf(problem.StaleAttempt, "")), broken, "complete m0", servicebus.ReplyUnsettled},
		{"unreadable, no connection", "", &useCase{}, broken, "dead-letter m0", servicebus.ReplyUnsettled},
		{"unreadable, the lock is lost", "", &useCase{}, lost, "dead-letter m0", servicebus.ReplyLockLost},
		{"given back, no connection", ack(nil), answers(callbacks.Answer{}, errors.New("a bug")), broken, "abandon m0", servicebus.ReplyUnsettled},
		{"given back, the lock is lost", ack(nil), answers(callbacks.Answer{}, errors.New("a bug")), lost, "abandon m0", servicebus.ReplyLockLost},
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
		_, from := deliver(t, ack(nil), answers(callbacks.Answer{}, &problem.Error{Code: problem.JobNotFound, Detail: text}))
		got := *from.reason.ErrorDescription
		if len(got) > 4096 || len(got) < 4093 || !utf8.ValidString(got) || !strings.HasPrefix(text, got) {
			t.Errorf("%d bytes of %q are %d, ending in %q", len(text), text[:5], len(got), got[max(0, len(got)-5):])
		}
	}
}
