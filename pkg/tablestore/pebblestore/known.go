package pebblestore

import "github.com/lucius-project/lucius/pkg/tablestore"

// The limits of what a stripe knows: 10 MiB for all stripes, with rows of usual keys.
const (
	maxKnownPartitions = 2
	maxKnownRows       = 128
)

// knownPartitions holds the ETags of all rows of the stripe's most recently written
// partitions, if the store found the partition empty before its first write. A precondition
// in such a partition needs no read, not even for a row that must not exist. A partition of
// one job stays known while the job lives; a partition shared by all jobs never is.
type knownPartitions struct {
	all  [maxKnownPartitions]knownPartition
	next int // the index of the partition that is replaced next
}

// knownPartition is a partition that the stripe has read.
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

// written records a write that is about to be applied. If applying it fails, the store
// fails, and these ETags are not used again.
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
