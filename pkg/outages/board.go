package outages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Part is a part of the bus: a topic by its name, or one of the others.
type Part string

// The parts that are no topics. No topic has such a name.
const (
	Bus     Part = "*"        // the whole bus
	Replies Part = "*replies" // the topics that replies come by
)

// partition holds the rows.
const partition = "circuits"

// Config is what a [Board] is made of.
type Config struct {
	// Store holds the rows. Required.
	Store tablestore.Store
	// Table is theirs. Required.
	Table string
	// Margin is for how long after its last sign an outage is taken to go on: as long
	// as it takes to try again. Optional. Defaults to 15 s.
	Margin time.Duration
}

// Board is what replicas know of outages. It is safe for concurrent use, by any
// number of processes on one store.
//
// Source: Option B spec, 16.
type Board struct {
	cfg Config

	mu    sync.Mutex
	noted map[Part]time.Time
}

// New returns a board. The error names the field that makes no sense.
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

// noteEvery is how often an outage that goes on is written down.
const noteEvery = 2 * time.Second

// Note writes down that the part is out of service now. While that goes on it is to
// be told again, every second or so. The error is the store's.
func (b *Board) Note(ctx context.Context, part Part) error {
	now := time.Now().UTC().Truncate(time.Millisecond)
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

// takeTurn reports whether the part is to be written again.
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

// Ends is when the last outage of each part ended. Parts that were never away are not
// there.
type Ends map[Part]time.Time

// Topic is when the last outage ended in which the topic could not be reached, be it
// its own or that of the whole bus.
func (e Ends) Topic(topic string) time.Time {
	if own := e[Part(topic)]; own.After(e[Bus]) {
		return own
	}
	return e[Bus]
}

// Ends reads when the last outage of each part ended; one that goes on ends now. The
// error is the store's.
func (b *Board) Ends(ctx context.Context) (Ends, error) {
	ends := Ends{}
	query := tablestore.Query{Table: b.cfg.Table, Partition: partition}
	for {
		page, err := b.cfg.Store.Scan(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read the outages: %w", err)
		}
		now := time.Now()
		for i := range page.Rows {
			p := page.Rows[i].Properties
			end := p.Get("seen_at").Time().Add(b.cfg.Margin)
			if end.After(now) {
				end = now
			}
			ends[Part(p.Get("part").String())] = end
		}
		if query.Continue = page.Next; query.Continue == "" {
			return ends, nil
		}
	}
}
