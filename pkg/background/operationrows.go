package background

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// operationsPartition holds the HEAD of each operation, and drafts. They are few.
const operationsPartition = "operations"

func (s *Operations) headKey(id string) tablestore.Key {
	return tablestore.Key{Table: s.cfg.Table, Partition: operationsPartition, Row: tablestore.Escape(id)}
}

// itemQuery selects the items of an operation, starting at index from. Each create writes
// a set of its own, so that the items of two creates under one key never mix.
func (s *Operations) itemQuery(op *Operation, from int) tablestore.Query {
	return tablestore.Query{
		Table: s.cfg.Table, Partition: tablestore.Join("operation", op.ID, op.set), From: tablestore.Pad(from, 5),
	}
}

// writeItems writes at most a batch of items.
func (s *Operations) writeItems(ctx context.Context, op *Operation, items []*itemRow, verb tablestore.Verb) error {
	batch := make(tablestore.Batch, len(items))
	for i, item := range items {
		at := s.itemQuery(op, item.index)
		batch[i] = tablestore.Op{
			Verb: verb, Key: tablestore.Key{Table: at.Table, Partition: at.Partition, Row: at.From},
			ETag: item.tag, Properties: item.encode(),
		}
	}
	if _, err := s.cfg.Store.Commit(ctx, batch); err != nil {
		return fmt.Errorf("write the items of operation %s: %w", op.ID, err)
	}
	return nil
}

// itemRow is an item with its row's other properties.
type itemRow struct {
	Item
	index  int
	tenant string // empty until the job is read
	tag    tablestore.ETag
	loaded tablestore.Properties
}

func (i *itemRow) fields() statemachine.LogFields {
	return statemachine.LogFields{JobID: i.JobID, TenantID: i.tenant}
}

func (o *Operation) encode() tablestore.Properties {
	filter, _ := json.Marshal(o.Filter) // A Filter always encodes.
	return overlay(o.loaded, tablestore.Properties{
		{Name: "v", Value: tablestore.Int(1)},
		{Name: "operation_id", Value: tablestore.String(o.ID)},
		{Name: "state", Value: tablestore.String(string(o.State))},
		{Name: "from", Value: tablestore.String(string(o.From))},
		{Name: "matched", Value: tablestore.Int(int64(o.Matched))},
		{Name: "truncated", Value: tablestore.Bool(o.Truncated)},
		{Name: "applied", Value: tablestore.Int(int64(o.Applied))},
		{Name: "skipped", Value: tablestore.Int(int64(o.Skipped))},
		{Name: "failed", Value: tablestore.Int(int64(o.Failed))},
		{Name: "rate", Value: tablestore.String(strconv.FormatFloat(o.RatePerSecond, 'g', -1, 64))},
		{Name: "kind", Value: tablestore.String(string(o.Kind))},
		{Name: "filter", Value: tablestore.String(string(filter))},
		{Name: "reason", Value: tablestore.String(o.Reason)},
		{Name: "actor", Value: tablestore.String(o.Actor)},
		{Name: "caller", Value: tablestore.String(o.Caller)},
		{Name: "created_at", Value: tablestore.Time(o.CreatedAt)},
		{Name: "updated_at", Value: tablestore.Time(o.UpdatedAt)},
		{Name: "digest", Value: tablestore.String(o.digest)},
		{Name: "named", Value: tablestore.Bool(o.Named)},
		{Name: "item_set", Value: tablestore.String(o.set)},
		{Name: "owner", Value: tablestore.String(o.owner)},
		{Name: "lease_until", Value: tablestore.Time(o.leaseUntil)},
	})
}

// decodeOperation reads a HEAD or a draft.
func decodeOperation(row *tablestore.Row) (Operation, error) {
	p := row.Properties
	rate, err := strconv.ParseFloat(p.Get("rate").String(), 64)
	if err != nil {
		return Operation{}, fmt.Errorf("row %s: rate: %w", row.Key, err)
	}
	var filter Filter
	if err := json.Unmarshal([]byte(p.Get("filter").String()), &filter); err != nil {
		return Operation{}, fmt.Errorf("row %s: filter: %w", row.Key, err)
	}
	return Operation{
		ID: p.Get("operation_id").String(), Kind: Kind(p.Get("kind").String()), State: OperationState(p.Get("state").String()),
		Filter: filter, From: ledger.RerunFrom(p.Get("from").String()), Matched: int(p.Get("matched").Int()),
		Truncated: p.Get("truncated").Bool(),
		Counts: Counts{
			Applied: int(p.Get("applied").Int()), Skipped: int(p.Get("skipped").Int()), Failed: int(p.Get("failed").Int()),
		},
		RatePerSecond: rate, Reason: p.Get("reason").String(), Actor: p.Get("actor").String(),
		Caller:    p.Get("caller").String(),
		CreatedAt: p.Get("created_at").Time(), UpdatedAt: p.Get("updated_at").Time(),
		digest: p.Get("digest").String(), Named: p.Get("named").Bool(), set: p.Get("item_set").String(),
		owner: p.Get("owner").String(), leaseUntil: p.Get("lease_until").Time(), loaded: p,
	}, nil
}

func (i *itemRow) encode() tablestore.Properties {
	return overlay(i.loaded, tablestore.Properties{
		{Name: "v", Value: tablestore.Int(1)},
		{Name: "index", Value: tablestore.Int(int64(i.index))},
		{Name: "job_id", Value: tablestore.String(i.JobID)},
		{Name: "tenant_id", Value: tablestore.String(i.tenant)},
		{Name: "outcome", Value: tablestore.String(string(i.Outcome))},
		{Name: "new_job_id", Value: tablestore.String(i.NewJobID)},
		{Name: "detail", Value: tablestore.String(i.Detail)},
	})
}

func decodeItem(row *tablestore.Row) *itemRow {
	p := row.Properties
	return &itemRow{
		Item: Item{
			JobID: p.Get("job_id").String(), Outcome: ItemOutcome(p.Get("outcome").String()),
			NewJobID: p.Get("new_job_id").String(), Detail: p.Get("detail").String(),
		},
		index: int(p.Get("index").Int()), tenant: p.Get("tenant_id").String(), tag: row.ETag, loaded: p,
	}
}

// overlay replaces own properties in those of a loaded row, and keeps the rest: a newer
// version of the program may have stored them.
func overlay(loaded, own tablestore.Properties) tablestore.Properties {
	rest := slices.DeleteFunc(slices.Clone(loaded), func(old tablestore.Property) bool {
		return slices.ContainsFunc(own, func(p tablestore.Property) bool { return p.Name == old.Name })
	})
	return append(rest, own...)
}
