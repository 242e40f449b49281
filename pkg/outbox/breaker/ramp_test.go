package breaker_test

import (
	"testing"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

// TestTheBacklogDrainsAlongARamp repeatedly asks for too many rows after the
// circuit has closed at 10 s.
func TestTheBacklogDrainsAlongARamp(t *testing.T) {
	t.Parallel()
	steps := []struct {
		at      float64
		want    int
		retryAt float64
	}{
		{10, 2, 11},
		{10.5, 0, 11},
		{10.999, 0, 11},
		{11, 4, 12},
		{12, 6, 13},
		{14, 10, 15}, // Rows not used at 13 s are not added.
		{14.5, 0, 15},
	}
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	for _, step := range steps {
		f.wantRetryAt(f.allow(red, 1000, step.want, step.at), step.retryAt)
	}
	f.allow(red, 1000, 1000, 15)
	f.allow(red, 1000, 1000, 15)
}

func TestAnIntervalOfTheRampMayBeUsedInParts(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	f.allow(red, 3, 3, 12)
	f.allow(red, 2, 2, 12.1)
	f.allow(red, 2, 1, 12.2)
	f.allow(red, 1, 0, 12.3)
}

func TestAClockThatGoesBackGivesNoRoomAgain(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	f.allow(red, 1000, 6, 12)
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
	f.allow(red, 3, 3, 11)
	f.allow(blue, 3, 1, 11)
	f.wantRetryAt(f.allow(blue, 3, 0, 11), 12)
}

func TestTheSlowerOfTwoRampsCounts(t *testing.T) {
	t.Parallel()
	slow := small
	slow.RampStep = 1
	slow.RampInterval *= 2
	f := newSetOf(t, breaker.Config{Bus: small, Entity: slow})
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	f.fail(blue, busFailed, 10)
	f.recover(blue, 20) // The entity's ramp has ended at 20 s as well.
	f.allow(red, 1000, 2, 20)

	f.fail(red, entityFailed, 25)
	f.recover(red, 35)
	f.wantRetryAt(f.allow(red, 1000, 1, 35), 37)
}
