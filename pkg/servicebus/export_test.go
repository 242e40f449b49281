package servicebus

import (
	"bytes"
	"context"
	"io"
	"net"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// Exported for the tests.
type (
	// Receiver is receiver.
	Receiver = receiver
	// SendFunc is a courier that calls the function.
	SendFunc func(ctx context.Context, messages []*azservicebus.Message) (taken int, err error)
)

func (f SendFunc) send(ctx context.Context, messages []*azservicebus.Message) (int, error) {
	return f(ctx, messages)
}

// Verdict is verdict, for an error of sending or of opening the topic.
func Verdict(ctx context.Context, topic string, err error, opening bool) error {
	if opening {
		err = &linkError{err}
	}
	return verdict(ctx, topic, toSend, err)
}

// WithCouriers returns a publisher that sends with these couriers. Each connects
// first, as the SDK does, or cannot.
func WithCouriers(cfg PublisherConfig, connects bool, courierOf func(topic string) SendFunc) (*Publisher, error) {
	p, err := NewPublisher(cfg)
	if err != nil {
		return nil, err
	}
	p.make = func(topic string) courier {
		send := courierOf(topic)
		return SendFunc(func(ctx context.Context, messages []*azservicebus.Message) (int, error) {
			if connects {
				p.bus.dialer.connectNowhere()
			}
			return send(ctx, messages)
		})
	}
	return p, nil
}

// connectNowhere opens a connection whose other end is closed.
func (d *dialer) connectNowhere() {
	near, far := net.Pipe()
	_ = far.Close() // No peer is needed.
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[&connection{Conn: near, dialer: d}] = struct{}{}
}

// WithReceivers returns a consumer that uses these receivers.
func WithReceivers(cfg RepliesConfig, open func(topic string) (Receiver, error)) (*Replies, error) {
	r, err := NewReplies(cfg)
	if err != nil {
		return nil, err
	}
	for _, topic := range r.topics {
		topic.open = func() (receiver, error) { return open(topic.name) }
	}
	return r, nil
}

// Plain returns the bytes as an outcomeReader rewrites them.
func Plain(in []byte) ([]byte, error) { return io.ReadAll(newOutcomeReader(bytes.NewReader(in))) }

// NewOutcomeReader is newOutcomeReader.
func NewOutcomeReader(in io.Reader) io.Reader { return newOutcomeReader(in) }

// Address is address.
func (n Namespace) Address() (hostPort string, plain bool, err error) {
	target, err := n.address()
	return target.hostPort, target.plain, err
}

// LargestOutcome is largestOutcome.
const LargestOutcome = largestOutcome

// Dialer opens connections to one address.
type Dialer struct{ d *dialer }

// NewDialer returns a dialer for the namespace.
func NewDialer(n Namespace) (Dialer, error) {
	d, err := newDialer(n)
	return Dialer{d}, err
}

// Dial opens a connection.
func (d Dialer) Dial(ctx context.Context) (net.Conn, error) {
	return d.d.dial(ctx, azservicebus.NewWebSocketConnArgs{})
}

// Connected reports whether a connection is open.
func (d Dialer) Connected() bool { return d.d.connected() }

// Cut ends all connections.
func (d Dialer) Cut() { d.d.cut() }

// MessageOf is messageOf.
var MessageOf = messageOf

// ParseReply is parseReply, for a body of any size.
func ParseReply(body []byte) (kind ReplyType, unknown bool, err error) {
	parsed, err := parseReply(body, 1<<20, "id")
	return parsed.kind, parsed.unknown, err
}
