package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

var notifyChecks = []check{
	{"notify/others hear what one sends, and it does not", func(t testing.TB, e *env) {
		other := e.harness.Reopen(t)
		defer func() {
			if err := other.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		one, another := listen(e.store, "channel"), listen(other, "channel")
		elsewhere := listen(other, "channel 2")
		send(t, e.store, "channel 2", "elsewhere", elsewhere)
		if got := send(t, e.store, "channel", "from one", another); slices.Contains(got, "elsewhere") {
			t.Errorf("payloads of another channel: %q", got)
		}
		if got := send(t, other, "channel", "from another", one); slices.Contains(got, "from one") {
			t.Errorf("it heard itself: %q", got)
		}
	}},
	{"notify/nothing is heard after Close", func(t testing.TB, e *env) {
		other := e.harness.Reopen(t)
		heard := listen(other, "channel")
		send(t, e.store, "channel", "before", heard)
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		close(heard) // Another call would panic.
		third := e.harness.Reopen(t)
		send(t, e.store, "channel", "after", listen(third, "channel"))
		if err := third.Close(); err != nil {
			t.Error(err)
		}
	}},
}

// listen returns a channel for what the store hears.
func listen(store tablestore.Store, channel string) chan string {
	heard := make(chan string, 1000)
	store.(tablestore.Notifier).Listen(channel, func(payload string) {
		heard <- payload // Checks send fewer than it holds.
	})
	return heard
}

// send sends the payload until it is heard, since it may be lost, and returns all that was
// heard until then.
func send(t testing.TB, store tablestore.Store, channel, payload string, heard <-chan string) (all []string) {
	t.Helper()
	for {
		store.(tablestore.Notifier).Notify(channel, payload)
		select {
		case got := <-heard:
			if all = append(all, got); got == payload {
				return all
			}
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("%q was not heard", payload)
		}
	}
}
