package failures

import (
	"context"
	"time"
)

// maxGap bounds the time between two starts, however low the rate.
const maxGap = 24 * time.Hour

// pace lets so many starts a second pass, evenly and without bursts.
type pace struct {
	gap  time.Duration
	next time.Time // the earliest start
}

func newPace(perSecond float64) pace {
	return pace{gap: time.Duration(min(float64(time.Second)/perSecond, float64(maxGap)))}
}

// wait returns when the next start may be, false where the context ended before.
func (p *pace) wait(ctx context.Context) bool {
	sleep(ctx, time.Until(p.next))
	if ctx.Err() != nil {
		return false
	}
	p.next = time.Now().Add(p.gap)
	return true
}

// sleep waits that long, or until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
