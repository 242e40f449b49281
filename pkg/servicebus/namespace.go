package servicebus

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
)

// Namespace names a namespace of Service Bus and the credential for it.
type Namespace struct {
	// Connection is a connection string of the namespace, not of one entity.
	// Required, unless Host is set.
	Connection string
	// Host is the namespace's host name, such as example.servicebus.windows.net, to
	// be used with Credential. Required, unless Connection is set.
	Host string
	// Credential is used with Host. Optional. Defaults to azidentity's
	// DefaultAzureCredential.
	Credential azcore.TokenCredential
	// TLS is used for connections that are not plain. Optional. Defaults to TLS 1.2
	// or later with the system's roots.
	TLS *tls.Config
	// DialTimeout bounds the opening of a connection. Optional. Defaults to 5 s.
	DialTimeout time.Duration
}

// Validate returns an error that names the invalid field and shows no secret.
func (n Namespace) Validate() error {
	if (n.Connection == "") == (n.Host == "") {
		return errors.New("Namespace needs Connection or Host, and not both")
	}
	if n.DialTimeout < 0 {
		return fmt.Errorf("Namespace.DialTimeout must not be negative, is %s", n.DialTimeout)
	}
	_, err := n.address()
	return err
}

// address is the network address of a namespace.
type address struct {
	hostPort string
	host     string
	plain    bool // without TLS, as emulators do
}

// The ports of AMQP, plain and with TLS.
const (
	plainPort = "5672"
	tlsPort   = "5671"
)

// address reads the address from the connection string, or from Host.
func (n Namespace) address() (address, error) {
	if n.Connection == "" {
		target, ok := addressOf(n.Host, false)
		if !ok {
			// The error does not quote it: it may be a connection string.
			return address{}, errors.New("Namespace.Host must be a host name such as example.servicebus.windows.net")
		}
		return target, nil
	}
	return connectionAddress(n.Connection)
}

// connectionAddress reads the address from a connection string. Its errors do not
// quote the string, which holds a key.
func connectionAddress(connection string) (address, error) {
	fields := connectionFields(connection)
	if fields["entitypath"] != "" {
		return address{}, errors.New("Namespace.Connection must be that of the namespace, without an EntityPath")
	}
	plain, err := strconv.ParseBool(cmp.Or(fields["usedevelopmentemulator"], "false"))
	if err != nil {
		return address{}, errors.New("Namespace.Connection cannot be used: its UseDevelopmentEmulator must be true or false")
	}
	endpoint, err := url.Parse(fields["endpoint"])
	if err == nil {
		if target, ok := addressOf(endpoint.Host, plain); ok {
			return target, nil
		}
	}
	return address{}, errors.New("Namespace.Connection needs an Endpoint such as sb://example.servicebus.windows.net/")
}

// addressOf parses a host name with or without a port.
func addressOf(host string, plain bool) (address, bool) {
	port := tlsPort
	if plain {
		port = plainPort
	}
	name, given, err := net.SplitHostPort(host)
	if err != nil {
		name, given = host, port
	}
	if _, err := strconv.ParseUint(given, 10, 16); err != nil || name == "" || strings.ContainsAny(name, "/: ") {
		return address{}, false
	}
	return address{hostPort: net.JoinHostPort(name, given), host: name, plain: plain}, true
}

// connectionFields splits a connection string into its fields, by lower-case name.
func connectionFields(connection string) map[string]string {
	fields := map[string]string{}
	for part := range strings.SplitSeq(connection, ";") {
		if name, value, ok := strings.Cut(part, "="); ok {
			fields[strings.ToLower(name)] = value
		}
	}
	return fields
}
