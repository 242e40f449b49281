package pgstore

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/lucius-project/lucius/pkg/metrics"
)

const (
	// listenersLock is the advisory lock that each listening process holds in shared mode,
	// so that a process can find out that it is alone and need not notify.
	listenersLock = 0x6c7563697574
	// signalGap is the minimum time between two sends of a process. A transaction that
	// notifies holds a server-wide lock while it commits.
	signalGap = 5 * time.Millisecond
	// alonePause is how long a process that found itself alone drops its notifications.
	alonePause = time.Second
	// maxSignals bounds the notifications that wait to be sent, and maxPayload their size,
	// which PostgreSQL limits to less than 8000 bytes.
	maxSignals, maxPayload = 1024, 7999
	// The session is checked when it has been idle for pingEvery. requestTime bounds each
	// request.
	pingEvery, requestTime = 30 * time.Second, 10 * time.Second
	// The delay before a new session grows from firstReconnect to lastReconnect.
	firstReconnect, lastReconnect = 50 * time.Millisecond, 5 * time.Second
)

// signals sends and receives the notifications of a process over one session outside of the
// pool. It sends in batches. Its first use starts it.
type signals struct {
	config *pgx.ConnConfig
	begin  sync.Once
	ctx    context.Context //nolint:containedctx // It ends with the store.
	end    context.CancelFunc
	done   sync.WaitGroup
	log    *slog.Logger
	up     atomic.Bool // the session listens
	failed bool        // the failure was logged; only run uses it

	mu        sync.Mutex                        // Guards all below.
	heard     map[string][]func(payload string) // callbacks by channel
	waiting   map[signal]struct{}               // notifications to send
	alone     time.Time                         // until when the process counts as the only one
	interrupt context.CancelFunc                // ends the wait for notifications; nil if the session is busy
}

// signal is one notification.
type signal struct{ channel, payload string }

func newSignals(config *pgx.ConnConfig, log *slog.Logger) *signals {
	config = config.Copy()
	// The session writes nothing, so its commits need not wait for the disk.
	config.RuntimeParams["synchronous_commit"] = "off"
	// The end of a wait for notifications must not wait for the server, which has nothing to answer.
	config.BuildContextWatcherHandler = func(session *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: session.Conn()}
	}
	s := &signals{config: config, log: log, heard: map[string][]func(string){}, waiting: map[signal]struct{}{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// close ends the session. After it returns, no callback runs.
func (s *signals) close() {
	s.begin.Do(func() {}) // prevents a start
	s.end()
	s.done.Wait()
}

// Notify implements [tablestore.Notifier].
func (s *Store) Notify(channel, payload string) { s.signals.notify(signal{channel, payload}) }

// Listen implements [tablestore.Notifier].
func (s *Store) Listen(channel string, heard func(payload string)) { s.signals.listen(channel, heard) }

// Notified reports whether the process has a session that listens, so that others can wake
// it. The first call of Listen or Notify starts the session.
func (s *Store) Notified() bool { return s.signals.up.Load() }

// Watch registers the store's metrics. They are read at each scrape.
func (s *Store) Watch(to metrics.Registry) {
	to.Gauge("lucius_store_notifications_up", "1 while this process hears the notifications of others on PostgreSQL, else 0.",
		func() float64 {
			if s.Notified() {
				return 1
			}
			return 0
		})
}

func (s *signals) notify(one signal) {
	s.start()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) >= maxSignals || len(one.payload) > maxPayload || time.Now().Before(s.alone) {
		return
	}
	s.waiting[one] = struct{}{}
	s.wake()
}

func (s *signals) listen(channel string, heard func(payload string)) {
	s.start()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard[channel] = append(s.heard[channel], heard)
	s.wake()
}

func (s *signals) start() { s.begin.Do(func() { s.done.Go(s.run) }) }

// wake ends the wait for notifications. The caller holds mu.
func (s *signals) wake() {
	if s.interrupt != nil {
		s.interrupt()
	}
}

// run holds a session until the store is closed.
func (s *signals) run() {
	for pause := firstReconnect; s.ctx.Err() == nil; pause = min(2*pause, lastReconnect) {
		connected, err := s.session()
		s.report(err)
		if connected {
			pause = firstReconnect
		}
		if !sleep(s.ctx, pause) {
			return
		}
	}
}

// report records whether the session listens, and logs changes of that. Callers of Notify and
// Listen get no errors, because they also poll.
func (s *signals) report(err error) {
	s.up.Store(err == nil)
	switch failed := err != nil; {
	case s.ctx.Err() != nil || failed == s.failed:
		return
	case failed:
		s.log.WarnContext(s.ctx, "replicas do not wake each other: notifications of PostgreSQL fail", "error", err)
	default:
		s.log.InfoContext(s.ctx, "replicas wake each other again: notifications of PostgreSQL work")
	}
	s.failed = !s.failed
}

// session is a connection and the channels on which it listens.
type session struct {
	*pgx.Conn

	pid       uint32 // of the server process; through a pooler, the protocol names another one
	listening map[string]bool
}

// session connects, and listens and sends until an error. connected says that it could
// connect.
func (s *signals) session() (connected bool, err error) {
	session, err := s.connect()
	if err != nil {
		return false, err
	}
	defer func() { _ = session.Close(context.WithoutCancel(s.ctx)) }() // Closing it loses nothing.
	for next := time.Now(); err == nil; {
		if err = s.listenAll(session); err != nil {
			break
		}
		s.report(nil)
		if batch := s.take(next); len(batch) > 0 {
			if err = s.send(session, batch); err != nil {
				break
			}
			next = time.Now().Add(signalGap)
		}
		err = s.hear(session, next)
	}
	return true, err
}

// connect opens a session and takes the listeners' lock, which tells other processes that
// this one listens.
func (s *signals) connect() (*session, error) {
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	connection, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return nil, err
	}
	opened := &session{Conn: connection, listening: map[string]bool{}}
	if _, err = connection.Exec(ctx, "SELECT pg_advisory_lock_shared($1)", int64(listenersLock)); err == nil {
		err = connection.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&opened.pid)
	}
	if err != nil {
		return nil, errors.Join(err, connection.Close(ctx))
	}
	return opened, nil
}

// listenAll starts to listen on channels that are new to the session, and tells their
// callbacks that notifications may have been missed.
func (s *signals) listenAll(session *session) error {
	s.mu.Lock()
	added := slices.DeleteFunc(slices.Collect(maps.Keys(s.heard)), func(channel string) bool { return session.listening[channel] })
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	for _, channel := range added {
		if _, err := session.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return err
		}
		session.listening[channel] = true
		s.tell(signal{channel, ""})
	}
	return nil
}

// take returns the notifications to send, but none before the time next.
func (s *signals) take(next time.Time) []signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(next) {
		return nil
	}
	batch := make([]signal, 0, len(s.waiting))
	for one := range s.waiting {
		batch = append(batch, one)
	}
	clear(s.waiting)
	return batch
}

// send sends the batch if other processes listen, that is, if the listeners' lock cannot be
// taken exclusively.
func (s *signals) send(session *session, batch []signal) error {
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	channels, payloads := make([]string, len(batch)), make([]string, len(batch))
	for i, one := range batch {
		channels[i], payloads[i] = one.channel, one.payload
	}
	var sent int
	err := session.QueryRow(ctx, "SELECT count(pg_notify(n.channel, n.payload)) "+
		"FROM unnest($1::text[], $2::text[]) AS n(channel, payload) "+
		"WHERE NOT (SELECT pg_try_advisory_xact_lock($3))", channels, payloads, int64(listenersLock)).Scan(&sent)
	if err == nil && sent == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.alone = time.Now().Add(alonePause)
	}
	return err
}

// hear waits for one notification, or until there is a notification to send or a new channel.
// It checks the session if it has been idle for long.
func (s *signals) hear(session *session, next time.Time) error {
	ctx, cancel := context.WithTimeout(s.ctx, pingEvery)
	defer cancel()
	s.mu.Lock()
	switch {
	case len(s.heard) > len(session.listening):
		s.mu.Unlock()
		return nil
	case len(s.waiting) > 0:
		timer := time.AfterFunc(time.Until(next), cancel)
		defer timer.Stop()
	default:
		s.interrupt = cancel
	}
	s.mu.Unlock()
	notification, err := session.WaitForNotification(ctx)
	s.mu.Lock()
	s.interrupt = nil
	s.mu.Unlock()
	switch {
	case err == nil:
		if notification.PID != session.pid {
			s.tell(signal{notification.Channel, notification.Payload})
		}
		return nil
	case s.ctx.Err() != nil || session.IsClosed():
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return nil // There is a notification to send, or a new channel.
	}
	ctx, cancelPing := context.WithTimeout(s.ctx, requestTime)
	defer cancelPing()
	return session.Ping(ctx)
}

func (s *signals) tell(one signal) {
	s.mu.Lock()
	heard := s.heard[one.channel]
	s.mu.Unlock()
	for _, call := range heard {
		call(one.payload)
	}
}
