package aztablestore

import (
	"context"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxPage is the greatest number of rows in one answer of Azure Tables.
const maxPage = 1000

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
	filter, some := filterOf(query)
	if !some {
		return tablestore.Page{}, nil
	}
	top := int32(maxPage)
	if query.Limit > 0 {
		top = int32(min(query.Limit, maxPage))
	}
	page, err := s.page(ctx, query, aztables.ListEntitiesOptions{Filter: &filter, Top: &top})
	if err != nil {
		return tablestore.Page{}, fmt.Errorf("scan %s/%s: %w", query.Table, query.Partition, err)
	}
	return page, nil
}

// page returns the first page with a row, or an empty last page.
func (s *Store) page(
	ctx context.Context, query tablestore.Query, options aztables.ListEntitiesOptions,
) (tablestore.Page, error) {
	for {
		answer, failed := s.list(ctx, query, &options)
		if failed != nil {
			return tablestore.Page{}, failed.ofRead()
		}
		page := tablestore.Page{Rows: make([]tablestore.Row, len(answer.Entities))}
		for i, entity := range answer.Entities {
			row, err := decodeRow(query.Table, entity)
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

// list requests the entities that the options select.
func (s *Store) list(
	ctx context.Context, query tablestore.Query, options *aztables.ListEntitiesOptions,
) (aztables.ListEntitiesResponse, *requestError) {
	table := s.service.NewClient(query.Table)
	var answer aztables.ListEntitiesResponse
	read := request{name: "scan", target: query.Table + "/" + query.Partition, repeatable: true}
	_, failed := s.send(ctx, read, func(ctx context.Context) error {
		var err error
		answer, err = table.NewListEntitiesPager(options).NextPage(ctx)
		return err
	})
	return answer, failed
}

// filterOf returns the query as a filter, or false if no key can match. Keys
// and bounds contain no quotes.
func filterOf(query tablestore.Query) (filter string, some bool) {
	filter = "PartitionKey eq '" + query.Partition + "'"
	from, ok := lowest(max(query.From, query.Continue))
	if !ok {
		return "", false
	}
	if from != "" {
		filter += " and RowKey ge '" + from + "'"
	}
	if query.To == "" {
		return filter, true
	}
	if to, ok := lowest(query.To); ok {
		filter += " and RowKey lt '" + to + "'"
		return filter, from < to
	}
	return filter, true
}

// blank reports whether a part of a continuation mark is missing.
func blank(mark *string) bool { return mark == nil || *mark == "" }
