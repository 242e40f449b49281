package fakeservicebus_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

func TestConfigNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	topic := func(change func(*fakeservicebus.Topic)) fakeservicebus.Config {
		described := fakeservicebus.Topic{Name: orders}
		change(&described)
		return fakeservicebus.Config{Topics: []fakeservicebus.Topic{described}}
	}
	subscription := func(s fakeservicebus.Subscription) fakeservicebus.Config {
		return topic(func(t *fakeservicebus.Topic) { t.Subscriptions = []fakeservicebus.Subscription{s} })
	}
	for want, cfg := range map[string]fakeservicebus.Config{
		"Config.LockDuration must":                                {LockDuration: -1},
		"Config.MaxDeliveries must":                               {MaxDeliveries: -1},
		"Config.MaxMessageSize must":                              {MaxMessageSize: -1},
		"Config.KeepAlive must":                                   {KeepAlive: -1},
		"Config.Topics[0]: Topic.Name must":                       topic(func(t *fakeservicebus.Topic) { t.Name = "" }),
		"without /Subscriptions/, is \"a/subscriptions/b\"":       topic(func(t *fakeservicebus.Topic) { t.Name = "a/subscriptions/b" }),
		"Topic.Name must be a path without $":                     topic(func(t *fakeservicebus.Topic) { t.Name = "$cbs" }),
		"is \"/a\"":                                               topic(func(t *fakeservicebus.Topic) { t.Name = "/a" }),
		"Topic.Subscriptions[0]: Subscription.Name must":          subscription(fakeservicebus.Subscription{Name: "a/b"}),
		"Subscription.LockDuration must not be negative, is -1ns": subscription(fakeservicebus.Subscription{Name: "a", LockDuration: -1}),
		"Subscription.MaxDeliveries must not be negative, is -1":  subscription(fakeservicebus.Subscription{Name: "a", MaxDeliveries: -1}),
		"no port":                         {Address: "no port"},
		"topic ORDERS: the entity exists": {Topics: []fakeservicebus.Topic{{Name: orders}, {Name: "ORDERS"}}},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			server, err := fakeservicebus.Start(cfg)
			if err == nil {
				server.Close()
				t.Fatal("it started")
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got %q, want %q in it", err, want)
			}
		})
	}
}

func TestEntitiesAreAddedLater(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.Topics = nil })
	if err := server.AddTopic(fakeservicebus.Topic{Name: "Orders", Subscriptions: []fakeservicebus.Subscription{{Name: "Billing"}}}); err != nil {
		t.Fatalf("add a topic: %v", err)
	}
	if err := server.AddSubscription(orders, fakeservicebus.Subscription{Name: "audit"}); err != nil {
		t.Fatalf("add a subscription: %v", err)
	}
	send(t, sender(t, connect(t, server)), "a")
	for _, path := range []string{audit, billing, strings.ToUpper(billing)} {
		if got := server.Depth(path); got != 1 {
			t.Errorf("%s has %d messages, want 1", path, got)
		}
	}
	for name, test := range map[string]struct{ got, want error }{
		"a topic twice":              {server.AddTopic(fakeservicebus.Topic{Name: orders}), fakeservicebus.ErrExists},
		"a subscription twice":       {server.AddSubscription(orders, fakeservicebus.Subscription{Name: "Audit"}), fakeservicebus.ErrExists},
		"a subscription of no topic": {server.AddSubscription("absent", fakeservicebus.Subscription{Name: "a"}), fakeservicebus.ErrNoTopic},
	} {
		if !errors.Is(test.got, test.want) {
			t.Errorf("%s: got %v, want %v", name, test.got, test.want)
		}
	}
	if server.AddTopic(fakeservicebus.Topic{}) == nil || server.AddSubscription(orders, fakeservicebus.Subscription{}) == nil {
		t.Error("an entity without a name was added")
	}
	twice := []fakeservicebus.Subscription{{Name: "a"}, {Name: "A"}}
	if err := server.AddTopic(fakeservicebus.Topic{Name: "twice", Subscriptions: twice}); !errors.Is(err, fakeservicebus.ErrExists) {
		t.Errorf("a topic with a subscription twice: got %v", err)
	}
}

func TestNothingIsAtAnUnknownPath(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	if d, m, l := server.Depth(orders), server.Messages("absent"), server.ExpireLocks("absent"); d != -1 || m != nil || l != 0 {
		t.Errorf("depth %d, messages %v, locks %d", d, m, l)
	}
}

func TestARestartKeepsAddressAndMessages(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	s, r := sender(t, client), receiver(t, client, nil)
	send(t, s, "a")
	locked := receive(t, r, 1)[0]
	address := server.Addr()
	server.Stop()
	server.Stop()
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Fatalf("%s still listens", address)
	}
	if got := server.Depth(audit); got != 1 {
		t.Errorf("a stopped server has %d messages, want 1", got)
	}
	if err := server.Restart(); err != nil {
		t.Fatalf("restart: %v", err)
	}
	if got := server.Addr(); got != address {
		t.Errorf("it listens at %s, was %s", got, address)
	}
	if err := server.Restart(); !errors.Is(err, fakeservicebus.ErrRunning) {
		t.Errorf("a second restart: got %v, want ErrRunning", err)
	}
	send(t, s, "a", "b")
	if diff := cmp.Diff([]string{"a", "b"}, stored(server, audit)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	if got := server.Duplicates(); got != 1 {
		t.Errorf("%d duplicates, want 1", got)
	}
	server.ExpireLocks(audit)
	var got []string
	for len(got) < 2 { // The first may end with the old connection.
		more, err := r.ReceiveMessages(waittest.Context(t), 2-len(got), nil)
		if err != nil {
			t.Fatalf("receive: %v", err)
		}
		got = append(got, idsOf(more)...)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"a", "b"}) || locked.MessageID != "a" {
		t.Errorf("received %v", got)
	}
}

func TestAServerThatCannotListenAgainSaysSo(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	server.Stop()
	taken, err := net.Listen("tcp", server.Addr())
	if err != nil {
		t.Fatalf("listen in its place: %v", err)
	}
	if err := server.Restart(); err == nil {
		t.Error("two listen at one address")
	}
	_ = taken.Close()
	if err := server.Restart(); err != nil {
		t.Errorf("restart: %v", err)
	}
}

func TestACutIsMended(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	s := sender(t, connect(t, server))
	for _, id := range []string{"a", "b", "c"} {
		send(t, s, id)
		server.Cut()
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, stored(server, audit)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func TestAClosedServerIsEmpty(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.LockDuration = time.Hour })
	client := connect(t, server)
	send(t, sender(t, client), "a")
	receive(t, receiver(t, client, nil), 1)
	server.Close()
	server.Close()
	if err := server.Restart(); !errors.Is(err, fakeservicebus.ErrClosed) {
		t.Errorf("restart: got %v, want ErrClosed", err)
	}
	if got := server.Depth(audit); got != -1 {
		t.Errorf("the depth is %d, want -1", got)
	}
}
