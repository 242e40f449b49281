package servicebus_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	lucius "github.com/lucius-project/lucius/sdk/go"

	"github.com/lucius-project/lucius/sdk/go/servicebus"
)

// credential is none.
type credential struct{}

func (credential) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{}, context.Canceled
}

func TestRun_NamesTheField(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		want string
		cfg  servicebus.Config
	}{
		{"Connection is required, unless Namespace is set", servicebus.Config{Service: "s"}},
		{"Connection cannot be used with Namespace", servicebus.Config{Connection: "c", Namespace: "n", Service: "s"}},
		{"cannot be used with Namespace and Credential", servicebus.Config{Connection: "c", Credential: credential{}, Service: "s"}},
		{"Credential is required with Namespace", servicebus.Config{Namespace: "n", Service: "s"}},
		{"Service is required", servicebus.Config{Connection: "c"}},
		{"Lanes is -1", servicebus.Config{Connection: "c", Service: "s", Lanes: -1}},
		{"Parallel is -1", servicebus.Config{Connection: "c", Service: "s", Parallel: -1}},
		{"Heartbeat is -1s", servicebus.Config{Connection: "c", Service: "s", Heartbeat: -time.Second}},
		{"Lease is 2s", servicebus.Config{Connection: "c", Service: "s", Lease: 2 * time.Second}},
		{"Lease is 25h0m0s", servicebus.Config{Connection: "c", Service: "s", Lease: 25 * time.Hour}},
		{"Heartbeat is 11s, it must be at most a third of Lease, which is 30s", servicebus.Config{
			Connection: "c", Service: "s", Heartbeat: 11 * time.Second, Lease: 30 * time.Second,
		}},
		{"Grace is -1s", servicebus.Config{Connection: "c", Service: "s", Grace: -time.Second}},
		{"Connection cannot be used", servicebus.Config{Connection: "key=hunter2", Service: "s"}},
	} {
		t.Run(test.want, func(t *testing.T) {
			t.Parallel()
			err := servicebus.Run(t.Context(), lucius.NewWorker(lucius.WorkerConfig{}), test.cfg)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

const connection = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"

func TestRun_NeedsAWorker(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := servicebus.Run(ctx, nil, servicebus.Config{Connection: connection, Service: "s"})
	if err == nil || !strings.Contains(err.Error(), "Worker is required") {
		t.Errorf("%v", err)
	}
}

// A stop ends a worker that has not reached the bus yet.
func TestRun_StopsWithoutABus(t *testing.T) {
	t.Parallel()
	for _, cfg := range []servicebus.Config{
		{Connection: connection, Service: "s"},
		{Namespace: "127.0.0.1", Credential: credential{}, Service: "s"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := servicebus.Run(ctx, lucius.NewWorker(lucius.WorkerConfig{}), cfg); err != nil {
			t.Errorf("%v", err)
		}
	}
}
