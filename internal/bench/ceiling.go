package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/sync/errgroup"
)

// ceilingKind is a kind of ceiling: what the server does with a body before it answers.
type ceilingKind struct {
	name string
	// open creates files in the folder. keep returns once it has stored a body; closing
	// removes the files.
	open func(dir string) (keep func(body []byte) error, closing func() error, err error)
}

// ceilings are the kinds, each of which does more than the one before it. Ratios are to
// [GroupedSync], because no durable service on the machine answers more requests.
var ceilings = []ceilingKind{
	{"bare HTTP", func(string) (func([]byte) error, func() error, error) {
		return func([]byte) error { return nil }, func() error { return nil }, nil
	}},
	{GroupedSync, func(dir string) (func([]byte) error, func() error, error) {
		log, err := openGroupLog(dir)
		if err != nil {
			return nil, nil, err
		}
		return log.append, log.close, nil
	}},
	{"HTTP + Pebble commit", openCommits},
}

// GroupedSync is the ceiling of a server that answers once the body is on disk, with one
// fdatasync for all waiting requests.
const GroupedSync = "HTTP + shared sync"

// openCommits opens a Pebble store that commits each body as a row.
func openCommits(dir string) (keep func([]byte) error, closing func() error, err error) {
	own, err := os.MkdirTemp(dir, "ceiling-")
	if err != nil {
		return nil, nil, fmt.Errorf("create a folder: %w", err)
	}
	db, err := pebble.Open(own, engineOptions())
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the ceiling's store: %w", err), os.RemoveAll(own))
	}
	var rows atomic.Uint64
	keep = func(body []byte) error {
		return db.Set(binary.BigEndian.AppendUint64(nil, rows.Add(1)), body, pebble.Sync)
	}
	return keep, func() error { return errors.Join(db.Close(), os.RemoveAll(own)) }, nil
}

// ceilingAnswer is about as long as a server's response to a command.
const ceilingAnswer = `{"jobId":"00000000-0000-7000-8000-000000000000","state":"DISPATCHING",` +
	`"replayed":false,"correlation_id":"00000000-0000-7000-8000-000000000000"}`

// ceilingServer does the least that a service must: it answers a request once keep has stored
// its body.
type ceilingServer struct {
	keep    func(body []byte) error
	closing func() error
	server  *http.Server
	served  chan error
	url     string
}

// startCeiling starts the server on a free loopback port, with its files in the folder.
func startCeiling(ctx context.Context, kind ceilingKind, dir string) (*ceilingServer, error) {
	keep, closing, err := kind.open(dir)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the ceiling: %w", err), closing())
	}
	c := &ceilingServer{keep: keep, closing: closing, served: make(chan error, 1), url: "http://" + listener.Addr().String()}
	c.server = &http.Server{Handler: http.HandlerFunc(c.handle), ReadHeaderTimeout: 10 * time.Second}
	go func() { c.served <- c.server.Serve(listener) }()
	return c, nil
}

// handle keeps the body and answers.
func (c *ceilingServer) handle(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = c.keep(body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, ceilingAnswer) // Writing fails only if the client is gone.
}

// close stops the server and removes its files. No request may be in progress.
func (c *ceilingServer) close() error {
	err := c.server.Close()
	if served := <-c.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return errors.Join(err, c.closing())
}

// ceiling measures how many requests a ceiling's server answers, with as many clients as the
// closed loops have, and with bodies as long as a command's payload.
func (b *bench) ceiling(ctx context.Context, kind ceilingKind) (result Ceiling, err error) {
	server, err := startCeiling(ctx, kind, b.options.Dir)
	if err != nil {
		return Ceiling{}, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client := newClient(server.url, b.options.Submitters)
	defer client.close()

	window := b.window(b.options.CeilingDuration)
	stop := b.progress.follow(ctx, kind.name, "requests", window)
	body := payloadOf(b.options.PayloadBytes)
	times := newLatencies()
	group, ctx := errgroup.WithContext(ctx)
	for range b.options.Submitters {
		group.Go(func() error { return b.sendAll(ctx, client, window, body, times) })
	}
	err = group.Wait()
	stop()
	requests := times.count()
	return Ceiling{
		Name: kind.name, Requests: requests, PerSecond: float64(requests) / b.options.CeilingDuration.Seconds(),
		Latency: times.percentiles(),
	}, err
}

// sendAll sends one request after the other until the window ends, and records the latencies
// of those answered in it.
func (b *bench) sendAll(ctx context.Context, client *client, window window, body []byte, times *latencies) error {
	for {
		begun := time.Now()
		if !begun.Before(window.end) {
			return nil
		}
		if err := client.send(ctx, http.MethodPost, "/", body, nil); err != nil {
			return err
		}
		b.progress.count()
		if now := time.Now(); window.holds(now) {
			times.record(now.Sub(begun))
		}
	}
}

// engineOptions returns the options of a plain Pebble store.
func engineOptions() *pebble.Options {
	return &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: silent{}}
}

// silent discards the engine's messages, but panics with a fatal one.
type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, arguments ...any) {
	panic(fmt.Sprintf(format, arguments...))
}
