package aztablestore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
)

// Limits of the store's own transport. The client must close idle connections
// before the server does: a request sent while the server closes has an unknown
// outcome.
const (
	connections   = 256
	dialTimeout   = 5 * time.Second
	idleTimeout   = 60 * time.Second
	idleEmulator  = 3 * time.Second
	tableExists   = "TableAlreadyExists"
	tableVanishes = "TableBeingDeleted"
)

// Open returns a store on the account that the options name, and creates
// missing tables. Without Options.Tables it sends nothing, and the first call
// reports a wrong key or address. The error names the wrong option, or wraps
// one of the port's errors.
func Open(ctx context.Context, options Options) (*Store, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	options = options.withDefaults()
	store := &Store{options: options, client: options.httpClient()}
	service, err := options.service(store.client)
	if err != nil {
		return nil, err
	}
	store.service = service
	if err := store.create(ctx, options.Tables); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return store, nil
}

// httpClient returns the client that sends all requests. It follows no
// redirects, which would send a write twice.
func (o Options) httpClient() *http.Client {
	carrier := o.Transport
	if carrier == nil {
		carrier = o.ownTransport()
	}
	return &http.Client{
		Transport:     carrier,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (o Options) ownTransport() *http.Transport {
	idle := idleTimeout
	if o.plain() {
		idle = idleEmulator
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConns:        connections,
		MaxIdleConnsPerHost: connections,
		IdleConnTimeout:     idle,
	}
}

// service returns the SDK's client of the account, without retries: this
// package decides what may be sent again.
func (o Options) service(client *http.Client) (*aztables.ServiceClient, error) {
	options := &aztables.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport:       transport{client},
		Retry:           policy.RetryOptions{MaxRetries: -1},
		PerCallPolicies: []policy.Policy{batchReplies{}},
	}}
	if o.Connection != "" {
		service, err := aztables.NewServiceClientFromConnectionString(o.Connection, options)
		if err != nil {
			return nil, fmt.Errorf("aztablestore: Options.Connection cannot be used: %w", err)
		}
		return service, nil
	}
	credential := o.credential
	if credential == nil {
		var err error
		if credential, err = azidentity.NewDefaultAzureCredential(nil); err != nil {
			return nil, fmt.Errorf("aztablestore: find a credential for Options.Endpoint: %w", err)
		}
	}
	service, err := aztables.NewServiceClient(o.Endpoint, credential, options)
	if err != nil {
		return nil, fmt.Errorf("aztablestore: Options.Endpoint cannot be used: %w", err)
	}
	return service, nil
}

// create creates the missing tables. Creation is idempotent, so it is retried
// after a lost reply.
func (s *Store) create(ctx context.Context, tables []string) error {
	for _, table := range tables {
		err := s.createTable(ctx, table)
		if err != nil {
			return fmt.Errorf("create table %s: %w", table, err)
		}
	}
	return nil
}

func (s *Store) createTable(ctx context.Context, table string) error {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, failed := s.send(ctx, request{name: "create", target: table, repeatable: true}, func(ctx context.Context) error {
		_, err := s.service.CreateTable(ctx, table, nil)
		return err
	})
	if failed == nil || failed.code == tableExists {
		return nil
	}
	return failed.ofRead()
}
