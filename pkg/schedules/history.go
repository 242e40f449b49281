package schedules

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// trimEvery is after how many changes the history is trimmed.
	trimEvery = 64
	// keepRows and keepFor bound the history: what is beyond either is deleted.
	keepRows = 1_000
	keepFor  = 90 * 24 * time.Hour
)

// Fires returns one page of the history, newest first, after that token, and the token of the next page, empty at the end.
// It returns [ErrNotFound], and an [*InvalidError] for a token of another list.
func (s *Service) Fires(ctx context.Context, tenantID, name, after string, limit int) ([]Fire, string, error) {
	sc, err := s.find(ctx, tenantID, name)
	if err != nil {
		return nil, "", err
	}
	return s.fires(ctx, sc.id, after, limit)
}

// fires merges the occurrences, the runs, and the rows of many missed ones.
func (s *Service) fires(ctx context.Context, id, after string, limit int) ([]Fire, string, error) {
	before := time.UnixMilli(maxMillis)
	if after != "" {
		ms, err := strconv.ParseInt(after, 10, 64)
		if err != nil || ms < 0 || ms > maxMillis {
			return nil, "", &InvalidError{Pointer: "page_token", Message: "is of another list"}
		}
		before = time.UnixMilli(ms)
	}
	var all []Fire
	for _, kind := range []string{rowFire, rowRange, rowRun} {
		query := tablestore.Query{Table: s.table, Partition: id, From: kind + ":", To: tablestore.PrefixEnd(kind + ":"), Limit: limit + 1}
		if kind == rowRun { // Their keys are in no order, and few.
			query.Limit = 0
		} else {
			query.From = tablestore.Join(kind, newestFirst(before.Add(-time.Millisecond)))
		}
		found, err := s.scanFires(ctx, query)
		if err != nil {
			return nil, "", err
		}
		all = append(all, found...)
	}
	all = slices.DeleteFunc(all, func(f Fire) bool { return !f.ScheduledFor.Before(before) })
	slices.SortStableFunc(all, func(a, b Fire) int { return b.ScheduledFor.Compare(a.ScheduledFor) })
	if len(all) <= limit {
		return all, "", nil
	}
	all = all[:limit]
	return all, strconv.FormatInt(all[limit-1].ScheduledFor.UnixMilli(), 10), nil
}

// scanFires reads rows of the history: up to the query's limit, or all.
func (s *Service) scanFires(ctx context.Context, query tablestore.Query) (fires []Fire, err error) {
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
			fires = append(fires, fire)
		}
		if query.Continue = page.Next; page.Next == "" || most > 0 && len(fires) >= most {
			return fires, nil
		}
	}
}

// planTrim sets up to which occurrence the history is deleted after the next commit: never above Last.
func (s *Service) planTrim(ctx context.Context, sc *stored, now time.Time) error {
	until := now.Add(-keepFor)
	newest, err := s.scanFires(ctx, tablestore.Query{
		Table: s.table, Partition: sc.id, From: rowFire + ":", To: tablestore.PrefixEnd(rowFire + ":"), Limit: keepRows,
	})
	if err != nil {
		return err
	}
	if len(newest) >= keepRows && newest[keepRows-1].ScheduledFor.After(until) {
		until = newest[keepRows-1].ScheduledFor.Add(-time.Millisecond)
	}
	if until.After(sc.Last) {
		until = sc.Last
	}
	if until.After(sc.Trimmed) {
		sc.Trimmed = until
	}
	return nil
}

// trim deletes the history up to Trimmed.
func (s *Service) trim(ctx context.Context, sc *stored) error {
	if sc.Trimmed.IsZero() {
		return nil
	}
	for _, kind := range []string{rowFire, rowRange} {
		err := tablestore.DiscardAll(ctx, s.cfg.Store, tablestore.Query{
			Table: s.table, Partition: sc.id, From: tablestore.Join(kind, newestFirst(sc.Trimmed)), To: tablestore.PrefixEnd(kind + ":"),
		}, "")
		if err != nil {
			return fmt.Errorf("trim the history of schedule %s: %w", sc.id, err)
		}
	}
	return nil
}
