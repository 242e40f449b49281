package pgstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/pgsession"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxPage is the greatest number of rows on one page.
const maxPage = 1000

// Options configures a store.
type Options struct {
	// URL is the database, such as postgres://user:password@host:5432/database. Required.
	URL string
	// Connections is the most connections that the store opens. Optional. Defaults to 32.
	Connections int
	// Timeout bounds each request, including the wait for a connection, unless the caller has
	// another [tablestore.Patience]: after a failover, TCP may take long to notice that the old
	// server is silent. A request that is cancelled then has as long again to answer. Optional.
	// Defaults to 30 s.
	Timeout time.Duration
	// ReadOnly says that the process only reads, so that a standby and the right to read
	// suffice. Optional.
	ReadOnly bool
	// Inbox says that the process also takes commands from the inbox, with the same role.
	// Optional.
	Inbox bool
	// Logger logs when notifications begin to fail, and when they work again. Optional.
	Logger *slog.Logger
}

const defaultTimeout = 30 * time.Second

// Store is a table store on PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool    *pgsession.Pool
	timeout time.Duration
	use     use
	version int
	epoch   string // random prefix of this process's ETags
	writes  atomic.Uint64
	closed  atomic.Bool
	signals *signals
	writer  *writer
}

var (
	_ tablestore.AtomicStore = (*Store)(nil)
	_ tablestore.Walker      = (*Store)(nil)
	_ tablestore.Notifier    = (*Store)(nil)
	_ tablestore.Confirmer   = (*Store)(nil)
)

// Open connects to the database. The error wraps [ErrUnusable], and says what to do, if the
// server could lose commits, the schema has another version, or rights are missing.
func Open(ctx context.Context, options Options) (*Store, error) {
	timeout := cmp.Or(options.Timeout, defaultTimeout)
	pool, err := pgsession.Open(ctx, pgsession.Options{
		URL: options.URL, Connections: int32(min(cmp.Or(options.Connections, 32), math.MaxInt32)), Timeout: timeout,
		Begin: lockSchema,
	})
	if err != nil {
		return nil, hideURL(err)
	}
	use := options.use()
	version, err := check(ctx, pool, use)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &Store{
		pool: pool, timeout: timeout, use: use, version: version, epoch: strings.ToLower(rand.Text()[:10]),
		signals: newSignals(pool.Config().ConnConfig, cmp.Or(options.Logger, slog.New(slog.DiscardHandler))),
		writer:  newWriter(pool, timeout),
	}, nil
}

// nextETag returns an ETag that no process has used before.
func (s *Store) nextETag() tablestore.ETag {
	return tablestore.ETag(s.epoch + strconv.FormatUint(s.writes.Add(1), 36))
}

// Confirm implements [tablestore.Confirmer].
func (s *Store) Confirm(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.pool.Confirm(ctx); err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// columns begins each query for rows.
const columns = "SELECT part, row, etag, props FROM lucius.rows WHERE tbl = $1 AND "

// Get implements [tablestore.Store].
func (s *Store) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if err := key.Validate(); err != nil {
		return tablestore.Row{}, err
	}
	rows, err := s.read(ctx, columns+"part = $2 AND row = $3",
		key.Table, key.Partition, key.Row)
	if err != nil {
		return tablestore.Row{}, err
	}
	if len(rows) == 0 {
		return tablestore.Row{}, fmt.Errorf("%w: %s", tablestore.ErrNotFound, key)
	}
	return rows[0], nil
}

// GetAll implements [tablestore.AtomicStore].
func (s *Store) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	if err := tablestore.ValidateKeys(keys); err != nil {
		return nil, err
	}
	parts, names := map[string][]string{}, map[string][]string{}
	for _, key := range keys {
		parts[key.Table], names[key.Table] = append(parts[key.Table], key.Partition), append(names[key.Table], key.Row)
	}
	found := make(map[tablestore.Key]tablestore.Row, len(keys))
	for table := range parts {
		rows, err := s.read(ctx, getAll, table, parts[table], names[table])
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			found[row.Key] = row
		}
	}
	rows := make([]tablestore.Row, len(keys))
	for i, key := range keys {
		rows[i] = found[key]
	}
	return rows, nil
}

// getAll looks each row up in the primary key. OFFSET keeps the planner from joining the table.
const getAll = `SELECT r.part, r.row, r.etag, r.props FROM unnest($2::text[], $3::text[]) AS v(part, row)
	CROSS JOIN LATERAL (SELECT * FROM lucius.rows r WHERE r.tbl = $1 AND r.part = v.part AND r.row = v.row OFFSET 0) r`

// Scan implements [tablestore.Store].
func (s *Store) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	if err := query.Validate(); err != nil {
		return tablestore.Page{}, err
	}
	limit := min(cmp.Or(query.Limit, maxPage), maxPage)
	sql, args := columns+"part = $2 AND row >= $3", []any{
		query.Table, query.Partition, bound(query.From),
	}
	if query.Continue != "" { // the last row of the previous page
		sql, args = sql+" AND row > $4", append(args, bound(query.Continue))
	}
	if query.To != "" {
		args = append(args, bound(query.To))
		sql += fmt.Sprintf(" AND row < $%d", len(args))
	}
	args = append(args, limit+1)
	rows, err := s.read(ctx, fmt.Sprintf("%s ORDER BY row LIMIT $%d", sql, len(args)), args...)
	if err != nil {
		return tablestore.Page{}, err
	}
	page := tablestore.Page{Rows: rows}
	if len(rows) > limit {
		page.Rows = rows[:limit]
		page.Next = rows[limit-1].Key.Row
	}
	return page, nil
}

// bound converts the bound of a scan to a text with the same order among row keys, which are
// printable ASCII, because PostgreSQL rejects texts with a NUL or invalid UTF-8.
func bound(text string) string {
	for i := range len(text) {
		switch c := text[i]; {
		case c == 0:
			return text[:i] + "\x01"
		case c > 0x7f:
			return text[:i] + "\x7f"
		}
	}
	return text
}

// Walk implements [tablestore.Walker].
func (s *Store) Walk(ctx context.Context, walk tablestore.Walk) ([]tablestore.Row, error) {
	if err := walk.Validate(); err != nil {
		return nil, err
	}
	return s.read(ctx, columns+"(part, row) > ($2, $3) ORDER BY part, row LIMIT $4",
		walk.Table, walk.Partition, walk.Row, min(cmp.Or(walk.Limit, maxPage), maxPage))
}

// read runs a query for rows of the table in its first argument. If the session ends, it uses
// another.
func (s *Store) read(ctx context.Context, sql string, args ...any) ([]tablestore.Row, error) {
	for try := 1; ; try++ {
		if err := s.usable(ctx); err != nil {
			return nil, err
		}
		rows, err := s.readOnce(ctx, sql, args...)
		switch {
		case err == nil, errors.Is(err, tablestore.ErrCorrupt):
			return rows, err
		case pgsession.RolledBack(err), errors.Is(err, ErrUnusable), isConnect(err), errors.Is(err, context.DeadlineExceeded),
			try == maxRetries, !sleep(ctx, time.Duration(try)*retryDelay):
			return nil, unavailable(ctx, err)
		}
	}
}

func (s *Store) readOnce(ctx context.Context, sql string, args ...any) ([]tablestore.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, tablestore.Patience(ctx, s.timeout))
	defer cancel()
	table, _ := args[0].(string)
	found, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	rows := []tablestore.Row{}
	for found.Next() {
		row := tablestore.Row{Key: tablestore.Key{Table: table}}
		var props []byte
		if err := found.Scan(&row.Key.Partition, &row.Key.Row, &row.ETag, &props); err != nil {
			return nil, fmt.Errorf("%w: %w", tablestore.ErrCorrupt, err)
		}
		if row.Properties, err = decode(props); err != nil {
			return nil, fmt.Errorf("%s: %w", row.Key, err)
		}
		rows = append(rows, row)
	}
	return rows, found.Err()
}

var errClosed = fmt.Errorf("%w: the store is closed", tablestore.ErrUnavailable)

// usable returns why no request can be sent, or nil.
func (s *Store) usable(ctx context.Context) error {
	if s.closed.Load() {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", tablestore.ErrUnavailable, err)
	}
	return nil
}

// SchemaVersion returns the version that the database's schema had when the store was opened:
// that of this program, or a newer one on which it works.
func (s *Store) SchemaVersion() int { return s.version }

// unavailable returns the error for a request that wrote nothing.
func unavailable(ctx context.Context, err error) error {
	if denied(err) {
		return fmt.Errorf("%w: %w, see lucius postgres check: PostgreSQL: %w", tablestore.ErrUnavailable, tablestore.ErrDenied, err)
	}
	if hasCode(err, codeCancelled) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return fmt.Errorf("%w: PostgreSQL: %w", tablestore.ErrUnavailable, cmp.Or(ctx.Err(), err))
}

// Commit implements [tablestore.Store].
func (s *Store) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	etags, err := s.CommitAll(ctx, []tablestore.Batch{batch}, nil)
	if err != nil {
		return nil, err
	}
	return etags[0], nil
}

// CommitAll implements [tablestore.AtomicStore].
func (s *Store) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	if err := tablestore.ValidateAll(batches); err != nil {
		return nil, err
	}
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	c, etags, err := newChange(batches, s.nextETag)
	if err != nil {
		return nil, err
	}
	if err := s.writer.write(ctx, c); err != nil {
		return nil, err
	}
	if applied != nil {
		applied(etags)
	}
	return etags, nil
}

// sleep waits for a random time, on average d. It reports false if the context ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d/2 + time.Duration(mathrand.Int64N(int64(d)))) //nolint:gosec // It only spreads retries.
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Close implements [tablestore.Store].
func (s *Store) Close() error {
	if !s.closed.Swap(true) {
		s.signals.close()
		s.writer.close()
		s.pool.Close()
	}
	return nil
}
