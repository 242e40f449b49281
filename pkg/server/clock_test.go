package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// clocked is a store with its own clock.
type clocked struct {
	tablestore.Store

	ahead time.Duration // by how much this host's clock is ahead of the store's
}

func (c *clocked) Skew() time.Duration { return c.ahead }

// While the clock is wrong, no pass runs, which is logged once. The first pass after that
// starts as after a suspension.
func TestClock_HoldsLoopsWhileItIsWrong(t *testing.T) {
	t.Parallel()
	out := new(bytes.Buffer)
	store := &clocked{memstore.New(memstore.Options{}), 0}
	c := newClockCheck(store, 5*time.Second, slog.New(slog.NewTextHandler(out, nil)))
	passes, resumed := 0, 0
	loop := c.guard(background.Loop{
		Pass: func(context.Context) error { passes++; return io.EOF }, Resumed: func(time.Time) { resumed++ },
	})
	for i, step := range []struct {
		ahead           time.Duration
		passes, resumed int
		warning         string
		lines           int // how many the log has by then
	}{
		{0, 1, 0, "", 0},
		{5 * time.Second, 2, 0, "", 0},
		{6 * time.Second, 2, 0, "this host's clock is 6s ahead of the store's", 1},
		{-time.Hour, 2, 0, "this host's clock is 1h0m0s behind the store's", 1},
		{-5 * time.Second, 3, 1, "", 2},
		{0, 4, 1, "", 2},
	} {
		store.ahead = step.ahead
		if err := loop.Pass(t.Context()); errors.Is(err, io.EOF) != (step.warning == "") {
			t.Errorf("step %d: the pass returns %v", i, err)
		}
		warning := c.warning()
		if passes != step.passes || resumed != step.resumed || !strings.HasPrefix(warning, step.warning) ||
			(warning == "") != (step.warning == "") || strings.Count(out.String(), "\n") != step.lines {
			t.Errorf("step %d: %d passes, %d after a standstill, warning %q, log %s", i, passes, resumed, warning, out)
		}
	}
	store.ahead = time.Hour
	for name, unchecked := range map[string]*clockCheck{
		"switched off": newClockCheck(store, 0, c.log), "of a local store": newClockCheck(store.Store, time.Second, c.log),
	} {
		if unchecked.isWrong() || unchecked.warning() != "" {
			t.Errorf("%s: it is wrong", name)
		}
	}
}
