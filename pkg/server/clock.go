package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// clockCheck compares this host's clock with the store's. If the host's clock were ahead,
// the process would fence workers that report in time, and purge jobs too early.
type clockCheck struct {
	skew      func() time.Duration // by how much the host's clock is ahead; nil if the store has no clock
	tolerance time.Duration        // 0 accepts any skew
	log       *slog.Logger

	wrong atomic.Bool
}

// newClockCheck returns a check against the store's clock. Only remote stores have one.
func newClockCheck(store tablestore.Store, tolerance time.Duration, log *slog.Logger) *clockCheck {
	c := &clockCheck{tolerance: tolerance, log: log}
	if remote, ok := tablestore.As[interface{ Skew() time.Duration }](store); ok {
		c.skew = remote.Skew
	}
	return c
}

// isWrong reports whether the clock differs by more than the tolerance, and logs each
// change of that.
func (c *clockCheck) isWrong() bool {
	if c.skew == nil || c.tolerance == 0 {
		return false
	}
	skew := c.skew()
	wrong := skew.Abs() > c.tolerance
	if c.wrong.Swap(wrong) == wrong {
		return wrong
	}
	if wrong {
		c.log.Error("clock differs from the store's; this process acts on no deadlines", "ahead", skew, "tolerance", c.tolerance)
	} else {
		c.log.Info("clock agrees with the store's again", "ahead", skew)
	}
	return wrong
}

// warning returns the sentence for readyz, empty if the clock is right.
func (c *clockCheck) warning() string {
	if !c.isWrong() {
		return ""
	}
	direction, skew := "ahead of", c.skew().Round(time.Second)
	if skew < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("this host's clock is %s %s the store's: this process acts on no deadlines until it is corrected",
		skew.Abs(), direction)
}

// guard returns the loop with passes that do nothing while the clock is wrong. The first
// pass after that starts as if the process had been suspended, because deadlines have passed
// that nothing acted on.
func (c *clockCheck) guard(loop background.Loop) background.Loop {
	pass, resumed, held := loop.Pass, loop.Resumed, false
	loop.Pass = func(ctx context.Context) error {
		if c.isWrong() {
			held = true
			return nil
		}
		if held && resumed != nil {
			resumed(time.Now())
		}
		held = false
		return pass(ctx)
	}
	return loop
}
