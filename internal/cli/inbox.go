package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/explain"
)

// inbox returns lucius inbox.
func (t *tool) inbox() *cobra.Command {
	cmd := &cobra.Command{
		Use: "inbox", GroupID: GroupOperate, Short: "Look at commands of applications' transactions that were refused",
		Long: "Lists, retries and discards commands that applications submitted in their own transactions, in PostgreSQL,\n" +
			"and that were refused.",
		Example: "  lucius inbox list\n  lucius inbox retry --all",
	}
	cmd.AddCommand(t.inboxList(),
		t.inboxHandle("retry", "Try refused commands again", false,
			func(ctx context.Context, s *session, ids []string, reason string) (*http.Response, error) {
				return s.RetryInbox(ctx, api.InboxRetryRequest{CommandIDs: ids, Reason: reason})
			}),
		t.inboxHandle("discard", "Discard refused commands", true,
			func(ctx context.Context, s *session, ids []string, reason string) (*http.Response, error) {
				return s.DiscardInbox(ctx, api.InboxDiscardRequest{CommandIDs: ids, Reason: reason})
			}),
	)
	return t.calls(cmd)
}

// readInbox reads at most limit refused commands.
func (s *session) readInbox(ctx context.Context, limit int) (api.InboxPage, error) {
	return pages(limit, func(size api.Limit, token *api.PageToken) (api.InboxPage, []api.InboxCommand, string, error) {
		size = min(size, api.MaxInbox)
		page, err := call[api.InboxPage](s.ListInbox(ctx, &api.ListInboxParams{Limit: &size, PageToken: token}))
		return page, page.Commands, page.NextPageToken, err
	}, func(page *api.InboxPage, all []api.InboxCommand) { page.Commands = all })
}

func (t *tool) inboxList() *cobra.Command {
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List refused commands, and why", example: "  lucius inbox list",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := s.readInbox(ctx, limit)
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.InboxPage) {
			if len(list.Commands) == 0 {
				p.line("No command in the inbox was refused.")
				return
			}
			rows := make([][]string, len(list.Commands))
			for i := range list.Commands {
				one := &list.Commands[i]
				rows[i] = []string{
					one.CommandID, one.TenantID, one.SubmittedBy, p.ago(one.SubmittedAt.Time), explain.Fault(one.Code, one.Detail),
				}
			}
			p.table([]string{"COMMAND", "TENANT", "SUBMITTED BY", "SUBMITTED", "WHY"}, rows)
			p.more(list.NextPageToken != "", len(rows))
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "the most commands to list; they are shown whole with -o json")
	return cmd
}

// inboxHandle returns a command that retries or discards refused commands.
func (t *tool) inboxHandle(verb, short string, ends bool,
	handle func(ctx context.Context, s *session, ids []string, reason string) (*http.Response, error),
) *cobra.Command {
	var all bool
	var reason string
	cmd := t.command(spec{
		use: verb + " [ID...]", short: short + ": the named ones, or --all that are there now", more: true,
		example: "  lucius inbox " + verb + " 5b3a1d0e-8c7f-4c1b-9a51-0d6f2c3b4a59 --reason mended\n" +
			"  lucius inbox " + verb + " --all --reason mended",
	}, func(ctx context.Context, s *session, ids []string) error {
		if all == (len(ids) > 0) {
			return usagef("name commands, or give --all")
		}
		if ends && reason == "" {
			return usagef("give a --reason: the application that submitted a command is told it")
		}
		if all {
			list, err := s.readInbox(ctx, math.MaxInt32)
			if err != nil {
				return err
			}
			for i := range list.Commands {
				ids = append(ids, list.Commands[i].CommandID)
			}
		}
		if len(ids) > 1 || len(ids) > 0 && ends {
			if err := s.confirm(fmt.Sprintf("%s %s?", strings.ToUpper(verb[:1])+verb[1:], explain.Count(len(ids), "command"))); err != nil {
				return err
			}
		}
		return s.handleInbox(ids, func(some []string) (*http.Response, error) { return handle(ctx, s, some, reason) })
	})
	cmd.Flags().BoolVar(&all, "all", false, "all refused commands that are there now")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log; with discard for the application too")
	return asks(cmd)
}

// handleInbox retries or discards commands in parts that the API takes, and prints what became
// of each.
func (s *session) handleInbox(ids []string, handle func([]string) (*http.Response, error)) error {
	result := api.InboxResult{Handled: []api.HandledInboxCommand{}}
	var err error
	for some := range slices.Chunk(ids, api.MaxInbox) {
		var part api.InboxResult
		if part, err = call[api.InboxResult](handle(some)); err != nil {
			break
		}
		result.Handled = append(result.Handled, part.Handled...)
	}
	if err != nil && len(result.Handled) == 0 {
		return err
	}
	return errors.Join(show(s, result, func(p *page, result api.InboxResult) {
		rows := make([][]string, len(result.Handled))
		for i, one := range result.Handled {
			rows[i] = []string{one.CommandID, string(one.Outcome)}
		}
		p.table([]string{"COMMAND", "OUTCOME"}, rows)
	}), err)
}
