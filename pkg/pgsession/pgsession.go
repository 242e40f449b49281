// Package pgsession opens the sessions in which Lucius uses PostgreSQL, and commits in them.
//
// A commit that has to wait for a standby becomes visible when its wait ends. The wait also
// ends if an administrator cancels it, or the primary crashes. PostgreSQL then shows a commit
// that no standby has, and that a failover loses. Such a commit must not be acknowledged:
//
//	wait cancelled ──► warning 01000, success ──► Commit returns ErrUnreplicated
//	                                               │
//	                                               └► later reads begin new sessions
//	new session ──► empty commit, whose wait covers all commits before it ──► reads
package pgsession

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SearchPath contains no schema in which another role may create functions. Otherwise such a
// function, if it matches the arguments better than PostgreSQL's own, would run with the rights
// of Lucius.
const SearchPath = "pg_catalog, pg_temp"

// ErrUnreplicated is returned if a commit's wait for the standbys was cut short: a failover may
// lose it.
var ErrUnreplicated = errors.New("the wait for a standby was cancelled: a failover may lose the commit")

// awaitStandby is a commit that writes only to the log. The server answers it when the standbys
// that it waits for have this commit, and so all earlier ones.
const awaitStandby = `SELECT CASE WHEN NOT pg_is_in_recovery() AND current_setting('synchronous_standby_names') <> ''
	THEN pg_logical_emit_message(true, 'lucius', '') END`

// begin is the first statement of each session. With row_security off, PostgreSQL refuses a
// query from which a policy would hide rows; otherwise a store would look empty. The warnings of
// a cancelled wait must not be filtered out. The statements rely on read committed: one that has
// waited for a lock, and its triggers, must see what the holder committed. In another encoding
// than that of the database, PostgreSQL would refuse to return some texts. PgBouncer refuses
// connections that begin with such settings, so they are no parameters of the connection. Without
// the commit, the session could read one whose own wait was cut short.
const begin = `SELECT set_config('row_security', 'off', false), set_config('client_min_messages', 'warning', false),
	set_config('default_transaction_isolation', 'read committed', false),
	set_config('client_encoding', current_setting('server_encoding'), false), (` + awaitStandby + ")"

// Options configures a pool.
type Options struct {
	// URL is the database, such as postgres://user:password@host:5432/database. Required.
	URL string
	// Name is appended to the application_name. Optional.
	Name string
	// Connections is the most connections of the pool. Required.
	Connections int32
	// Timeout bounds the begin of a session. A statement whose context ends is cancelled, and has
	// as long again to answer before its session is closed. Required.
	Timeout time.Duration
	// Begin is called for each new session, and refuses it by an error. Optional.
	Begin func(ctx context.Context, connection *pgx.Conn) error
}

// Pool is a pool of sessions. It is safe for concurrent use.
type Pool struct{ *pgxpool.Pool }

// Open returns a pool. It does not connect. The error may quote the URL.
func Open(ctx context.Context, options Options) (*Pool, error) {
	config, err := pgxpool.ParseConfig(options.URL)
	if err != nil {
		return nil, err
	}
	p := &Pool{}
	config.MaxConns = options.Connections
	// The server of an idle connection may have vanished without closing it. A request with more
	// time than the pool's timeout is one to a server that is known to be slow: there the check
	// would fail, and cost the session.
	config.PingTimeout = options.Timeout / 6
	config.ShouldPing = func(ctx context.Context, idle pgxpool.ShouldPingParams) bool {
		deadline, bounded := ctx.Deadline()
		return idle.IdleDuration > time.Second && !(bounded && time.Until(deadline) > options.Timeout)
	}
	settings := config.ConnConfig.RuntimeParams
	settings["synchronous_commit"] = "on" // A decision must survive a crash.
	settings["search_path"] = SearchPath
	settings["timezone"] = "UTC"
	settings["application_name"] = cmp.Or(settings["application_name"], "lucius") + options.Name
	config.ConnConfig.OnNotice = p.note
	// If the server is only slow, the answer makes the outcome known, and the session stays: a new
	// one would need many exchanges, which would also be late.
	config.ConnConfig.BuildContextWatcherHandler = func(session *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: session, DeadlineDelay: options.Timeout}
	}
	config.AfterConnect = func(ctx context.Context, connection *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, options.Timeout)
		defer cancel()
		_ = replicated(connection) // PostgreSQL also warns of a database's old collation.
		if _, err := connection.Exec(ctx, begin); err != nil {
			return err
		}
		if err := replicated(connection); err != nil || options.Begin == nil {
			return err
		}
		return options.Begin(ctx, connection)
	}
	p.Pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return p, nil
}

const (
	// codeReadOnly is the SQLSTATE of a standby's answer to a write.
	codeReadOnly = "25006"
	// codeWarning is the SQLSTATE of warnings that have no other one.
	codeWarning = "01000"
	// warned is the key under which a connection records such a warning.
	warned = "lucius.warned"
	// committing is the key under which a connection records that it is in [Pool.Commit].
	committing = "lucius.committing"
)

// note records a warning at the connection. Notices arrive while the statement runs that caused
// them, in the goroutine that uses the connection. A trigger may warn with the same code: its
// commit is then taken for one that a failover may lose, which is safe. The server shows the
// commit already, so the other sessions end at once.
func (p *Pool) note(connection *pgconn.PgConn, notice *pgconn.Notice) {
	if notice.Code != codeWarning {
		return
	}
	data := connection.CustomData()
	data[warned] = true
	if data[committing] != nil {
		p.Reset()
	}
}

// replicated returns ErrUnreplicated if the connection had a warning since the last call.
func replicated(connection *pgx.Conn) error {
	data := connection.PgConn().CustomData()
	if data[warned] == nil {
		return nil
	}
	delete(data, warned)
	return ErrUnreplicated
}

// Commit runs statements that commit one transaction, in a session of the pool. sent is false
// if it is certain that nothing was sent. If the outcome is unknown, or the error is
// [ErrUnreplicated], later reads use new sessions. These begin with a commit that waits for the
// standbys. So do all requests after a server has refused a write as read-only: the URL may lead
// to another server by now. Commit first waits until a session that was closed has ended on the
// server, if the server answers: until then, the commit may still become visible.
func (p *Pool) Commit(ctx context.Context, run func(*pgxpool.Conn) error) (sent bool, err error) {
	connection, err := p.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer connection.Release()
	_ = replicated(connection.Conn()) // Only the warnings of this transaction count.
	data := connection.Conn().PgConn().CustomData()
	data[committing] = true
	defer delete(data, committing)
	if err = run(connection); err == nil {
		err = replicated(connection.Conn())
	}
	sent = !pgconn.SafeToRetry(err)
	if err != nil && sent && (!RolledBack(err) || readOnly(err)) {
		if closed := connection.Conn().PgConn(); closed.IsClosed() {
			<-closed.CleanupDone()
		}
		p.Reset()
	}
	return sent, err
}

// Exec is [Pool.Commit] of one statement.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) error {
	_, err := p.Commit(ctx, func(connection *pgxpool.Conn) error {
		_, err := connection.Exec(ctx, sql, args...)
		return err
	})
	return err
}

// Confirm returns nil once a failover cannot lose any commit that this process has read.
func (p *Pool) Confirm(ctx context.Context) error {
	if err := p.Exec(ctx, awaitStandby); err != nil {
		return fmt.Errorf("wait for the standbys: %w", err)
	}
	return nil
}

// RolledBack reports whether the server answered that it rolled the statement back. A session
// that is terminated answers with another severity, whether or not it had committed. The field
// Severity is in the language of the server's messages.
func RolledBack(err error) bool {
	answer, answered := errors.AsType[*pgconn.PgError](err)
	return answered && answer.SeverityUnlocalized == "ERROR"
}

// readOnly reports whether the server answered that it takes no writes.
func readOnly(err error) bool {
	answer, answered := errors.AsType[*pgconn.PgError](err)
	return answered && answer.Code == codeReadOnly
}
