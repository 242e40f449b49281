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

// Connections of the store's own transport. An idle one must end on this side
// first: a request that the server's close overtakes has an unknown outcome.
const (
	connections   = 256
	dialTimeout   = 5 * time.Second
	idleTimeout   = 60 * time.Second
	idleEmulator  = 3 * time.Second
	tableExists   = "TableAlreadyExists"
	tableVanishes = "TableBeingDeleted"
)

// Open returns a store on the account that the options name, and creates the
// tables that are missing there. Without tables it sends nothing: a wrong key
// or address then shows in the first call. The error names the option that is
// wrong, or wraps that of the port.
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
// redirect: a write would be sent twice.
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

// service returns the client of the account. It sends each request once: what
// may be sent again is decided here, where the meaning of a write is known.
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

// create creates the tables that are missing. Creating one twice harms
// nothing, so any lost reply is followed by another try.
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
