package server

import (
	"context"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

// bus is the bus with its circuits and known outages.
type bus struct {
	Bus

	lanes    int
	circuits *breaker.Set
	// outages shares outages among the replicas. It is nil on the pull queue, since its
	// workers call over HTTP.
	outages *outbox.Outages
}

// down lists the reply topics that cannot be read.
func (b *bus) down() []callbacks.UnreadTopic {
	if b.Replies == nil {
		return nil
	}
	return b.Replies.Down()
}

// outOfService returns the topics whose circuit is open, the bus if its circuit is, and
// the replies if no reply topic can be read. A single unreadable topic does not count: it
// may be missing permanently, and would suspend the deadlines of all jobs.
func (b *bus) outOfService(now time.Time) []outbox.PartOutage {
	outages := outbox.OpenCircuits(b.circuits, now)
	if down := len(b.down()); down > 0 && down == b.lanes {
		outages = append(outages, outbox.PartOutage{Part: outbox.PartReplies})
	}
	return outages
}

// notClosed returns the open circuits of all replicas, and this replica's that are half
// open.
func (b *bus) notClosed(ctx context.Context) ([]breaker.Circuit, error) {
	own := b.circuits.Open(time.Now())
	if b.outages == nil {
		return own, nil
	}
	open, err := b.outages.Circuits(ctx)
	var found []breaker.Circuit
	for i := range open {
		circuit := &open[i]
		found = append(found, breaker.Circuit{
			Name: circuit.Name, State: breaker.Open, Since: circuit.Since, Until: circuit.Until, Reason: circuit.Reason,
		})
		own = slices.DeleteFunc(own, func(c breaker.Circuit) bool { return c.Name == circuit.Name })
	}
	return append(found, own...), err
}

// outagesForSweeper returns the sweeper's source of outages, or nil on the pull queue.
func (b *bus) outagesForSweeper() func(context.Context) (background.Outages, error) {
	if b.outages == nil {
		return nil
	}
	return func(ctx context.Context) (background.Outages, error) {
		ends, err := b.outages.Ends(ctx)
		found := background.Outages{Topic: ends.Topic, Replies: ends[outbox.PartReplies]}
		if bus := ends[outbox.PartBus]; b.Replies != nil && bus.After(found.Replies) {
			found.Replies = bus // Replies come over the same bus.
		}
		return found, err
	}
}
