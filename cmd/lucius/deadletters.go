//go:build !nodrivers

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// deadLetters returns lucius azure dead-letters.
func (p *program) deadLetters() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dead-letters", Short: "Manage replies on Service Bus that could not be handled",
		Long:    "Lists, replays and purges the dead letters of the Service Bus reply topics. It takes the settings of a server.",
		Example: "  lucius azure dead-letters list\n  lucius azure dead-letters replay --all",
	}
	var bodies bool
	list := p.deadLettersVerb("list", "List the replies that could not be handled, and why", cli.Takes(0, 0),
		func(ctx context.Context, letters *servicebus.DeadLetters, _ []string) error {
			return p.listDeadLetters(ctx, letters, bodies)
		})
	list.Flags().BoolVar(&bodies, "bodies", false, "print the bodies too, with their lease ids")
	cmd.AddCommand(list,
		p.deadLettersHandle("replay", "Send dead letters to their topics again, where the servers handle them like new replies",
			(*servicebus.DeadLetters).Replay),
		p.deadLettersHandle("purge", "Delete dead letters without handling them", (*servicebus.DeadLetters).Purge))
	return cmd
}

// deadLettersVerb returns a command that opens the dead letters of the configured topics.
func (p *program) deadLettersVerb(use, short string, args cobra.PositionalArgs,
	run func(ctx context.Context, letters *servicebus.DeadLetters, ids []string) error,
) *cobra.Command {
	name, _, _ := strings.Cut(use, " ")
	cmd := &cobra.Command{Use: use, Short: short, Example: "  lucius azure dead-letters " + name, Args: args}
	cmd.RunE = func(cmd *cobra.Command, ids []string) error {
		loaded, err := config.Load(cmd.Flags(), p.Environment)
		if err != nil {
			return checkError(err)
		}
		if loaded.Bus != config.BusServiceBus {
			return checkError(errors.New("LUCIUS_BUS is not servicebus"))
		}
		letters, err := servicebus.NewDeadLetters(replyTopics(&loaded.Config))
		if err != nil {
			return checkError(err)
		}
		defer func() {
			closing, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), closeTimeout)
			defer cancel()
			_ = letters.Close(closing) // Nothing depends on it.
		}()
		return checkError(run(cmd.Context(), letters, ids))
	}
	return cmd
}

// listDeadLetters prints a line for each dead letter. Workers choose most of it, so it is quoted.
// The error is that of the topics that cannot be read.
func (p *program) listDeadLetters(ctx context.Context, letters *servicebus.DeadLetters, bodies bool) error {
	count := 0
	var unread error
	for letter, err := range letters.All(ctx) {
		if err != nil {
			unread = errors.Join(unread, err)
			continue
		}
		count++
		body := ""
		if bodies {
			body = fmt.Sprintf(", body %q", letter.Body)
		}
		if err := p.say("%s: on %s since %s, message %q, reason %q, %q%s\n", letter.ID, letter.Topic,
			letter.SentAt.UTC().Format(time.RFC3339), letter.MessageID, letter.Reason, letter.Description, body); err != nil {
			return err
		}
	}
	return errors.Join(p.say("dead letters: %d\n", count), unread)
}

// allDeadLetters returns the ids of all dead letters, and the error of the topics that cannot be
// read.
func allDeadLetters(ctx context.Context, letters *servicebus.DeadLetters) (ids []string, unread error) {
	for letter, err := range letters.All(ctx) {
		if err != nil {
			unread = errors.Join(unread, err)
			continue
		}
		ids = append(ids, letter.ID)
	}
	return ids, unread
}

// deadLettersHandle returns a command that replays or purges dead letters.
func (p *program) deadLettersHandle(verb, short string,
	handle func(letters *servicebus.DeadLetters, ctx context.Context, ids []string, told func(id string, err error)) error,
) *cobra.Command {
	var all, yes bool
	cmd := p.deadLettersVerb(verb+" [ID...]", short, nil,
		func(ctx context.Context, letters *servicebus.DeadLetters, ids []string) error {
			if all == (len(ids) > 0) {
				return errors.New("name the dead letters, or use --all")
			}
			var unread error
			if all {
				ids, unread = allDeadLetters(ctx, letters)
			}
			if unread != nil && (len(ids) == 0 || ctx.Err() != nil) {
				return unread
			}
			slices.Sort(ids)
			ids = slices.Compact(ids)
			if !yes && (len(ids) > 1 || len(ids) > 0 && verb == "purge") {
				if err := p.Confirm(fmt.Sprintf("%s %d dead letters?", strings.ToUpper(verb[:1])+verb[1:], len(ids))); err != nil {
					return err
				}
			}
			remain := 0
			err := handle(letters, ctx, ids, func(id string, err error) {
				outcome := "done"
				if err != nil {
					outcome, remain = err.Error(), remain+1
				}
				fmt.Fprintf(p.Stdout, "%s: %s\n", id, outcome)
			})
			if err == nil && remain > 0 {
				err = found("%d of %d dead letters were not handled", remain, len(ids))
			}
			return errors.Join(unread, err)
		})
	cmd.Flags().BoolVar(&all, "all", false, "all current dead letters")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return cmd
}
