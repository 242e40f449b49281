//go:build integration

package pgstore_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// TestOpen_RefusesAPoolerThatDropsItsSettings connects through a pooler that replaces the
// settings of sessions.
func TestOpen_RefusesAPoolerThatDropsItsSettings(t *testing.T) {
	t.Parallel()
	at, err := url.Parse(postgrestest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	server := at.Host
	for _, lost := range []struct{ from, to, want string }{
		{"synchronous_commit\x00on\x00", "synchronous_commit\x00off\x00", "synchronous_commit of the server is off: it must be on"},
		{"search_path\x00pg_catalog, pg_temp\x00", "search_path\x00public\x00", `search_path of the session is "public"`},
		{"'row_security', 'off'", "'row_security', 'on'", `row_security of the session is "on"`},
		{"'read committed'", "'serializable'", `default_transaction_isolation of the session is "serializable": it must be "read committed"`},
		{"current_setting('server_encoding'), false", "'LATIN1', false", `client_encoding of the session is "LATIN1": it must be "UTF8"`},
	} {
		at.Host = newPooler(t, server, lost.from, lost.to)
		if _, err = pgstore.Open(t.Context(), pgstore.Options{URL: at.String()}); err == nil || !strings.Contains(err.Error(), lost.want) {
			t.Errorf("a session without a setting: %v, want %q", err, lost.want)
		}
	}
}

// newPooler returns the address of a proxy that replaces a text in the messages of each
// connection to PostgreSQL. The first contains settings of the session, and a later one the rest.
func newPooler(t *testing.T, to, from, by string) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var sessions sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close() // It is a test's.
		sessions.Wait()
	})
	sessions.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			sessions.Go(func() {
				defer client.Close() //nolint:errcheck // It is a test's.
				if err := pool(t, client, to, from, by); err != nil {
					t.Errorf("pooler: %v", err)
				}
			})
		}
	})
	return listener.Addr().String()
}

// pool passes one connection on until the client closes it.
func pool(t *testing.T, client net.Conn, to, from, by string) error {
	first, err := readMessage(client, 0, from, by)
	if err != nil {
		return err
	}
	server, err := new(net.Dialer).DialContext(t.Context(), "tcp", to)
	if err != nil {
		return err
	}
	defer server.Close() //nolint:errcheck // It is a test's.
	if _, err := server.Write(first); err != nil {
		return err
	}
	var answers sync.WaitGroup
	answers.Go(func() { _, _ = io.Copy(client, server) }) // It ends with either connection.
	for err == nil {
		var message []byte
		if message, err = readMessage(client, 1, from, by); err == nil {
			_, err = server.Write(message)
		}
	}
	_ = server.Close()
	answers.Wait()
	return nil
}

// readMessage reads a message with a text replaced. Before its size it has a type of that many
// bytes: all have one but the first.
func readMessage(client io.Reader, ofType int, from, by string) ([]byte, error) {
	head := make([]byte, ofType+4)
	if _, err := io.ReadFull(client, head); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[ofType:])-4)
	if _, err := io.ReadFull(client, body); err != nil {
		return nil, err
	}
	body = bytes.Replace(body, []byte(from), []byte(by), 1)
	binary.BigEndian.PutUint32(head[ofType:], uint32(len(body)+4))
	return slices.Concat(head, body), nil
}
