package outages

import (
	"context"
	"log/slog"
	"time"

	"github.com/lucius-project/lucius/pkg/breaker"
)

// Broken are the parts whose circuits are open. One that is half open waits for
// something to be sent, and says nothing: where nothing is, it would for ever.
func Broken(circuits *breaker.Set, now time.Time) []Part {
	var parts []Part
	for _, circuit := range circuits.Open(now) {
		switch {
		case circuit.State != breaker.Open:
		case circuit.Name == breaker.Bus:
			parts = append(parts, Bus)
		default:
			parts = append(parts, Part(circuit.Name))
		}
	}
	return parts
}

// watchInterval is the time between two looks at what is out of service.
const watchInterval = time.Second

// Watch notes what is out of service, by this process's own view, until the context
// ends. What the store does not take is told to the log and tried again.
func (b *Board) Watch(ctx context.Context, down func(now time.Time) []Part, log *slog.Logger) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		for _, part := range down(time.Now()) {
			if err := b.Note(ctx, part); err != nil && ctx.Err() == nil {
				log.WarnContext(ctx, "outage not noted", "part", part, "error", err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
