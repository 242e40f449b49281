package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// ceilingAnswer is about as long as a server's answer to a command.
const ceilingAnswer = `{"jobId":"00000000-0000-7000-8000-000000000000","state":"DISPATCHING",` +
	`"replayed":false,"correlation_id":"00000000-0000-7000-8000-000000000000"}`

// ceilingServer does the least that a durable service can do: it answers a request
// once its body is on disk.
type ceilingServer struct {
	log    *groupLog
	server *http.Server
	served chan error
	url    string
}

// startCeiling starts the server on a free loopback port, with its log in the
// folder.
func startCeiling(ctx context.Context, dir string) (*ceilingServer, error) {
	log, err := openGroupLog(dir)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the ceiling: %w", err), log.close())
	}
	c := &ceilingServer{log: log, served: make(chan error, 1), url: "http://" + listener.Addr().String()}
	c.server = &http.Server{Handler: http.HandlerFunc(c.handle), ReadHeaderTimeout: 10 * time.Second}
	go func() { c.served <- c.server.Serve(listener) }()
	return c, nil
}

// handle puts the body on disk and answers.
func (c *ceilingServer) handle(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = c.log.append(body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, ceilingAnswer) // A client that is gone needs no answer.
}

// close ends the server and removes its log. All clients must have ended.
func (c *ceilingServer) close() error {
	err := c.server.Close()
	if served := <-c.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return errors.Join(err, c.log.close())
}

// ceiling measures how many durable requests this machine answers for the same
// number of clients, with bodies as long as a command's payload.
func (b *bench) ceiling(ctx context.Context) (result Ceiling, err error) {
	server, err := startCeiling(ctx, b.options.Dir)
	if err != nil {
		return Ceiling{}, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	client := newClient(server.url, b.options.Submitters)
	defer client.close()

	window := b.window()
	stop := b.progress.follow(ctx, "ceiling", "requests", window)
	body := payloadOf(b.options.PayloadBytes)
	taken := make([][]time.Duration, b.options.Submitters)
	group, ctx := errgroup.WithContext(ctx)
	for i := range taken {
		group.Go(func() (err error) {
			taken[i], err = b.knock(ctx, client, window, body)
			return err
		})
	}
	err = group.Wait()
	stop()
	if err != nil {
		return Ceiling{}, fmt.Errorf("ceiling: %w", err)
	}
	latency := slices.Concat(taken...)
	return Ceiling{
		Requests: len(latency), PerSecond: float64(len(latency)) / b.options.Duration.Seconds(),
		Latency: percentiles(latency),
	}, nil
}

// knock makes one request after the other until the window's end, and returns the
// durations of those that were answered in it.
func (b *bench) knock(ctx context.Context, client *client, window window, body []byte) ([]time.Duration, error) {
	var taken []time.Duration
	for {
		begun := time.Now()
		if !begun.Before(window.end) {
			return taken, nil
		}
		if err := client.send(ctx, http.MethodPost, "/", body, nil); err != nil {
			return taken, err
		}
		b.progress.count()
		if now := time.Now(); window.holds(now) {
			taken = append(taken, now.Sub(begun))
		}
	}
}

// groupLog is a log file with group commit: one sync covers all appends that arrived
// during the previous sync, as in every database with a log. It is safe for
// concurrent use.
type groupLog struct {
	file *os.File
	wake chan struct{}
	done chan struct{}

	mu      sync.Mutex
	pending *group
	closed  bool
}

// group is a set of appends that share a sync.
type group struct {
	bytes  []byte
	synced chan struct{}
	err    error // may be read once synced is closed
}

// errLogClosed is returned for an append to a closed log.
var errLogClosed = errors.New("the log is closed")

// openGroupLog creates the log in a new file in the folder.
func openGroupLog(dir string) (*groupLog, error) {
	file, err := os.CreateTemp(dir, "bench-ceiling-*.log")
	if err != nil {
		return nil, fmt.Errorf("create the ceiling's log: %w", err)
	}
	l := &groupLog{file: file, wake: make(chan struct{}, 1), done: make(chan struct{}), pending: newGroup()}
	go l.run()
	return l, nil
}

func newGroup() *group { return &group{synced: make(chan struct{})} }

// append returns when the record is on disk.
func (l *groupLog) append(record []byte) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errLogClosed
	}
	mine := l.pending
	mine.bytes = append(mine.bytes, record...)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // A wake-up is pending already.
	}
	<-mine.synced
	return mine.err
}

// run flushes one group after the other.
func (l *groupLog) run() {
	defer close(l.done)
	for range l.wake {
		l.flush()
	}
	l.flush()
}

// flush writes and syncs the pending group.
func (l *groupLog) flush() {
	l.mu.Lock()
	current := l.pending
	if len(current.bytes) == 0 {
		l.mu.Unlock()
		return
	}
	l.pending = newGroup()
	l.mu.Unlock()
	if _, err := l.file.Write(current.bytes); err != nil {
		current.err = fmt.Errorf("write the ceiling's log: %w", err)
	} else if err := datasync(l.file); err != nil {
		current.err = fmt.Errorf("sync the ceiling's log: %w", err)
	}
	close(current.synced)
}

// close waits for pending appends and removes the file. No append may be in
// progress.
func (l *groupLog) close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	close(l.wake)
	<-l.done
	if err := errors.Join(l.file.Close(), os.Remove(l.file.Name())); err != nil {
		return fmt.Errorf("remove the ceiling's log: %w", err)
	}
	return nil
}
