package ledger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A line is the jobs of one tenant and order key. Its rows are one partition: LINE, and a place for
// each job, in the order in which the commands were accepted. One job runs at a time: the first whose
// place is not gone.
//
//	accept:  line batch [LINE, P:{next}] ──▶ commit of the job, QUEUED behind others
//	end:     commit of the job ──▶ look: remove places that are gone ──▶ Turn of the first job that waits
//	         before it began: its place may be behind others, and is removed after the look
//
// Every batch writes LINE under its version, so LINE serialises the changes of its line. What a place
// means is read from its job, which never names another place; only a release is a column of the place.
// A place that is gone never counts again, so a look that was right when it read is right when it
// writes, and any process may look, at any time.

// The limits of [Command.MaxWaiting].
const (
	DefaultMaxWaiting = 10_000
	MaxMaxWaiting     = 1_000_000
)

// The errors of lines.
var (
	// ErrLineFull is returned for a command whose line has as many jobs as the command allows.
	ErrLineFull = errors.New("line is full")
	// ErrLineNotFound is returned for a line that has no job.
	ErrLineNotFound = errors.New("line not found")
	// ErrNotBlocking is returned for the release of a job that does not block its line.
	ErrNotBlocking = errors.New("job does not block its line")
)

// LineBusyError is returned for a command whose mode is reject and whose line has a job.
type LineBusyError struct{ JobID string }

// Error names the job.
func (e *LineBusyError) Error() string { return fmt.Sprintf("job %s is in the line", e.JobID) }

// LineID returns the id of the line of a tenant's order key.
func LineID(tenantID, key string) string {
	return lineOf(&statemachine.Job{TenantID: tenantID, Order: statemachine.Order{Key: key}})
}

// lineOf returns the id of the job's line.
func lineOf(job *statemachine.Job) string {
	sum := sha256.Sum256([]byte(tablestore.Join(cmp.Or(job.Order.Kind, "key"), job.TenantID, job.Order.Key)))
	return hex.EncodeToString(sum[:])
}

// The rows of a line's partition.
const (
	rowLine  = "LINE"
	rowPlace = "P"
)

// lineRow is the content of LINE.
//
//	invariant: it exists ⇔ Count > 0
type lineRow struct {
	TenantID string `column:"tenant_id"`
	Key      string `column:"order_key"`
	Epoch    string `column:"epoch"` // random, for each batch that inserts the row
	Next     int64  `column:"next"`  // the seq of the next place
	Count    int64  `column:"count"` // of places
	Listed   bool   `column:"listed"`
}

// placeRow is the content of a place.
type placeRow struct {
	JobID string `column:"job_id"`
	Epoch string `column:"epoch"`
	// Took is the failed job whose place JobID, its rerun, took. It counts if the rerun is lost.
	Took      string                 `column:"took"`
	Mode      statemachine.OrderMode `column:"order_mode"`
	CreatedAt time.Time              `column:"created_at"`
	// A released place is gone.
	ReleasedAt    time.Time `column:"released_at"`
	ReleasedBy    string    `column:"released_by"`
	ReleaseReason string    `column:"release_reason"`
	ReleaseID     string    `column:"release_request_id"`
}

// listRow is the content of the row that lists a line in which a job waits or blocks.
type listRow struct {
	Key   string    `column:"order_key"`
	Since time.Time `column:"since"`
}

var (
	lineCodec  = tablestore.NewCodec[lineRow]()
	placeCodec = tablestore.NewCodec[placeRow]()
	listCodec  = tablestore.NewCodec[listRow]()
)

// line is LINE as it was read. Without a tag the row does not exist.
type line struct {
	lineRow

	id  string
	tag tablestore.ETag
}

// place is a place as it was read.
type place struct {
	placeRow

	seq int64
	row tablestore.Row
}

func (l *Ledger) lineKey(id string, parts ...string) tablestore.Key {
	return tablestore.Key{Table: l.tables.Schedule, Partition: tablestore.Join("line", id), Row: tablestore.Join(parts...)}
}

func (l *Ledger) placeKey(id string, seq int64) tablestore.Key {
	return l.lineKey(id, rowPlace, tablestore.Pad(seq, 12))
}

// listKey addresses the row that lists a line.
func (l *Ledger) listKey(ln *line) tablestore.Key {
	return l.shardKey(l.shard(ln.id), tablestore.Join("line", ln.TenantID, ln.id, ln.Epoch))
}

// list writes the row that lists a line.
func (l *Ledger) list(ln *line) tablestore.Batch {
	row := listRow{Key: ln.Key, Since: tablestore.Now()}
	return tablestore.Batch{{Verb: tablestore.Put, Key: l.listKey(ln), Properties: listCodec.Encode(&row, nil)}}
}

// unlist deletes the row that lists a line.
func (l *Ledger) unlist(ln *line) tablestore.Batch {
	return tablestore.Batch{{Verb: tablestore.Discard, Key: l.listKey(ln)}}
}

// writeLine writes LINE under the version that was read; it deletes the row of a line without places.
func (l *Ledger) writeLine(ln *line) tablestore.Op {
	op := tablestore.Op{Verb: tablestore.Replace, Key: l.lineKey(ln.id, rowLine), ETag: ln.tag}
	switch {
	case ln.tag == "":
		op.Verb = tablestore.Insert
	case ln.Count == 0:
		op.Verb = tablestore.Delete
		return op
	}
	op.Properties = lineCodec.Encode(&ln.lineRow, nil)
	return op
}

// removal writes LINE, and removes places of the line under the versions that were read.
func (l *Ledger) removal(ln *line, gone []*place) tablestore.Batch {
	batch := tablestore.Batch{l.writeLine(ln)}
	for _, p := range gone {
		batch = append(batch, tablestore.Op{Verb: tablestore.Delete, Key: p.row.Key, ETag: p.row.ETag})
	}
	return batch
}

// readLine reads LINE.
func (l *Ledger) readLine(ctx context.Context, id string) (*line, error) {
	row, err := l.store.Get(ctx, l.lineKey(id, rowLine))
	if errors.Is(err, tablestore.ErrNotFound) {
		return &line{id: id}, nil
	}
	ln := &line{id: id, tag: row.ETag}
	if err == nil {
		err = lineCodec.Decode(&row, &ln.lineRow)
	}
	if err != nil {
		return nil, fmt.Errorf("read line %s: %w", id, err)
	}
	return ln, nil
}

// readPlace reads a place, nil if there is none.
func (l *Ledger) readPlace(ctx context.Context, of statemachine.Place) (*place, error) {
	row, err := l.store.Get(ctx, l.placeKey(of.Line, of.Seq))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read place %d of line %s: %w", of.Seq, of.Line, err)
	}
	p, err := decodePlace(row)
	if err != nil || p.Epoch != of.Epoch {
		return nil, err
	}
	return p, nil
}

func decodePlace(row tablestore.Row) (*place, error) {
	parts, err := tablestore.Split(row.Key.Row)
	if err != nil || len(parts) != 2 {
		return nil, fmt.Errorf("bad key %q in a line", row.Key.Row)
	}
	p := &place{row: row}
	if p.seq, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return nil, fmt.Errorf("bad key %q in a line", row.Key.Row)
	}
	return p, placeCodec.Decode(&row, &p.placeRow)
}

// placesPage is how many rows of a line one scan reads. Most looks need the first three.
const placesPage = 16

// walkLine reads LINE, and then its places in order until visit returns false. It leaves out places with
// a seq that LINE had not given out when it was read: a place before them may have been inserted after
// its page was read. ok is false if a place is of another epoch: the line was removed meanwhile. A line
// without LINE has no place.
func (l *Ledger) walkLine(ctx context.Context, id string, visit func(ln *line, p *place) (bool, error)) (ln *line, ok bool, err error) {
	query := tablestore.Query{Table: l.tables.Schedule, Partition: l.lineKey(id).Partition, Limit: placesPage}
	ln = &line{id: id}
	for {
		page, err := l.store.Scan(ctx, query)
		if err != nil {
			return nil, false, fmt.Errorf("read line %s: %w", id, err)
		}
		for i := range page.Rows {
			row := page.Rows[i]
			if row.Key.Row == rowLine {
				ln.tag = row.ETag
				if err := lineCodec.Decode(&row, &ln.lineRow); err != nil {
					return nil, false, fmt.Errorf("read line %s: %w", id, err)
				}
				continue
			}
			p, err := decodePlace(row)
			switch {
			case err != nil:
				return nil, false, err
			case ln.tag == "" || p.Epoch != ln.Epoch:
				return ln, ln.tag == "", nil
			case p.seq >= ln.Next:
				return ln, true, nil
			}
			if more, err := visit(ln, p); err != nil || !more {
				return ln, true, err
			}
		}
		if query.Continue = page.Next; query.Continue == "" {
			return ln, true, nil
		}
	}
}

// openLines gives the batches of one process on a line an order: it sends one at a time.
type openLines struct {
	mu   sync.Mutex
	open map[string]*openLine
}

// openLine is a line that this process is working on.
type openLine struct {
	users int           // guarded by the mutex of openLines
	next  *lookCall     // the look that waits for its turn, which serves all who ask meanwhile; guarded likewise
	turn  chan struct{} // holds a value while no batch is being sent
	known *line         // LINE as the last batch left it, nil if it is not known; owned by who has the turn
}

// lookCall is a look that several requests share.
type lookCall struct {
	done chan struct{}
	// Both are set before done is closed. left says that the caller who made the look gave up: the others
	// need another.
	err  error
	left bool
}

// lineTurn is the right to send the next batch of this process on a line.
type lineTurn struct {
	lines *openLines
	id    string
	line  *openLine
	given sync.Once
	ended sync.Once
}

// enter returns the line's state. leave must follow.
func (o *openLines) enter(id string) *openLine {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open == nil {
		o.open = map[string]*openLine{}
	}
	open := o.open[id]
	if open == nil {
		open = &openLine{turn: make(chan struct{}, 1)}
		open.turn <- struct{}{}
		o.open[id] = open
	}
	open.users++
	return open
}

func (o *openLines) leave(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if open := o.open[id]; open.users > 1 {
		open.users--
	} else {
		delete(o.open, id)
	}
}

// take waits for the turn. The error wraps [tablestore.ErrUnavailable].
func (o *openLines) take(ctx context.Context, id string) (*lineTurn, error) {
	open := o.enter(id)
	select {
	case <-open.turn:
		return &lineTurn{lines: o, id: id, line: open}, nil
	case <-ctx.Done():
		o.leave(id)
		return nil, fmt.Errorf("wait for line %s: %w: %w", id, tablestore.ErrUnavailable, ctx.Err())
	}
}

// give passes the turn on, with LINE as it is known to be now, or nil. The first call counts.
func (t *lineTurn) give(known *line) {
	t.given.Do(func() {
		t.line.known = known
		t.line.turn <- struct{}{}
	})
}

// end gives the turn and ends the use of the line. The first call counts.
func (t *lineTurn) end() {
	t.give(nil)
	t.ended.Do(func() { t.lines.leave(t.id) })
}

// after returns LINE as a batch left it that is known to be written, nil if it is gone.
func (ln *line) after(tag tablestore.ETag) *line {
	if tag == "" {
		return nil
	}
	next := *ln
	next.tag = tag
	return &next
}
