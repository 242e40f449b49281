package outages

import (
	"cmp"
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
	Bus     Part = "*"        // the whole bus
	Replies Part = "*replies" // the topics of replies
)

// partition is the partition of all rows.
const partition = "circuits"

// Config configures a [Board].
type Config struct {
	// Store holds the rows. Required.
	Store tablestore.Store
	// Table is the rows' table. Required.
	Table string
	// Margin is how long after its last sign an outage is assumed to continue:
	// the time until the next try. Optional. Defaults to 15 s.
	Margin time.Duration
}

// Board stores the outages for all replicas. It is safe for concurrent use, by
// any number of processes on one store.
//
// Source: Option B spec, 16.
type Board struct {
	cfg Config

	mu    sync.Mutex
	noted map[Part]time.Time
}

// New returns a board, or an error that names the invalid field.
func New(cfg Config) (*Board, error) {
	if cfg.Store == nil || cfg.Table == "" {
		return nil, errors.New("outages: Store and Table are required")
	}
	if cfg.Margin < 0 {
		return nil, fmt.Errorf("outages: Margin must not be negative, is %s", cfg.Margin)
	}
	cfg.Margin = cmp.Or(cfg.Margin, 15*time.Second)
	return &Board{cfg: cfg, noted: map[Part]time.Time{}}, nil
}

// noteEvery is how often an ongoing outage is written.
const noteEvery = 2 * time.Second

// Note records that the part is out of service now. The caller repeats it about
// every second during the outage. The error is the store's.
func (b *Board) Note(ctx context.Context, part Part) error {
	now := tablestore.Now()
	if !b.takeTurn(part, now) {
		return nil
	}
	_, err := b.cfg.Store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Put,
		Key:  tablestore.Key{Table: b.cfg.Table, Partition: partition, Row: tablestore.Join(string(part))},
		Properties: tablestore.Properties{
			{Name: "part", Value: tablestore.String(string(part))}, {Name: "seen_at", Value: tablestore.Time(now)},
		},
	}})
	if err != nil {
		b.giveTurn(part)
		return fmt.Errorf("note the outage of %s: %w", part, err)
	}
	return nil
}

// NoteAll records all parts that are out of service now. The caller repeats it
// every second. The error joins those of the parts that could not be recorded.
func (b *Board) NoteAll(ctx context.Context, parts []Part) error {
	var errs []error
	for _, part := range parts {
		errs = append(errs, b.Note(ctx, part))
	}
	return errors.Join(errs...)
}

// takeTurn reports whether to write the part again.
func (b *Board) takeTurn(part Part, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.noted[part]) < noteEvery {
		return false
	}
	b.noted[part] = now
	return true
}

// giveTurn makes the next call write the part.
func (b *Board) giveTurn(part Part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.noted, part)
}

// Ends is when the last outage of each part ended. Parts without an outage are
// absent.
type Ends map[Part]time.Time

// Topic returns when the topic was last unreachable, through an outage of its
// own or of the whole bus.
func (e Ends) Topic(topic string) time.Time {
	if own := e[Part(topic)]; own.After(e[Bus]) {
		return own
	}
	return e[Bus]
}

// Ends reads when the last outage of each part ended; an ongoing one ends now.
// The error is the store's.
func (b *Board) Ends(ctx context.Context) (Ends, error) {
	rows, err := tablestore.ScanAll(ctx, b.cfg.Store, tablestore.Query{Table: b.cfg.Table, Partition: partition})
	if err != nil {
		return nil, fmt.Errorf("read the outages: %w", err)
	}
	ends, now := Ends{}, time.Now()
	for i := range rows {
		p := rows[i].Properties
		end := p.Get("seen_at").Time().Add(b.cfg.Margin)
		if end.After(now) {
			end = now
		}
		ends[Part(p.Get("part").String())] = end
	}
	return ends, nil
}

// Broken returns the parts whose circuits are open. A half-open circuit is no
// sign of an outage: it waits for a message to send, which may never come.
func Broken(circuits *breaker.Set, now time.Time) []Part {
	var parts []Part
	for _, circuit := range circuits.Open(now) {
		switch {
		case circuit.State != breaker.Open:
		case circuit.Name == breaker.Bus:
			parts = append(parts, Bus)
		default:
			parts = append(parts, Part(circuit.Name))
		}
	}
	return parts
}
