//go:build integration

package pgstore_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/postgres/postgrestest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// awaitHeard sends the payload until the listener gets it: a notification may be lost.
func awaitHeard(t *testing.T, from *pgstore.Store, payload string, heard <-chan string) {
	t.Helper()
	for {
		from.Notify("test", payload)
		select {
		case got := <-heard:
			if got == payload {
				return
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lockedBuffer is a log.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// listening returns a channel of the notifications that the store receives on the channel
// "test".
func listening(store *pgstore.Store) chan string {
	heard := make(chan string, 1000)
	store.Listen("test", func(payload string) { heard <- payload })
	return heard
}

// After the sessions of both processes end, they reconnect, and the listener learns that it
// may have missed notifications.
func TestListen_SurvivesTheEndOfItsSession(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	var logged lockedBuffer
	one := open(t, url)
	other, err := pgstore.Open(t.Context(), pgstore.Options{URL: url, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = one.Close(), other.Close() }() // They never fail.
	if other.Notified() {
		t.Error("it listens before the first listener")
	}
	heard := listening(other)
	awaitHeard(t, one, "before", heard)
	if log := logged.String(); !other.Notified() || log != "" {
		t.Errorf("it listens: %t, and logged %s", other.Notified(), log)
	}
	execute(t, url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lucius' AND datname = current_database()")
	for got := range heard {
		if got == "" {
			break
		}
	}
	awaitHeard(t, one, "after", heard)
	log := logged.String()
	if strings.Count(log, "level=WARN") != 1 || strings.Count(log, "level=INFO") != 1 || !strings.Contains(log, "terminating connection") {
		t.Errorf("it logged %s", log)
	}
	_ = other.Close() // It never fails.
	if other.Notified() {
		t.Error("it listens after its end")
	}
}

func TestNotify_DropsPayloadsThatPostgreSQLRejects(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	one, other := open(t, url), open(t, url)
	defer func() { _, _ = one.Close(), other.Close() }() // They never fail.
	heard := listening(other)
	for range 2000 {
		one.Notify("test", strings.Repeat("x", 8000))
	}
	awaitHeard(t, one, "it goes on", heard)
}

// replica returns the pull queue of one process; its claims would wait for an hour without
// a wake-up.
func replica(t *testing.T, url string) (*ledgertest.Ledger, *workqueue.Queue) {
	t.Helper()
	store, mirror := open(t, url), workqueue.NewMirror(0)
	t.Cleanup(func() { _ = store.Close() }) // It never fails.
	l := ledgertest.Open(t, ledger.Config{Store: store, Shared: true, Ready: mirror.Ready, Taker: mirror.Taker})
	queue := workqueue.New(workqueue.Config{Ledger: l.Ledger, Store: store, Mirror: mirror, Poll: time.Hour})
	return l, queue
}

// TestReplicas_WakeEachOthersClaims accepts a command at one replica while a claim waits at
// another, until such a claim is answered: a notification may be lost while they connect.
func TestReplicas_WakeEachOthersClaims(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	here, _ := replica(t, url)
	_, there := replica(t, url)
	claimed := make(chan int, 1)
	go func() {
		views, err := there.Claim(t.Context(), workqueue.ClaimRequest{Owner: "w", RequestID: "1", Max: 1, Wait: time.Hour})
		if err != nil {
			t.Errorf("claim: %v", err)
		}
		claimed <- len(views)
	}()
	for key := 'a'; ; key++ {
		here.Submit(ledgertest.Command("t", string(key)))
		select {
		case n := <-claimed:
			if n != 1 {
				t.Errorf("claimed %d items", n)
			}
			return
		case <-time.After(time.Second):
		}
	}
}

// The session that waits for notifications also sends: to end its wait takes no answer of the
// server, which would come only with the next notification.
func TestNotify_DoesNotWaitForTheServer(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	one := open(t, url)
	other, err := pgstore.Open(t.Context(), pgstore.Options{URL: url, Timeout: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = one.Close(), other.Close() }() // They never fail.
	listening(other)                                     // Its session waits.
	awaitHeard(t, other, "x", listening(one))
}
