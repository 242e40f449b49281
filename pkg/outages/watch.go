package outages

import (
	"context"
	"log/slog"
	"time"
)

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
