package bench

import (
	"testing"
	"time"
)

func TestTheTrackerReportsAnEndOnce(t *testing.T) {
	t.Parallel()
	tracker := newTracker()
	ended := tracker.expect("mine")
	first := time.UnixMilli(1)
	tracker.end("another's", time.UnixMilli(0))
	tracker.end("mine", first)
	tracker.end("mine", time.UnixMilli(2)) // does not block
	if at := <-ended; !at.Equal(first) {
		t.Errorf("ended at %s, want %s", at, first)
	}
	if len(tracker.waiting) > 0 {
		t.Errorf("%d jobs are still waited for", len(tracker.waiting))
	}
}
