package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Part is a part of the bus: a topic by its name, or one of the constants.
type Part string

// The parts that are not topics. No topic has such a name.
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
//	                   ├──▶ rows of the schedule table┤    holds ACK deadlines
//	reply topics ──────┘     partition "circuits"     └──▶ holds leases
//
// While directives cannot be sent, or replies cannot arrive, a worker's silence is not
// its fault. The replica that notices an outage records when it last saw it; the
// sweeper of any replica gives deadlines that passed by then a grace period. An outage
// that no replica notices, because there is nothing to send and replies come over
// HTTP, delays no deadline.
//
// There is one row for each topic that ever had an outage. The rows are hints: an old
// one has no effect. Outages is safe for concurrent use, by any number of processes on
// one store.
//
// Source: Option B spec, 16.
type Outages struct {
	store  tablestore.Store
	table  string
	margin time.Duration

	mu    sync.Mutex
	noted map[Part]time.Time // when this process wrote the part last
}

// NewOutages returns the outages in the table. The margin is how long after its last
// sign an outage is assumed to continue: longer than the time until the next try.
func NewOutages(store tablestore.Store, table string, margin time.Duration) *Outages {
	return &Outages{store: store, table: table, margin: margin, noted: map[Part]time.Time{}}
}

// Note records that the parts are out of service now. The caller repeats it every
// second during the outage. The error joins those of the parts that could not be
// recorded.
func (o *Outages) Note(ctx context.Context, parts ...Part) error {
	var errs []error
	for _, part := range parts {
		now := tablestore.Now()
		o.mu.Lock()
		due := now.Sub(o.noted[part]) >= noteEvery
		if due {
			o.noted[part] = now
		}
		o.mu.Unlock()
		if !due {
			continue
		}
		if _, err := o.store.Commit(ctx, tablestore.Batch{{
			Verb: tablestore.Put,
			Key:  tablestore.Key{Table: o.table, Partition: circuitRows, Row: tablestore.Join(string(part))},
			Properties: tablestore.Properties{
				{Name: "part", Value: tablestore.String(string(part))}, {Name: "seen_at", Value: tablestore.Time(now)},
			},
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

// Topic returns when the topic was last unreachable, through an outage of its
// own or of the whole bus.
func (e OutageEnds) Topic(topic string) time.Time {
	if own := e[Part(topic)]; own.After(e[PartBus]) {
		return own
	}
	return e[PartBus]
}

// Ends reads when the last outage of each part ended; an ongoing one ends now.
// The error is the store's.
func (o *Outages) Ends(ctx context.Context) (OutageEnds, error) {
	rows, err := tablestore.ScanAll(ctx, o.store, tablestore.Query{Table: o.table, Partition: circuitRows})
	if err != nil {
		return nil, fmt.Errorf("read the outages: %w", err)
	}
	ends, now := OutageEnds{}, time.Now()
	for i := range rows {
		p := rows[i].Properties
		end := p.Get("seen_at").Time().Add(o.margin)
		if end.After(now) {
			end = now
		}
		ends[Part(p.Get("part").String())] = end
	}
	return ends, nil
}

// BrokenParts returns the parts whose circuits are open. A half-open circuit is no
// sign of an outage: it waits for a message to send, which may never come.
func BrokenParts(circuits *breaker.Set, now time.Time) []Part {
	var parts []Part
	for _, circuit := range circuits.Open(now) {
		if circuit.State == breaker.Open {
			parts = append(parts, Part(circuit.Name))
		}
	}
	return parts
}
