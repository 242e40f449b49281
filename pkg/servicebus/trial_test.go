package servicebus_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// tryAll tries the topic and the invoker's subscription.
func tryAll(t *testing.T, connection string, size int) []servicebus.Fault {
	t.Helper()
	faults, err := servicebus.Try(t.Context(), servicebus.Namespace{Connection: connection}, servicebus.Trial{
		Topics: []string{wireTopic}, MessageBytes: size, Timeout: waittest.Scale(5 * time.Second),
		Subscriptions: []servicebus.Subscription{{Topic: wireReplies, Name: "lucius-invoker"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return faults
}

// A trial changes nothing.
func TestTry_Allowed(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	published(t, publish(t, publisherOnWire(t, peer, nil), onTopic(wireReplies, 2)))
	if faults := tryAll(t, peer.ConnectionString(), 200_000); len(faults) > 0 {
		t.Errorf("%v", faults)
	}
	if peer.Depth(wireWorker) != 0 || peer.Depth(wireInvoker) != 2 || peer.Messages(wireInvoker)[0].Locked {
		t.Errorf("%d and %d messages, the first: %+v", peer.Depth(wireWorker), peer.Depth(wireInvoker), peer.Messages(wireInvoker)[0])
	}
}

func TestTry_ReportsFaults(t *testing.T) {
	t.Parallel()
	const (
		invoker = wireReplies + "/lucius-invoker"
		noSend  = "access is denied (it needs the right Send, or the role Azure Service Bus Data Sender): "
		noRead  = "access is denied (it needs the right Listen, or the role Azure Service Bus Data Receiver): "
		noToken = "(unauthorized): rpc: failed, status code 401 and description: InvalidSignature"
	)
	for name, test := range map[string]struct {
		change func(*fakeservicebus.Config)
		size   int
		want   []servicebus.Fault
	}{
		"nothing is there": {
			func(cfg *fakeservicebus.Config) { cfg.Topics = nil }, 1,
			[]servicebus.Fault{{wireTopic, "it is missing or out of service"}, {invoker, "it is missing or out of service"}},
		},
		"no token": {
			func(cfg *fakeservicebus.Config) {
				cfg.Hooks.OnToken = func(string) *fakeservicebus.Refusal { return &fakeservicebus.Refusal{Description: "InvalidSignature"} }
			}, 1,
			[]servicebus.Fault{{wireTopic, noSend + noToken}, {invoker, noRead + noToken}},
		},
		"no right to send": {
			func(cfg *fakeservicebus.Config) {
				cfg.Hooks.OnAttach = func(address string) *fakeservicebus.Refusal {
					if address == wireTopic {
						return &fakeservicebus.Refusal{Condition: fakeservicebus.UnauthorizedAccess, Description: "no"}
					}
					return nil
				}
			}, 1,
			[]servicebus.Fault{{wireTopic, noSend + "(unauthorized): *Error{Condition: amqp:unauthorized-access, Description: no, Info: map[]}"}},
		},
		"small messages": {
			func(cfg *fakeservicebus.Config) { cfg.MaxMessageSize = 1000 }, 2000,
			[]servicebus.Fault{{wireTopic, "its message size limit is below that of directives"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peer := namespaceOnWire(t, test.change)
			if diff := cmp.Diff(test.want, tryAll(t, peer.ConnectionString(), test.size)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTry_WithoutABroker(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	peer.Close()
	for _, fault := range tryAll(t, peer.ConnectionString(), 1) {
		if fault.Detail != "no connection" {
			t.Errorf("%v", fault)
		}
	}
	if _, err := servicebus.Try(t.Context(), servicebus.Namespace{}, servicebus.Trial{}); err == nil || !strings.Contains(err.Error(), "Namespace") {
		t.Errorf("no namespace: %v", err)
	}
}
