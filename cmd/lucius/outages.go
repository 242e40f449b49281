package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/outages"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// buildOutages makes the board on which replicas tell each other of outages. The pull
// queue has none: its workers are asked over HTTP alone.
func (s *system) buildOutages() error {
	var err error
	s.outages, err = outages.New(outages.Config{
		Store: s.store, Table: s.ledger.Tables().Schedule,
		// Between two tries a circuit is neither open nor closed.
		Margin: s.cfg.PublishTimeout + 2*s.cfg.RetryInterval + 4*time.Second,
	})
	if err != nil {
		return fmt.Errorf("LUCIUS_BUS %s: %w", s.cfg.Bus, err)
	}
	return nil
}

// outOfService is what does not work at the moment: topics whose circuit is open, the
// bus, and the way back where no reply topic can be read. One alone may be missing for
// ever, and would hold the deadlines of all.
func (s *system) outOfService(now time.Time) []outages.Part {
	parts := outages.Broken(s.breakers, now)
	if down := len(s.bus.down()); down > 0 && down == s.cfg.Lanes {
		parts = append(parts, outages.Replies)
	}
	return parts
}

// outagesForSweeper is what the sweeper asks about outages; nil where there are none.
func (s *system) outagesForSweeper() func(context.Context) (upkeep.Outages, error) {
	if s.outages == nil {
		return nil
	}
	return func(ctx context.Context) (upkeep.Outages, error) {
		ends, err := s.outages.Ends(ctx)
		found := upkeep.Outages{Topic: ends.Topic, Replies: ends[outages.Replies]}
		if bus := ends[outages.Bus]; s.cfg.ServiceBus.Replies && bus.After(found.Replies) {
			found.Replies = bus // They come over the same bus.
		}
		return found, err
	}
}
