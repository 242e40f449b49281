package memstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// Example changes a row by load, decide and commit under its ETag.
func Example() {
	ctx := context.Background()
	store := memstore.New(memstore.Options{})
	defer func() { _ = store.Close() }()

	key := tablestore.Key{Table: "luciusledger", Partition: tablestore.Escape("job/1"), Row: "JOB"}
	state := func(s string) tablestore.Properties {
		return tablestore.Properties{{Name: "state", Value: tablestore.String(s)}}
	}
	if _, err := store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Insert, Key: key, Properties: state("QUEUED")}}); err != nil {
		fmt.Println(err)
		return
	}
	row, err := store.Get(ctx, key)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		_, err = store.Commit(ctx, tablestore.Batch{
			{Verb: tablestore.Replace, Key: key, ETag: row.ETag, Properties: state("DISPATCHING")}})
		if conflict, lost := errors.AsType[*tablestore.ConflictError](err); lost {
			fmt.Println("lost", conflict.Key)
		} else if err == nil {
			fmt.Println("won", key)
		}
	}
	// Output:
	// won luciusledger/job=2F1/JOB
	// lost luciusledger/job=2F1/JOB
}
