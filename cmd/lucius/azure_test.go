package main

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/pkg/servicebus/topology"
)

// memoryNamespace is the management side of a namespace: senders and receivers can
// use the entities that it creates.
type memoryNamespace struct {
	topics map[string]*topology.TopicState
	peer   *fakeservicebus.Server
	err    error
}

// newMemoryNamespace starts an empty namespace.
func newMemoryNamespace(t *testing.T) *memoryNamespace {
	t.Helper()
	peer, err := fakeservicebus.Start(fakeservicebus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	return &memoryNamespace{topics: map[string]*topology.TopicState{}, peer: peer}
}

func (m *memoryNamespace) Limits(context.Context) (int, error) { return 256 << 10, m.err }

func (m *memoryNamespace) Topic(_ context.Context, name string) (*topology.TopicState, error) {
	return m.topics[name], m.err
}

func (m *memoryNamespace) CreateTopic(_ context.Context, topic *topology.Topic) error {
	m.topics[topic.Name] = &topology.TopicState{Active: true, Deduplicates: topic.Window > 0, Window: topic.Window}
	return errors.Join(m.err, m.peer.AddTopic(fakeservicebus.Topic{Name: topic.Name}))
}

func (m *memoryNamespace) CreateSubscription(_ context.Context, topic string, s topology.Subscription) error {
	m.topics[topic].Subscriptions = append(m.topics[topic].Subscriptions, topology.SubscriptionState{Name: s.Name, Active: true})
	return errors.Join(m.err, m.peer.AddSubscription(topic, fakeservicebus.Subscription{Name: s.Name}))
}

// azureCommand runs lucius azure on the namespace, with those variables.
func azureCommand(t *testing.T, namespace topology.Admin, variables map[string]string, args ...string) (out string, code int) {
	t.Helper()
	stdout := &output{}
	p := &program{stdout: stdout, stderr: &output{}, namespace: namespace, lookup: func(name string) (string, bool) {
		value, set := variables[name]
		return value, set
	}}
	err := p.run(t.Context(), append([]string{"azure"}, args...))
	if err == nil {
		return stdout.String(), 0
	}
	return stdout.String() + err.Error(), exitCode(err)
}

// connected are the variables of a server on the namespace.
func (m *memoryNamespace) connected(more map[string]string) map[string]string {
	variables := onServiceBus(more)
	variables["LUCIUS_SERVICEBUS_NAMESPACE"] = ""
	variables["LUCIUS_SERVICEBUS_CONNECTION"] = m.peer.ConnectionString()
	return variables
}

// onServiceBus are the variables of a server with two lanes.
func onServiceBus(more map[string]string) map[string]string {
	variables := map[string]string{
		"LUCIUS_BUS": config.BusServiceBus, "LUCIUS_SERVICEBUS_NAMESPACE": "example.servicebus.windows.net",
		"LUCIUS_SERVICEBUS_LANES": "2", "LUCIUS_SERVICEBUS_REPLIES": "true", "LUCIUS_PROTOCOLS_DIR": "../../protocols",
	}
	maps.Copy(variables, more)
	return variables
}

// Provisioning creates what a check reports as missing: tables, and topics with a
// subscription for each service of the protocols.
func TestAzure_ProvisionsWhatCheckMisses(t *testing.T) {
	t.Parallel()
	account, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(account.Stop)
	namespace := newMemoryNamespace(t)
	variables := namespace.connected(map[string]string{
		"LUCIUS_STORAGE_BACKEND": config.BackendTable, "LUCIUS_TABLE_CONNECTION": account.ConnectionString(),
	})

	out, code := azureCommand(t, namespace, variables, "check")
	for _, want := range []string{
		"wrong: table luciussteps: the table is missing; provision creates it\n", "tables: 9 checked, 9 wrong\n",
		"wrong: global-bus-p1: the topic is missing; provision creates it\n", "topics: 4 checked, 4 wrong\n",
		"13 findings to fix",
	} {
		if code != exitFindings || !strings.Contains(out, want) {
			t.Errorf("the check ends with %d, and has no %q:\n%s", code, want, out)
		}
	}
	out, code = azureCommand(t, namespace, variables, "provision")
	for _, want := range []string{
		"created: global-bus-p0/extract\n", "created: global-bus-replies-p1/lucius-invoker\n",
		"tables: 9 checked, 0 wrong\n", "topics: 4 checked, 0 wrong\n",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("provisioning ends with %d, and has no %q:\n%s", code, want, out)
		}
	}
	if out, code := azureCommand(t, namespace, variables, "check"); code != 0 || strings.Count(out, "\n") != 2 {
		t.Errorf("the second check ends with %d:\n%s", code, out)
	}
}

// The credential of a server may send and read, but need not be allowed to manage: then
// the check tries what a server does.
func TestAzure_ChecksWithAServersCredential(t *testing.T) {
	t.Parallel()
	namespace := newMemoryNamespace(t)
	variables := namespace.connected(nil)
	if out, code := azureCommand(t, namespace, variables, "provision"); code != 0 {
		t.Fatalf("provisioning ends with %d:\n%s", code, out)
	}
	namespace.err = topology.ErrForbidden
	out, code := azureCommand(t, namespace, variables, "check")
	if code != 0 || !strings.HasPrefix(out, "warning: the namespace: no right to inspect it") || !strings.Contains(out, "topics: 4 checked, 0 wrong\n") {
		t.Errorf("the check ends with %d:\n%s", code, out)
	}
	namespace.peer.SetHooks(fakeservicebus.Hooks{OnAttach: func(address string) *fakeservicebus.Refusal {
		if address == "global-bus-p1" {
			return &fakeservicebus.Refusal{Condition: fakeservicebus.UnauthorizedAccess}
		}
		return nil
	}})
	out, code = azureCommand(t, namespace, variables, "check")
	if code != exitFindings || !strings.Contains(out, "wrong: global-bus-p1: the credential does not let it be used\n") {
		t.Errorf("the check ends with %d:\n%s", code, out)
	}
}

// A check that could not look reports no success.
func TestAzure_CannotBeChecked(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		namespace topology.Admin
		variables map[string]string
		args      []string
		want      string
	}{
		"no right": {&memoryNamespace{err: topology.ErrForbidden}, onServiceBus(nil), []string{"provision"}, topology.ErrForbidden.Error()},
		"no namespace": {
			&memoryNamespace{err: errors.New("the namespace answers 500")}, onServiceBus(nil), []string{"check"}, "the namespace answers 500",
		},
		"no account": {
			nil, map[string]string{
				"LUCIUS_STORAGE_BACKEND":  config.BackendLedger,
				"LUCIUS_TABLE_CONNECTION": "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;TableEndpoint=http://127.0.0.1:1/a;",
			},
			[]string{"check"}, "the account does not answer",
		},
		"a bad key": {
			nil, onServiceBus(map[string]string{
				"LUCIUS_SERVICEBUS_NAMESPACE": "", "LUCIUS_SERVICEBUS_CONNECTION": "Endpoint=sb://example/;SharedAccessKey=hunter2",
			}),
			[]string{"check"}, "LUCIUS_BUS servicebus: the connection string of the namespace cannot be used",
		},
		"nothing on Azure": {nil, nil, []string{"check"}, "nothing is on Azure"},
		"no protocols":     {nil, onServiceBus(map[string]string{"LUCIUS_PROTOCOLS_DIR": "nowhere"}), []string{"check"}, "LUCIUS_PROTOCOLS_DIR nowhere"},
		"no such word":     {nil, nil, []string{"mend"}, "lucius azure check, or lucius azure provision"},
		"no word":          {nil, nil, nil, "lucius azure check, or lucius azure provision"},
		"an argument":      {nil, nil, []string{"check", "topics"}, `was given "topics"`},
		"a bad variable":   {nil, onServiceBus(map[string]string{"LUCIUS_SERVICEBUS_LANES": "many"}), []string{"check"}, "LUCIUS_SERVICEBUS_LANES"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code := azureCommand(t, test.namespace, test.variables, test.args...)
			if code != exitUnchecked || !strings.Contains(out, test.want) || strings.Contains(out, "hunter2") {
				t.Errorf("it ends with %d: %s", code, out)
			}
		})
	}
}
