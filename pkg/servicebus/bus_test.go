package servicebus_test

import (
	"context"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/lucius-project/lucius/pkg/servicebus"
)

// unusedCredential fails the test if it is asked for a token.
type unusedCredential struct{ t *testing.T }

func (n unusedCredential) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	n.t.Error("a token was asked for")
	return azcore.AccessToken{}, nil
}

// Opening a client connects to nothing and asks for no token.
func TestBus_IsMadeByEachRight(t *testing.T) {
	t.Parallel()
	const endpoint = "Endpoint=sb://example.test/"
	for _, test := range []struct {
		name      string
		namespace servicebus.Namespace
	}{
		{"a key", namespace()},
		{"a signature", servicebus.Namespace{Connection: endpoint + ";SharedAccessSignature=SharedAccessSignature sr=a&sig=b&se=1&skn=c"}},
		{"an emulator's key", servicebus.Namespace{Connection: namespace().Connection + ";UseDevelopmentEmulator=true"}},
		{"a credential", servicebus.Namespace{Host: "example.test", Credential: unusedCredential{t}}},
		{"the default credential", servicebus.Namespace{Host: "example.test"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := publisherConfig()
			cfg.Namespace = test.namespace
			p, err := servicebus.NewPublisher(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// The SDK's error about a connection string may hold the key.
func TestBus_AConnectionStringThatCannotBeUsedIsNotShown(t *testing.T) {
	t.Parallel()
	const endpoint = "Endpoint=sb://example.test/"
	for _, test := range []struct{ name, connection string }{
		{"no name of the key", endpoint + ";SharedAccessKey=" + key},
		{"no key", endpoint + ";SharedAccessKeyName=" + key},
		{"neither", endpoint},
		{"a part without a name", endpoint + ";" + key},
		{"an unknown part", endpoint + ";" + key + "=x"},
		{"an emulator that is neither there nor not", namespace().Connection + ";UseDevelopmentEmulator=" + key},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := publisherConfig()
			cfg.Namespace = servicebus.Namespace{Connection: test.connection}
			_, err := servicebus.NewPublisher(cfg)
			if err == nil || !strings.Contains(err.Error(), "Namespace.Connection cannot be used") {
				t.Fatalf("%v, want that it cannot be used", err)
			}
			if strings.Contains(err.Error(), strings.TrimRight(key, "=")) {
				t.Errorf("the error shows the key: %v", err)
			}
		})
	}
}
