package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// The SDK's own retries, within one call. It needs at least one: a sender recovers
// only between two tries. They are quick, so that a cut connection costs a moment
// and not a whole timeout; the caller retries through an outage.
const (
	sdkRetries       = 3
	sdkRetryDelay    = 50 * time.Millisecond
	sdkMaxRetryDelay = 500 * time.Millisecond
)

// bus is one client of a namespace with its connections.
type bus struct {
	client *azservicebus.Client
	dialer *dialer
}

// openBus returns a client. It does not connect yet.
func openBus(n Namespace) (*bus, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	target, err := n.address()
	if err != nil {
		return nil, err
	}
	d := newDialer(target, n.TLS, cmp.Or(n.DialTimeout, 5*time.Second))
	client, err := n.client(&azservicebus.ClientOptions{
		// The SDK speaks plain AMQP on the connection that this returns.
		NewWebSocketConn: d.dial,
		RetryOptions: azservicebus.RetryOptions{
			MaxRetries: sdkRetries, RetryDelay: sdkRetryDelay, MaxRetryDelay: sdkMaxRetryDelay,
		},
	})
	if err != nil {
		return nil, err
	}
	return &bus{client: client, dialer: d}, nil
}

// client returns the SDK's client.
func (n Namespace) client(options *azservicebus.ClientOptions) (*azservicebus.Client, error) {
	if n.Connection != "" {
		client, err := azservicebus.NewClientFromConnectionString(n.Connection, options)
		if err != nil {
			// The SDK's text may hold the key.
			return nil, errors.New("Namespace.Connection cannot be used: it needs a key or a signature")
		}
		return client, nil
	}
	credential := n.Credential
	if credential == nil {
		found, err := azidentity.NewDefaultAzureCredential(nil)
		if err != nil {
			return nil, fmt.Errorf("find a credential for Namespace.Host: %w", err)
		}
		credential = found
	}
	client, err := azservicebus.NewClient(n.Host, credential, options)
	if err != nil {
		return nil, fmt.Errorf("Namespace.Host cannot be used: %w", err)
	}
	return client, nil
}

// close closes the client. When the context ends first, it cuts the connections.
func (b *bus) close(ctx context.Context) error {
	closed := make(chan error, 1)
	go func() { closed <- b.client.Close(ctx) }()
	select {
	case err := <-closed:
		b.dialer.cut()
		return err
	case <-ctx.Done():
	}
	b.dialer.cut()
	return <-closed // It returns soon, since its connections are gone.
}
