//go:build integration

package aztablestore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// Example commits a change with a marker row, and commits it again as after a
// lost reply: nothing is applied twice, and the marker tells whose change was
// applied.
func Example() {
	server, err := emulator()
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, table := context.Background(), fmt.Sprintf("%s%d", run, serial.Add(1))
	store, err := aztablestore.Open(ctx, aztablestore.Options{
		Connection: server.ConnectionString(), Tables: []string{table}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = store.Close() }()

	marker := tablestore.Key{Table: table, Partition: "job-1", Row: "EVENT:1"}
	operation := tablestore.Properties{{Name: "operation", Value: tablestore.String("x")}}
	batch := tablestore.Batch{
		{Verb: tablestore.Insert, Key: marker, Properties: operation},
		{Verb: tablestore.Insert, Key: tablestore.Key{Table: table, Partition: "job-1", Row: "JOB"}},
	}
	for range 2 {
		_, err = store.Commit(ctx, batch)
		conflict := errors.Is(err, tablestore.ErrConflict)
		fmt.Println("conflict:", conflict)
	}
	row, err := store.Get(ctx, marker)
	fmt.Println("operation:", row.Properties.Get("operation"), err)
	// Output:
	// conflict: false
	// conflict: true
	// operation: x <nil>
}
