package workqueue

import (
	"context"
	"fmt"
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
		if left, err = q.refillKind(ctx, k, filter, left); err != nil {
			return err
		}
	}
	return nil
}

// maxFilters bounds how many filters have a clock of their own.
const maxFilters = 1024

// refillDue reports whether it is time to look for this filter's work again.
func (q *Queue) refillDue(filter *Filter) bool {
	name := filter.name()
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
	rows, err := q.storage.rows(ctx, tablestore.Query{Table: q.storage.table, Partition: "catalog"})
	if err != nil {
		return nil, fmt.Errorf("read the queue's catalog: %w", err)
	}
	kinds := make([]kind, 0, len(rows))
	for i := range rows {
		parts, err := tablestore.Split(rows[i].Key.Row)
		if err != nil || len(parts) != 2 {
			q.logger.WarnContext(ctx, "bad key in the queue's catalog", "row", rows[i].Key.Row)
			continue
		}
		kinds = append(kinds, kind{service: parts[0], stepType: parts[1]})
	}
	return kinds, nil
}

// refillKind reads the hints of one kind: of the tenants that the filter names,
// or skipping from tenant to tenant. It returns how many more may be read.
func (q *Queue) refillKind(ctx context.Context, k kind, filter *Filter, left int) (int, error) {
	if !filter.any() {
		for _, tenant := range filter.tenants() {
			prefix := tablestore.Join(tenant) + ":"
			rows, _, err := q.hints(ctx, k, prefix, tablestore.PrefixEnd(prefix), left)
			if left -= rows; err != nil || left <= 0 {
				return left, err
			}
		}
		return left, nil
	}
	from := ""
	for left > 0 {
		rows, next, err := q.hints(ctx, k, from, "", left)
		if left -= rows; err != nil || next == "" {
			return left, err
		}
		from = next
	}
	return left, nil
}

// hints puts one page of a kind's hints into the mirror. It returns how many
// there were, and where the next tenant's begin, empty where there is nothing
// more.
func (q *Queue) hints(ctx context.Context, k kind, from, to string, limit int) (int, string, error) {
	query := tablestore.Query{
		Table: q.storage.table, Partition: tablestore.Join("ready", k.service, k.stepType), From: from, To: to,
		Limit: min(perTenant, limit),
	}
	for {
		page, err := q.storage.store.Scan(ctx, query)
		if err != nil {
			return 0, "", fmt.Errorf("read the ready items of service %q: %w", k.service, err)
		}
		if query.Continue = page.Next; len(page.Rows) == 0 && page.Next != "" {
			continue // A store may answer with an empty page that is not the last.
		}
		for i := range page.Rows {
			item, err := decodeHint(k, page.Rows[i].Key.Row)
			if err != nil {
				q.logger.WarnContext(ctx, "bad hint", "error", err)
				continue
			}
			q.ready.add(item)
		}
		if page.Next == "" {
			return len(page.Rows), "", nil
		}
		return len(page.Rows), nextTenant(page.Rows), nil
	}
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
