package fakeservicebus_test

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

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

// says returns the SDK's code of an error, else its AMQP condition, else its text.
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
		fault      fakeservicebus.Fault
		once       bool // the fault goes away after the first transfer
		want       string
		tries      int32
		depth      int
		duplicates int64
	}{
		"nothing":              {fakeservicebus.Fault{}, false, "", 1, 1, 0},
		"full":                 {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.LimitExceeded}, false, fakeservicebus.LimitExceeded, 1, 0, 0},
		"disabled":             {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.EntityDisabled}, false, fakeservicebus.EntityDisabled, 1, 0, 0},
		"not allowed":          {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.NotAllowed}, false, fakeservicebus.NotAllowed, 1, 0, 0},
		"unauthorized":         {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.UnauthorizedAccess}, false, "unauthorized", 1, 0, 0},
		"too large":            {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.MessageSizeExceeded}, false, "too large", 1, 0, 0},
		"busy":                 {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.ServerBusy}, false, fakeservicebus.ServerBusy, 6, 0, 0},
		"busy once":            {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.ServerBusy}, true, "", 2, 1, 0},
		"timed out":            {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.Timeout}, false, "timeout", 6, 0, 0},
		"something else":       {fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.InternalError}, false, "connlost", 6, 0, 0},
		"released":             {fakeservicebus.Fault{Effect: fakeservicebus.Release}, false, "", 1, 0, 0},
		"modified":             {fakeservicebus.Fault{Effect: fakeservicebus.Modify}, false, "", 1, 0, 0},
		"cut before":           {fakeservicebus.Fault{Effect: fakeservicebus.DropBefore}, false, "connlost", 6, 0, 0},
		"cut before, once":     {fakeservicebus.Fault{Effect: fakeservicebus.DropBefore}, true, "", 2, 1, 0},
		"cut after":            {fakeservicebus.Fault{Effect: fakeservicebus.DropAfter}, false, "connlost", 6, 1, 5},
		"cut after, once":      {fakeservicebus.Fault{Effect: fakeservicebus.DropAfter}, true, "", 2, 1, 1},
		"cut after, and late":  {fakeservicebus.Fault{Effect: fakeservicebus.DropAfter, Delay: time.Millisecond}, true, "", 2, 1, 1},
		"detached":             {fakeservicebus.Fault{Effect: fakeservicebus.Detach, Condition: fakeservicebus.DetachForced}, true, "", 2, 1, 0},
		"detached, and absent": {fakeservicebus.Fault{Effect: fakeservicebus.Detach, Condition: fakeservicebus.NotFound}, false, fakeservicebus.NotFound, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tries atomic.Int32
			server := start(t, func(c *fakeservicebus.Config) {
				c.Hooks.OnSend = func(entity string, ids []string) fakeservicebus.Fault {
					if entity != orders || !slices.Equal(ids, []string{"a"}) {
						t.Errorf("asked for %v to %s", ids, entity)
					}
					if tries.Add(1) > 1 && test.once {
						return fakeservicebus.Fault{}
					}
					return test.fault
				}
			})
			err := sender(t, connect(t, server)).SendMessage(waittest.Context(t), message("a"), nil)
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
	server := start(t, nil)
	s := sender(t, connect(t, server))
	send(t, s, "before")
	ctx, cancel := context.WithCancel(waittest.Context(t))
	defer cancel()
	server.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
		time.AfterFunc(50*time.Millisecond, cancel) // It has reached the broker.
		return fakeservicebus.Fault{Effect: fakeservicebus.Silence}
	}})
	if err := s.SendMessage(ctx, message("a"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the end of the context", err)
	}
	server.SetHooks(fakeservicebus.Hooks{})
	send(t, s, "after")
	if diff := cmp.Diff([]string{"before", "a", "after"}, stored(server, audit)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func TestABatchHasOneFault(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	server := start(t, func(c *fakeservicebus.Config) {
		c.Hooks.OnSend = func(_ string, ids []string) fakeservicebus.Fault {
			asked.Store(ids)
			return fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: fakeservicebus.LimitExceeded, Description: "the topic is full"}
		}
	})
	s := sender(t, connect(t, server))
	batch, err := s.NewMessageBatch(waittest.Context(t), nil)
	if err != nil {
		t.Fatalf("batch: %v", err)
	}
	for _, id := range []string{"a", "b"} {
		if err := batch.AddMessage(message(id), nil); err != nil {
			t.Fatalf("add: %v", err)
		}
	}
	var raw *amqp.Error
	if err := s.SendMessageBatch(waittest.Context(t), batch, nil); !errors.As(err, &raw) || raw.Description != "the topic is full" {
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
	server.SetHooks(fakeservicebus.Hooks{
		OnSend: func(string, []string) fakeservicebus.Fault {
			server.SetHooks(fakeservicebus.Hooks{}) // The next one goes through.
			server.Cut()
			return fakeservicebus.Fault{}
		},
		OnArrival: func(subscription, _ string) fakeservicebus.Arrival {
			server.Depth(subscription)
			return fakeservicebus.Arrival{}
		},
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
		refusal *fakeservicebus.Refusal
		want    string
	}{
		"missing":      {"absent", nil, fakeservicebus.NotFound},
		"gone":         {orders, &fakeservicebus.Refusal{Condition: fakeservicebus.NotFound}, fakeservicebus.NotFound},
		"unauthorized": {orders, &fakeservicebus.Refusal{Condition: fakeservicebus.UnauthorizedAccess, Description: "no"}, "unauthorized"},
		"disabled":     {orders, &fakeservicebus.Refusal{Condition: fakeservicebus.EntityDisabled}, fakeservicebus.EntityDisabled},
		"wrong way":    {audit, nil, fakeservicebus.NotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, func(c *fakeservicebus.Config) {
				c.Hooks.OnAttach = func(address string) *fakeservicebus.Refusal {
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
			if err := s.SendMessage(waittest.Context(t), message("a"), nil); says(err) != test.want {
				t.Errorf("the sender hears %v, want %s", err, test.want)
			}
			if name == "wrong way" {
				return
			}
			r, err := client.NewReceiverForSubscription(test.topic, "audit", nil)
			if err != nil {
				t.Fatalf("receiver: %v", err)
			}
			if _, err := r.ReceiveMessages(waittest.Context(t), 1, nil); says(err) != test.want {
				t.Errorf("the receiver hears %v, want %s", err, test.want)
			}
		})
	}
}

func TestATokenThatIsRefused(t *testing.T) {
	t.Parallel()
	var audience atomic.Value
	server := start(t, func(c *fakeservicebus.Config) {
		c.Hooks.OnToken = func(of string) *fakeservicebus.Refusal {
			audience.Store(of)
			return &fakeservicebus.Refusal{Description: "wrong key"}
		}
	})
	err := sender(t, connect(t, server)).SendMessage(waittest.Context(t), message("a"), nil)
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
		arrivals map[string]fakeservicebus.Arrival
		want     []string
	}{
		"in order":          {nil, []string{"a", "b", "c"}},
		"twice":             {map[string]fakeservicebus.Arrival{"a": {Twice: true}}, []string{"a", "a", "b", "c"}},
		"behind one":        {map[string]fakeservicebus.Arrival{"a": {Behind: 1}}, []string{"b", "a", "c"}},
		"behind two":        {map[string]fakeservicebus.Arrival{"a": {Behind: 2}}, []string{"b", "c", "a"}},
		"turned around":     {map[string]fakeservicebus.Arrival{"a": {Behind: 2}, "b": {Behind: 1}}, []string{"c", "b", "a"}},
		"twice, and behind": {map[string]fakeservicebus.Arrival{"a": {Twice: true, Behind: 1}}, []string{"a", "b", "a", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, func(c *fakeservicebus.Config) {
				c.Hooks.OnArrival = func(subscription, id string) fakeservicebus.Arrival {
					if subscription != audit {
						return fakeservicebus.Arrival{}
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
			server := start(t, func(c *fakeservicebus.Config) {
				c.Hooks.OnArrival = func(_, id string) fakeservicebus.Arrival {
					if id == "a" {
						return fakeservicebus.Arrival{Delay: delay}
					}
					return fakeservicebus.Arrival{}
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
