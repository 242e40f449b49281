package aztablestore

import (
	"context"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

var _ tablestore.Walker = (*Store)(nil)

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
	top := int32(maxPage)
	if walk.Limit > 0 {
		top = int32(min(walk.Limit, maxPage))
	}
	for _, filter := range filters {
		options := aztables.ListEntitiesOptions{Top: &top}
		if filter != "" {
			options.Filter = &filter
		}
		page, err := s.page(ctx, tablestore.Query{Table: walk.Table}, options)
		if err != nil {
			return nil, fmt.Errorf("walk of %s: %w", walk.Table, err)
		}
		if len(page.Rows) > 0 {
			return page.Rows, nil
		}
	}
	return nil, nil
}
