package schedules

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// trimEvery is after how many changes the history is trimmed.
	trimEvery = 64
	// keepRows and keepFor bound the history: what is beyond either is deleted.
	keepRows = 1_000
	keepFor  = 90 * 24 * time.Hour
	// keepKey is how long the idempotency key of a run counts at least.
	keepKey = 24 * time.Hour
)

// past is a row of the history.
type past struct {
	Fire

	row string
}

// Fires returns one page of the history, newest first, after that token, and the token of the next page, empty at the end.
// It returns [ErrNotFound], and an [*InvalidError] for a token of another list.
func (s *Service) Fires(ctx context.Context, tenantID, name, after string, limit int) ([]Fire, string, error) {
	sc, err := s.find(ctx, tenantID, name)
	if err != nil {
		return nil, "", err
	}
	return s.fires(ctx, sc.id, after, limit)
}

// fires merges the occurrences, the rows of many missed ones, and the runs, by their times and then by their keys. The token is
// the key of the last row before the page.
func (s *Service) fires(ctx context.Context, id, after string, limit int) ([]Fire, string, error) {
	parts := []string{"", ""}
	if after != "" {
		var err error
		if parts, err = tablestore.Split(after); err != nil || len(parts) < 2 || !slices.Contains(historyRows, parts[0]) {
			return nil, "", &InvalidError{Pointer: "page_token", Message: "is of another list"}
		}
	}
	var all []past
	for _, kind := range historyRows {
		query := tablestore.Query{Table: s.table, Partition: id, From: kind + ":", To: tablestore.PrefixEnd(kind + ":"), Limit: limit + 1}
		switch at := tablestore.Join(kind, parts[1]); {
		case after == "":
		case kind > parts[0]:
			query.From = at
		case kind == parts[0]:
			query.From = after + "!" // No key has this character.
		default:
			query.From = at + "!"
		}
		found, err := s.scanPast(ctx, query)
		if err != nil {
			return nil, "", err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b past) int {
		return cmp.Or(b.ScheduledFor.Compare(a.ScheduledFor), cmp.Compare(a.row, b.row))
	})
	next := ""
	if len(all) > limit {
		all = all[:limit]
		next = all[limit-1].row
	}
	fires := make([]Fire, len(all))
	for i := range all {
		fires[i] = all[i].Fire
	}
	return fires, next, nil
}

// historyRows are the rows of the history, in the order of their keys.
var historyRows = []string{rowFire, rowRange, rowRun}

// scanPast reads rows of the history, up to the query's limit, or all.
func (s *Service) scanPast(ctx context.Context, query tablestore.Query) (all []past, err error) {
	most := query.Limit
	for {
		page, err := s.cfg.Store.Scan(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read the history of schedule %s: %w", query.Partition, err)
		}
		for i := range page.Rows {
			fire, err := decodeFire(&page.Rows[i])
			if err != nil {
				return nil, err
			}
			all = append(all, past{fire, page.Rows[i].Key.Row})
		}
		if query.Continue = page.Next; page.Next == "" || most > 0 && len(all) >= most {
			return all, nil
		}
	}
}

// trimUntil returns up to which time rows of a kind are beyond the bounds of the history: not later than that, and none that a
// backfill may be firing, whose claims these rows are.
func (s *Service) trimUntil(ctx context.Context, id, kind string, now, latest time.Time) (until time.Time, err error) {
	newest, err := s.scanPast(ctx, tablestore.Query{
		Table: s.table, Partition: id, From: kind + ":", To: tablestore.PrefixEnd(kind + ":"), Limit: keepRows,
	})
	if err != nil {
		return until, err
	}
	if until = now.Add(-keepFor); len(newest) >= keepRows {
		if beyond := newest[keepRows-1].ScheduledFor.Add(-time.Millisecond); beyond.After(until) {
			until = beyond
		}
	}
	if until.After(latest) {
		until = latest
	}
	all, err := s.backfills(ctx, id)
	for i := range all {
		// A process that stalled may still be firing for one that has ended.
		if b := &all[i]; (!b.Done || now.Sub(b.EndedAt) < orphanGrace) && !until.Before(b.From) {
			until = b.From.Add(-time.Millisecond)
		}
	}
	return until, err
}

// planTrim sets up to which occurrence the history is deleted after the next commit: never above Last.
func (s *Service) planTrim(ctx context.Context, sc *stored, now time.Time) error {
	until, err := s.trimUntil(ctx, sc.id, rowFire, now, sc.Last)
	if err == nil && until.After(sc.Trimmed) {
		sc.Trimmed = until
	}
	return err
}

// trim deletes the history up to Trimmed, and old runs.
func (s *Service) trim(ctx context.Context, sc *stored) error {
	if sc.Trimmed.IsZero() {
		return s.trimRuns(ctx, sc.id)
	}
	for _, kind := range []string{rowFire, rowRange} {
		err := tablestore.DiscardAll(ctx, s.cfg.Store, tablestore.Query{
			Table: s.table, Partition: sc.id, From: tablestore.Join(kind, newestFirst(sc.Trimmed)), To: tablestore.PrefixEnd(kind + ":"),
		}, "")
		if err != nil {
			return fmt.Errorf("trim the history of schedule %s: %w", sc.id, err)
		}
	}
	return s.trimRuns(ctx, sc.id)
}

// trimRuns deletes the runs that are beyond the bounds of the history, unless their keys still count, and their keys.
func (s *Service) trimRuns(ctx context.Context, id string) error {
	now := s.cfg.Now()
	until, err := s.trimUntil(ctx, id, rowRun, now, now.Add(-keepKey))
	if err != nil {
		return err
	}
	old, err := s.scanPast(ctx, tablestore.Query{
		Table: s.table, Partition: id, From: tablestore.Join(rowRun, newestFirst(until)), To: tablestore.PrefixEnd(rowRun + ":"),
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(old, tablestore.MaxBatchOps/2) {
		var batch tablestore.Batch
		for i := range some {
			if now.Sub(some[i].DecidedAt) < keepKey { // A backfill that began since then repeats it.
				continue
			}
			key := tablestore.Key{Table: s.table, Partition: id, Row: some[i].row}
			batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: key})
			if some[i].BackfillID == "" {
				digest := some[i].row[strings.LastIndex(some[i].row, ":")+1:]
				batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: s.key(id, rowRunKey, digest)})
			}
		}
		if len(batch) == 0 {
			continue
		}
		if _, err := s.cfg.Store.Commit(ctx, batch); err != nil {
			return fmt.Errorf("trim the runs of schedule %s: %w", id, err)
		}
	}
	return nil
}
