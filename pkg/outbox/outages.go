package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Part is a part of the bus: a topic by its name, or one of the constants.
type Part string

// The parts that are not topics; no topic can have these names.
const (
	PartBus     Part = breaker.Bus // the whole bus
	PartReplies Part = "*replies"  // the topics of replies
)

// circuitRows is the partition of all rows.
const circuitRows = "circuits"

// noteEvery is how often an ongoing outage is written.
const noteEvery = 2 * time.Second

// Outages tells every replica which parts of the bus are out of service.
//
//	relay's circuits ──┐                              ┌──▶ sweeper of any replica
//	                   ├──▶ rows of the schedule table┤    holds ACK deadlines and leases
//	reply topics ──────┘     partition "circuits"     └──▶ API of any replica
//	                                                       says why a directive waits
//
// While directives cannot be sent, or replies cannot arrive, a worker's silence is not
// its fault. The replica that notices an outage records when it last saw it; the
// sweeper of any replica gives deadlines that passed by then a grace period. An outage
// that no replica notices, because there is nothing to send and replies come over
// HTTP, delays no deadline.
//
// There is one row for each topic that ever had an outage. The rows are hints: an old
// one has no effect, and one that cannot be read is left out. Outages is safe for concurrent use, by any number of processes on
// one store.
//
// Source: Option B spec, 16.
type Outages struct {
	store  tablestore.Store
	table  string
	margin time.Duration
	logger *slog.Logger

	mu     sync.Mutex         // Guards all below.
	noted  map[Part]time.Time // when this process wrote the part last
	seen   []outageRow        // the rows as they were read at readAt
	readAt time.Time
	logged map[string]bool // the errors of unreadable rows, each of which is logged once
}

// PartOutage is an outage of a part as a replica notes it.
type PartOutage struct {
	Part Part `column:"part"`
	// For an open circuit: since when and why it is open, and when its relay tries again.
	Since  time.Time `column:"since"`
	Until  time.Time `column:"until"`
	Reason string    `column:"reason"`
}

// outageRow is the row of a part.
type outageRow struct {
	PartOutage
	SeenAt time.Time `column:"seen_at"` // the last sign
}

var outageCodec = tablestore.NewCodec[outageRow]()

// NewOutages returns the outages in the table. The margin is how long after its last
// sign an outage is assumed to continue: longer than the time until the next try. Rows that
// cannot be read are logged once; the logger is optional.
func NewOutages(store tablestore.Store, table string, margin time.Duration, logger *slog.Logger) *Outages {
	return &Outages{
		store: store, table: table, margin: margin, logger: cmp.Or(logger, slog.New(slog.DiscardHandler)),
		noted: map[Part]time.Time{}, logged: map[string]bool{},
	}
}

// Note records the outages of this moment. The caller repeats it every second while
// they last. The error joins those of the parts that could not be recorded.
func (o *Outages) Note(ctx context.Context, outages ...PartOutage) error {
	var errs []error
	for i := range outages {
		outage, part, now := &outages[i], outages[i].Part, tablestore.Now()
		o.mu.Lock()
		due := now.Sub(o.noted[part]) >= noteEvery
		if due {
			o.noted[part] = now
		}
		o.mu.Unlock()
		if !due {
			continue
		}
		row := outageRow{*outage, now}
		if _, err := o.store.Commit(ctx, tablestore.Batch{{
			Verb: tablestore.Put, Properties: outageCodec.Encode(&row, nil),
			Key: tablestore.Key{Table: o.table, Partition: circuitRows, Row: tablestore.Join(string(part))},
		}}); err != nil {
			errs = append(errs, fmt.Errorf("note the outage of %s: %w", part, err))
			o.mu.Lock()
			delete(o.noted, part) // The next call writes it.
			o.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// OutageEnds is when the last outage of each part ended. Parts without an outage are
// absent.
type OutageEnds map[Part]time.Time

// Topic returns when the topic was last unreachable, through its own outage or one of the
// whole bus.
func (e OutageEnds) Topic(topic string) time.Time {
	if own := e[Part(topic)]; own.After(e[PartBus]) {
		return own
	}
	return e[PartBus]
}

// Ends reads when the last outage of each part ended; an ongoing one ends now.
// The error is the store's.
func (o *Outages) Ends(ctx context.Context) (OutageEnds, error) {
	rows, err := o.read(ctx)
	if err != nil {
		return nil, err
	}
	ends, now := OutageEnds{}, time.Now()
	for i := range rows {
		end := rows[i].SeenAt.Add(o.margin)
		if end.After(now) {
			end = now
		}
		ends[rows[i].Part] = end
	}
	return ends, nil
}

// read reads the rows that can be decoded. All deadlines depend on this read, and it returns only hints.
func (o *Outages) read(ctx context.Context) ([]outageRow, error) {
	stored, err := tablestore.ScanAll(ctx, o.store, tablestore.Query{Table: o.table, Partition: circuitRows})
	if err != nil && !errors.Is(err, tablestore.ErrCorrupt) {
		return nil, fmt.Errorf("read the outages: %w", err)
	}
	o.logOnce(ctx, err)
	rows := make([]outageRow, 0, len(stored))
	for i := range stored {
		var row outageRow
		if err := outageCodec.Decode(&stored[i], &row); err != nil {
			o.logOnce(ctx, err)
			continue
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// logOnce logs the error, unless it is nil or was logged before.
func (o *Outages) logOnce(ctx context.Context, err error) {
	if err == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.logged[err.Error()] {
		o.logged[err.Error()] = true
		o.logger.ErrorContext(ctx, "outage of the bus not read", "error", err)
	}
}

// circuitAge is how long circuits are shown from one read.
const circuitAge = time.Second

// Circuit returns the open circuit of the topic or of the whole bus, at any replica, or
// nil. The error is that of [Outages.Circuits].
func (o *Outages) Circuit(ctx context.Context, topic string) (*statemachine.OpenCircuit, error) {
	open, err := o.Circuits(ctx)
	for i := range open {
		if name := open[i].Name; name == breaker.Bus || name == topic {
			return &open[i], nil
		}
	}
	return nil, err
}

// Circuits returns the open circuits of all replicas. It reads the store at most once a
// second, whose error it returns.
func (o *Outages) Circuits(ctx context.Context) ([]statemachine.OpenCircuit, error) {
	now := time.Now()
	o.mu.Lock()
	rows, fresh := o.seen, now.Sub(o.readAt) < circuitAge
	o.mu.Unlock()
	if !fresh {
		var err error
		if rows, err = o.read(ctx); err != nil {
			return nil, err
		}
		o.mu.Lock()
		o.seen, o.readAt = rows, now
		o.mu.Unlock()
	}
	var open []statemachine.OpenCircuit
	for i := range rows {
		row := &rows[i]
		if row.Until.After(now) && row.SeenAt.Add(o.margin).After(now) {
			open = append(open, statemachine.OpenCircuit{
				Name: string(row.Part), Reason: row.Reason, Since: row.Since, Until: row.Until,
			})
		}
	}
	return open, nil
}

// OpenCircuits returns the outages that open circuits indicate. A half-open circuit is no
// sign of an outage: it waits for a message to send, which may never come.
func OpenCircuits(circuits *breaker.Set, now time.Time) []PartOutage {
	var outages []PartOutage
	for _, circuit := range circuits.Open(now) {
		if circuit.State == breaker.Open {
			outages = append(outages, PartOutage{
				Part: Part(circuit.Name), Since: circuit.Since, Until: circuit.Until, Reason: circuit.Reason,
			})
		}
	}
	return outages
}
