package pgstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lucius-project/lucius/pkg/pgsession"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// maxSenders bounds the concurrent shared transactions: with more of them, fewer changes
	// would share one.
	maxSenders = 4
	// maxGroup and maxGroupRows bound the changes of one transaction.
	maxGroup, maxGroupRows = 64, 1000
)

// change is a change that is being written.
type change struct {
	first []*tablestore.Op // the first op on each row
	// clears has the partitions that the change clears, by table; nil if there are none. The
	// change is sent alone: it writes many rows, and others would wait for it.
	clears map[string][]string
	rows   []write
	done   chan error // receives the outcome; has room for one
	// patience bounds the transaction, or the most patient of its changes does.
	patience time.Duration
	guard    func() error // asked before each sending
	late     bool         // its deadline has passed, so it is not sent again; guarded by writer.mu
}

// write is the write of one row, as an argument of lucius.apply.
type write struct {
	key    tablestore.Key
	place  int     // index of the row's op in change.first
	expect *string // the expected ETag, empty for an absent row; nil for any
	etag   *string // the new ETag; nil if the row is removed
	props  *string
}

// newChange folds the batches into one write per row. The server compares a row's version
// with the one that its first op expects.
func newChange(batches []tablestore.Batch, next func() tablestore.ETag) (*change, [][]tablestore.ETag, error) {
	c := &change{done: make(chan error, 1)}
	places := map[tablestore.Key]int{}
	for _, batch := range batches {
		if batch.Clears() {
			c.clear(batch[0].Key)
			continue
		}
		for i := range batch {
			if _, seen := places[batch[i].Key]; !seen {
				places[batch[i].Key] = len(c.first)
				c.first = append(c.first, &batch[i])
			}
		}
	}
	writes, etags, err := tablestore.Fold(batches, func(key tablestore.Key) (tablestore.ETag, error) {
		if op := c.first[places[key]]; op.ETag != tablestore.Own {
			return op.ETag, nil // An insert has no ETag.
		}
		return "", nil
	}, next)
	if err != nil {
		return nil, nil, err
	}
	final := make(map[tablestore.Key]*tablestore.RowWrite, len(writes))
	for i := range writes {
		final[writes[i].Key] = &writes[i]
	}
	for place, op := range c.first {
		row := write{key: op.Key, place: place}
		if op.Verb != tablestore.Put && op.Verb != tablestore.Discard {
			row.expect = (*string)(&op.ETag)
		}
		if last := final[op.Key]; last != nil && !last.Removed() {
			text, err := encode(last.Properties)
			if err != nil {
				return nil, nil, err
			}
			row.etag, row.props = (*string)(&last.ETag), &text
		} else if row.expect != nil && *row.expect == "" { // The row must be absent, and stays absent.
			etag, none := string(next()), "{}"
			c.rows = append(c.rows, write{key: row.key, place: place, expect: row.expect, etag: &etag, props: &none})
			row.expect = &etag
		}
		c.rows = append(c.rows, row)
	}
	return c, etags, nil
}

// clear adds the partition of the key to those that the change clears.
func (c *change) clear(key tablestore.Key) {
	if c.clears == nil {
		c.clears = map[string][]string{}
	}
	c.clears[key.Table] = append(c.clears[key.Table], key.Partition)
}

// writer sends changes to the server. Changes that arrive while others are being written share
// the next transaction, and so its round trip, its plan and its flush of the log.
//
//	write ──▶ shared ──take──▶ group ──▶ one call of lucius.apply ──▶ an outcome for each
//	                                       └ the fault of one ──▶ alone ──▶ a call for each
//
// If a precondition in a group fails, the group is sent again without the changes concerned.
// After an error that one change may have caused, such as a row that another transaction has
// locked, each change is sent alone. Other errors, such as a full disk, are the outcome of all.
type writer struct {
	pool    *pgsession.Pool
	timeout time.Duration
	ctx     context.Context //nolint:containedctx // It ends with the store: a group outlives its callers.
	end     context.CancelFunc
	sending sync.WaitGroup

	mu            sync.Mutex // No change joins a line as its last sender leaves it.
	shared, alone line
}

// line is a queue of changes that wait for senders.
type line struct {
	waiting []*change
	senders int // invariant: len(waiting) > 0 ⇒ senders > 0
	most    int // bounds senders
	group   int // bounds the changes in a transaction
}

// newWriter returns a writer that leaves half of the connections to reads.
func newWriter(pool *pgsession.Pool, timeout time.Duration) *writer {
	quarter := max(1, int(pool.Config().MaxConns)/4)
	w := &writer{
		pool: pool, timeout: timeout,
		shared: line{most: min(maxSenders, quarter), group: maxGroup},
		alone:  line{most: quarter, group: 1},
	}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

// close ends the senders, and waits for them. Later changes are refused.
func (w *writer) close() {
	w.mu.Lock()
	w.end() // Under the lock, so that no sender starts after it.
	w.mu.Unlock()
	w.sending.Wait()
}

// write sends the change and returns its outcome.
func (w *writer) write(ctx context.Context, c *change) error {
	c.patience = tablestore.Patience(ctx, w.timeout)
	c.guard = func() error { return tablestore.Guarded(ctx) }
	waiting, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	line := &w.shared
	if c.clears != nil {
		line = &w.alone
	}
	w.enqueue(line, c)
	select {
	case err := <-c.done:
		return err
	case <-waiting.Done():
	}
	if w.withdraw(c) {
		return unavailable(waiting, waiting.Err())
	}
	select { // The change is being written: wait for its outcome, because commitOnce has a timeout, too.
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: PostgreSQL: %w", tablestore.ErrUnknown, ctx.Err())
	}
}

// enqueue queues changes that have not been written. It drops those whose deadline has passed,
// and all once the writer is closed.
func (w *writer) enqueue(l *line, changes ...*change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range changes {
		if w.ctx.Err() != nil {
			c.done <- errClosed
			continue
		}
		if c.late {
			c.done <- unavailable(w.ctx, context.DeadlineExceeded)
			continue
		}
		l.waiting = append(l.waiting, c)
		if l.senders < l.most {
			l.senders++
			w.sending.Go(func() { w.send(l) })
		}
	}
}

// withdraw marks the change as late. It reports true if the change was still queued, and so
// will not be sent.
func (w *writer) withdraw(c *change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.late = true
	for _, l := range []*line{&w.shared, &w.alone} {
		if at := slices.Index(l.waiting, c); at >= 0 {
			l.waiting = slices.Delete(l.waiting, at, at+1)
			return true
		}
	}
	return false
}

// send sends groups until nothing waits.
func (w *writer) send(l *line) {
	for group := w.take(l); group != nil; group = w.take(l) {
		w.commit(group)
	}
}

// take returns the changes of the next transaction, no two of which write the same row. If
// there are none, it counts the sender out.
func (w *writer) take(l *line) []*change {
	w.mu.Lock()
	defer w.mu.Unlock()
	var group, rest []*change
	rows, keys := 0, map[tablestore.Key]struct{}{}
	for i, c := range l.waiting {
		if len(group) == l.group {
			rest = append(rest, l.waiting[i:]...)
			break
		}
		fits := len(group) == 0 || rows+len(c.rows) <= maxGroupRows && !slices.ContainsFunc(c.first, func(op *tablestore.Op) bool {
			_, taken := keys[op.Key]
			return taken
		})
		if !fits {
			rest = append(rest, c)
			continue
		}
		group, rows = append(group, c), rows+len(c.rows)
		for _, op := range c.first {
			keys[op.Key] = struct{}{}
		}
	}
	if l.waiting = rest; group == nil {
		l.senders--
	}
	return group
}

// The error codes of PostgreSQL that this package distinguishes.
const (
	codeConflict  = "LC001" // raised by lucius.apply
	codeLocked    = "55P03" // another transaction has locked a row
	codeDiskFull  = "53100"
	codeDenied    = "42501" // the role lacks a right
	codeCancelled = "57014" // the request took too long
	classRollback = "40"    // a deadlock, or a conflict with recovery
	maxRetries    = 8
	retryDelay    = 5 * time.Millisecond
)

// commit sends the group until each change has an outcome or is queued to be sent alone. It
// repeats the group if nothing was sent, or if the server rolled the transaction back because
// of another one.
func (w *writer) commit(group []*change) {
	for try := 1; ; try++ {
		if group = guarded(group); len(group) == 0 {
			return
		}
		rows := ordered(group)
		unsent, err := w.commitOnce(rows, group[0])
		answer, undone := &pgconn.PgError{}, pgsession.RolledBack(err)
		if undone {
			answer, _ = errors.AsType[*pgconn.PgError](err)
		}
		again := unsent && pgconn.SafeToRetry(err) && !isConnect(err)
		switch {
		case err == nil:
			finish(group, nil)
			return
		case answer.Code == codeConflict:
			group, try = withoutConflicts(group, rows, answer.Detail), 0 // The group shrinks each time.
		case (again || strings.HasPrefix(answer.Code, classRollback)) && try < maxRetries && sleep(w.ctx, time.Duration(try)*retryDelay):
		case answer.Code == codeLocked, undone && len(group) > 1 && ofOne(answer.Code):
			w.enqueue(&w.alone, group...)
			return
		case answer.Code == codeDiskFull:
			finish(group, fmt.Errorf("%w: %w: PostgreSQL: %w", tablestore.ErrUnavailable, tablestore.ErrNoSpace, err))
			return
		case undone, unsent:
			finish(group, unavailable(w.ctx, err))
			return
		default: // The answer was lost, the session ended during the commit, or no standby may have it.
			finish(group, fmt.Errorf("%w: PostgreSQL: %w", tablestore.ErrUnknown, err))
			return
		}
	}
}

// guarded returns the changes of the group that may be sent now. The others have their outcome.
func guarded(group []*change) []*change {
	return slices.DeleteFunc(group, func(c *change) bool {
		err := c.guard()
		if err != nil {
			c.done <- err
		}
		return err != nil
	})
}

// ofOne reports whether one change may have caused the error of its group.
func ofOne(code string) bool {
	switch code[:min(2, len(code))] {
	case "22", "23", classRollback, "54", "XX": // values, constraints, sizes, and damaged rows
		return true
	}
	return code == codeLocked
}

// finish sets the outcome of all changes of the group.
func finish(group []*change, err error) {
	for _, c := range group {
		c.done <- err
	}
}

// placed is a row with its change.
type placed struct {
	*write
	of *change
}

// ordered returns the rows of the group in the order of their keys.
func ordered(group []*change) []placed {
	var rows []placed
	for _, c := range group {
		for i := range c.rows {
			rows = append(rows, placed{&c.rows[i], c})
		}
	}
	slices.SortFunc(rows, func(a, b placed) int {
		if order := strings.Compare(a.key.Table, b.key.Table); order != 0 {
			return order
		}
		if order := strings.Compare(a.key.Partition, b.key.Partition); order != 0 {
			return order
		}
		return strings.Compare(a.key.Row, b.key.Row)
	})
	return rows
}

// commitOnce sends the rows, and the partitions that the first change clears, over a connection of
// the pool, in one transaction, and reports whether nothing was sent.
func (w *writer) commitOnce(rows []placed, first *change) (unsent bool, err error) {
	tables, parts, names := make([]string, len(rows)), make([]string, len(rows)), make([]string, len(rows))
	expects, etags, props := make([]*string, len(rows)), make([]*string, len(rows)), make([]*string, len(rows))
	var writes, removals, puts, discards int
	patience := first.patience
	for i, row := range rows {
		tables[i], parts[i], names[i] = row.key.Table, row.key.Partition, row.key.Row
		expects[i], etags[i], props[i] = row.expect, row.etag, row.props
		patience = max(patience, row.of.patience)
		switch {
		case row.expect != nil && row.etag != nil:
			writes++
		case row.expect != nil:
			removals++
		case row.etag != nil:
			puts++
		default:
			discards++
		}
	}
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	const apply = "SELECT lucius.apply($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
	args := []any{tables, parts, names, expects, etags, props, writes, removals, puts, discards}
	sent, err := w.pool.Commit(ctx, func(connection *pgxpool.Conn) error {
		if first.clears == nil {
			_, err := connection.Exec(ctx, apply, args...)
			return err
		}
		batch := &pgx.Batch{} // One transaction.
		batch.Queue(apply, args...)
		for _, table := range slices.Sorted(maps.Keys(first.clears)) {
			batch.Queue("SELECT lucius.clear($1, $2)", table, first.clears[table])
		}
		return connection.SendBatch(ctx, batch).Close()
	})
	return !sent, err
}

// withoutConflicts gives the changes that write one of the conflicting rows the outcome
// conflict, and returns the others. places lists the conflicting rows, counted from 1.
func withoutConflicts(group []*change, rows []placed, places string) (others []*change) {
	first := map[*change]int{}
	for place := range strings.SplitSeq(places, ",") {
		if at, err := strconv.Atoi(place); err == nil && at >= 1 && at <= len(rows) {
			row := rows[at-1]
			if known, ok := first[row.of]; !ok || row.place < known {
				first[row.of] = row.place
			}
		}
	}
	for _, c := range group {
		place, conflicts := first[c]
		switch {
		case conflicts:
			c.done <- &tablestore.ConflictError{Key: c.first[place].Key, Verb: c.first[place].Verb}
		case len(first) == 0: // unreachable
			c.done <- &tablestore.ConflictError{}
		default:
			others = append(others, c)
		}
	}
	return others
}

// isConnect reports whether no connection was made, so that nothing was sent.
func isConnect(err error) bool {
	_, failed := errors.AsType[*pgconn.ConnectError](err)
	return failed
}
