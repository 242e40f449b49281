package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Shared is what the load [Bulk] shows of normal work next to bulk work of the same kind.
type Shared struct {
	// Items is how many bulk items there were when the window began.
	Items int `json:"bulk_items"`
	// Alone is the time from the submission of a normal command to the claim of its step on the
	// same server before it had bulk work, and Shared the same with it.
	Alone  Percentiles `json:"claim_alone_ms"`
	Shared Percentiles `json:"claim_shared_ms"`
	// OfAlone is the median of Shared divided by that of Alone.
	OfAlone float64 `json:"of_alone"`
	// Share is how many of the items that were claimed in the window were bulk.
	Share float64 `json:"share_of_bulk"`
}

// bulkMax is how many items a worker of [Bulk] takes at once, so that fewer are in hand than there
// are submitters, and normal work always waits: only then the share of bulk work counts.
const bulkMax = 4

// picks counts the items that were claimed in the window, and times those of the run's commands.
type picks struct {
	claims       *latencies
	normal, bulk atomic.Int64
}

// claimed records the claim of an item.
func (r *run) claimed(one *item) {
	at := time.Now()
	begun, normal := r.tracker.begun(one.Directive.CorrelationID)
	switch {
	case !r.window.holds(at):
	case normal:
		r.picks.normal.Add(1)
		r.picks.claims.record(at.Sub(begun))
	default:
		r.picks.bulk.Add(1)
	}
}

// onBulk measures the load on a new server, and again once that has many bulk items.
func (b *bench) onBulk(ctx context.Context, load *load) (row Row, err error) {
	err = b.withServer(ctx, 0, func(server Server) error {
		alone, err := b.run(ctx, server, load, Empty)
		if err != nil {
			return fmt.Errorf("without bulk work: %w", err)
		}
		if err := b.make(ctx, server, "bulk", b.options.Bulk, submitting(bulkType)); err != nil {
			return err
		}
		shared, err := b.run(ctx, server, load, Empty)
		if err != nil {
			return fmt.Errorf("with bulk work: %w", err)
		}
		row = shared.row
		before, after := alone.picks.claims.percentiles(), shared.picks.claims.percentiles()
		bulk, normal := float64(shared.picks.bulk.Load()), float64(shared.picks.normal.Load())
		row.Shared = &Shared{
			Items: b.options.Bulk, Alone: before, Shared: after, OfAlone: ratio(after.P50, before.P50), Share: ratio(bulk, bulk+normal),
		}
		return server.Stop()
	})
	return row, err
}
