// Package marks keeps what operators say of findings: that one is acknowledged, that it is to
// return later, or a note. A finding is what a client computes from what the API answers, so
// that a mark knows it by its id alone.
//
// A mark is a row with an end. Marks whose time is over are not listed, and are deleted when
// another mark is set, so that those of findings that have gone away do not stay.
package marks

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// State is what a mark says of its finding.
type State string

// The states of marks.
const (
	Open         State = "open"         // it needs attention; the mark is a note
	Acknowledged State = "acknowledged" // an operator knows of it
	Snoozed      State = "snoozed"      // it needs attention again at the mark's end
)

// Mark is what an operator says of a finding.
type Mark struct {
	FindingID string `column:"finding_id"`
	TenantID  string `column:"tenant_id"` // empty for a finding of all tenants
	State     State  `column:"state"`
	Note      string `column:"note"`
	Actor     string `column:"actor"`
	// At is when it was set, Until when it ends.
	At    time.Time `column:"at"`
	Until time.Time `column:"until"`
}

// How long a mark lasts unless its request says otherwise.
const (
	DefaultLast   = 7 * 24 * time.Hour
	DefaultSnooze = time.Hour
)

// Most is how many marks are kept. Of more, those that end first are deleted.
const Most = 500

// partition holds all marks.
const partition = "marks"

var codec = tablestore.NewCodec[Mark]()

// Service keeps the marks. It is safe for concurrent use, by any number of processes on one
// store.
type Service struct {
	store tablestore.Store
	table string
}

// New returns the marks in the table.
func New(store tablestore.Store, table string) *Service { return &Service{store: store, table: table} }

func (s *Service) key(tenantID, findingID string) tablestore.Key {
	row := fmt.Sprintf("%x", sha256.Sum256([]byte(tenantID+"\x00"+findingID)))
	return tablestore.Key{Table: s.table, Partition: partition, Row: row}
}

// List returns the marks whose time is not over, in no order. The error is the store's.
func (s *Service) List(ctx context.Context) ([]Mark, error) {
	all, err := codec.ScanAll(ctx, s.store, tablestore.Query{Table: s.table, Partition: partition})
	if err != nil {
		return nil, fmt.Errorf("read the marks: %w", err)
	}
	now := tablestore.Now()
	return slices.DeleteFunc(all, func(m Mark) bool { return !m.Until.After(now) }), nil
}

// Set stores a mark, which lasts so long; 0 is the default of its state. It replaces the
// finding's mark. An open one without a note only removes that. The error is the store's.
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

// prune deletes the marks whose time is over, and those that are too many.
func (s *Service) prune(ctx context.Context) error {
	all, err := codec.ScanAll(ctx, s.store, tablestore.Query{Table: s.table, Partition: partition})
	if err != nil {
		return fmt.Errorf("read the marks: %w", err)
	}
	slices.SortFunc(all, func(a, b Mark) int { return b.Until.Compare(a.Until) })
	now, batch := tablestore.Now(), tablestore.Batch{}
	for i := range all {
		if (i >= Most || !all[i].Until.After(now)) && len(batch) < tablestore.MaxBatchOps {
			batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: s.key(all[i].TenantID, all[i].FindingID)})
		}
	}
	if len(batch) == 0 {
		return nil
	}
	if _, err := s.store.Commit(ctx, batch); err != nil {
		return fmt.Errorf("delete marks: %w", err)
	}
	return nil
}
