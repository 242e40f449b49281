package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/pkg/servicebus/namespace"
)

// newManaged starts an empty namespace, and returns the variables of a server on it
// that is managed with a connection string of its own.
func newManaged(t *testing.T) (*fakeservicebus.Server, map[string]string) {
	t.Helper()
	peer, err := fakeservicebus.Start(fakeservicebus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	admin, err := peer.ServeAdmin()
	if err != nil {
		t.Fatal(err)
	}
	return peer, onServiceBus(map[string]string{
		"LUCIUS_SERVICEBUS_NAMESPACE": "", "LUCIUS_SERVICEBUS_CONNECTION": peer.ConnectionString(),
		"LUCIUS_SERVICEBUS_ADMIN_CONNECTION": admin,
	})
}

// azureCommand runs lucius azure with those variables.
func azureCommand(t *testing.T, variables map[string]string, args ...string) (out string, code int) {
	t.Helper()
	stdout := &output{}
	p := &program{Env: cli.Env{Stdout: stdout, Stderr: &output{}, Environment: entries(variables)}}
	err := p.run(t.Context(), append([]string{"azure"}, args...))
	if err == nil {
		return stdout.String(), 0
	}
	return stdout.String() + err.Error(), exitCode(err)
}

// expectAzure runs lucius azure with one verb, and checks how it ends and what it says.
func expectAzure(t *testing.T, variables map[string]string, verb string, wantCode int, want ...string) (out string) {
	t.Helper()
	out, code := azureCommand(t, variables, verb)
	missing := slices.DeleteFunc(want, func(part string) bool { return strings.Contains(out, part) })
	if code != wantCode || len(missing) > 0 {
		t.Errorf("%s ends with %d, want %d, and does not say %q:\n%s", verb, code, wantCode, missing, out)
	}
	return out
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

// The credential of a server may send and read, but need not be allowed to manage: then
// the check tries what a server does. The same holds for an emulator without a
// management connection.
func TestAzure_ChecksWithAServersCredential(t *testing.T) {
	t.Parallel()
	peer, variables := newManaged(t)
	expectAzure(t, variables, "provision", 0)
	hooks := fakeservicebus.Hooks{OnManage: func(string, string) int { return http.StatusUnauthorized }}
	peer.SetHooks(hooks)
	out := expectAzure(t, variables, "check", 0, namespace.ErrForbidden.Error(), "topics: 4 checked, 0 wrong\n")
	if !strings.HasPrefix(out, "warning: the namespace: filters and settings could not be inspected (") {
		t.Errorf("the check says:\n%s", out)
	}
	hooks.OnAttach = func(address string) *fakeservicebus.Refusal {
		if address == "global-bus-p1" {
			return &fakeservicebus.Refusal{Condition: fakeservicebus.UnauthorizedAccess}
		}
		return nil
	}
	peer.SetHooks(hooks)
	expectAzure(t, variables, "check", cli.ExitFailed, "wrong: global-bus-p1: access is denied (it needs the right Send, or the role Azure Service Bus Data Sender): ")
	peer.SetHooks(fakeservicebus.Hooks{})
	variables["LUCIUS_SERVICEBUS_ADMIN_CONNECTION"] = ""
	expectAzure(t, variables, "check", 0, "set LUCIUS_SERVICEBUS_ADMIN_CONNECTION", "topics: 4 checked, 0 wrong\n")
	expectAzure(t, variables, "provision", cli.ExitUsage, "set LUCIUS_SERVICEBUS_ADMIN_CONNECTION")
}

// The check names all that loses directives, such as a service of the protocols without a
// subscription.
func TestAzure_NamesServicesWithoutASubscription(t *testing.T) {
	t.Parallel()
	peer, variables := newManaged(t)
	for _, topic := range []string{"global-bus-p0", "global-bus-p1"} {
		added := fakeservicebus.Topic{Name: topic}
		for _, service := range []string{"extract", "embed"} {
			added.Subscriptions = append(added.Subscriptions, fakeservicebus.Subscription{
				Name: service, Filter: map[string]string{"service": service}, LockDuration: time.Second,
			})
		}
		if err := peer.AddTopic(added); err != nil {
			t.Fatal(err)
		}
	}
	variables["LUCIUS_SERVICEBUS_REPLIES"] = "false"
	expectAzure(t, variables, "check", cli.ExitFailed,
		"wrong: global-bus-p1/index: no subscription takes the directives of service index (step types INDEX), so each is lost silently; "+
			"add a subscription with the correlation filter service = 'index'; provision creates it\n",
		"warning: global-bus-p0/extract: its locks last 1s, less than the ACK timeout of 30s",
		"topics: 2 checked, 2 wrong\n",
	)
}

// The configuration of Microsoft's emulator has the topics of the settings and a
// subscription for each service of the protocols.
func TestAzure_WritesTheEmulatorsConfiguration(t *testing.T) {
	t.Parallel()
	out, code := azureCommand(t, onServiceBus(nil), "emulator-config")
	var written struct {
		UserConfig struct {
			Namespaces []struct {
				Topics []struct {
					Name          string
					Subscriptions []struct{ Name string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &written); err != nil || code != 0 {
		t.Fatalf("it ends with %d: %v\n%s", code, err, out)
	}
	var entities []string
	for _, topic := range written.UserConfig.Namespaces[0].Topics {
		for _, s := range topic.Subscriptions {
			entities = append(entities, topic.Name+"/"+s.Name)
		}
	}
	want := []string{
		"global-bus-p0/embed", "global-bus-p0/extract", "global-bus-p0/index",
		"global-bus-p1/embed", "global-bus-p1/extract", "global-bus-p1/index",
		"global-bus-replies-p0/lucius-invoker", "global-bus-replies-p1/lucius-invoker",
	}
	if diff := cmp.Diff(want, entities); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	out, code = azureCommand(t, onServiceBus(map[string]string{"LUCIUS_SERVICEBUS_LANES": "26"}), "emulator-config")
	if code != cli.ExitUsage || !strings.Contains(out, "lower LUCIUS_SERVICEBUS_LANES") {
		t.Errorf("with too many lanes it ends with %d: %s", code, out)
	}
}

// A check that could not be made must not report success.
func TestAzure_CannotBeChecked(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		variables map[string]string
		args      []string
		want      string
	}{
		"no account": {
			map[string]string{
				"LUCIUS_STORAGE_BACKEND":  config.BackendLedger,
				"LUCIUS_TABLE_CONNECTION": "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;TableEndpoint=http://127.0.0.1:1/a;",
			},
			[]string{"check"}, "the account does not answer",
		},
		"a bad key": {
			onServiceBus(map[string]string{
				"LUCIUS_SERVICEBUS_NAMESPACE": "", "LUCIUS_SERVICEBUS_CONNECTION": "Endpoint=sb://example/;SharedAccessKey=hunter2",
			}),
			[]string{"check"}, "LUCIUS_SERVICEBUS_CONNECTION: the connection string of the namespace cannot be used",
		},
		"nothing on Azure": {nil, []string{"check"}, "nothing is on Azure"},
		"no protocols":     {onServiceBus(map[string]string{"LUCIUS_PROTOCOLS_DIR": "nowhere"}), []string{"check"}, "LUCIUS_PROTOCOLS_DIR nowhere"},
		"no such word":     {nil, []string{"mend"}, `lucius azure has no command "mend"`},
		"an argument":      {nil, []string{"check", "topics"}, `was given "topics"`},
		"a bad variable":   {onServiceBus(map[string]string{"LUCIUS_SERVICEBUS_LANES": "many"}), []string{"check"}, "LUCIUS_SERVICEBUS_LANES"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, code := azureCommand(t, test.variables, test.args...)
			if code != cli.ExitUsage || !strings.Contains(out, test.want) || strings.Contains(out, "hunter2") {
				t.Errorf("it ends with %d: %s", code, out)
			}
		})
	}
}
