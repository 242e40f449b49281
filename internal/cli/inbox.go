package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// inbox returns lucius inbox.
func (t *tool) inbox() *cobra.Command {
	cmd := &cobra.Command{
		Use: "inbox", GroupID: GroupOperate, Short: "Manage commands of applications' transactions",
		Long: "Lists, retries and discards commands that applications submitted in their own PostgreSQL transactions,\n" +
			"and that are refused or waiting.",
		Example: "  lucius inbox list\n  lucius inbox retry --all",
	}
	cmd.AddCommand(t.inboxList(),
		t.inboxHandle("retry", "Try refused commands again", false,
			func(ctx context.Context, s *session, ids []string, reason string) (*http.Response, error) {
				return s.RetryInbox(ctx, api.InboxRetryRequest{CommandIDs: ids, Reason: reason})
			}),
		t.inboxHandle("discard", "Discard refused or waiting commands", true,
			func(ctx context.Context, s *session, ids []string, reason string) (*http.Response, error) {
				return s.DiscardInbox(ctx, api.InboxDiscardRequest{CommandIDs: ids, Reason: reason})
			}),
	)
	return t.calls(cmd)
}

// inboxState registers the flag --state, and returns a function that returns its value, nil if
// it is not given.
func inboxState(cmd *cobra.Command, usage string) func() (*api.InboxState, error) {
	text := cmd.Flags().String("state", "", usage)
	return func() (*api.InboxState, error) {
		state := api.InboxState(strings.ToLower(*text))
		switch {
		case state == "":
			return nil, nil //nolint:nilnil // The flag is optional.
		case !state.Valid():
			return nil, usagef("--state is %q, it must be waiting or refused", *text)
		}
		return &state, nil
	}
}

// inboxPage reads a page of the commands of the state, or of refused ones if state is nil.
func (s *session) inboxPage(ctx context.Context, state *api.InboxState, size api.Limit, token *api.PageToken) (api.InboxPage, error) {
	size = min(size, api.MaxInbox)
	return call[api.InboxPage](s.ListInbox(ctx, &api.ListInboxParams{State: state, Limit: &size, PageToken: token}))
}

// inboxIDs reads the ids of all commands of the state. The commands themselves may not fit into memory.
func (s *session) inboxIDs(ctx context.Context, state *api.InboxState) (ids []string, err error) {
	_, err = pages(math.MaxInt32, func(size api.Limit, token *api.PageToken) (api.InboxPage, []string, string, error) {
		page, err := s.inboxPage(ctx, state, size, token)
		some := make([]string, len(page.Commands))
		for i := range page.Commands {
			some[i] = page.Commands[i].CommandID
		}
		return page, some, page.NextPageToken, err
	}, func(_ *api.InboxPage, all []string) { ids = all })
	return ids, err
}

func (t *tool) inboxList() *cobra.Command {
	var limit int
	var ofState func() (*api.InboxState, error)
	cmd := t.command(spec{
		use: "list", short: "List refused or waiting commands, and why",
		example: "  lucius inbox list\n  lucius inbox list --state waiting",
	}, func(ctx context.Context, s *session, _ []string) error {
		state, err := ofState()
		if err != nil {
			return err
		}
		list, err := pages(limit, func(size api.Limit, token *api.PageToken) (api.InboxPage, []api.InboxCommand, string, error) {
			page, err := s.inboxPage(ctx, state, size, token)
			return page, page.Commands, page.NextPageToken, err
		}, func(page *api.InboxPage, all []api.InboxCommand) { page.Commands = all })
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.InboxPage) { showInbox(p, list, state != nil && *state == api.InboxStateWaiting) })
	})
	ofState = inboxState(cmd, "waiting or refused; default is refused")
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of commands to list; -o json shows them in full")
	return cmd
}

// showInbox writes the commands of one state, and how many there are of the other.
func showInbox(p *page, list api.InboxPage, waiting bool) {
	header, none := []string{"COMMAND", "TENANT", "SUBMITTED BY", "SUBMITTED", "WHY"}, "No command in the inbox was refused."
	if waiting {
		header, none = slices.Insert(header, 4, "TRIED"), "No command in the inbox waits."
	}
	rows := make([][]string, len(list.Commands))
	for i := range list.Commands {
		one := &list.Commands[i]
		why := diagnosis.Fault(one.Code, one.Detail)
		if one.DiscardReason != "" {
			why = "to be discarded: " + one.DiscardReason
		}
		rows[i] = []string{one.CommandID, one.TenantID, one.SubmittedBy, p.ago(one.SubmittedAt.Time), why}
		if waiting {
			rows[i] = slices.Insert(rows[i], 4, p.until(one.DueAt.Time))
		}
	}
	if len(rows) == 0 {
		p.line("%s", none)
	} else {
		p.table(header, rows)
	}
	p.more(list.NextPageToken != "", len(rows))
	if counts := &list.Counts; waiting && counts.Refused > 0 {
		p.line("%s", inboxCount(p, counts.Refused, " refused", counts.OldestRefusedAt)+": lucius inbox list")
	} else if !waiting && counts.Waiting > 0 {
		p.line("%s", inboxCount(p, counts.Waiting, " waiting", counts.OldestWaitingAt)+": lucius inbox list --state waiting")
	}
}

// inboxCount says how many commands there are, and when the oldest was submitted.
func inboxCount(p *page, count int, what string, oldest api.Time) string {
	text := strconv.Itoa(count) + what
	if !oldest.IsZero() {
		text += ", the oldest submitted " + p.ago(oldest.Time)
	}
	return text
}

// inboxHandle returns a command that retries or discards commands. ends says that it discards
// them.
func (t *tool) inboxHandle(verb, short string, ends bool,
	handle func(ctx context.Context, s *session, ids []string, reason string) (*http.Response, error),
) *cobra.Command {
	var all bool
	var reason string
	ofState := func() (*api.InboxState, error) { return nil, nil } //nolint:nilnil // As in inboxState.
	cmd := t.command(spec{
		use: verb + " [ID...]", short: short + ", by id or --all", more: true,
		example: "  lucius inbox " + verb + " 5b3a1d0e-8c7f-4c1b-9a51-0d6f2c3b4a59 --reason fixed\n" +
			"  lucius inbox " + verb + " --all --reason fixed",
	}, func(ctx context.Context, s *session, ids []string) error {
		if all == (len(ids) > 0) {
			return usagef("name commands, or give --all")
		}
		if ends && reason == "" {
			return usagef("give a --reason: it is shown to the application that submitted the command")
		}
		if all {
			state, err := ofState()
			if err != nil {
				return err
			}
			if ids, err = s.inboxIDs(ctx, state); err != nil {
				return err
			}
		}
		if len(ids) > 1 || len(ids) > 0 && ends {
			question := fmt.Sprintf("%s %s?", strings.ToUpper(verb[:1])+verb[1:], diagnosis.Count(len(ids), "command"))
			if err := s.confirm(question); err != nil {
				return err
			}
		}
		return s.handleInbox(ids, all, func(some []string) (*http.Response, error) { return handle(ctx, s, some, reason) })
	})
	cmd.Flags().BoolVar(&all, "all", false, "all commands that are refused now")
	if ends {
		ofState = inboxState(cmd, "with --all: waiting or refused; default is refused")
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log; with discard for the application too")
	return asks(cmd)
}

// handleInbox retries or discards commands, as many per request as the API accepts, and prints
// the outcome of each. A command that is absent is an error, unless listed says that it was there.
func (s *session) handleInbox(ids []string, listed bool, handle func([]string) (*http.Response, error)) error {
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
	absent := 0
	for _, one := range result.Handled {
		if one.Outcome == api.InboxOutcomeAbsent {
			absent++
		}
	}
	if err == nil && absent > 0 && !listed {
		text := fmt.Sprintf("%d of %s are absent, or in another state", absent, diagnosis.Count(len(ids), "command"))
		err = &Error{Code: ExitNotFound, Err: errors.New(text)}
	}
	return errors.Join(show(s, result, func(p *page, result api.InboxResult) {
		rows := make([][]string, len(result.Handled))
		for i, one := range result.Handled {
			rows[i] = []string{one.CommandID, string(one.Outcome)}
		}
		p.table([]string{"COMMAND", "OUTCOME"}, rows)
	}), err)
}
