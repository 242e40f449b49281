package projections_test

import (
	"context"
	"fmt"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A ledger with projections is the layout "table": jobs can be read from the
// tables of Phase 1.
func ExampleNew() {
	ctx := context.Background()
	store := ledgertest.Atomic()
	l, err := ledger.Open(ctx, ledger.Config{
		Store: store, Tables: ledger.Tables{Ledger: "luciussteps"},
		Projector: projections.New(store, projections.Tables{}, nil),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	accepted, err := l.Accept(ctx, ledger.Command{
		Job: statemachine.Job{TenantID: "tenant_a", IdempotencyHash: "h"}, Steps: []statemachine.Step{{ID: "ocr"}},
		Payload: []byte(`{}`),
	})
	if err != nil || accepted.PostErr != nil {
		fmt.Println(err, accepted.PostErr)
		return
	}
	events, err := store.Scan(ctx, tablestore.Query{Table: "luciusevents", Partition: accepted.Job.ID})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, row := range events.Rows {
		fmt.Println(row.Properties.Get("event_type"))
	}
	// Output:
	// job.accepted
	// step.dispatching
	// outbox.pending
	// outbox.sent
	// step.awaiting_ack
	// job.dispatching
}
