package breaker_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

// TestTheBacklogDrainsAlongARamp repeatedly asks for too many rows after the
// circuit has closed at 10 s: 2 pass in the first second, then 4, 8 and so on.
func TestTheBacklogDrainsAlongARamp(t *testing.T) {
	t.Parallel()
	steps := []struct {
		at      float64
		want    int
		retryAt float64
	}{
		{10, 1, 10.5},
		{10.25, 0, 10.5},
		{10.5, 1, 11},
		{11, 1, 11.25}, // Half a second at the rate of the first.
		{12, 4, 12.125},
		{13, 8, 13.0625},
		{15, 32, 15 + 1./64}, // No more rows are saved up than pass in a second.
	}
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	for _, step := range steps {
		got := f.allow(red, 1000, step.want, step.at).RetryAt
		if off := got.Sub(at(step.retryAt)); off < 0 || off > time.Microsecond {
			t.Errorf("at %g s: RetryAt is %s, want %s", step.at, got, at(step.retryAt))
		}
	}
	f.allow(red, 1_000_000, 1_000_000, 25)
	f.allow(red, 1_000_000, 1_000_000, 25)
}

func TestASecondOfTheRampMayBeUsedInParts(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	f.allow(red, 3, 3, 12)
	f.allow(red, 2, 1, 12)
	f.allow(red, 2, 0, 12.1)
	f.allow(red, 2, 2, 12.25)
}

func TestAClockThatGoesBackGivesNoRoomAgain(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	f.allow(red, 1000, 4, 12)
	f.allow(red, 1000, 0, 11)
	f.allow(red, 1000, 0, 9)
	f.allow(red, 1000, 8, 13)
}

// TestTheRampOfTheBusIsSharedByItsEntities: a healthy topic waits for its place
// in the bus.
func TestTheRampOfTheBusIsSharedByItsEntities(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, busFailed, 0)
	f.recover(red, 10)
	f.allow(red, 3, 3, 12)
	f.allow(blue, 3, 1, 12)
	f.allow(blue, 3, 0, 12)
}

func TestTheSlowerOfTwoRampsCounts(t *testing.T) {
	t.Parallel()
	slow := small
	slow.RampStep = 1
	f := newSetOf(t, breaker.Config{Bus: small, Entity: slow})
	f.fail(red, entityFailed, 0)
	f.fail(blue, busFailed, 0)
	f.recover(red, 10) // Both ramps begin.
	f.allow(blue, 1000, 4, 12)
	f.allow(red, 1000, 4, 13)
	f.allow(blue, 1000, 4, 13)
}
