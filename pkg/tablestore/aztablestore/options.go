package aztablestore

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The default limits of a call.
const (
	DefaultRequestTimeout = 10 * time.Second
	DefaultCallTimeout    = 30 * time.Second
	DefaultTries          = 4
)

// Options configures a store.
type Options struct {
	// Connection is the storage account's connection string, with an account
	// key or a shared access signature. Required, unless Endpoint is set.
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

	// RequestTimeout bounds one request. Optional. Defaults to
	// [DefaultRequestTimeout].
	RequestTimeout time.Duration

	// CallTimeout bounds one call of the port with all its requests and the
	// delays between them, so no write is sent later than that. Optional.
	// Defaults to [DefaultCallTimeout].
	CallTimeout time.Duration

	// Tries is how often a request that is safe to repeat is sent at most.
	// Optional. Defaults to [DefaultTries].
	Tries int

	// Logger gets a warning for each retry, with its cause. Optional. Defaults
	// to discarding.
	Logger *slog.Logger

	// Transport sends the requests. The caller closes it. Optional. Defaults to
	// a transport of the store, whose connections Close closes.
	Transport http.RoundTripper

	// credential signs in at Endpoint; only tests set it.
	credential azcore.TokenCredential
}

// Validate reports the first field that is wrong.
func (o Options) Validate() error {
	switch {
	case o.Connection == "" && o.Endpoint == "":
		return errors.New("aztablestore: Options.Connection or Options.Endpoint is required")
	case o.Connection != "" && o.Endpoint != "":
		return errors.New("aztablestore: Options.Connection and Options.Endpoint exclude each other")
	case o.Endpoint != "" && !validEndpoint(o.Endpoint):
		// The endpoint is not quoted: it may hold a signature, which must not
		// be logged.
		return errors.New("aztablestore: Options.Endpoint is not an https address of a table service")
	case o.RequestTimeout < 0:
		return fmt.Errorf("aztablestore: Options.RequestTimeout is negative: %s", o.RequestTimeout)
	case o.CallTimeout < 0:
		return fmt.Errorf("aztablestore: Options.CallTimeout is negative: %s", o.CallTimeout)
	case o.Tries < 0:
		return fmt.Errorf("aztablestore: Options.Tries is negative: %d", o.Tries)
	}
	for i, name := range o.Tables {
		// The port's rule for names, with any partition.
		if err := (tablestore.Query{Table: name, Partition: "p"}).Validate(); err != nil {
			return fmt.Errorf("aztablestore: Options.Tables[%d]: %w", i, err)
		}
	}
	return nil
}

// validEndpoint reports whether a token may be sent to the address: only over
// TLS.
func validEndpoint(endpoint string) bool {
	address, err := url.Parse(endpoint)
	return err == nil && address.Scheme == "https" && address.Host != "" && address.User == nil &&
		address.RawQuery == "" && address.Fragment == ""
}

// withDefaults returns the options with every optional field filled in.
func (o Options) withDefaults() Options {
	o.RequestTimeout = cmp.Or(o.RequestTimeout, DefaultRequestTimeout)
	o.CallTimeout = cmp.Or(o.CallTimeout, DefaultCallTimeout)
	o.Tries = cmp.Or(o.Tries, DefaultTries)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// plain reports whether the connection string names an emulator, which closes
// idle connections after five seconds and has no TLS.
func (o Options) plain() bool {
	connection := strings.ToLower(o.Connection)
	return strings.Contains(connection, "=http:") || strings.Contains(connection, "=http;")
}
