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
	listenersLock int64 = 0x6c7563697574
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
	log    *slog.Logger
	begin  sync.Once
	ctx    context.Context //nolint:containedctx // It ends with the store.
	end    context.CancelFunc
	done   sync.WaitGroup
	up     atomic.Bool // the session listens
	failed bool        // the failure was logged; only run uses it

	mu        sync.Mutex          // Guards all below.
	listeners []listener          // only grows
	waiting   map[signal]struct{} // notifications to send
	alone     time.Time           // until when the process counts as the only one
	wake      context.CancelFunc  // ends the session's wait for notifications
}

// signal is one notification.
type signal struct{ channel, payload string }

// listener is a callback for the notifications of a channel.
type listener struct {
	channel string
	heard   func(payload string)
}

func newSignals(config *pgx.ConnConfig, log *slog.Logger) *signals {
	config = config.Copy()
	// The session writes nothing, so its commits need not wait for the disk.
	config.RuntimeParams["synchronous_commit"] = "off"
	// The end of a wait for notifications must not wait for the server, which has nothing to answer.
	config.BuildContextWatcherHandler = func(session *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: session.Conn()}
	}
	s := &signals{config: config, log: log, waiting: map[signal]struct{}{}, wake: func() {}}
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
func (s *Store) Notify(channel, payload string) {
	n := s.signals
	defer n.start()
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.waiting) < maxSignals && len(payload) <= maxPayload && !time.Now().Before(n.alone) {
		n.waiting[signal{channel, payload}] = struct{}{}
		n.wake()
	}
}

// Listen implements [tablestore.Notifier].
func (s *Store) Listen(channel string, heard func(payload string)) {
	n := s.signals
	defer n.start()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners = append(n.listeners, listener{channel, heard})
	n.wake()
}

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

func (s *signals) start() { s.begin.Do(func() { s.done.Go(s.run) }) }

// run holds a session until the store is closed.
func (s *signals) run() {
	for pause := firstReconnect; ; pause = min(2*pause, lastReconnect) {
		err := s.session()
		if s.up.Load() { // It listened until now.
			pause = firstReconnect
		}
		s.report(err)
		if !sleep(s.ctx, pause) {
			return
		}
	}
}

// report records whether the session listens, and logs changes of that. Callers of Notify and
// Listen get no errors, because they also poll.
func (s *signals) report(err error) {
	s.up.Store(err == nil)
	if s.ctx.Err() != nil || (err != nil) == s.failed {
		return
	}
	if s.failed = err != nil; s.failed {
		s.log.WarnContext(s.ctx, "replicas do not wake each other: notifications of PostgreSQL fail", "error", err)
	} else {
		s.log.InfoContext(s.ctx, "replicas wake each other again: notifications of PostgreSQL work")
	}
}

// session connects, and then listens and sends until an error. The listeners' lock tells other
// processes that this one listens.
func (s *signals) session() error {
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	session, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close(context.WithoutCancel(s.ctx)) }() // Closing it loses nothing.
	// Of the server process: through a pooler, the protocol names another one.
	var pid uint32
	err = session.QueryRow(ctx, "SELECT pg_backend_pid() FROM pg_advisory_lock_shared($1)", listenersLock).Scan(&pid)
	listening, next := 0, time.Now()
	for err == nil {
		wait, stop := context.WithTimeout(s.ctx, pingEvery)
		added, batch := s.due(listening, next, stop)
		if err = s.exchange(session, added, batch); err == nil {
			if listening += len(added); len(batch) > 0 {
				next = time.Now().Add(signalGap)
			}
			err = s.hear(wait, session, pid)
		}
		stop()
	}
	return err
}

// due returns the listeners after the first ones, and the notifications to send, but none before
// the time next. It has stop called when there are more of either.
func (s *signals) due(first int, next time.Time, stop func()) (added []listener, batch []signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake = stop
	if early := time.Until(next); early > 0 && len(s.waiting) > 0 {
		s.wake = func() {} // More of them do not end the gap.
		time.AfterFunc(early, stop)
	} else {
		batch = slices.Collect(maps.Keys(s.waiting))
		clear(s.waiting)
	}
	return s.listeners[first:], batch
}

// exchange starts to listen on the channels of the listeners, and tells these that notifications
// may have been missed. Then it sends the batch if other processes listen, that is, if the
// listeners' lock cannot be taken exclusively.
func (s *signals) exchange(session *pgx.Conn, added []listener, batch []signal) error {
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	for _, one := range added {
		if _, err := session.Exec(ctx, "LISTEN "+pgx.Identifier{one.channel}.Sanitize()); err != nil {
			return err
		}
		one.heard("")
	}
	s.report(nil)
	if len(batch) == 0 {
		return nil
	}
	channels, payloads := make([]string, len(batch)), make([]string, len(batch))
	for i, one := range batch {
		channels[i], payloads[i] = one.channel, one.payload
	}
	var sent int
	err := session.QueryRow(ctx, "SELECT count(pg_notify(n.channel, n.payload)) "+
		"FROM unnest($1::text[], $2::text[]) AS n(channel, payload) "+
		"WHERE NOT (SELECT pg_try_advisory_xact_lock($3))", channels, payloads, listenersLock).Scan(&sent)
	if err == nil && sent == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.alone = time.Now().Add(alonePause)
	}
	return err
}

// hear waits for one notification, or until wait ends. It checks a session that has been idle
// for long.
func (s *signals) hear(wait context.Context, session *pgx.Conn, pid uint32) error {
	notification, err := session.WaitForNotification(wait)
	switch {
	case err == nil:
		if notification.PID == pid {
			return nil
		}
		s.mu.Lock()
		listeners := s.listeners
		s.mu.Unlock()
		for _, one := range listeners {
			if one.channel == notification.Channel {
				one.heard(notification.Payload)
			}
		}
		return nil
	case s.ctx.Err() != nil || session.IsClosed():
		return err
	case errors.Is(wait.Err(), context.Canceled):
		return nil // There is a notification to send, or a new listener.
	}
	ctx, cancel := context.WithTimeout(s.ctx, requestTime)
	defer cancel()
	return session.Ping(ctx)
}
