package schedules

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The rows of a schedule's partition.
const (
	rowHead     = "HEAD"
	rowVersion  = "VERSION"
	rowFire     = "FIRE"  // the claim and history of an occurrence, newest first
	rowRange    = "RANGE" // many missed occurrences, newest first
	rowRun      = "RUN"   // the claim and history of a run by hand, or of an occurrence that is repeated; newest first
	rowRunKey   = "RUNKEY"
	rowBackfill = "BACKFILL"
)

// partitionNames holds the names of all schedules, by tenant.
const partitionNames = "names"

// partitionEntries holds the entries of all schedules in the schedule of jobs.
const partitionEntries = "cron"

// head is the content of HEAD.
//
//	invariant: State = active ⇔ Next is set ⇔ EntryNonce is set, and that entry exists
//	invariant: Last < Next, and Last never decreases: every occurrence up to Last is decided
type head struct {
	TenantID string `column:"tenant_id"`
	Name     string `column:"name"`
	// Seq counts the changes of HEAD, and Rev those by a caller.
	Seq        int64     `column:"seq"`
	Rev        int64     `column:"rev"`
	Version    int       `column:"version"`
	State      State     `column:"state"`
	Last       time.Time `column:"last"`
	Next       time.Time `column:"next"`
	EntryDue   time.Time `column:"entry_due"`
	EntryNonce string    `column:"entry_nonce"`
	Build      string    `column:"build"` // which computed Next
	// Trying is the occurrence that was refused for a passing reason: since when, how often, and why.
	Trying      time.Time `column:"trying"`
	TryingSince time.Time `column:"trying_since"`
	Tries       int       `column:"tries"`
	TryDetail   string    `column:"try_detail"`
	Trimmed     time.Time `column:"trimmed"` // the history up to here is deleted
	Operation   string    `column:"operation_id"`
	CreatedAt   time.Time `column:"created_at"`
	UpdatedAt   time.Time `column:"updated_at"`

	losses
}

// version is the content of a VERSION row, next to the command.
type version struct {
	Definition

	CreatedAt time.Time `column:"created_at"`
	Actor     string    `column:"actor"`
}

// runKey says when the run was requested first that has an idempotency key: the time is part of its row's key.
type runKey struct {
	At time.Time `column:"at"`
}

// nameRow says which schedule has a name.
type nameRow struct {
	ID        string    `column:"schedule_id"`
	CreatedAt time.Time `column:"created_at"`
}

// entryRow is the content of an entry. The rest is its key.
type entryRow struct {
	Seq int64 `column:"rev"` // of HEAD, or of the backfill, after the change that writes the entry
}

var (
	headCodec     = tablestore.NewCodec[head]()
	versionCodec  = tablestore.NewCodec[version]()
	nameCodec     = tablestore.NewCodec[nameRow]()
	entryCodec    = tablestore.NewCodec[entryRow]()
	fireCodec     = tablestore.NewCodec[Fire]()
	runKeyCodec   = tablestore.NewCodec[runKey]()
	backfillCodec = tablestore.NewCodec[Backfill]()
)

// stored is a schedule as it was read.
type stored struct {
	head

	id string
	// asRead writes HEAD unchanged, as it was read or written last. Each claim of an occurrence is written with it:
	//
	//	invariant: a process that has not read the newest HEAD claims nothing
	asRead *tablestore.Op // nil before HEAD exists
	def    Definition     // of the current version; not read of a deleted schedule
	// asOf is what the clock showed before HEAD was read, or written. What comes due later is not to be decided by this HEAD:
	// the schedule may have been stopped by then.
	asOf time.Time
	// relist says that the next commit has to write the row in the list of losses.
	relist bool
}

func (s *Service) key(id string, parts ...string) tablestore.Key {
	return tablestore.Key{Table: s.table, Partition: id, Row: tablestore.Join(parts...)}
}

func (s *Service) nameKey(tenantID, name string) tablestore.Key {
	return tablestore.Key{Table: s.table, Partition: partitionNames, Row: tablestore.Join(tenantID, name)}
}

// namesOf selects the names of a tenant's schedules.
func (s *Service) namesOf(tenantID string) tablestore.Query {
	from := tablestore.Join(tenantID) + ":"
	return tablestore.Query{Table: s.table, Partition: partitionNames, From: from, To: tablestore.PrefixEnd(from)}
}

// maxMillis is later than any occurrence, in Unix milliseconds.
const maxMillis = 9_999_999_999_999

// newestFirst is a part of a key that sorts later times first.
func newestFirst(at time.Time) string { return tablestore.Pad(maxMillis-at.UnixMilli(), 13) }

// fireRow returns the row key of an occurrence.
func fireRow(at time.Time) string { return tablestore.Join(rowFire, newestFirst(at)) }

// runRow returns the row key of what was run for that time: of is the digest of the run's key, or the id of the backfill.
func runRow(at time.Time, of string) string { return tablestore.Join(rowRun, newestFirst(at), of) }

// entryKey addresses an entry.
func (s *Service) entryKey(id string, due time.Time, nonce string) tablestore.Key {
	return tablestore.Key{
		Table: s.entries, Partition: partitionEntries,
		Row: tablestore.Join(tablestore.Pad(due.UnixMilli(), 13), id, nonce),
	}
}

// Shards implements [ledger.Schedule]: the entries of all schedules are in one partition.
func (s *Service) Shards() int { return 1 }

// Due implements [ledger.Schedule]. The JobID of an entry is the id of a schedule.
func (s *Service) Due(ctx context.Context, _ ledger.Kind, _ int, _ time.Time, limit int, from string) ([]ledger.Entry, string, error) {
	entries := tablestore.Key{Table: s.entries, Partition: partitionEntries}
	return ledger.DueEntries(ctx, s.cfg.Store, entries, "", 0, s.cfg.Now(), limit, from)
}

// load reads a schedule with its definition. It returns [ErrNotFound].
func (s *Service) load(ctx context.Context, id string) (*stored, error) {
	sc, err := s.loadHead(ctx, id)
	if err != nil || sc.State == Deleted {
		return sc, err
	}
	if sc.def, err = s.definition(ctx, id, sc.Version); err != nil {
		return nil, fmt.Errorf("read schedule %s: %w", id, err)
	}
	return sc, nil
}

// loadHead reads a schedule without its definition. It returns [ErrNotFound].
func (s *Service) loadHead(ctx context.Context, id string) (*stored, error) {
	sc := &stored{id: id, asOf: s.cfg.Now()}
	row, err := s.cfg.Store.Get(ctx, s.key(id, rowHead))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, ErrNotFound
	}
	sc.asRead = &tablestore.Op{Verb: tablestore.Replace, Key: row.Key, ETag: row.ETag, Properties: row.Properties}
	if err == nil {
		err = headCodec.Decode(&row, &sc.head)
	}
	if err != nil {
		return nil, fmt.Errorf("read schedule %s: %w", id, err)
	}
	return sc, nil
}

// definition reads one version.
func (s *Service) definition(ctx context.Context, id string, n int) (Definition, error) {
	row, err := s.cfg.Store.Get(ctx, s.key(id, rowVersion, tablestore.Pad(n, 9)))
	if err != nil {
		return Definition{}, err
	}
	var v version
	err = versionCodec.Decode(&row, &v)
	v.Command = tablestore.Large(row.Properties, "command")
	return v.Definition, err
}

// find reads the schedule of that name. It returns [ErrNotFound].
func (s *Service) find(ctx context.Context, tenantID, name string) (*stored, error) {
	named, _, err := s.named(ctx, tenantID, name)
	if err != nil {
		return nil, err
	}
	sc, err := s.load(ctx, named.ID)
	if err == nil && sc.State == Deleted {
		err = ErrNotFound
	}
	return sc, err
}

// named reads the row of a name. It returns [ErrNotFound].
func (s *Service) named(ctx context.Context, tenantID, name string) (named nameRow, tag tablestore.ETag, err error) {
	row, err := s.cfg.Store.Get(ctx, s.nameKey(tenantID, name))
	if errors.Is(err, tablestore.ErrNotFound) {
		return named, "", ErrNotFound
	}
	if err == nil {
		err = nameCodec.Decode(&row, &named)
	}
	if err != nil {
		return named, "", fmt.Errorf("read the name of a schedule: %w", err)
	}
	return named, row.ETag, nil
}

// writeVersion returns the write of the current version.
func (s *Service) writeVersion(sc *stored, actor string) tablestore.Op {
	v := version{Definition: sc.def, CreatedAt: sc.UpdatedAt, Actor: actor}
	return tablestore.Op{
		Verb: tablestore.Insert, Key: s.key(sc.id, rowVersion, tablestore.Pad(sc.Version, 9)),
		Properties: tablestore.AppendLarge(versionCodec.Encode(&v, nil), "command", sc.def.Command),
	}
}

// commit writes HEAD under the version that was read, together with those rows, and its entry before it. due is when the
// entry is; without one it is when the next occurrence starts. It sets Seq, Operation, UpdatedAt and the entry of sc.
//
//	invariant: Seq < entry.Rev ⇒ the commit of that entry may still land
func (s *Service) commit(ctx context.Context, sc *stored, due time.Time, rows ...tablestore.Op) error {
	var raw [16]byte
	if _, err := io.ReadFull(s.cfg.Entropy, raw[:]); err != nil {
		return fmt.Errorf("make fresh ids: %w", err)
	}
	old := sc.head
	sc.Seq, sc.Operation, sc.UpdatedAt = sc.Seq+1, hex.EncodeToString(raw[:]), s.cfg.Now()
	sc.EntryDue, sc.EntryNonce = time.Time{}, ""
	var change tablestore.Change
	if sc.State == Active {
		if due.IsZero() {
			due = sc.Next.Add(calendar.Jitter(sc.id, sc.Next, sc.def.Jitter))
		}
		sc.EntryDue, sc.EntryNonce = due.UTC().Truncate(time.Millisecond), sc.Operation[:8]
		change.Pre = []tablestore.Stage{{{{
			Verb: tablestore.Put, Key: s.entryKey(sc.id, sc.EntryDue, sc.EntryNonce),
			Properties: entryCodec.Encode(&entryRow{Seq: sc.Seq}, nil),
		}}}}
	}
	if sc.relist {
		change.Pre = append(change.Pre, tablestore.Stage{{s.listLost(sc)}})
	}
	if sc.State == Deleted {
		change.Pre = append(change.Pre, tablestore.Stage{{s.listDeleted(sc)}})
	}
	op, loaded := tablestore.Op{Verb: tablestore.Insert, Key: s.key(sc.id, rowHead)}, tablestore.Properties(nil)
	if sc.asRead != nil {
		op.Verb, op.ETag, loaded = tablestore.Replace, sc.asRead.ETag, sc.asRead.Properties
	}
	op.Properties = headCodec.Encode(&sc.head, loaded)
	change.Commit = append(tablestore.Batch{op}, rows...)
	if old.EntryNonce != "" {
		change.Post = []tablestore.Stage{{{{Verb: tablestore.Discard, Key: s.entryKey(sc.id, old.EntryDue, old.EntryNonce)}}}}
	}
	applied, err := tablestore.Apply(ctx, s.cfg.Store, change, nil)
	if err != nil {
		return fmt.Errorf("change schedule %s: %w", sc.id, err)
	}
	op.Verb, op.ETag = tablestore.Replace, applied.ETags[op.Key]
	sc.asRead, sc.asOf, sc.relist = &op, sc.UpdatedAt, false // An entry that is left is deleted when it fires.
	return nil
}

// decodeFire reads a row of the history.
func decodeFire(row *tablestore.Row) (fire Fire, err error) {
	return fire, fireCodec.Decode(row, &fire)
}
