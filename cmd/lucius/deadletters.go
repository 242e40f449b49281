package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

var errDeadLetterUsage = errors.New(
	"usage: lucius azure dead-letters [flags] list, or replay or purge with the ids of dead letters, or with all")

// deadLetters lists the dead letters of the reply topics as lines of JSON, or replays or
// purges them, with the rights of a server.
func (p *program) deadLetters(ctx context.Context, args []string) (err error) {
	loaded, flags, err := config.Load(args, p.environment, p.stderr)
	if err != nil {
		return err
	}
	cfg := &loaded.Config
	if cfg.Bus != config.BusServiceBus || !cfg.ServiceBus.Replies {
		return errors.New("there are no dead letters: set LUCIUS_BUS=servicebus and LUCIUS_SERVICEBUS_REPLIES=true")
	}
	var service *callbacks.Service // Set for a replay.
	letters, err := servicebus.NewDeadLetters(repliesConfig(cfg, func(ctx context.Context, c callbacks.Callback) (callbacks.Answer, error) {
		return service.Apply(ctx, c)
	}))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = letters.Close(closing) // Nothing depends on it.
	}()
	verb, ids := flags.Arg(0), flags.Args()[min(1, flags.NArg()):]
	if all := slices.Equal(ids, []string{"all"}); verb == "list" && len(ids) == 0 || all {
		if ids, err = p.listDeadLetters(ctx, letters, !all); err != nil || !all {
			return err
		}
	} else if len(ids) == 0 {
		return errDeadLetterUsage
	}
	switch verb {
	case "purge":
		return p.handleDeadLetters(ctx, ids, letters.Purge)
	case "replay":
		c, err := p.openCore(ctx, cfg)
		if err != nil {
			return err
		}
		service = c.callbacks
		err = p.handleDeadLetters(ctx, ids, letters.Replay)
		return errors.Join(err, service.RunOnce(ctx), c.closeCommand()) // It records those that were refused.
	}
	return errDeadLetterUsage
}

// openCore opens the ledger for a command that runs next to the servers: it hands no work
// to a relay and pauses nothing. [core.closeCommand] closes it.
func (p *program) openCore(ctx context.Context, cfg *config.Config) (*core, error) {
	roleless := *cfg
	roleless.Roles, roleless.StartPaused = nil, false
	log, err := newLogger(p.stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return nil, err
	}
	store, err := openStore(ctx, &roleless, log, nil)
	if err != nil {
		return nil, err
	}
	c := &core{cfg: &roleless, log: log, metrics: newMetrics(), store: store, writable: writableOf(store)}
	if err := c.open(ctx); err != nil {
		c.closeTracer()
		return nil, errors.Join(err, store.Close())
	}
	return c, nil
}

// closeCommand stores and reports what the command did, and closes the store.
func (c *core) closeCommand() error {
	c.closeCensus(false)
	c.closeTracer()
	return c.store.Close()
}

// listDeadLetters returns the ids of all dead letters, and prints the dead letters if
// show is set.
func (p *program) listDeadLetters(ctx context.Context, letters callbacks.DeadLetters, show bool) (ids []string, err error) {
	out := json.NewEncoder(p.stdout)
	out.SetEscapeHTML(false)
	for after := ""; ; {
		page, next, err := letters.List(ctx, callbacks.MaxDeadLetters, after)
		if err != nil {
			return nil, err
		}
		for i := range page {
			ids = append(ids, page[i].ID)
			if show {
				err = errors.Join(err, out.Encode(httpapi.DeadLetterOf(&page[i])))
			}
		}
		if after = next; next == "" || err != nil {
			return ids, err
		}
	}
}

// handleDeadLetters replays or purges dead letters and prints what became of each. The
// error says how many stay.
func (p *program) handleDeadLetters(ctx context.Context, ids []string,
	verb func(context.Context, []string) ([]callbacks.HandledDeadLetter, bool, error),
) error {
	kept := 0
	for some := range slices.Chunk(ids, callbacks.MaxDeadLetters) {
		handled, _, err := verb(ctx, some)
		for _, letter := range handled {
			line := letter.ID + " " + string(letter.Outcome)
			if letter.Cause != nil {
				line += ": " + letter.Cause.Error()
			}
			fmt.Fprintln(p.stdout, line)
			if letter.Outcome == callbacks.DeadLetterKept {
				kept++
			}
		}
		if err != nil {
			return err
		}
	}
	if kept > 0 {
		return &exitError{exitFindings, fmt.Errorf("%d dead letters stay", kept)}
	}
	return nil
}
