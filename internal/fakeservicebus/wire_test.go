package fakeservicebus_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

const (
	saslHeader = "AMQP\x03\x01\x00\x00"
	amqpHeader = "AMQP\x00\x01\x00\x00"
)

// anonymous returns the client's part of the handshake.
func anonymous() []byte {
	hello := append([]byte(saslHeader), fakeservicebus.Frame(1, 0, 0x41, fakeservicebus.Symbol("ANONYMOUS"))...)
	return append(hello, amqpHeader...)
}

// begun returns the client's frames up to a session on channel 0.
func begun() []byte {
	b := append(anonymous(), fakeservicebus.Frame(0, 0, 0x10, "client", nil, uint32(1024))...)
	return append(b, fakeservicebus.Frame(0, 0, 0x11, nil, uint32(0), uint32(100), uint32(100))...)
}

// asking returns the client's frames up to a request link on handle 0.
func asking() []byte {
	target := fakeservicebus.Describe(uint64(0x29), []any{"$cbs"})
	return append(begun(), fakeservicebus.Frame(0, 0, 0x12, "link", uint32(0), false, uint8(2), uint8(0), nil, target)...)
}

// attached returns the client's frames up to a sending link on handle 0.
func attached() []byte {
	target := fakeservicebus.Describe(uint64(0x29), []any{orders})
	return append(begun(), fakeservicebus.Frame(0, 0, 0x12, "link", uint32(0), false, uint8(2), uint8(0), nil, target)...)
}

// talk writes to a server and returns its answer up to the end of the connection.
func talk(t *testing.T, server *fakeservicebus.Server, words ...[]byte) []byte {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(waittest.Bound(t))); err != nil {
		t.Fatalf("deadline: %v", err)
	}
	if _, err := conn.Write(slices.Concat(words...)); err != nil {
		t.Fatalf("write: %v", err)
	}
	answer, err := io.ReadAll(conn)
	if network := (net.Error)(nil); errors.As(err, &network) && network.Timeout() {
		t.Fatal("the server does not hang up")
	}
	return answer
}

func TestNonsenseEndsOneConnectionOnly(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	s := sender(t, connect(t, server))
	send(t, s, "before")
	for name, words := range map[string][]byte{
		"another protocol":       []byte("GET / HTTP/1.1\r\n\r\n"),
		"no SASL":                []byte(amqpHeader),
		"another mechanism":      append([]byte(saslHeader), fakeservicebus.Frame(1, 0, 0x41, fakeservicebus.Symbol("PLAIN"))...),
		"no SASL frame":          append([]byte(saslHeader), fakeservicebus.Frame(0, 0, 0x41, fakeservicebus.Symbol("ANONYMOUS"))...),
		"nonsense for SASL":      append([]byte(saslHeader), 0, 0, 0, 9, 2, 1, 0, 0, 0xff),
		"a huge SASL frame":      append([]byte(saslHeader), 0xff, 0, 0, 9, 2, 1, 0, 0, 0xff),
		"another header":         append(slices.Clip(anonymous()[:len(anonymous())-1]), 9),
		"a huge frame":           append(anonymous(), 0xff, 0, 0, 8, 2, 0, 0, 0),
		"a tiny frame":           append(anonymous(), 0, 0, 0, 7, 2, 0, 0, 0),
		"a low offset":           append(anonymous(), 0, 0, 0, 8, 1, 0, 0, 0),
		"a high offset":          append(anonymous(), 0, 0, 0, 8, 3, 0, 0, 0),
		"SASL again":             append(anonymous(), fakeservicebus.Frame(1, 0, 0x41)...),
		"no performative":        append(anonymous(), 0, 0, 0, 9, 2, 0, 0, 0, 0x40),
		"an endless one":         append(anonymous(), 0, 0, 0, 10, 2, 0, 0, 0, 0xb0, 0xff),
		"a named one":            append(anonymous(), 0, 0, 0, 12, 2, 0, 0, 0, 0x00, 0xa3, 0x00, 0x45),
		"one without fields":     append(anonymous(), 0, 0, 0, 12, 2, 0, 0, 0, 0x00, 0x53, 0x10, 0x40),
		"an unknown one":         append(begun(), fakeservicebus.Frame(0, 0, 0x30)...),
		"no session":             append(anonymous(), fakeservicebus.Frame(0, 5, 0x13)...),
		"a session twice":        append(begun(), fakeservicebus.Frame(0, 0, 0x11)...),
		"attach, no session":     append(begun(), fakeservicebus.Frame(0, 3, 0x12, "link", uint32(0), false)...),
		"attach, no handle":      append(begun(), fakeservicebus.Frame(0, 0, 0x12, "link")...),
		"attach, twice":          append(attached(), fakeservicebus.Frame(0, 0, 0x12, "link", uint32(0), false)...),
		"detach, no handle":      append(begun(), fakeservicebus.Frame(0, 0, 0x16)...),
		"transfer, no session":   append(begun(), fakeservicebus.Frame(0, 3, 0x14, uint32(0))...),
		"transfer, no handle":    append(begun(), fakeservicebus.Frame(0, 0, 0x14)...),
		"transfer, no id":        append(attached(), fakeservicebus.Frame(0, 0, 0x14, uint32(0))...),
		"transfer, no message":   append(attached(), fakeservicebus.Frame(0, 0, 0x14, uint32(0), uint32(0))...),
		"a request that is none": slices.Concat(asking(), fakeservicebus.Frame(0, 0, 0x14, uint32(0), uint32(0), []byte{1}, uint32(0), false, true), transferOf(10)),
		"disposition, no first":  append(begun(), fakeservicebus.Frame(0, 0, 0x15, true)...),
	} {
		t.Logf("a client sends %s", name)
		talk(t, server, words)
		send(t, s, "after "+name)
	}
}

func TestAClientIsToldWhatWasWrong(t *testing.T) {
	t.Parallel()
	answer := string(talk(t, start(t, nil), begun(), fakeservicebus.Frame(0, 0, 0x12, "link")))
	for _, want := range []string{"amqp:decode-error", "attach: the handle is missing"} {
		if !strings.Contains(answer, want) {
			t.Errorf("%q is not in the answer %q", want, answer)
		}
	}
}

func TestFramesForUnknownLinksAndDeliveriesAreIgnored(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	accepted := fakeservicebus.Describe(uint64(0x24), []any{})
	talk(t, server, attached(),
		fakeservicebus.Frame(0, 0, 0x14, uint32(9), uint32(0)),                                                                        // a link that is not there
		fakeservicebus.Frame(0, 0, 0x16, uint32(9), true),                                                                             // likewise
		fakeservicebus.Frame(0, 0, 0x15, true, uint32(7), nil, false, accepted),                                                       // a delivery that is not there
		fakeservicebus.Frame(0, 0, 0x15, false, uint32(7)),                                                                            // a sender's
		fakeservicebus.Frame(0, 0, 0x14, uint32(0), uint32(0), []byte{1}, uint32(0), false, true),                                     // the beginning of a message
		fakeservicebus.Frame(0, 0, 0x14, uint32(0), nil, nil, nil, nil, false, nil, nil, nil, true),                                   // that is aborted
		fakeservicebus.Frame(0, 0, 0x13, nil, nil, nil, nil, nil, nil, nil, nil, nil, true),                                           // asks how the session is
		fakeservicebus.Frame(0, 0, 0x13, uint32(0), uint32(9), uint32(0), uint32(9), uint32(0), uint32(0), uint32(0), nil, nil, true), // and how the link is
		fakeservicebus.Frame(0, 0, 0x18))
	if got := server.Depth(audit); got != 0 {
		t.Errorf("%d messages are stored", got)
	}
}

// dial returns a session of a bare AMQP client.
func dial(t *testing.T, server *fakeservicebus.Server) *amqp.Session {
	t.Helper()
	conn, err := amqp.Dial(waittest.Context(t), "amqp://"+server.Addr(), &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	session, err := conn.NewSession(waittest.Context(t), nil)
	if err != nil {
		t.Fatalf("session: %v", err)
	}
	return session
}

func TestCreditIsDrained(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	send(t, sender(t, connect(t, server)), "a")
	r, err := dial(t, server).NewReceiver(waittest.Context(t), audit, &amqp.ReceiverOptions{Credit: -1})
	if err != nil {
		t.Fatalf("receiver: %v", err)
	}
	if err := r.IssueCredit(5); err != nil {
		t.Fatalf("credit: %v", err)
	}
	if m, err := r.Receive(waittest.Context(t), nil); err != nil || m.Properties.MessageID != "a" {
		t.Errorf("received %+v, %v", m, err)
	}
	if err := r.DrainCredit(waittest.Context(t), nil); err != nil {
		t.Fatalf("drain: %v", err)
	}
	send(t, sender(t, connect(t, server)), "b")
	if m := server.Messages(audit); len(m) != 2 || m[1].Locked {
		t.Errorf("a message was delivered without credit: %+v", m)
	}
}

func TestDecisionsOfABareClient(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		settle func(r *amqp.Receiver, m *amqp.Message) error
		ready  int
		dead   int
		failed int
	}{
		"released":                  {func(r *amqp.Receiver, m *amqp.Message) error { return r.ReleaseMessage(t.Context(), m) }, 1, 0, 0},
		"rejected without a reason": {func(r *amqp.Receiver, m *amqp.Message) error { return r.RejectMessage(t.Context(), m, nil) }, 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			send(t, sender(t, connect(t, server)), "a")
			r, err := dial(t, server).NewReceiver(waittest.Context(t), audit, &amqp.ReceiverOptions{
				Credit: -1, SettlementMode: amqp.ReceiverSettleModeSecond.Ptr(),
			})
			if err != nil {
				t.Fatalf("receiver: %v", err)
			}
			if err := r.IssueCredit(1); err != nil {
				t.Fatalf("credit: %v", err)
			}
			m, err := r.Receive(waittest.Context(t), nil)
			if err != nil {
				t.Fatalf("receive: %v", err)
			}
			if err := test.settle(r, m); err != nil {
				t.Fatalf("settle: %v", err)
			}
			there := server.Messages(audit)
			if len(there) != test.ready || server.Depth(dead) != test.dead || len(there) == 1 && (there[0].Deliveries != test.failed || there[0].Locked) {
				t.Errorf("there is %+v, and %d dead", there, server.Depth(dead))
			}
		})
	}
}

// transferOf returns the last frame of a transfer, with that many bytes of payload.
func transferOf(size int) []byte {
	f := append(fakeservicebus.Frame(0, 0, 0x14, uint32(0)), make([]byte, size)...)
	binary.BigEndian.PutUint32(f, uint32(len(f)))
	return f
}

func TestAnUndecidedDeliveryStaysLocked(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	send(t, sender(t, connect(t, server)), "a")
	source := fakeservicebus.Describe(uint64(0x28), []any{audit})
	received := fakeservicebus.Describe(uint64(0x23), []any{uint32(0), uint64(0)})
	talk(t, server, begun(),
		fakeservicebus.Frame(0, 0, 0x12, "link", uint32(0), true, uint8(2), uint8(1), source, nil),
		fakeservicebus.Frame(0, 0, 0x13, uint32(0), uint32(100), uint32(0), uint32(100), uint32(0), uint32(0), uint32(1)),
		fakeservicebus.Frame(0, 0, 0x15, true, uint32(0), nil, false, received),
		fakeservicebus.Frame(0, 0, 0x15, true, uint32(0), nil, false, nil),
		fakeservicebus.Frame(0, 0, 0x18))
	if there := server.Messages(audit); len(there) != 1 || !there[0].Locked {
		t.Errorf("there is %+v", there)
	}
}
