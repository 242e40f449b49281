//go:build integration

package aztablestore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// fault is a network's fault on one transaction.
type fault func(req *http.Request, carry http.RoundTripper) (*http.Response, error)

// network sends requests to a working service, and applies the planned fault to
// each transaction.
type network struct {
	*http.Transport
	faults chan fault
}

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.HasSuffix(req.URL.Path, "/$batch") {
		select {
		case strike := <-n.faults:
			return strike(req, n.Transport)
		default:
		}
	}
	return n.Transport.RoundTrip(req)
}

// faulty returns a store that reaches the account under test over a network
// with those faults, and the name of a table in it.
func faulty(t *testing.T, faults ...fault) (*aztablestore.Store, string) {
	t.Helper()
	network := &network{Transport: &http.Transport{}, faults: make(chan fault, len(faults))}
	for _, fault := range faults {
		network.faults <- fault
	}
	t.Cleanup(network.CloseIdleConnections)
	names := tables(t)
	options := aztablestore.Options{Connection: connection(t), Tables: names[:1], Transport: network}
	return open(t, options), names[0]
}

// replyLost lets the service apply the transaction and loses its answer.
func replyLost(req *http.Request, carry http.RoundTripper) (*http.Response, error) {
	reply, err := carry.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, reply.Body)
	_ = reply.Body.Close()
	return nil, errNetwork
}

// replyCut lets the service apply the transaction and cuts its answer.
func replyCut(req *http.Request, carry http.RoundTripper) (*http.Response, error) {
	reply, err := carry.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(reply.Body)
	_ = reply.Body.Close()
	reply.Body = io.NopCloser(bytes.NewReader(body[:len(body)/2]))
	return reply, err
}

// replyLate lets the service apply the transaction and delays its answer until
// the caller has given up.
func replyLate(req *http.Request, carry http.RoundTripper) (*http.Response, error) {
	if _, err := replyLost(req, carry); !errors.Is(err, errNetwork) {
		return nil, err
	}
	return nil, context.DeadlineExceeded
}

// throttledThough lets the service apply the transaction, and answers that it
// was throttled.
func throttledThough(req *http.Request, carry http.RoundTripper) (*http.Response, error) {
	if _, err := replyLost(req, carry); !errors.Is(err, errNetwork) {
		return nil, err
	}
	return refuses(http.StatusServiceUnavailable, "ServerBusy")(req)
}

// throttled answers without sending the transaction to the service.
func throttled(req *http.Request, _ http.RoundTripper) (*http.Response, error) {
	return refuses(http.StatusServiceUnavailable, "ServerBusy")(req)
}

// requestLost loses the transaction before it reaches the service.
func requestLost(req *http.Request, _ http.RoundTripper) (*http.Response, error) {
	return lost(errNetwork)(req)
}

// TestFaults applies a fault to a transaction that inserts a marker and
// replaces a head row, then reads the rows, and submits the identical
// transaction again.
func TestFaults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault   fault
		outcome error
		applied bool
	}{
		"the reply is lost":                     {replyLost, tablestore.ErrUnknown, true},
		"the reply is cut off":                  {replyCut, tablestore.ErrUnknown, true},
		"the reply is late":                     {replyLate, tablestore.ErrUnknown, true},
		"the request is lost":                   {requestLost, tablestore.ErrUnknown, false},
		"it is throttled":                       {throttled, nil, true},
		"it is applied, but reported throttled": {throttledThough, tablestore.ErrUnknown, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain := func(req *http.Request, carry http.RoundTripper) (*http.Response, error) { return carry.RoundTrip(req) }
			store, table := faulty(t, plain, test.fault)
			at := func(row string) tablestore.Key { return tablestore.Key{Table: table, Partition: "p", Row: row} }
			first, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: at("head"), Properties: number(1)}})
			if err != nil {
				t.Fatal(err)
			}
			batch := tablestore.Batch{
				{Verb: tablestore.Insert, Key: at("marker"), Properties: number(7)},
				{Verb: tablestore.Replace, Key: at("head"), ETag: first[0], Properties: number(2)},
			}
			_, err = store.Commit(t.Context(), batch)
			expectError(t, err, test.outcome)

			// The marker tells the outcome, and a second submission never
			// applies it twice.
			_, missing := store.Get(t.Context(), at("marker"))
			if (missing == nil) != test.applied {
				t.Errorf("the marker: %v, applied %t", missing, test.applied)
			}
			_, again := store.Commit(t.Context(), batch)
			if test.applied {
				expectError(t, again, &tablestore.ConflictError{Key: at("marker"), Verb: tablestore.Insert})
			} else {
				expectError(t, again, nil)
			}
			head, err := store.Get(t.Context(), at("head"))
			if err != nil || !head.Properties.Equal(number(2)) {
				t.Errorf("head: %+v, %v", head, err)
			}
		})
	}
}

// TestLostReplyIsNoSilentDuplicate is about the danger of a repeated insert:
// the row was written, and another worker took and removed it; it must not come
// back.
func TestLostReplyIsNoSilentDuplicate(t *testing.T) {
	t.Parallel()
	store, table := faulty(t, replyLost)
	key := tablestore.Key{Table: table, Partition: "p", Row: "work"}
	_, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: key}})
	expectError(t, err, tablestore.ErrUnknown)
	row, err := store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: row.ETag}}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrNotFound) {
		t.Errorf("get: %v, want ErrNotFound", err)
	}
}

// TestReplaceNeverCreates replaces a deleted row on the service: an upsert
// would bring it back.
func TestReplaceNeverCreates(t *testing.T) {
	t.Parallel()
	store, table := faulty(t)
	key := tablestore.Key{Table: table, Partition: "p", Row: "a"}
	etags, err := store.Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Insert, Key: key}})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []tablestore.Op{{Verb: tablestore.Delete, Key: key, ETag: etags[0]}, {Verb: tablestore.Replace, Key: key, ETag: etags[0]}} {
		_, err = store.Commit(t.Context(), tablestore.Batch{op})
	}
	expectError(t, err, &tablestore.ConflictError{Key: key, Verb: tablestore.Replace})
	if _, err := store.Get(t.Context(), key); !errors.Is(err, tablestore.ErrNotFound) {
		t.Errorf("get: %v, want ErrNotFound", err)
	}
}

// TestMissingTableIsNoMissingRow checks on the service that an account without
// tables is not mistaken for one without jobs.
func TestMissingTableIsNoMissingRow(t *testing.T) {
	t.Parallel()
	store, table := faulty(t)
	key := tablestore.Key{Table: table + "x", Partition: "p", Row: "a"}
	_, err := store.Get(t.Context(), key)
	expectError(t, err, tablestore.ErrUnavailable)
	_, err = store.Scan(t.Context(), tablestore.Query{Table: key.Table, Partition: key.Partition})
	expectError(t, err, tablestore.ErrUnavailable)
	for _, verb := range []tablestore.Verb{tablestore.Insert, tablestore.Discard} {
		_, err = store.Commit(t.Context(), tablestore.Batch{{Verb: verb, Key: key}})
		expectError(t, err, tablestore.ErrUnavailable)
	}
}

func TestWrongKeyIsDenied(t *testing.T) {
	t.Parallel()
	options := aztablestore.Options{Connection: strings.Replace(connection(t), "AccountKey=", "AccountKey=AAAA", 1), Tables: []string{"table"}}
	_, err := aztablestore.Open(t.Context(), options)
	expectError(t, err, errDenied)
}

// TestOpeningTwiceKeepsTheRows opens a second store on the tables of the first.
func TestOpeningTwiceKeepsTheRows(t *testing.T) {
	t.Parallel()
	names := tables(t)
	options := aztablestore.Options{Connection: connection(t), Tables: names[:]}
	key := tablestore.Key{Table: names[0], Partition: "p", Row: "a"}
	if _, err := open(t, options).Commit(t.Context(), tablestore.Batch{{Verb: tablestore.Put, Key: key, Properties: number(1)}}); err != nil {
		t.Fatal(err)
	}
	row, err := open(t, options).Get(t.Context(), key)
	if diff := cmp.Diff(number(1), row.Properties); err != nil || diff != "" {
		t.Errorf("get: %v (-want +got):\n%s", err, diff)
	}
}

// TestNoListener sends writes to a port that was just closed: nothing can have
// been applied, and the real transport's trace shows it.
func TestNoListener(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	store := open(t, aztablestore.WithTries(
		aztablestore.Options{Connection: strings.Replace(scriptedConnection, "nowhere.invalid", address, 1)}, 2))
	_, err = store.Commit(t.Context(), tablestore.Batch{insert("a")})
	expectError(t, err, tablestore.ErrUnavailable)
}

// TestServerThatHangsUp has the server read the request and close the
// connection: the request was sent, but its outcome is unknown.
func TestServerThatHangsUp(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
	}()
	store := open(t, aztablestore.Options{Connection: strings.Replace(scriptedConnection, "nowhere.invalid", listener.Addr().String(), 1)})
	_, err = store.Commit(context.WithoutCancel(t.Context()), tablestore.Batch{insert("b")})
	expectError(t, err, tablestore.ErrUnknown)
	_ = listener.Close()
	<-ended
	if accepted.Load() != 1 {
		t.Errorf("%d connections", accepted.Load())
	}
}
