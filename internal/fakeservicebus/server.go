package fakeservicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// acceptPause is how long the listener waits after a failed accept.
const acceptPause = 5 * time.Millisecond

// Server is a broker that listens. Its methods are safe for concurrent use.
type Server struct {
	config Config
	addr   string
	hooks  atomic.Pointer[Hooks]
	tasks  sync.WaitGroup // the goroutines of the listener and of the connections

	// life is held while a listener is started or stopped.
	life    sync.Mutex
	admins  []*http.Server // those of ServeAdmin, guarded by life
	serving sync.WaitGroup // their goroutines

	mu          sync.Mutex // guards the fields below and all that they reach
	listener    net.Listener
	closed      bool
	connections map[*connection]struct{}
	topics      map[string]*topic // by name, normalized
	queues      map[string]*queue // by path, normalized
	accepted    int64
	duplicates  int64
}

// Start starts a server. It returns the error of Validate or of listening.
func Start(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Address = cmp.Or(cfg.Address, "127.0.0.1:0")
	cfg.LockDuration = cmp.Or(cfg.LockDuration, 30*time.Second)
	cfg.MaxDeliveries = cmp.Or(cfg.MaxDeliveries, 10)
	cfg.MaxMessageSize = cmp.Or(cfg.MaxMessageSize, 256<<10)
	cfg.KeepAlive = cmp.Or(cfg.KeepAlive, 10*time.Second)
	s := &Server{
		config:      cfg,
		connections: map[*connection]struct{}{},
		topics:      map[string]*topic{},
		queues:      map[string]*queue{},
	}
	s.SetHooks(cfg.Hooks)
	for _, t := range cfg.Topics {
		if err := s.AddTopic(t); err != nil {
			return nil, err
		}
	}
	if err := s.listen(s.config.Address); err != nil {
		return nil, err
	}
	return s, nil
}

// listen starts to accept connections.
func (s *Server) listen(address string) error {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.mu.Lock()
	s.listener = listener
	s.addr = listener.Addr().String()
	s.mu.Unlock()
	s.tasks.Go(func() { s.acceptFrom(listener) })
	return nil
}

// acceptFrom serves connections until the listener is closed.
func (s *Server) acceptFrom(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(acceptPause) // Out of descriptors, or the client is gone already.
			continue
		}
		s.serve(conn)
	}
}

// serve starts the goroutine of a connection.
func (s *Server) serve(conn net.Conn) {
	c := &connection{server: s, net: conn, wake: make(chan struct{}, 1), sessions: map[uint16]*session{}, maxFrame: minFrame}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		_ = conn.Close() // The server was stopped in the meantime.
		return
	}
	s.connections[c] = struct{}{}
	s.tasks.Go(c.run)
}

// Addr returns the address it listens on, host and port. It never changes.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// ConnectionString returns the connection string of the namespace, for a client
// without TLS. The server accepts any key.
func (s *Server) ConnectionString() string {
	return connectionTo(s.Addr())
}

// connectionTo returns the connection string of an emulator at that address.
func connectionTo(address string) string {
	return "Endpoint=sb://" + address +
		";SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
}

// Cut closes all sockets without a close frame, like a broken network. Locked
// messages stay locked. Clients may reconnect at once.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.connections {
		c.cut()
	}
}

// CloseReceivers closes the links that receive from a path, for a reason, and returns how many
// there were. The paths are those of Depth. Locked messages stay locked.
func (s *Server) CloseReceivers(path string, why Refusal) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.queues[normal(path)]
	if !ok {
		return 0
	}
	receivers := slices.Clone(q.receivers)
	for _, l := range receivers {
		l.close(why.Condition, why.Description)
	}
	return len(receivers)
}

// Stop closes the listener, cuts all connections and waits until they have ended.
// The messages stay, and locks expire in the meantime. Stopping twice is fine. A
// hook must not call it: it would wait for itself.
func (s *Server) Stop() {
	s.life.Lock()
	defer s.life.Unlock()
	s.stop()
}

// stop implements Stop; life is held.
func (s *Server) stop() {
	s.mu.Lock()
	listener := s.listener
	s.listener = nil
	for c := range s.connections {
		c.cut()
	}
	s.mu.Unlock()
	if listener != nil {
		_ = listener.Close() // It is closed in any case.
	}
	s.tasks.Wait()
}

// Restart listens on the same address again, with the same messages. It returns
// ErrRunning, ErrClosed, or the error of listening.
func (s *Server) Restart() error {
	s.life.Lock()
	defer s.life.Unlock()
	s.mu.Lock()
	running, closed := s.listener != nil, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case running:
		return ErrRunning
	default:
		return s.listen(s.Addr())
	}
}

// Close stops the server permanently and drops its messages. Closing twice is fine.
func (s *Server) Close() {
	s.life.Lock()
	defer s.life.Unlock()
	s.stop()
	for _, server := range s.admins {
		_ = server.Close() // It is closed in any case.
	}
	s.serving.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, q := range s.queues {
		for _, k := range q.locked {
			k.timer.Stop()
		}
	}
	clear(s.queues)
	clear(s.topics)
}

// now returns the broker's time.
func (s *Server) now() time.Time { return time.Now() }

// after calls f with the mutex held after that time, unless the server is closed by
// then.
func (s *Server) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			f()
		}
	})
}
