package ledger

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Config is what a [Ledger] is made of.
type Config struct {
	// Store holds the rows. Required.
	Store tablestore.Store
	// Tables are the table names. Optional.
	Tables Tables
	// Shards is the number of partitions of each kind of schedule entry. It is
	// written when the store is first used, and read from there ever after.
	// Optional. Defaults to 16.
	Shards int
	// Hold is how long a relay may take to publish a row, with a margin: behind
	// it the safety net takes the row up. Optional. Defaults to 15 s.
	Hold time.Duration
	// Jitter is the part of a retry delay that is randomised, 0 to 1.
	Jitter float64
	// Handoff takes rows that are due at once to this process's relay. Optional:
	// without it they are left to the relays of other processes.
	Handoff Handoff
	// Bus is what new outbox rows are made for. Optional. Defaults to the pull queue.
	Bus statemachine.Bus
	// Held says that the dispatch of such directives is held back, or that this
	// process does not know: their rows go into the dispatch schedule, where they
	// wait for their turn. Optional. It must not block.
	Held func(tenantID, protocolID string, lane int) bool
	// ReadyShards is the number of partitions of the ready index for each kind of
	// work. It is written when the store is first used, and read from there ever
	// after. Optional. Defaults to 1: each costs a read with each poll.
	ReadyShards int
	// Ready is told of each ready hint that a commit of this process made the one of
	// a queued item, and of each that stopped to be so. Optional. It must not block.
	Ready func(hint Hint, queued bool)
	// Projector shows the jobs in the tables of another layout. Optional. Without
	// one the layout is that of the ledger alone.
	Projector Projector
	// Retention is how long an ended job is kept. Optional. 0 keeps it for ever.
	Retention time.Duration
	// KeyTTL is how long an idempotency key is kept after its job's end: then it
	// may name another command. Optional. 0 keeps it as long as the job.
	KeyTTL time.Duration
	// Archive is given each job before it is purged; where it fails the job is kept
	// and tried again. Optional.
	Archive func(ctx context.Context, job *Archived) error
	// Observe is told of each change that this process committed, with the job after
	// it, for metrics and logs. It must not block, nor keep or change what it is
	// given. Optional. A change that another process rolled forward is told there,
	// and one whose process died behind the commit is told nowhere.
	//
	// Source: Option B spec, 20.
	Observe func(after *statemachine.Aggregate, history []statemachine.Transition)
	// Ended is told of each job that this process brought to its end, after the
	// commit. Optional. It must not block.
	Ended func(jobID string)
	// Entropy is the source of ids. Optional. Defaults to crypto/rand. It must
	// be safe for concurrent use.
	Entropy io.Reader
	// Random returns numbers in [0, 1) for jitter and for the choice of slots.
	// Optional. Defaults to math/rand/v2. It must be safe for concurrent use.
	Random func() float64
}

// Handoff is the hot path from a commit to the relay of the same process.
type Handoff interface {
	// Offer hands the message over, or drops it where the relay has its hands
	// full: the safety net finds it then. It never blocks.
	Offer(message Message)
}

// Ledger keeps jobs in a table store. It is safe for concurrent use, by any
// number of processes on one store.
type Ledger struct {
	store     tablestore.Store
	tables    Tables
	shards    int
	hold      time.Duration
	keep      time.Duration
	keyTTL    time.Duration
	archive   func(context.Context, *Archived) error
	jitter    float64
	handoff   Handoff
	held      func(tenantID, protocolID string, lane int) bool
	bus       statemachine.Bus
	atomic    tablestore.AtomicStore // the store if it is one, else nil
	ready     func(Hint, bool)
	kinds     knownKinds
	restored  atomic.Int64
	rshards   int
	projector Projector
	ended     func(string)
	observe   func(*statemachine.Aggregate, []statemachine.Transition)
	entropy   io.Reader
	random    func() float64
	reclaims  reclaimGate
	seen      tenantSet
}

// Open returns a ledger on the store. It fails where the store does, and for a
// configuration that makes no sense.
func Open(ctx context.Context, cfg Config) (*Ledger, error) {
	if cfg.Store == nil {
		return nil, errors.New("ledger: Store is required")
	}
	if cfg.Jitter < 0 || cfg.Jitter > 1 {
		return nil, fmt.Errorf("ledger: Jitter is %g, must be from 0 to 1", cfg.Jitter)
	}
	l := &Ledger{
		store: cfg.Store, tables: cfg.Tables.withDefaults(), shards: cfg.Shards, hold: cfg.Hold, jitter: cfg.Jitter,
		keep: cfg.Retention, keyTTL: cfg.KeyTTL, archive: cfg.Archive,
		handoff: cfg.Handoff, held: cfg.Held, bus: cmp.Or(cfg.Bus, statemachine.BusQueue), ready: cfg.Ready,
		rshards: cmp.Or(cfg.ReadyShards, 1), projector: cfg.Projector, ended: cfg.Ended, observe: cfg.Observe,
		entropy: cfg.Entropy, random: cfg.Random,
	}
	l.atomic, _ = cfg.Store.(tablestore.AtomicStore)
	if l.ready == nil {
		l.ready = func(Hint, bool) {}
	}
	if l.observe == nil {
		l.observe = func(*statemachine.Aggregate, []statemachine.Transition) {}
	}
	if l.ended == nil {
		l.ended = func(string) {}
	}
	if l.shards == 0 {
		l.shards = 16
	}
	if l.hold == 0 {
		l.hold = 15 * time.Second
	}
	if l.entropy == nil {
		l.entropy = rand.Reader
	}
	if l.random == nil {
		l.random = mathrand.Float64
	}
	if l.keep < 0 || l.keyTTL < 0 {
		return nil, errors.New("ledger: Retention and KeyTTL must not be negative")
	}
	if l.shards < 1 || l.shards > 999 {
		return nil, fmt.Errorf("ledger: Shards is %d, must be from 1 to 999", l.shards)
	}
	if err := l.adoptSettings(ctx); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return l, nil
}

// settings are what all processes on one store share.
type settings struct {
	shards      int
	readyShards int
	layout      layout
}

var settingsCodec = newCodec(
	integer("shards", func(s *settings) *int { return &s.shards }),
	integer("ready_shards", func(s *settings) *int { return &s.readyShards }),
	text("layout", func(s *settings) *layout { return &s.layout }),
)

// adoptSettings makes the store's number of shards ours, and checks that its
// layout is; the first process to come writes its own.
func (l *Ledger) adoptSettings(ctx context.Context) error {
	key := tablestore.Key{Table: l.tables.Schedule, Partition: "meta", Row: "settings"}
	row, err := l.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		own := settingsCodec.encode(&settings{l.shards, l.rshards, l.layout()}, nil)
		_, err = l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Insert, Key: key, Properties: own}})
		if !errors.Is(err, tablestore.ErrConflict) && err != nil {
			return err
		}
		row, err = l.store.Get(ctx, key)
	}
	if err != nil {
		return err
	}
	var kept settings
	if err := settingsCodec.decode(&row, &kept); err != nil {
		return err
	}
	l.shards, l.rshards = kept.shards, kept.readyShards
	if l.shards < 1 || l.rshards < 1 {
		return fmt.Errorf("the store's numbers of shards are %d and %d", l.shards, l.rshards)
	}
	if kept.layout != l.layout() {
		return fmt.Errorf("the store keeps its jobs in the layout %s, not %s", kept.layout, l.layout())
	}
	return nil
}

// Shards is the number of partitions of each kind of schedule entry.
func (l *Ledger) Shards() int { return l.shards }

// Restored is how many missing ready hints a timer of this process has put back
// since it began: defects, which the reconciler counts apart.
func (l *Ledger) Restored() int64 { return l.restored.Load() }

// Tables are the names of the tables in use.
func (l *Ledger) Tables() Tables { return l.tables }

// NewJobID returns a fresh job id: a UUIDv7 of now, from which the month of the
// acceptance can be derived. It is made here, because package uuid's own has a
// memory of the last one in the process, and so is not repeatable.
func (l *Ledger) NewJobID() (string, error) {
	var id uuid.UUID
	if _, err := io.ReadFull(l.entropy, id[6:]); err != nil {
		return "", fmt.Errorf("make a job id: %w", err)
	}
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Now().UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = id[6]&0x0f | 0x70 // version 7
	id[8] = id[8]&0x3f | 0x80 // variant of RFC 9562
	return id.String(), nil
}

// fresh are the ids of one decision.
type fresh struct {
	operation string // fixed for the decision, also when it is submitted again
	lease     string
}

// nonce tells apart two schedule entries of one job and time.
func (f fresh) nonce() string { return f.operation[:8] }

func (l *Ledger) fresh() (fresh, error) {
	var raw [32]byte
	if _, err := io.ReadFull(l.entropy, raw[:]); err != nil {
		return fresh{}, fmt.Errorf("make fresh ids: %w", err)
	}
	return fresh{operation: hex.EncodeToString(raw[:16]), lease: hex.EncodeToString(raw[16:])}, nil
}

// env is what a decision takes from outside.
func (l *Ledger) env(f fresh, now time.Time) statemachine.Env {
	return statemachine.Env{
		Now: now, LeaseID: f.lease, Random: l.random(), Jitter: l.jitter, Hold: l.hold,
		Bus: l.bus, Prompt: l.prompt,
	}
}

// prompt reports whether a new row goes out at once: by the commit itself in the
// pull queue, else by the relay of this process if it has one.
func (l *Ledger) prompt(tenantID, protocolID string, lane int) bool {
	if l.held != nil && l.held(tenantID, protocolID, lane) {
		return false
	}
	return l.bus == statemachine.BusQueue || l.handoff != nil
}
