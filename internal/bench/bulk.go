package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Shared is what the load [Bulk] shows of normal work next to bulk work of the same kind.
type Shared struct {
	// Items is how many bulk items the one server had when the first round began.
	Items int `json:"bulk_items"`
	// Alone is the time from the submission of a normal command to the claim of its step on the
	// server without bulk work, and Shared the same on the server with it, over all rounds.
	Alone  Percentiles `json:"claim_alone_ms"`
	Shared Percentiles `json:"claim_shared_ms"`
	// AlonePerSecond and SharedPerSecond are the rates of claimed items, bulk items included.
	AlonePerSecond  float64 `json:"items_alone_per_second"`
	SharedPerSecond float64 `json:"items_shared_per_second"`
	// AloneCPU and SharedCPU are the processor time of the server for each of these items, in microseconds.
	AloneCPU  float64 `json:"server_cpu_alone_us"`
	SharedCPU float64 `json:"server_cpu_shared_us"`
	// OfAlone is the median of Shared divided by that of Alone.
	OfAlone float64 `json:"of_alone"`
	// Share is how many of the items that were claimed on the server with bulk work were bulk.
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

// onBulk measures the load on two new servers in turn, of which one has many bulk items. In each
// round it measures both, in alternating order, so that a machine whose speed changes favors neither.
// The times of all rounds count together: a single one is too short for a ratio.
func (b *bench) onBulk(ctx context.Context, load *load) (row Row, err error) {
	err = b.withServer(ctx, 0, func(alone Server) error {
		return b.withServer(ctx, 0, func(shared Server) error {
			if err := b.make(ctx, shared, "bulk", b.options.Bulk, submitting(bulkType)); err != nil {
				return err
			}
			with, without := newSide("with bulk work", shared), newSide("without bulk work", alone)
			of := &Shared{Items: b.options.Bulk}
			for round := range b.options.Rounds {
				sides := []*side{with, without}
				if round%2 == 1 {
					slices.Reverse(sides)
				}
				for _, side := range sides {
					run, err := b.run(ctx, side.server, load, Empty)
					if err != nil {
						return fmt.Errorf("%s: %w", side.name, err)
					}
					side.add(run)
				}
			}
			seconds := b.options.Duration.Seconds() * float64(b.options.Rounds)
			of.Alone, of.AlonePerSecond = without.claims.percentiles(), without.items()/seconds
			of.Shared, of.SharedPerSecond = with.claims.percentiles(), with.items()/seconds
			of.AloneCPU, of.SharedCPU = ratio(without.cpu, without.items()), ratio(with.cpu, with.items())
			of.OfAlone, of.Share = ratio(of.Shared.P50, of.Alone.P50), ratio(with.bulk, with.items())
			row, row.Shared = with.row, of
			return errors.Join(shared.Stop(), alone.Stop())
		})
	})
	return row, err
}

// side is what was measured on one of the servers of [Bulk].
type side struct {
	name         string
	server       Server
	claims       *latencies
	normal, bulk float64 // items that were claimed
	cpu          float64 // of the server, in microseconds
	row          Row     // of the last round
}

func newSide(name string, server Server) *side {
	return &side{name: name, server: server, claims: newLatencies()}
}

// items returns how many items were claimed.
func (s *side) items() float64 { return s.normal + s.bulk }

// add adds a round.
func (s *side) add(r *run) {
	s.claims.merge(r.picks.claims)
	s.row = r.row
	s.normal += float64(r.picks.normal.Load())
	s.bulk += float64(r.picks.bulk.Load())
	s.cpu += r.row.Cost.ServerCPU * float64(r.row.Jobs)
}
