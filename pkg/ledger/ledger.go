package ledger

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Tables are the names of the tables that a ledger uses: lower-case letters and digits, as
// Azure Tables requires.
type Tables struct {
	Ledger      string // Optional. Defaults to "luciusledger".
	Idempotency string // Optional. Defaults to "jobidempotency".
	Schedule    string // Optional. Defaults to "luciusschedule".
	Index       string // Optional. Defaults to "luciusjobindex".
	Queue       string // Optional. Defaults to "luciusqueue".
	Cron        string // of schedules. Optional. Defaults to "luciuscron".
}

func (t Tables) withDefaults() Tables {
	return Tables{
		Ledger:      cmp.Or(t.Ledger, "luciusledger"),
		Idempotency: cmp.Or(t.Idempotency, "jobidempotency"),
		Schedule:    cmp.Or(t.Schedule, "luciusschedule"),
		Index:       cmp.Or(t.Index, "luciusjobindex"),
		Queue:       cmp.Or(t.Queue, "luciusqueue"),
		Cron:        cmp.Or(t.Cron, "luciuscron"),
	}
}

// All returns the names of all tables, so that a driver can create them.
func (t Tables) All() []string {
	return []string{t.Ledger, t.Idempotency, t.Schedule, t.Index, t.Queue, t.Cron}
}

// Config configures a [Ledger].
type Config struct {
	// Store holds the rows. Required.
	Store tablestore.Store
	// Shared says that other processes write the store too; a store that is not atomic is
	// always assumed to be shared. Optional.
	Shared bool
	// Tables are the table names. Optional.
	Tables Tables
	// Shards is the number of partitions of the schedule and of the live set. The first
	// process writes it to the store; later ones use the stored number. Optional.
	// Defaults to 16.
	Shards int
	// Hold is how long a relay may take to publish a row, with a margin. After that the
	// sweeper picks up the row. Optional. Defaults to 15 s.
	Hold time.Duration
	// Jitter is the part of a retry delay that is randomised, 0 to 1. Optional.
	Jitter float64
	// Handoff passes rows that are due at once to this process's relay. Optional.
	// Without it they are left to the relays of other processes.
	Handoff Handoff
	// Bus is the bus of new outbox rows. Optional. Defaults to the pull queue.
	Bus statemachine.Bus
	// Held reports whether the dispatch of such directives is held back, or whether this
	// process does not know. Their rows then wait in the dispatch schedule. It must not
	// block. Optional.
	Held func(target statemachine.Target) bool
	// ReadyShards is the number of partitions of the ready index for each kind of work,
	// stored as Shards is. Each partition costs one read per poll. Optional. Defaults to 1.
	ReadyShards int
	// Ready is told of each ready hint that a commit of this process makes valid
	// (queued) or void. It must not block. Optional.
	Ready func(hint Hint, queued bool)
	// Taker returns a claim that waits for such an item, nil if there is none. The change
	// that queues the item then claims it too. It is called only on an atomic store, and
	// must not block. Optional.
	Taker func(hint *Hint) *Taker
	// Freed is told of run slots that a commit of this process freed. It must not block. Optional.
	Freed func(slots []statemachine.RunSlot)
	// Projector copies the jobs to the tables of another layout. Optional.
	Projector Projector
	// Retention is how long an ended job is kept. Optional. 0 keeps it forever.
	Retention time.Duration
	// KeyTTL is how long after its job's end an idempotency key is kept. Then it may
	// name another command. Optional. 0 keeps it as long as the job.
	KeyTTL time.Duration
	// Limit returns how many jobs a tenant may have in flight, 0 for no limit. Each accept
	// calls it, and it may return a different limit each time. It must not block. Optional.
	Limit func(tenantID string) int
	// Archive receives each job before it is purged. If it fails, the job is kept and
	// the next pass tries again. Optional.
	Archive func(ctx context.Context, job *Archived) error
	// Observe is told of each change that this process committed, with the job before
	// and after it, for metrics, logs and traces; the context is that of the request for
	// it. Before its accept a job has no steps. It must not block, nor keep or change its
	// arguments.
	// A change whose process crashes right after the commit is not reported. Optional.
	//
	// Source: Option B spec, 20.
	Observe func(ctx context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition)
	// Unsure is called when a change may have been committed without a call of Observe,
	// because its outcome is not known. It must not block. Optional.
	Unsure func()
	// Later runs work that follows a commit and for which no caller waits, such as a look at a line. Optional.
	// Without it the work is done before the call returns.
	Later func(work func())
	// Looked is told of each look at a line. It must not block. Optional.
	Looked func(outcome LookOutcome, err error)
	// Ended is told of each job that this process ended, after the commit and its
	// announcement. It must not block, nor keep or change the job. Optional.
	Ended func(job *statemachine.Job)
	// Sample decides whether the trace of a command that names none is recorded. With it,
	// directives name the span of their attempt as parent; without it, they hold the
	// command's traceparent. Optional.
	Sample func(traceID [16]byte) bool
	// SpreadIDs generates job ids that begin with random bits instead of the time, so that
	// the partitions of new jobs are spread in a store that keeps key ranges together. Ids
	// of both kinds can be read. Optional.
	SpreadIDs bool
	// Entropy is the source of ids, safe for concurrent use. Optional. Defaults to
	// crypto/rand.
	Entropy io.Reader
	// Random returns numbers in [0, 1) for jitter and for the choice of slots. It
	// must be safe for concurrent use. Optional. Defaults to math/rand/v2.
	Random func() float64
}

// Handoff is the hot path from a commit to the relay of the same process.
type Handoff interface {
	// Offer passes the message on, or drops it if the relay's queue is full: then
	// the dispatch schedule still has it. It never blocks.
	Offer(message Message)
}

// Ledger keeps jobs in a table store. It is safe for concurrent use, by any
// number of processes on one store.
type Ledger struct {
	cfg    Config // with its defaults, and the numbers of shards from the store
	store  tablestore.Store
	tables Tables
	shards []string               // the partitions of the schedule and of the live set
	atomic tablestore.AtomicStore // the store if it is one, else nil
	// invariant: listsLive ⇒ atomic ≠ nil
	listsLive bool

	recent *recent
	lines  openLines
	// inspected is when the reconciler last looked at a line.
	inspected *lru.Cache[string, time.Time]
	kinds     sync.Map // each WorkClass whose catalog row is known to be written
	ids       idClock
	tenants   sync.Map // each tenant whose index row is known to be written
	reclaims  sync.Map // by tenant, when its slots may be searched for ended jobs again; zero during a search
	quotas    sync.Map // by tenant, its quota
	restored  atomic.Int64
	changing  atomic.Int64 // accepts and changes that are being made
}

// Open returns a ledger on the store. Its errors are the store's, or name the invalid
// setting.
func Open(ctx context.Context, cfg Config) (*Ledger, error) {
	if cfg.Store == nil {
		return nil, errors.New("ledger: Store is required")
	}
	if cfg.Jitter < 0 || cfg.Jitter > 1 {
		return nil, fmt.Errorf("ledger: Jitter is %g, must be from 0 to 1", cfg.Jitter)
	}
	if cfg.Retention < 0 || cfg.KeyTTL < 0 {
		return nil, errors.New("ledger: Retention and KeyTTL must not be negative")
	}
	cfg.Shards = cmp.Or(cfg.Shards, 16)
	if cfg.Shards < 1 || cfg.Shards > 999 {
		return nil, fmt.Errorf("ledger: Shards is %d, must be from 1 to 999", cfg.Shards)
	}
	cfg.ReadyShards = cmp.Or(cfg.ReadyShards, 1)
	cfg.Hold = cmp.Or(cfg.Hold, 15*time.Second)
	cfg.Bus = cmp.Or(cfg.Bus, statemachine.BusQueue)
	if cfg.Held == nil {
		cfg.Held = func(statemachine.Target) bool { return false }
	}
	if cfg.Ready == nil {
		cfg.Ready = func(Hint, bool) {}
	}
	if cfg.Freed == nil {
		cfg.Freed = func([]statemachine.RunSlot) {}
	}
	if cfg.Limit == nil {
		cfg.Limit = func(string) int { return 0 }
	}
	if cfg.Observe == nil {
		cfg.Observe = func(_ context.Context, _, _ *statemachine.Aggregate, _ []statemachine.Transition) {}
	}
	if cfg.Unsure == nil {
		cfg.Unsure = func() {}
	}
	if cfg.Looked == nil {
		cfg.Looked = func(LookOutcome, error) {}
	}
	if cfg.Ended == nil {
		cfg.Ended = func(*statemachine.Job) {}
	}
	if cfg.Entropy == nil {
		cfg.Entropy = rand.Reader
	}
	if cfg.Random == nil {
		cfg.Random = mathrand.Float64
	}
	l := &Ledger{cfg: cfg, store: cfg.Store, recent: newRecent(), tables: cfg.Tables.withDefaults()}
	l.inspected, _ = lru.New[string, time.Time](maxInspected) // It only fails without a size.
	l.atomic, _ = cfg.Store.(tablestore.AtomicStore)
	if err := l.adoptSettings(ctx); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	return l, nil
}

// maxInspected is how many lines the reconciler remembers.
const maxInspected = 4096

// operation returns the context of one accept, change or claim. Only shared stores limit how many
// calls are under way.
func (l *Ledger) operation(ctx context.Context) context.Context {
	if l.cfg.Shared {
		return tablestore.ForOperation(ctx)
	}
	return ctx
}

// settings are shared by all processes on one store.
type settings struct {
	Format      int    `column:"format"` // see [tablestore.RowFormat]
	Shards      int    `column:"shards"`
	ReadyShards int    `column:"ready_shards"`
	Layout      string `column:"layout"`     // "table" with a projector, else ""
	ListsLive   bool   `column:"lists_live"` // live jobs have rows by their state
}

var settingsCodec = tablestore.NewCodec[settings]()

// adoptSettings takes the numbers of shards from the store, and checks its layout and the format of its rows.
// The first process on a store writes its own settings.
func (l *Ledger) adoptSettings(ctx context.Context) error {
	own := settings{
		Format: tablestore.RowFormat, Shards: l.cfg.Shards, ReadyShards: l.cfg.ReadyShards, ListsLive: l.atomic != nil && l.cfg.Shared,
	}
	if l.cfg.Projector != nil {
		own.Layout = "table"
	}
	key := tablestore.Key{Table: l.tables.Schedule, Partition: "meta", Row: "settings"}
	row, err := l.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		_, err = l.store.Commit(ctx, tablestore.Batch{
			{Verb: tablestore.Insert, Key: key, Properties: settingsCodec.Encode(&own, nil)},
		})
		if !errors.Is(err, tablestore.ErrConflict) && err != nil {
			return err
		}
		row, err = l.store.Get(ctx, key)
	}
	if err != nil {
		return err
	}
	var kept settings
	if err := settingsCodec.Decode(&row, &kept); err != nil {
		return err
	}
	if err := tablestore.CheckRowFormat(kept.Format); l.atomic == nil && err != nil {
		return err
	}
	if kept.Shards < 1 || kept.ReadyShards < 1 {
		return fmt.Errorf("the store's numbers of shards are %d and %d", kept.Shards, kept.ReadyShards)
	}
	if kept.Layout != own.Layout {
		return fmt.Errorf("the store keeps its jobs in the layout %s, not %s",
			cmp.Or(kept.Layout, "ledger"), cmp.Or(own.Layout, "ledger"))
	}
	l.cfg.Shards, l.cfg.ReadyShards, l.listsLive = kept.Shards, kept.ReadyShards, kept.ListsLive && l.atomic != nil
	for shard := range kept.Shards {
		l.shards = append(l.shards, tablestore.Join("shard", tablestore.Pad(shard, 3)))
	}
	return nil
}

// Shards is the number of partitions of the schedule and of the live set.
func (l *Ledger) Shards() int { return l.cfg.Shards }

// ReadyShards is the number of partitions of the ready index for each kind of work.
func (l *Ledger) ReadyShards() int { return l.cfg.ReadyShards }

// Exclusive reports whether no other process can write the store.
func (l *Ledger) Exclusive() bool { return l.atomic != nil && !l.cfg.Shared }

// Atomic reports whether a change and its index rows are one write, so that no index row
// refers to a change that may still commit.
func (l *Ledger) Atomic() bool { return l.atomic != nil }

// Restored is how many missing ready hints the timers of this process have rewritten. Each
// was a defect; the reconciler counts its own.
func (l *Ledger) Restored() int64 { return l.restored.Load() }

// Tables are the names of the tables in use.
func (l *Ledger) Tables() Tables { return l.tables }

// fresh holds the ids of one decision.
type fresh struct {
	operation string // stays the same if the decision is submitted again
	lease     string
}

// nonce distinguishes two schedule entries of one job and time.
func (f fresh) nonce() string { return f.operation[:8] }

func (l *Ledger) fresh() (fresh, error) {
	var raw [32]byte
	if _, err := io.ReadFull(l.cfg.Entropy, raw[:]); err != nil {
		return fresh{}, fmt.Errorf("make fresh ids: %w", err)
	}
	return fresh{operation: hex.EncodeToString(raw[:16]), lease: hex.EncodeToString(raw[16:])}, nil
}

// env returns a decision's inputs from outside the job. A new row is prompt if the commit
// itself sends it to the pull queue, or the relay of this process publishes it.
func (l *Ledger) env(f fresh, now time.Time) statemachine.Env {
	return statemachine.Env{
		Now: now, LeaseID: f.lease, Random: l.cfg.Random(), Jitter: l.cfg.Jitter, Hold: l.cfg.Hold, Bus: l.cfg.Bus,
		Prompt: func(target statemachine.Target) bool {
			return !l.cfg.Held(target) && (l.cfg.Bus == statemachine.BusQueue || l.cfg.Handoff != nil)
		},
	}
}
