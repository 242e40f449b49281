package aztablestore

import (
	"cmp"
	"context"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxPage is the greatest number of rows in one answer of Azure Tables.
const maxPage = 1000

// Get implements [tablestore.Store].
func (s *Store) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if err := key.Validate(); err != nil {
		return tablestore.Row{}, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return tablestore.Row{}, err
	}
	defer end()
	return s.get(ctx, key)
}

// get reads the row of a valid key within a call.
func (s *Store) get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	table := s.service.NewClient(key.Table)
	var entity []byte
	read := request{name: "get", key: key, repeatable: true}
	_, failed := s.send(ctx, read, func(ctx context.Context) error {
		answer, err := table.GetEntity(ctx, key.Partition, key.Row, nil)
		entity = answer.Value
		return err
	})
	if failed != nil && (failed.noRow() || s.readsAsEmpty(failed)) {
		return tablestore.Row{}, fmt.Errorf("%w: %s", tablestore.ErrNotFound, key)
	}
	if failed != nil {
		return tablestore.Row{}, fmt.Errorf("get %s: %w", key, failed.ofRead())
	}
	row, err := decodeRow(key.Table, entity)
	if err == nil && row.Key != key {
		err = fmt.Errorf("%w: the answer is row %s", tablestore.ErrCorrupt, row.Key)
	}
	if err != nil {
		return tablestore.Row{}, fmt.Errorf("get %s: %w", key, err)
	}
	return row, nil
}

// readsAsEmpty reports whether a read failed only because a table is missing that reads as empty.
func (s *Store) readsAsEmpty(failed *requestError) bool {
	return s.options.ReadOnly && failed.code == tableMissing
}

// Scan implements [tablestore.Store]. The service may return an empty page in
// between, if a query took too long. Scan does not return it, but continues
// until it has a row or knows that there is none.
func (s *Store) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	if err := query.Validate(); err != nil {
		return tablestore.Page{}, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return tablestore.Page{}, err
	}
	defer end()
	// Keys and bounds contain no quotes.
	filter := "PartitionKey eq '" + query.Partition + "'"
	from, some := lowest(max(query.From, query.Continue))
	if from != "" {
		filter += " and RowKey ge '" + from + "'"
	}
	if query.To != "" {
		if to, ok := lowest(query.To); ok {
			filter += " and RowKey lt '" + to + "'"
			some = some && from < to
		}
	}
	if !some {
		return tablestore.Page{}, nil // No key can match.
	}
	page, err := s.page(ctx, query.Table, query.Partition, filter, query.Limit)
	if err != nil {
		return tablestore.Page{}, fmt.Errorf("scan %s/%s: %w", query.Table, query.Partition, err)
	}
	return page, nil
}

// Walk implements [tablestore.Walker]. The rest of a partition and the
// partitions after it are two queries, because the service uses its index only
// for a single range.
func (s *Store) Walk(ctx context.Context, walk tablestore.Walk) ([]tablestore.Row, error) {
	if err := walk.Validate(); err != nil {
		return nil, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	filters := []string{""}
	if !walk.First() {
		filters = []string{
			"PartitionKey eq '" + walk.Partition + "' and RowKey gt '" + walk.Row + "'",
			"PartitionKey gt '" + walk.Partition + "'",
		}
	}
	for _, filter := range filters {
		page, err := s.page(ctx, walk.Table, "", filter, walk.Limit)
		if err != nil {
			return nil, fmt.Errorf("walk of %s: %w", walk.Table, err)
		}
		if len(page.Rows) > 0 {
			return page.Rows, nil
		}
	}
	return nil, nil
}

// page returns the first page with a row, or an empty last page.
func (s *Store) page(ctx context.Context, table, partition, filter string, limit int) (tablestore.Page, error) {
	client := s.service.NewClient(table)
	top := int32(min(cmp.Or(limit, maxPage), maxPage))
	options := aztables.ListEntitiesOptions{Top: &top}
	if filter != "" {
		options.Filter = &filter
	}
	read := request{name: "scan", key: tablestore.Key{Table: table, Partition: partition}, repeatable: true}
	for {
		var answer aztables.ListEntitiesResponse
		_, failed := s.send(ctx, read, func(ctx context.Context) (err error) {
			answer, err = client.NewListEntitiesPager(&options).NextPage(ctx)
			return err
		})
		if failed != nil && s.readsAsEmpty(failed) {
			return tablestore.Page{}, nil
		}
		if failed != nil {
			return tablestore.Page{}, failed.ofRead()
		}
		page := tablestore.Page{Rows: make([]tablestore.Row, len(answer.Entities))}
		for i, entity := range answer.Entities {
			row, err := decodeRow(table, entity)
			if err != nil {
				return tablestore.Page{}, err
			}
			page.Rows[i] = row
		}
		options.NextPartitionKey, options.NextRowKey = answer.NextPartitionKey, answer.NextRowKey
		more := !blank(answer.NextPartitionKey) || !blank(answer.NextRowKey)
		if len(page.Rows) > 0 && more {
			// Right after the last row rather than at the service's mark, which
			// has its own order and may become invalid when the service moves
			// data.
			page.Next = page.Rows[len(page.Rows)-1].Key.Row + "\x00"
		}
		if len(page.Rows) > 0 || !more {
			return page, nil
		}
	}
}

// blank reports whether a part of a continuation mark is missing.
func blank(mark *string) bool { return mark == nil || *mark == "" }

// alphabet holds the legal characters of keys, in ascending order.
const alphabet = "-.0123456789:=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"

// lowest returns the lowest key that is not below the bound, which may be any
// string. Bound and result have the same keys below them, so a filter needs no
// characters that an address or the service's string order might treat
// differently. ok is false if every key is below the bound.
func lowest(bound string) (key string, ok bool) {
	for i := range len(bound) {
		next, legal := following(bound[i])
		if legal {
			continue
		}
		if next != 0 {
			return bound[:i] + string(next), true
		}
		// All keys that begin with bound[:i] are below the bound.
		for i--; i >= 0; i-- {
			if next, _ := following(bound[i] + 1); next != 0 {
				return bound[:i] + string(next), true
			}
		}
		return "", false
	}
	return bound, true
}

// following returns the lowest legal character that is not below c, or 0 if
// there is none, and whether it is c itself.
func following(c byte) (next byte, same bool) {
	for i := range len(alphabet) {
		if alphabet[i] >= c {
			return alphabet[i], alphabet[i] == c
		}
	}
	return 0, false
}
