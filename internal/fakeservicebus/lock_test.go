package fakeservicebus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

// lockLost reports whether the SDK says that a lock is lost.
func lockLost(err error) bool {
	var known *azservicebus.Error
	return errors.As(err, &known) && known.Code == azservicebus.CodeLockLost
}

func TestAnExpiredLockIsLost(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error{
		"complete": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.CompleteMessage(t.Context(), m, nil)
		},
		"abandon": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.AbandonMessage(t.Context(), m, nil)
		},
		"dead-letter": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.DeadLetterMessage(t.Context(), m, nil)
		},
		"renew": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.RenewMessageLock(t.Context(), m, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			client := connect(t, server)
			send(t, sender(t, client), "a")
			r := receiver(t, client, nil)
			m := receive(t, r, 1)[0]
			if got := server.ExpireLocks(audit); got != 1 {
				t.Fatalf("%d locks expired, want 1", got)
			}
			if err := settle(r, m); !lockLost(err) {
				t.Errorf("got %v, want CodeLockLost", err)
			}
			if again := receive(t, r, 1)[0]; again.DeliveryCount != 2 {
				t.Errorf("it comes for the %d. time, want the second", again.DeliveryCount)
			}
		})
	}
}

func TestALockRunsOutByItself(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.LockDuration = 20 * time.Millisecond; c.MaxDeliveries = 3 })
	client := connect(t, server)
	send(t, sender(t, client), "a")
	r := receiver(t, client, nil)
	for want := uint32(1); want <= 3; want++ {
		if m := receive(t, r, 1)[0]; m.DeliveryCount != want {
			t.Errorf("it comes for the %d. time, want the %d.", m.DeliveryCount, want)
		}
	}
	waittest.Until(t, "it is a dead letter", func() bool { return server.Depth(dead) == 1 })
}

func TestARenewedLockHoldsLonger(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	send(t, sender(t, client), "a")
	r := receiver(t, client, nil)
	m := receive(t, r, 1)[0]
	for before := *m.LockedUntil; !m.LockedUntil.After(before); { // The clock of the wire has milliseconds.
		if err := r.RenewMessageLock(waittest.Context(t), m, nil); err != nil {
			t.Fatalf("renew: %v", err)
		}
	}
	if err := r.CompleteMessage(waittest.Context(t), m, nil); err != nil {
		t.Errorf("complete: %v", err)
	}
}

func TestALockOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error{
		"complete": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.CompleteMessage(t.Context(), m, nil)
		},
		"abandon": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.AbandonMessage(t.Context(), m, nil)
		},
		"dead-letter": func(r *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return r.DeadLetterMessage(t.Context(), m, &azservicebus.DeadLetterOptions{Reason: new("late")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			client := connect(t, server)
			send(t, sender(t, client), "a")
			r := receiver(t, client, nil)
			m := receive(t, r, 1)[0]
			if err := r.Close(waittest.Context(t)); err != nil {
				t.Fatalf("close: %v", err)
			}
			if err := settle(receiver(t, client, nil), m); err != nil {
				t.Fatalf("settle: %v", err)
			}
			there, letters := server.Messages(audit), server.Messages(dead)
			switch {
			case name == "complete" && len(there)+len(letters) == 0:
			case name == "abandon" && len(there) == 1 && there[0].Deliveries == 1:
			case name == "dead-letter" && len(letters) == 1 && letters[0].Properties["DeadLetterReason"] == "late":
			default:
				t.Errorf("there is %+v, and dead %+v", there, letters)
			}
		})
	}
}

func TestALockOfAClosedLinkCanBeLostToo(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	send(t, sender(t, client), "a")
	r := receiver(t, client, nil)
	m := receive(t, r, 1)[0]
	if err := r.Close(waittest.Context(t)); err != nil {
		t.Fatalf("close: %v", err)
	}
	server.ExpireLocks(audit)
	if err := receiver(t, client, nil).CompleteMessage(waittest.Context(t), m, nil); !lockLost(err) {
		t.Errorf("got %v, want CodeLockLost", err)
	}
}
