package servicebus

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// connection is a connection that rewrites the outcomes it reads; see outcomeReader.
type connection struct {
	net.Conn
	in *outcomeReader
}

// Read reads from the outcomeReader.
func (c *connection) Read(p []byte) (int, error) { return c.in.Read(p) }

// dial opens a connection: by the caller's WebSockets if Client has them, else as the Azure SDK
// does by itself. The SDK speaks plain AMQP on what it returns.
func (c *Config) dial(ctx context.Context, args azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
	open := c.Client.NewWebSocketConn
	if open == nil {
		open = c.dialNamespace
	}
	raw, err := open(ctx, args)
	if err != nil {
		return nil, err
	}
	return &connection{Conn: raw, in: newOutcomeReader(raw)}, nil
}

// dialNamespace opens a connection to the namespace, or to an emulator, which has no TLS.
func (c *Config) dialNamespace(ctx context.Context, args azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
	namespace, err := url.Parse(args.Host)
	if err != nil {
		return nil, err
	}
	address := func(port string) string {
		if own := namespace.Port(); own != "" {
			port = own
		}
		return net.JoinHostPort(namespace.Hostname(), port)
	}
	if emulator(c.Connection) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address("5672"))
	}
	// The dialer verifies the name of the host, unless the configuration has another.
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.Client.TLSConfig != nil {
		secured = c.Client.TLSConfig
	}
	return (&tls.Dialer{Config: secured}).DialContext(ctx, "tcp", address("5671"))
}

// emulator reports whether a connection string is that of an emulator.
func emulator(connection string) bool {
	yes, err := strconv.ParseBool(part(connection, "UseDevelopmentEmulator"))
	return err == nil && yes // The Azure SDK has refused what is no bool.
}

// address returns the namespace, for people.
func (c *Config) address() string {
	if c.Namespace != "" {
		return "sb://" + c.Namespace
	}
	return strings.TrimSuffix(part(c.Connection, "Endpoint"), "/")
}

// secrets returns the parts of a connection string that no error of a handler may report.
func secrets(connection string) []string {
	return []string{part(connection, "SharedAccessKey"), part(connection, "SharedAccessSignature")}
}

// part returns the value of a part of a connection string, empty if it has none.
func part(connection, name string) string {
	for pair := range strings.SplitSeq(connection, ";") {
		if key, value, _ := strings.Cut(pair, "="); strings.EqualFold(key, name) {
			return value
		}
	}
	return ""
}
