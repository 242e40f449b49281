// Package marks stores what operators say about findings: that one is acknowledged or snoozed, or a
// note. Clients compute findings from the API's answers, so a mark refers to a finding by its id
// alone.
//
// Every mark expires, so that marks of findings that no longer exist do not accumulate. An expired
// mark is not listed, and is deleted when another mark is set.
package marks

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// State is the state of a mark.
type State string

// The states of marks.
const (
	Open         State = "open"         // it needs attention; the mark is a note
	Acknowledged State = "acknowledged" // an operator knows of it
	Snoozed      State = "snoozed"      // it needs attention again at the mark's end
)

// Mark is an operator's statement about a finding.
type Mark struct {
	FindingID string `column:"finding_id"`
	TenantID  string `column:"tenant_id"` // empty for a finding of all tenants
	State     State  `column:"state"`
	Note      string `column:"note"`
	Actor     string `column:"actor"`
	// At is when the mark was set, Until when it expires.
	At    time.Time `column:"at"`
	Until time.Time `column:"until"`
}

// The default lifetimes of a mark.
const (
	DefaultLast   = 7 * 24 * time.Hour
	DefaultSnooze = time.Hour
)

// Most bounds the marks that are kept. Beyond it, the tenants with the most marks lose their oldest.
const Most = 500

// partition holds all marks.
const partition = "marks"

var codec = tablestore.NewCodec[Mark]()

// Service stores the marks. It is safe for concurrent use, by any number of processes on one
// store.
type Service struct {
	store tablestore.Store
	table string
}

// New returns a service on the table.
func New(store tablestore.Store, table string) *Service { return &Service{store: store, table: table} }

func (s *Service) key(tenantID, findingID string) tablestore.Key {
	row := fmt.Sprintf("%x", sha256.Sum256([]byte(tenantID+"\x00"+findingID)))
	return tablestore.Key{Table: s.table, Partition: partition, Row: row}
}

func (s *Service) query() tablestore.Query {
	return tablestore.Query{Table: s.table, Partition: partition}
}

// List returns the marks that have not expired, in no order. The error is the store's.
func (s *Service) List(ctx context.Context) ([]Mark, error) {
	all, err := codec.ScanAll(ctx, s.store, s.query())
	if err != nil {
		return nil, fmt.Errorf("read the marks: %w", err)
	}
	now := tablestore.Now()
	return slices.DeleteFunc(all, func(m Mark) bool { return !m.Until.After(now) }), nil
}

// Set replaces the finding's mark. A lifetime of 0 is the default of the state. An open mark without a
// note only removes the previous one. The error is the store's; the mark may then be stored.
func (s *Service) Set(ctx context.Context, mark Mark, lasts time.Duration) (Mark, error) {
	if lasts == 0 {
		lasts = DefaultLast
		if mark.State == Snoozed {
			lasts = DefaultSnooze
		}
	}
	mark.At = tablestore.Now()
	mark.Until = mark.At.Add(lasts).Truncate(time.Millisecond)
	op := tablestore.Op{Verb: tablestore.Put, Key: s.key(mark.TenantID, mark.FindingID)}
	if op.Properties = codec.Encode(&mark, nil); mark.State == Open && mark.Note == "" {
		op.Verb, op.Properties, mark.Until = tablestore.Discard, nil, mark.At
	}
	if _, err := s.store.Commit(ctx, tablestore.Batch{op}); err != nil {
		return Mark{}, fmt.Errorf("store a mark: %w", err)
	}
	return mark, s.prune(ctx)
}

// prune deletes expired marks and, beyond [Most], the oldest marks of the tenants with the most, so
// that no tenant displaces the marks of others. If another process replaces one of these marks at
// the same time, prune deletes none; the next call does.
func (s *Service) prune(ctx context.Context) error {
	rows, err := tablestore.ScanAll(ctx, s.store, s.query())
	if err != nil {
		return fmt.Errorf("read the marks: %w", err)
	}
	now, batch, kept := tablestore.Now(), tablestore.Batch{}, map[string][]ranked{}
	drop := func(row *tablestore.Row) {
		if len(batch) < tablestore.MaxBatchOps {
			batch = append(batch, tablestore.Op{Verb: tablestore.Delete, Key: row.Key, ETag: row.ETag})
		}
	}
	for i := range rows {
		var mark Mark
		if err := codec.Decode(&rows[i], &mark); err != nil {
			return fmt.Errorf("read the marks: %w", err)
		}
		if !mark.Until.After(now) {
			drop(&rows[i])
			continue
		}
		kept[mark.TenantID] = append(kept[mark.TenantID], ranked{row: &rows[i], at: mark.At})
	}
	var all []ranked
	for _, own := range kept {
		slices.SortFunc(own, func(a, b ranked) int { return b.at.Compare(a.at) })
		for i := range own {
			own[i].rank = i
		}
		all = append(all, own...)
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(a.rank-b.rank, b.at.Compare(a.at)) })
	for i := range all[min(len(all), Most):] {
		drop(all[Most+i].row)
	}
	if len(batch) == 0 {
		return nil
	}
	if _, err := s.store.Commit(ctx, batch); err != nil && !errors.Is(err, tablestore.ErrConflict) {
		return fmt.Errorf("delete marks: %w", err)
	}
	return nil
}

// ranked is a mark that has not expired. rank counts the later marks of its tenant.
type ranked struct {
	row  *tablestore.Row
	at   time.Time
	rank int
}
