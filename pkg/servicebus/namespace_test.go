package servicebus_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/servicebus"
)

func TestNamespace_Address(t *testing.T) {
	t.Parallel()
	const emulator = ";UseDevelopmentEmulator="
	for _, test := range []struct {
		name      string
		namespace servicebus.Namespace
		want      string
		plain     bool
	}{
		{"a host", servicebus.Namespace{Host: "example.servicebus.windows.net"}, "example.servicebus.windows.net:5671", false},
		{"a host with a port", servicebus.Namespace{Host: "example.test:443"}, "example.test:443", false},
		{"a connection string", namespace(), "example.servicebus.windows.net:5671", false},
		{"without the slash", servicebus.Namespace{Connection: "Endpoint=sb://example.test"}, "example.test:5671", false},
		{"in any case and order", servicebus.Namespace{Connection: "SharedAccessKey=a=b;ENDPOINT=sb://example.test/;"}, "example.test:5671", false},
		{"with a port", servicebus.Namespace{Connection: "Endpoint=sb://127.0.0.1:9000/"}, "127.0.0.1:9000", false},
		{"an emulator", servicebus.Namespace{Connection: "Endpoint=sb://localhost" + emulator + "true"}, "localhost:5672", true},
		{"an emulator with a port", servicebus.Namespace{Connection: "Endpoint=sb://localhost:9000" + emulator + "TRUE"}, "localhost:9000", true},
		{"no emulator", servicebus.Namespace{Connection: "Endpoint=sb://localhost" + emulator + "false"}, "localhost:5671", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, plain, err := test.namespace.Address()
			if err != nil || got != test.want || plain != test.plain {
				t.Errorf("%s, plain %t, %v, want %s, plain %t", got, plain, err, test.want, test.plain)
			}
			if err := test.namespace.Validate(); err != nil {
				t.Errorf("Validate: %v", err)
			}
		})
	}
}

func TestNamespace_ValidateNamesTheFieldAndHidesTheKey(t *testing.T) {
	t.Parallel()
	secret := ";SharedAccessKeyName=lucius;SharedAccessKey=" + key
	for _, test := range []struct {
		name      string
		namespace servicebus.Namespace
		want      string
	}{
		{"neither", servicebus.Namespace{}, "needs Connection or Host"},
		{"both", servicebus.Namespace{Connection: namespace().Connection, Host: "example.test"}, "and not both"},
		{"a time that is none", servicebus.Namespace{Host: "example.test", DialTimeout: -time.Second}, "Namespace.DialTimeout must not be negative"},
		{"a URL for a host", servicebus.Namespace{Host: "sb://example.test/"}, "Namespace.Host must be a host name"},
		{"a URL with a port for a host", servicebus.Namespace{Host: "https://example.test:443"}, "Namespace.Host must be a host name"},
		{"a scheme for a host", servicebus.Namespace{Host: "https://example"}, "Namespace.Host must be a host name"},
		{"a port alone", servicebus.Namespace{Host: ":5671"}, "Namespace.Host must be a host name"},
		{"a port that is none", servicebus.Namespace{Host: "example.test:amqp"}, "Namespace.Host must be a host name"},
		{"a connection string for a host", servicebus.Namespace{Host: namespace().Connection}, "Namespace.Host must be a host name"},
		{"no endpoint", servicebus.Namespace{Connection: secret}, "Namespace.Connection needs an Endpoint"},
		{"an endpoint that is none", servicebus.Namespace{Connection: "Endpoint=example.test" + secret}, "Namespace.Connection needs an Endpoint"},
		{"an endpoint that cannot be read", servicebus.Namespace{Connection: "Endpoint=sb://a%zz" + key + secret}, "Namespace.Connection needs an Endpoint"},
		{"an endpoint without a host", servicebus.Namespace{Connection: "Endpoint=sb://:5671/" + secret}, "Namespace.Connection needs an Endpoint"},
		{"of one entity", servicebus.Namespace{Connection: namespace().Connection + ";EntityPath=orders"}, "without an EntityPath"},
		{"an emulator that is none", servicebus.Namespace{Connection: namespace().Connection + ";UseDevelopmentEmulator=maybe"}, "its UseDevelopmentEmulator must be true or false"},
		{"not a connection string", servicebus.Namespace{Connection: key}, "Namespace.Connection needs an Endpoint"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := test.namespace.Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			if strings.Contains(err.Error(), key) {
				t.Errorf("the error shows the key: %v", err)
			}
			if _, _, err := test.namespace.Address(); err != nil && strings.Contains(err.Error(), key) {
				t.Errorf("the address's error shows the key: %v", err)
			}
		})
	}
}
