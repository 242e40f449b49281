package workqueue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A refill reads at most perTenant hints of each tenant, so that one tenant's
// backlog hides no other's, and at most perRefill in all.
const (
	perTenant = 128
	perRefill = 8192
)

// refill looks for ready items in the store, at most once a second, or at once
// where the mirror could not hold all: those of other processes, and those
// from before this one started.
func (q *Queue) refill(ctx context.Context, filter *Filter) error {
	if !q.ready.overflowed() && !q.refillDue(filter) {
		return nil
	}
	kinds, err := q.kinds(ctx)
	if err != nil {
		return err
	}
	left := perRefill
	for _, k := range kinds {
		if !filter.matches(k) {
			continue
		}
		if left, err = q.refillKind(ctx, k, left); err != nil {
			return err
		}
	}
	return nil
}

// maxFilters bounds how many filters have a clock of their own.
const maxFilters = 1024

// refillDue reports whether it is time to look for this filter's work again.
func (q *Queue) refillDue(filter *Filter) bool {
	name := strings.Join(filter.Services, ",") + "/" + strings.Join(filter.StepTypes, ",")
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Since(q.refilled[name]) < pollInterval {
		return false
	}
	if len(q.refilled) >= maxFilters {
		clear(q.refilled)
	}
	q.refilled[name] = time.Now()
	return true
}

// kinds reads the catalog.
func (q *Queue) kinds(ctx context.Context) ([]kind, error) {
	query := tablestore.Query{Table: q.storage.table, Partition: "catalog"}
	var kinds []kind
	for {
		page, err := q.storage.store.Scan(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read the queue's catalog: %w", err)
		}
		for i := range page.Rows {
			parts, err := tablestore.Split(page.Rows[i].Key.Row)
			if err != nil || len(parts) != 2 {
				return nil, fmt.Errorf("bad key %q in the queue's catalog", page.Rows[i].Key.Row)
			}
			kinds = append(kinds, kind{service: parts[0], stepType: parts[1]})
		}
		if page.Next == "" {
			return kinds, nil
		}
		query.Continue = page.Next
	}
}

// refillKind reads the hints of one kind, skipping from tenant to tenant. It
// returns how many more may be read.
func (q *Queue) refillKind(ctx context.Context, k kind, left int) (int, error) {
	from := ""
	for left > 0 {
		page, err := q.storage.store.Scan(ctx, tablestore.Query{
			Table: q.storage.table, Partition: tablestore.Join("ready", k.service, k.stepType), From: from,
			Limit: min(perTenant, left),
		})
		if err != nil {
			return left, fmt.Errorf("read the ready items of service %q: %w", k.service, err)
		}
		if len(page.Rows) == 0 && page.Next == "" {
			return left, nil
		}
		for i := range page.Rows {
			item, err := decodeHint(k, page.Rows[i].Key.Row)
			if err != nil {
				return left, err
			}
			q.ready.add(item)
		}
		left -= len(page.Rows)
		if page.Next == "" {
			return left, nil
		}
		if len(page.Rows) > 0 {
			from = nextTenant(page.Rows)
		}
	}
	return left, nil
}

// nextTenant is where to go on: behind the tenant that fills the page to its
// end, or behind the last row where the page holds more than one tenant.
func nextTenant(rows []tablestore.Row) string {
	first, last := tenantPrefix(rows[0].Key.Row), tenantPrefix(rows[len(rows)-1].Key.Row)
	if first == last {
		return tablestore.PrefixEnd(last)
	}
	return rows[len(rows)-1].Key.Row + "\x00"
}

// tenantPrefix is the part of a hint's key that all hints of its tenant share.
func tenantPrefix(row string) string { return row[:strings.IndexByte(row, ':')+1] }

// decodeHint reads a hint from its key.
func decodeHint(k kind, row string) (ref, error) {
	parts, err := tablestore.Split(row)
	if err != nil || len(parts) != 3 {
		return ref{}, fmt.Errorf("bad key %q among the ready items", row)
	}
	ms, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return ref{}, fmt.Errorf("bad key %q among the ready items", row)
	}
	return ref{kind: k, tenant: parts[0], workID: parts[2], created: time.UnixMilli(ms).UTC()}, nil
}

// joinIDs and splitIDs are the stored form of a list of work ids, which hold
// no white space.
func joinIDs(ids []string) []byte { return []byte(strings.Join(ids, "\n")) }

func splitIDs(data []byte) []string { return strings.Fields(string(data)) }
