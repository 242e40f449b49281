package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// partition holds all pauses, limits and closures: there are never many.
const partition = "admission"

// The kinds of rows, with which their keys begin.
const (
	kindPause  = "pause"
	kindLimit  = "limit"
	kindClosed = "closed"
)

var (
	pauseCodec   = tablestore.NewCodec[Pause](tablestore.FormatAs("pause_id", statemachine.Scope.ID, statemachine.ParseScope))
	limitCodec   = tablestore.NewCodec[Limit]()
	closureCodec = tablestore.NewCodec[Closure]()
)

// Service keeps the pauses, limits and closures. It is safe for concurrent use, by any number of
// processes on one store. Each request of it is one of the store.
type Service struct {
	store  tablestore.Store
	table  string
	random func() float64
}

// New returns the service on the table. random returns numbers in [0, 1), for the delays after
// lost races; nil means math/rand/v2. It must be safe for concurrent use.
func New(store tablestore.Store, table string, random func() float64) *Service {
	return &Service{store: store, table: table, random: random}
}

func (s *Service) key(kind string, scope Scope) tablestore.Key {
	return tablestore.Key{
		Table: s.table, Partition: partition, Row: tablestore.Join(kind, scope.Service, scope.StepType, scope.TenantID),
	}
}

func (s *Service) pauseKey(scope statemachine.Scope) tablestore.Key {
	return tablestore.Key{
		Table: s.table, Partition: partition, Row: tablestore.Join(kindPause, cmp.Or(scope.Kind, scope.ID()), scope.Value),
	}
}

// rows are the stored pauses, limits and closures.
type rows struct {
	pauses   []Pause
	limits   []Limit
	closures []Closure
	etags    map[tablestore.Key]tablestore.ETag
}

// Pauses returns all pauses, ramping ones included, by id. The error is the store's.
func (s *Service) Pauses(ctx context.Context) ([]Pause, error) {
	found, err := s.scan(ctx)
	return found.pauses, err
}

// Limits returns all limits, and the closures that are not over, each in the order of their
// scopes. The error is the store's.
func (s *Service) Limits(ctx context.Context) ([]Limit, []Closure, error) {
	found, err := s.scan(ctx)
	now := tablestore.Now()
	return found.limits, slices.DeleteFunc(found.closures, func(c Closure) bool { return !c.Until.After(now) }), err
}

func (s *Service) scan(ctx context.Context) (found rows, err error) {
	all, err := tablestore.ScanAll(ctx, s.store, tablestore.Query{Table: s.table, Partition: partition})
	if err != nil {
		return rows{}, fmt.Errorf("read the pauses and limits: %w", err)
	}
	found.etags = make(map[tablestore.Key]tablestore.ETag, len(all))
	for i := range all {
		row := &all[i]
		found.etags[row.Key] = row.ETag
		switch kind, _, _ := strings.Cut(row.Key.Row, ":"); kind {
		case kindPause:
			err = appendRow(&found.pauses, pauseCodec, row)
		case kindClosed:
			err = appendRow(&found.closures, closureCodec, row)
		default:
			err = appendRow(&found.limits, limitCodec, row)
		}
		if err != nil {
			return rows{}, fmt.Errorf("read the pauses and limits: %w", err)
		}
	}
	return found, nil
}

func appendRow[T any](to *[]T, codec *tablestore.Codec[T], row *tablestore.Row) error {
	var one T
	err := codec.Decode(row, &one)
	*to = append(*to, one)
	return err
}

// update changes a row under its version, and returns what it is then. decide returns what to store;
// old to change nothing, which is nil without a row.
func update[T any](
	ctx context.Context, s *Service, key tablestore.Key, codec *tablestore.Codec[T], decide func(old *T) (*T, error),
) (updated T, err error) {
	err = tablestore.Update(ctx, s.store, key, s.random, func(row *tablestore.Row) (tablestore.Properties, error) {
		var old *T
		if row.ETag != "" {
			old = new(T)
			if err := codec.Decode(row, old); err != nil {
				return nil, err
			}
		}
		next, err := decide(old)
		if next != nil {
			updated = *next
		}
		if err != nil || next == old {
			return nil, err
		}
		return codec.Encode(next, row.Properties), nil
	})
	return updated, err
}

// forget deletes a row that no longer holds anything back, unless it has changed.
func (s *Service) forget(ctx context.Context, key tablestore.Key, etag tablestore.ETag) error {
	_, err := s.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: etag}})
	if err != nil && !errors.Is(err, tablestore.ErrConflict) {
		return fmt.Errorf("delete %s: %w", key.Row, err)
	}
	return nil
}
