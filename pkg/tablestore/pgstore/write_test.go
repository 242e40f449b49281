//go:build integration

package pgstore_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/pgsession"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

func rowKey(row string) tablestore.Key {
	return tablestore.Key{Table: "one", Partition: "p", Row: row}
}

// commits commits one batch per row, with one op each, and returns the outcomes by row.
func commits(t *testing.T, store *pgstore.Store, verb tablestore.Verb, rows ...string) map[string]chan error {
	t.Helper()
	outcomes := map[string]chan error{}
	for _, row := range rows {
		outcome := make(chan error, 1)
		outcomes[row] = outcome
		go func() {
			_, err := store.Commit(t.Context(), tablestore.Batch{{Verb: verb, Key: rowKey(row)}})
			outcome <- err
		}()
	}
	return outcomes
}

// awaitWaiting waits until that many changes wait for a sender.
func awaitWaiting(store *pgstore.Store, n int) {
	for store.Waiting() < n {
		time.Sleep(time.Millisecond)
	}
}

// hold locks the rows until release.
func hold(t *testing.T, url string, rows ...string) (release func()) {
	t.Helper()
	holder, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Close(t.Context()) }) // Nothing is lost with it.
	if _, err := holder.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), "SELECT FROM lucius.rows WHERE row = ANY ($1) FOR UPDATE", rows); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := holder.Exec(t.Context(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
	}
}

// groups opens a store of two senders with some rows.
func groups(t *testing.T, url string, rows ...string) *pgstore.Store {
	t.Helper()
	store, err := pgstore.Open(t.Context(), pgstore.Options{URL: url, Connections: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // It never fails.
	for row, outcome := range commits(t, store, tablestore.Put, rows...) {
		if err := <-outcome; err != nil {
			t.Fatalf("%s: %v", row, err)
		}
	}
	return store
}

func expectDone(t *testing.T, outcomes map[string]chan error, rows ...string) {
	t.Helper()
	for _, row := range rows {
		if err := <-outcomes[row]; err != nil {
			t.Errorf("%s: %v", row, err)
		}
	}
}

// While both senders are occupied, changes arrive, two of which have no effect: the others
// share one transaction.
func TestCommit_ChangesThatWaitTravelTogether(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store := groups(t, url, "there")
	held, release := occupy(t, url, store)
	var rows []string
	for n := range 20 {
		rows = append(rows, fmt.Sprintf("new%d", n))
	}
	added := commits(t, store, tablestore.Insert, rows...)
	refused := commits(t, store, tablestore.Insert, "there")
	twin := commits(t, store, tablestore.Insert, "new7")
	awaitWaiting(store, 22)
	release()
	expectDone(t, held, "held1", "held2")
	var conflict *tablestore.ConflictError
	if err := <-refused["there"]; !errors.As(err, &conflict) || conflict.Key != rowKey("there") || conflict.Verb != tablestore.Insert {
		t.Errorf("an insert of a row that exists: %v", err)
	}
	one, two := <-added["new7"], <-twin["new7"]
	if (one == nil) == (two == nil) || !errors.Is(errors.Join(one, two), tablestore.ErrConflict) {
		t.Errorf("two inserts of one row: %v, %v", one, two)
	}
	delete(added, "new7")
	for row, outcome := range added {
		if err := <-outcome; err != nil {
			t.Errorf("%s: %v", row, err)
		}
	}
	var written, transactions int
	query(t, url, "SELECT count(*), count(DISTINCT xmin::text) FROM lucius.rows WHERE row LIKE 'new%'", &written, &transactions)
	if written != 20 || transactions > 2 { // The twin may have been sent by the second sender.
		t.Errorf("%d rows were written in %d transactions", written, transactions)
	}
}

// query runs a query of one row.
func query(t *testing.T, url, sql string, into ...any) {
	t.Helper()
	connection, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close(t.Context()) }() // Nothing is lost with it.
	if err := connection.QueryRow(t.Context(), sql).Scan(into...); err != nil {
		t.Fatal(err)
	}
}

// If one change of a group waits for a row that another transaction has locked, the others
// do not wait.
func TestCommit_OneThatWaitsForARowHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	store := groups(t, url, "kept")
	free := hold(t, url, "kept")
	held, release := occupy(t, url, store)
	others := commits(t, store, tablestore.Put, "kept", "a", "b", "z")
	awaitWaiting(store, 4)
	release()
	expectDone(t, held, "held1", "held2")
	expectDone(t, others, "a", "b", "z")
	select {
	case err := <-others["kept"]:
		t.Errorf("a write of a row that another transaction keeps: %v", err)
	default:
	}
	free()
	expectDone(t, others, "kept")
}

// TestRoundTrips counts the round trips of a job: each change takes one.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	trips, over := counted(t, postgrestest.Database(t))
	ledger, queue := replica(t, over)
	var claimed []workqueue.View
	verbs := []struct {
		name string
		most int64
		do   func(key string) error
	}{
		{"accept", 1, func(key string) error {
			_, err := ledger.Accept(t.Context(), ledgertest.Command("t", key))
			return err
		}},
		{"claim and start", 1, func(key string) (err error) {
			claimed, err = queue.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: key, Max: 1, Start: true})
			return err
		}},
		{"complete", 1, func(key string) error {
			for _, view := range claimed {
				if _, err := queue.Complete(t.Context(), view.Item.WorkID, statemachine.ItemRequest{
					Actor: "w", ID: "complete " + key, ExpectedRev: view.Item.Rev,
				}, statemachine.Product{}); err != nil {
					return err
				}
			}
			return nil
		}},
	}
	for key := range 30 { // The first changes prepare statements; the 32nd claim expires memories.
		for _, verb := range verbs {
			before := trips.Load()
			if err := verb.do(fmt.Sprint(key)); err != nil {
				t.Fatalf("%s: %v", verb.name, err)
			}
			if made := trips.Load() - before; key >= 10 && made > verb.most {
				t.Errorf("%s made %d round trips, want at most %d", verb.name, made, verb.most)
			}
		}
		if len(claimed) != 1 {
			t.Fatalf("claimed %d items", len(claimed))
		}
	}
}

// counted returns a counter of round trips, and a URL of the database that counts them.
func counted(t *testing.T, databaseURL string) (*atomic.Int64, string) {
	t.Helper()
	at, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // Nothing is lost with it.
	server := at.Host
	at.Host = listener.Addr().String()
	trips := new(atomic.Int64)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go relay(client, server, trips)
		}
	}()
	return trips, at.String()
}

// relay forwards a session and counts the messages that ask the server for an answer,
// except checks of an idle session, and the session that listens.
func relay(client net.Conn, server string, trips *atomic.Int64) {
	defer client.Close() //nolint:errcheck // Nothing is lost with it.
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer upstream.Close()                           //nolint:errcheck // Nothing is lost with it.
	go func() { _, _ = io.Copy(client, upstream) }() // It ends with either.
	listens := false
	for first := true; ; first = false {
		header := make([]byte, 5) // A type and a length that counts itself; the first message has no type.
		if first {
			header = header[:4]
		}
		if _, err := io.ReadFull(client, header); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[len(header)-4:])-4)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		listens = listens || bytes.Contains(body, []byte("pg_advisory_lock_shared"))
		if asks := header[0] == 'S' || header[0] == 'Q' && body[0] != ';'; asks && !first && !listens {
			trips.Add(1)
		}
		if _, err := upstream.Write(slices.Concat(header, body)); err != nil {
			return
		}
	}
}

// A change may come while the store is being closed, which already waits for all senders.
func TestNoSenderStartsOnceTheWriterIsClosed(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // It accepts connections, and never answers.
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgsession.Open(t.Context(), pgsession.Options{
		URL: "postgres://" + silent.Addr().String() + "/x?sslmode=disable", Connections: 4, Timeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	t.Cleanup(func() { _ = silent.Close() }) // The pool waits for its connections.
	writer := pgstore.NewWriter(pool)
	outcome := make(chan error, 1)
	go func() { outcome <- writer.Write(t.Context()) }()
	time.Sleep(50 * time.Millisecond)
	writer.Close()
	if err := <-outcome; !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("a change in progress: %v", err)
	}
	if err := writer.Write(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a later change: %v", err)
	}
}
