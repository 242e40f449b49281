package amqppeer_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/amqppeer"
)

// says returns what the SDK calls an error: a code of its own, AMQP's condition, or
// the error's text.
func says(err error) string {
	var known *azservicebus.Error
	var raw *amqp.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, azservicebus.ErrMessageTooLarge):
		return "too large"
	case errors.As(err, &known):
		return string(known.Code)
	case errors.As(err, &raw):
		return string(raw.Condition)
	default:
		return err.Error()
	}
}

func TestWhatTheSDKMakesOfAFault(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault      amqppeer.Fault
		once       bool // the fault goes away after the first transfer
		want       string
		tries      int32
		depth      int
		duplicates int64
	}{
		"nothing":              {amqppeer.Fault{}, false, "", 1, 1, 0},
		"full":                 {amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.LimitExceeded}, false, amqppeer.LimitExceeded, 1, 0, 0},
		"disabled":             {amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.EntityDisabled}, false, amqppeer.EntityDisabled, 1, 0, 0},
		"not allowed":          {amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.NotAllowed}, false, amqppeer.NotAllowed, 1, 0, 0},
		"unauthorized":         {amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.UnauthorizedAccess}, false, "unauthorized", 1, 0, 0},
		"too large":            {amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.MessageSizeExceeded}, false, "too large", 1, 0, 0},
		"busy":                 {amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.ServerBusy}, false, amqppeer.ServerBusy, 6, 0, 0},
		"busy once":            {amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.ServerBusy}, true, "", 2, 1, 0},
		"timed out":            {amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.Timeout}, false, "timeout", 6, 0, 0},
		"something else":       {amqppeer.Fault{Effect: amqppeer.Reject, Condition: "amqp:internal-error"}, false, "connlost", 6, 0, 0},
		"released":             {amqppeer.Fault{Effect: amqppeer.Release}, false, "", 1, 0, 0},
		"modified":             {amqppeer.Fault{Effect: amqppeer.Modify}, false, "", 1, 0, 0},
		"cut before":           {amqppeer.Fault{Effect: amqppeer.DropBefore}, false, "connlost", 6, 0, 0},
		"cut before, once":     {amqppeer.Fault{Effect: amqppeer.DropBefore}, true, "", 2, 1, 0},
		"cut after":            {amqppeer.Fault{Effect: amqppeer.DropAfter}, false, "connlost", 6, 1, 5},
		"cut after, once":      {amqppeer.Fault{Effect: amqppeer.DropAfter}, true, "", 2, 1, 1},
		"cut after, and late":  {amqppeer.Fault{Effect: amqppeer.DropAfter, Delay: time.Millisecond}, true, "", 2, 1, 1},
		"detached":             {amqppeer.Fault{Effect: amqppeer.Detach, Condition: amqppeer.DetachForced}, true, "", 2, 1, 0},
		"detached, and absent": {amqppeer.Fault{Effect: amqppeer.Detach, Condition: amqppeer.NotFound}, false, amqppeer.NotFound, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tries atomic.Int32
			server := start(t, func(c *amqppeer.Config) {
				c.Hooks.OnSend = func(entity string, ids []string) amqppeer.Fault {
					if entity != orders || !slices.Equal(ids, []string{"a"}) {
						t.Errorf("asked for %v to %s", ids, entity)
					}
					if tries.Add(1) > 1 && test.once {
						return amqppeer.Fault{}
					}
					return test.fault
				}
			})
			err := sender(t, connect(t, server)).SendMessage(deadline(t), message("a"), nil)
			if got := says(err); got != test.want {
				t.Errorf("the SDK says %q (%v), want %q", got, err, test.want)
			}
			if got := tries.Load(); got != test.tries {
				t.Errorf("%d tries, want %d", got, test.tries)
			}
			if depth, duplicates := server.Depth(audit), server.Duplicates(); depth != test.depth || duplicates != test.duplicates {
				t.Errorf("%d stored and %d duplicates, want %d and %d", depth, duplicates, test.depth, test.duplicates)
			}
		})
	}
}

func TestSilenceLastsUntilTheSenderGivesUp(t *testing.T) {
	t.Parallel()
	silent := amqppeer.Hooks{OnSend: func(string, []string) amqppeer.Fault { return amqppeer.Fault{Effect: amqppeer.Silence} }}
	server := start(t, nil)
	s := sender(t, connect(t, server))
	send(t, s, "before")
	server.SetHooks(silent)
	ctx, cancel := context.WithTimeout(deadline(t), 20*time.Millisecond)
	defer cancel()
	if err := s.SendMessage(ctx, message("a"), nil); says(err) != "deadline" {
		t.Errorf("got %v, want the end of the context", err)
	}
	server.SetHooks(amqppeer.Hooks{})
	send(t, s, "after")
	if diff := cmp.Diff([]string{"before", "a", "after"}, stored(server, audit)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func TestABatchHasOneFault(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	server := start(t, func(c *amqppeer.Config) {
		c.Hooks.OnSend = func(_ string, ids []string) amqppeer.Fault {
			asked.Store(ids)
			return amqppeer.Fault{Effect: amqppeer.Reject, Condition: amqppeer.LimitExceeded, Description: "the topic is full"}
		}
	})
	s := sender(t, connect(t, server))
	batch, err := s.NewMessageBatch(deadline(t), nil)
	if err != nil {
		t.Fatalf("batch: %v", err)
	}
	for _, id := range []string{"a", "b"} {
		if err := batch.AddMessage(message(id), nil); err != nil {
			t.Fatalf("add: %v", err)
		}
	}
	var raw *amqp.Error
	if err := s.SendMessageBatch(deadline(t), batch, nil); !errors.As(err, &raw) || raw.Description != "the topic is full" {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, asked.Load()); diff != "" {
		t.Errorf("asked for (-want +got):\n%s", diff)
	}
	if got := server.Depth(audit); got != 0 {
		t.Errorf("%d messages are stored", got)
	}
}

func TestAHookMayUseTheServer(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	server.SetHooks(amqppeer.Hooks{
		OnSend: func(string, []string) amqppeer.Fault {
			server.SetHooks(amqppeer.Hooks{}) // The next one goes through.
			server.Cut()
			return amqppeer.Fault{}
		},
		OnArrival: func(subscription, _ string) amqppeer.Arrival { server.Depth(subscription); return amqppeer.Arrival{} },
	})
	send(t, sender(t, connect(t, server)), "a")
	if got := server.Depth(audit); got != 1 {
		t.Errorf("%d messages are stored, want 1", got)
	}
}

func TestALinkThatIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		topic   string
		refusal *amqppeer.Refusal
		want    string
	}{
		"missing":      {"absent", nil, amqppeer.NotFound},
		"gone":         {orders, &amqppeer.Refusal{Condition: amqppeer.NotFound}, amqppeer.NotFound},
		"unauthorized": {orders, &amqppeer.Refusal{Condition: amqppeer.UnauthorizedAccess, Description: "no"}, "unauthorized"},
		"disabled":     {orders, &amqppeer.Refusal{Condition: amqppeer.EntityDisabled}, amqppeer.EntityDisabled},
		"wrong way":    {audit, nil, amqppeer.NotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, func(c *amqppeer.Config) {
				c.Hooks.OnAttach = func(address string) *amqppeer.Refusal {
					if address == orders || address == audit {
						return test.refusal
					}
					return nil
				}
			})
			client := connect(t, server)
			s, err := client.NewSender(test.topic, nil)
			if err != nil {
				t.Fatalf("sender: %v", err)
			}
			if err := s.SendMessage(deadline(t), message("a"), nil); says(err) != test.want {
				t.Errorf("the sender hears %v, want %s", err, test.want)
			}
			if name == "wrong way" {
				return
			}
			r, err := client.NewReceiverForSubscription(test.topic, "audit", nil)
			if err != nil {
				t.Fatalf("receiver: %v", err)
			}
			if _, err := r.ReceiveMessages(deadline(t), 1, nil); says(err) != test.want {
				t.Errorf("the receiver hears %v, want %s", err, test.want)
			}
		})
	}
}

func TestATokenThatIsRefused(t *testing.T) {
	t.Parallel()
	var audience atomic.Value
	server := start(t, func(c *amqppeer.Config) {
		c.Hooks.OnToken = func(of string) *amqppeer.Refusal {
			audience.Store(of)
			return &amqppeer.Refusal{Description: "wrong key"}
		}
	})
	err := sender(t, connect(t, server)).SendMessage(deadline(t), message("a"), nil)
	if got := says(err); got != string(azservicebus.CodeUnauthorizedAccess) {
		t.Errorf("got %v, want CodeUnauthorizedAccess", err)
	}
	if want := "amqp://" + server.Addr() + "/" + orders; audience.Load() != want {
		t.Errorf("the audience is %v, want %s", audience.Load(), want)
	}
}

func TestHowMessagesArrive(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		arrivals map[string]amqppeer.Arrival
		want     []string
	}{
		"in order":          {nil, []string{"a", "b", "c"}},
		"twice":             {map[string]amqppeer.Arrival{"a": {Twice: true}}, []string{"a", "a", "b", "c"}},
		"behind one":        {map[string]amqppeer.Arrival{"a": {Behind: 1}}, []string{"b", "a", "c"}},
		"behind two":        {map[string]amqppeer.Arrival{"a": {Behind: 2}}, []string{"b", "c", "a"}},
		"turned around":     {map[string]amqppeer.Arrival{"a": {Behind: 2}, "b": {Behind: 1}}, []string{"c", "b", "a"}},
		"twice, and behind": {map[string]amqppeer.Arrival{"a": {Twice: true, Behind: 1}}, []string{"a", "b", "a", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, func(c *amqppeer.Config) {
				c.Hooks.OnArrival = func(subscription, id string) amqppeer.Arrival {
					if subscription != audit {
						return amqppeer.Arrival{}
					}
					return test.arrivals[id]
				}
			})
			client := connect(t, server)
			send(t, sender(t, client), "a", "b", "c")
			if got := server.Depth(audit); got != len(test.want) {
				t.Errorf("the depth is %d, want %d", got, len(test.want))
			}
			r := receiver(t, client, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
			if diff := cmp.Diff(test.want, idsOf(receive(t, r, len(test.want)))); diff != "" {
				t.Errorf("received (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"a", "b", "c"}, stored(server, billing)); diff != "" {
				t.Errorf("the other subscription (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAMessageCanBeLate(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"a little": time.Millisecond, "too much": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, func(c *amqppeer.Config) {
				c.Hooks.OnArrival = func(_, id string) amqppeer.Arrival {
					if id == "a" {
						return amqppeer.Arrival{Delay: delay}
					}
					return amqppeer.Arrival{}
				}
			})
			client := connect(t, server)
			send(t, sender(t, client), "a", "b")
			if got := server.Depth(audit); got != 2 {
				t.Errorf("the depth is %d, want 2", got)
			}
			r := receiver(t, client, nil)
			if delay == time.Hour {
				if got := idsOf(receive(t, r, 1)); !slices.Equal(got, []string{"b"}) {
					t.Errorf("received %v", got)
				}
				return
			}
			got := idsOf(receive(t, r, 2))
			slices.Sort(got)
			if !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("received %v", got)
			}
		})
	}
}
