package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// deadLetters returns lucius azure dead-letters, which lists the dead letters of the reply
// topics as lines of JSON, or replays or purges them, with the rights of a server.
func (p *program) deadLetters(verb func(use, short string, run func(context.Context, *config.Config, []string) error) *cobra.Command,
) *cobra.Command {
	cmd := &cobra.Command{
		Use: "dead-letters", Short: "List, replay or purge replies that could not be handled",
		Example: "  lucius azure dead-letters list\n  lucius azure dead-letters replay all",
	}
	for use, short := range map[string]string{
		"list": "List the dead letters as lines of JSON", "replay ID...|all": "Handle dead letters again",
		"purge ID...|all": "Delete dead letters",
	} {
		name, _, takesIDs := strings.Cut(use, " ")
		sub := verb(use, short, func(ctx context.Context, cfg *config.Config, ids []string) error {
			return p.runDeadLetters(ctx, cfg, name, ids)
		})
		if sub.Example = "  lucius azure dead-letters " + name; takesIDs {
			sub.Example += " all"
			sub.Args = cli.Takes(1, math.MaxInt)
		}
		cmd.AddCommand(sub)
	}
	return cmd
}

// runDeadLetters lists, replays or purges the dead letters with these ids, or all.
func (p *program) runDeadLetters(ctx context.Context, cfg *config.Config, verb string, ids []string) error {
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
	if all := slices.Equal(ids, []string{"all"}); verb == "list" || all {
		if ids, err = p.listDeadLetters(ctx, letters, !all); err != nil || !all {
			return err
		}
	}
	if verb == "purge" {
		return p.handleDeadLetters(ctx, ids, letters.Purge)
	}
	c, err := p.openCore(ctx, cfg)
	if err != nil {
		return err
	}
	service = c.callbacks
	err = p.handleDeadLetters(ctx, ids, letters.Replay)
	return errors.Join(err, service.RunOnce(ctx), c.closeCommand()) // It records those that were refused.
}

// openCore opens the ledger for a command that runs next to the servers: it hands no work
// to a relay and pauses nothing. [core.closeCommand] closes it.
func (p *program) openCore(ctx context.Context, cfg *config.Config) (*core, error) {
	roleless := *cfg
	roleless.Roles, roleless.StartPaused = nil, false
	log, err := newLogger(p.Stderr, cfg.LogLevel, cfg.LogFormat)
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
	out := json.NewEncoder(p.Stdout)
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
			fmt.Fprintln(p.Stdout, line)
			if letter.Outcome == callbacks.DeadLetterKept {
				kept++
			}
		}
		if err != nil {
			return err
		}
	}
	if kept > 0 {
		return found("%d dead letters stay", kept)
	}
	return nil
}
