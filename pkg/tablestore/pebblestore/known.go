package pebblestore

import "github.com/lucius-project/lucius/pkg/tablestore"

// The limits of what a stripe knows: 10 MiB for all stripes, with rows of usual keys.
const (
	maxKnownPartitions = 2
	maxKnownRows       = 128
)

// knownPartitions holds the ETags of all rows of the stripe's partitions that were written
// last, for those that the store found empty before their first write. A precondition
// of such a partition needs no read, not even for a row that must not exist. Partitions
// of one job are like that for as long as the job lives; those of all jobs never are.
type knownPartitions struct {
	all  [maxKnownPartitions]knownPartition
	next int // The index of the one that is replaced next.
}

// knownPartition is a partition that the stripe looked at.
type knownPartition struct {
	table, partition string
	// rows has the ETag of each row.
	//
	//	invariant: rows = nil, or a row is stored with version v ⇔ rows[row] = v
	rows map[string]tablestore.ETag
}

func (k *knownPartitions) find(table, partition string) *knownPartition {
	for i := range k.all {
		if p := &k.all[i]; p.partition == partition && p.table == table {
			return p
		}
	}
	return nil
}

// rows returns the ETags of all rows of the key's partition, or nil if they are not known.
func (k *knownPartitions) rows(
	key tablestore.Key, isEmpty func(table, partition string) (bool, error),
) (map[string]tablestore.ETag, error) {
	if p := k.find(key.Table, key.Partition); p != nil {
		return p.rows, nil
	}
	empty, err := isEmpty(key.Table, key.Partition)
	if err != nil {
		return nil, err
	}
	p := &k.all[k.next]
	k.next = (k.next + 1) % maxKnownPartitions
	*p = knownPartition{table: key.Table, partition: key.Partition}
	if empty {
		p.rows = map[string]tablestore.ETag{}
	}
	return p.rows, nil
}

// written records a write that is about to be applied. If it cannot be applied, the
// store fails, and nothing is looked up again.
func (k *knownPartitions) written(write *tablestore.RowWrite) {
	p := k.find(write.Key.Table, write.Key.Partition)
	switch {
	case p == nil || p.rows == nil:
	case write.Removed():
		delete(p.rows, write.Key.Row)
	case len(p.rows) == maxKnownRows:
		p.rows = nil
	default:
		p.rows[write.Key.Row] = write.ETag
	}
}
