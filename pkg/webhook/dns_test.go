package webhook_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// names answers for a name server, one answer after the other; the last one
// stays. An answer without addresses is that the name does not exist; none at all,
// that the server is in trouble.
type names struct {
	mu      sync.Mutex
	answers [][]string
}

// resolver returns a resolver that asks the names, over pipes: it needs no
// network.
func (n *names) resolver(t testing.TB) *net.Resolver {
	t.Helper()
	var open sync.WaitGroup
	t.Cleanup(open.Wait)
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		open.Go(func() { n.serve(ours) })
		return theirs, nil
	}}
}

// serve answers the questions of one connection. A look-up asks for A and AAAA
// side by side; only the first moves on to the next answer.
func (n *names) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, question); err != nil {
			return
		}
		answer, err := n.answer(question)
		if err != nil {
			return
		}
		framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)
		if _, err := conn.Write(framed); err != nil {
			return
		}
	}
}

func (n *names) answer(raw []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(raw); err != nil {
		return nil, err
	}
	question := message.Questions[0]
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: message.ID, Response: true, RecursionAvailable: true, Authoritative: true},
		Questions: message.Questions,
	}
	addresses, known := n.next(question.Type == dnsmessage.TypeA)
	switch {
	case !known:
		reply.RCode = dnsmessage.RCodeServerFailure
	case len(addresses) == 0:
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addresses {
		if body := resource(netip.MustParseAddr(text), question.Type); body != nil {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET},
				Body:   body,
			})
		}
	}
	return reply.Pack()
}

func resource(addr netip.Addr, kind dnsmessage.Type) dnsmessage.ResourceBody {
	switch {
	case addr.Is4() && kind == dnsmessage.TypeA:
		return &dnsmessage.AResource{A: addr.As4()}
	case addr.Is6() && kind == dnsmessage.TypeAAAA:
		return &dnsmessage.AAAAResource{AAAA: addr.As16()}
	default:
		return nil
	}
}

// next is the answer to a question, and whether there is one.
func (n *names) next(moves bool) ([]string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.answers) == 0 {
		return nil, false
	}
	answer := n.answers[0]
	if moves && len(n.answers) > 1 {
		n.answers = n.answers[1:]
	}
	return answer, true
}
