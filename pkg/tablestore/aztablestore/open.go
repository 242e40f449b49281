package aztablestore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// defaultLimits are those of every store but a test's.
var defaultLimits = limits{request: 10 * time.Second, call: 30 * time.Second, tries: 4}

// limits bound the calls of the port.
type limits struct {
	request time.Duration // One request, unless the caller has another [tablestore.Patience].
	call    time.Duration // One call with all its requests and the delays between them: no write is sent later.
	tries   int           // How often a request that is safe to repeat is sent at most.
}

// Limits of the store's own transport. The client must close idle connections
// before the server does: a request sent while the server closes has an unknown
// outcome. An emulator closes them after five seconds.
const (
	connections  = 256
	dialTimeout  = 5 * time.Second
	idleTimeout  = 60 * time.Second
	idleEmulator = 3 * time.Second
)

// The service's codes about tables.
const (
	tableExists   = "TableAlreadyExists"
	tableMissing  = "TableNotFound"
	tableVanishes = "TableBeingDeleted"
)

// The short connection string of an emulator, which the SDK does not know, and the
// long one that it stands for. Its key is public.
var developmentStorage = regexp.MustCompile(`(?i)^\s*UseDevelopmentStorage\s*=\s*true\s*;?\s*$`)

const developmentConnection = "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;" +
	"AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;" +
	"TableEndpoint=http://127.0.0.1:10002/devstoreaccount1;"

var errClosed = errors.New("the store is closed")

// Options configures a store.
type Options struct {
	// Connection is the storage account's connection string, with an account
	// key or a shared access signature, or UseDevelopmentStorage=true for an
	// emulator at its usual address. Required, unless Endpoint is set.
	Connection string

	// Endpoint is the address of the account's table service, such as
	// https://account.table.core.windows.net. The store then signs in with
	// azidentity's DefaultAzureCredential: the environment, a workload or
	// managed identity, or a developer's own. Required, unless Connection is
	// set.
	Endpoint string

	// Tables are the names of the tables that Open creates if they are missing.
	// Optional. Defaults to none: the tables must exist.
	Tables []string

	// ReadOnly says that the process only reads: Open creates no tables, and one
	// that is missing reads as empty. Optional.
	ReadOnly bool

	// Logger gets a warning for each retry, with its cause. Optional. Defaults
	// to discarding.
	Logger *slog.Logger

	// Observe is called after each request, and for each that was not sent
	// because the account is out of service. Optional. It must be safe for
	// concurrent use.
	Observe func(Sample)

	// Transport sends the requests. The caller closes it. Optional. Defaults to
	// a transport of the store, whose connections Close closes.
	Transport http.RoundTripper

	// credential signs in at Endpoint. Only tests set it and the limits.
	credential azcore.TokenCredential
	limits     limits
}

// Validate reports the first field that is wrong.
func (o Options) Validate() error {
	endpoint, err := url.Parse(o.Endpoint)
	switch {
	case o.Connection == "" && o.Endpoint == "":
		return errors.New("aztablestore: Options.Connection or Options.Endpoint is required")
	case o.Connection != "" && o.Endpoint != "":
		return errors.New("aztablestore: Options.Connection and Options.Endpoint exclude each other")
	case o.Endpoint != "" && (err != nil || endpoint.Scheme != "https" || endpoint.Host == "" || endpoint.User != nil ||
		endpoint.RawQuery != "" || endpoint.Fragment != ""):
		// A token may be sent only over TLS. The endpoint is not quoted: it may
		// hold a signature, which must not be logged.
		return errors.New("aztablestore: Options.Endpoint is not an https address of a table service")
	}
	for i, name := range o.Tables {
		// The port's rule for names, with any partition.
		if err := (tablestore.Query{Table: name, Partition: "p"}).Validate(); err != nil {
			return fmt.Errorf("aztablestore: Options.Tables[%d]: %w", i, err)
		}
	}
	return nil
}

// Store is a table store in an account of Azure Table Storage. It implements
// [tablestore.Store]. All methods may be called concurrently.
type Store struct {
	options Options
	client  *http.Client
	service *aztables.ServiceClient
	closed  atomic.Bool

	clock   *clock
	circuit *breaker.Set           // the account's alone
	outage  atomic.Int64           // when the circuit opened, in Unix nanoseconds; 0 once it has closed
	denied  atomic.Pointer[string] // the table of the last write that was denied access; nil once Writable finds that it can be written
}

var (
	_ tablestore.Store  = (*Store)(nil)
	_ tablestore.Walker = (*Store)(nil)
)

// Open returns a store on the account that the options name, and creates
// missing tables. Without Options.Tables, or with Options.ReadOnly, it sends
// nothing, and the first call reports a wrong key or address. The error names
// the wrong option, or wraps one of the port's errors.
func Open(ctx context.Context, options Options) (*Store, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	if developmentStorage.MatchString(options.Connection) {
		options.Connection = developmentConnection
	}
	options.limits = cmp.Or(options.limits, defaultLimits)
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Observe == nil {
		options.Observe = func(Sample) {}
	}
	// No redirects: they would send a write twice.
	client := &http.Client{
		Transport:     options.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if options.Transport == nil {
		idle := idleTimeout
		connection := strings.ToLower(options.Connection)
		if strings.Contains(connection, "=http:") || strings.Contains(connection, "=http;") {
			idle = idleEmulator // An account has TLS.
		}
		client.Transport = &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: dialTimeout,
			MaxIdleConns:        connections,
			MaxIdleConnsPerHost: connections,
			IdleConnTimeout:     idle,
		}
	}
	clock := new(clock)
	service, err := options.service(client, clock)
	if err != nil {
		return nil, err
	}
	circuit := breaker.NewSet(circuitOf(options.limits.call))
	store := &Store{options: options, client: client, service: service, clock: clock, circuit: circuit}
	if options.ReadOnly {
		return store, nil
	}
	if _, err := store.createTables(ctx); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return store, nil
}

// Create creates the missing ones of the options' tables, and returns the names of
// those that it has created. The error is that of Open.
func Create(ctx context.Context, options Options) (created []string, err error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	tables := options.Tables
	options.Tables = nil
	store, err := Open(ctx, options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	store.options.Tables = tables
	return store.createTables(ctx)
}

// createTables creates the options' tables that are missing, and returns their names.
func (s *Store) createTables(ctx context.Context) (created []string, err error) {
	for _, table := range s.options.Tables {
		made, err := s.createTable(ctx, table)
		if err != nil {
			return created, fmt.Errorf("create table %s: %w", table, err)
		}
		if made {
			created = append(created, table)
		}
	}
	return created, nil
}

// service returns the SDK's client of the account, without retries: this
// package decides what may be sent again.
func (o Options) service(client *http.Client, clock *clock) (*aztables.ServiceClient, error) {
	options := &aztables.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport:       transport{client, clock},
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

// createTable creates the table unless it exists, and reports whether it did. Creation
// is idempotent, so it is retried after a lost reply; the table then seems to have
// existed before.
func (s *Store) createTable(ctx context.Context, table string) (created bool, err error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	_, failed := s.send(ctx, request{name: "create", key: tablestore.Key{Table: table}, repeatable: true}, func(ctx context.Context) error {
		_, err := s.service.CreateTable(ctx, table, nil)
		return err
	})
	switch {
	case failed == nil:
		return true, nil
	case failed.code == tableExists:
		return false, nil
	}
	return false, failed.ofRead()
}

// begin returns the context of one call of the port, which ends after the call
// timeout at the latest, or why the store refuses the call.
func (s *Store) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if s.closed.Load() {
		return nil, nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, errClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	ctx, end := context.WithTimeout(ctx, s.options.limits.call+tablestore.Patience(ctx, 0))
	return ctx, end, nil
}

// Close implements [tablestore.Store]. Committed rows stay in the account.
func (s *Store) Close() error {
	s.closed.Store(true)
	if s.options.Transport == nil {
		s.client.CloseIdleConnections()
	}
	return nil
}

// TableCheck is the result of checking one table.
type TableCheck struct {
	Name string
	// Missing says that the table does not exist.
	Missing bool
	// Err is why an existing table cannot be used, nil if it can.
	Err error
}

// Check reports whether each of the options' tables exists and can be read and
// written with their credential: it writes, reads and deletes a row of its own.
// It creates no tables. The error is about the options or about the account as
// a whole.
func Check(ctx context.Context, options Options) (checks []TableCheck, err error) {
	tables := options.Tables
	options.Tables = nil
	store, err := Open(ctx, options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for _, table := range tables {
		check := TableCheck{Name: table, Err: store.checkTable(ctx, table)}
		failed, ok := errors.AsType[*requestError](check.Err)
		switch {
		case ok && failed.status == 0:
			return nil, fmt.Errorf("the account does not answer: %w", check.Err)
		case ok && failed.code == tableMissing:
			check.Missing, check.Err = true, nil
		}
		checks = append(checks, check)
	}
	return checks, nil
}

// Writable returns an error that wraps [tablestore.ErrDenied] if the account denies access to
// writes. It sends nothing until a write was denied; from then on it checks that table, as
// [Check] does, until access is granted. It returns nil if the account does not answer, of
// which reads tell.
func (s *Store) Writable(ctx context.Context) error {
	table := s.denied.Load()
	if table == nil {
		return nil
	}
	switch err := s.checkTable(ctx, *table); {
	case errors.Is(err, tablestore.ErrDenied):
		return err
	case err == nil:
		s.denied.CompareAndSwap(table, nil) // Unless another write was denied since.
	}
	return nil
}

// checkTable writes, reads and deletes a row of the table. Another process that checks it at the
// same time may have deleted the row before it is read.
func (s *Store) checkTable(ctx context.Context, table string) error {
	key := tablestore.Key{Table: table, Partition: "check", Row: "probe"}
	if _, err := s.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: key}}); err != nil {
		return fmt.Errorf("write a row: %w", err)
	}
	if _, err := s.Get(ctx, key); err != nil && !errors.Is(err, tablestore.ErrNotFound) {
		return fmt.Errorf("read it: %w", err)
	}
	if _, err := s.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: key}}); err != nil {
		return fmt.Errorf("delete it: %w", err)
	}
	return nil
}
