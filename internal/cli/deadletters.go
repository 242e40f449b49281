package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// deadLetters returns lucius dead-letters.
func (t *tool) deadLetters() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dead-letters", GroupID: GroupOperate, Short: "Manage replies on Service Bus that could not be handled",
		Long:    "Lists, replays and purges the dead letters of the Service Bus reply topics.",
		Example: "  lucius dead-letters list\n  lucius dead-letters replay --all",
	}
	cmd.AddCommand(t.deadLettersList(),
		t.deadLettersHandle("replay", "Handle dead letters again", (*api.Client).ReplayDeadLetters),
		t.deadLettersHandle("purge", "Delete dead letters", (*api.Client).PurgeDeadLetters),
	)
	return t.calls(cmd)
}

// readDeadLetters reads at most limit dead letters.
func (s *session) readDeadLetters(ctx context.Context, limit int) (api.DeadLetterPage, error) {
	return pages(limit, func(size api.Limit, token *api.PageToken) (api.DeadLetterPage, []api.DeadLetter, string, error) {
		size = min(size, api.MaxDeadLetters)
		page, err := call[api.DeadLetterPage](s.ListDeadLetters(ctx, &api.ListDeadLettersParams{Limit: &size, PageToken: token}))
		return page, page.DeadLetters, page.NextPageToken, err
	}, func(page *api.DeadLetterPage, all []api.DeadLetter) { page.DeadLetters = all })
}

func (t *tool) deadLettersList() *cobra.Command {
	var limit int
	cmd := t.command(spec{
		use: "list", short: "List replies that could not be handled, and why", example: "  lucius dead-letters list",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := s.readDeadLetters(ctx, limit)
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.DeadLetterPage) {
			if len(list.DeadLetters) == 0 {
				p.line("There are no dead letters.")
				return
			}
			rows := make([][]string, len(list.DeadLetters))
			for i := range list.DeadLetters {
				one := &list.DeadLetters[i]
				rows[i] = []string{
					one.DeadLetterID, one.Topic, one.MessageID, p.ago(one.SentAt.Time), one.Reason,
					one.Description, strconv.Itoa(len(one.Body)),
				}
			}
			p.table([]string{"DEAD LETTER", "TOPIC", "MESSAGE", "SENT", "REASON", "DESCRIPTION", "BYTES"}, rows)
			p.more(list.NextPageToken != "", len(rows))
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "maximum number of dead letters to list; -o json shows their bodies")
	return cmd
}

// everyDeadLetter is more dead letters than the topics hold.
const everyDeadLetter = 1 << 20

// deadLettersHandle returns a command that replays or purges dead letters.
func (t *tool) deadLettersHandle(verb, short string,
	handle func(*api.Client, context.Context, api.DeadLetterRequest, ...api.RequestEditorFn) (*http.Response, error),
) *cobra.Command {
	var all bool
	var reason string
	cmd := t.command(spec{
		use: verb + " [ID...]", short: short + ", by id or --all", more: true,
		example: "  lucius dead-letters " + verb + " 3-1742\n  lucius dead-letters " + verb + " --all",
	}, func(ctx context.Context, s *session, ids []string) error {
		if all == (len(ids) > 0) {
			return usagef("name dead letters, or give --all")
		}
		if all {
			list, err := s.readDeadLetters(ctx, everyDeadLetter)
			if err != nil {
				return err
			}
			for i := range list.DeadLetters {
				ids = append(ids, list.DeadLetters[i].DeadLetterID)
			}
		}
		if len(ids) > 1 || len(ids) > 0 && verb == "purge" {
			letters := diagnosis.Count(len(ids), "dead letter")
			if err := s.confirm(fmt.Sprintf("%s %s?", strings.ToUpper(verb[:1])+verb[1:], letters)); err != nil {
				return err
			}
		}
		return s.handleDeadLetters(ids, func(some []string) (*http.Response, error) {
			return handle(s.Client, ctx, api.DeadLetterRequest{DeadLetterIDs: some, Reason: reason})
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "all current dead letters")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log")
	return asks(cmd)
}

// handleDeadLetters replays or purges dead letters, as many per request as the API accepts, and
// prints the outcome of each. It returns an error if some remain.
func (s *session) handleDeadLetters(ids []string, handle func([]string) (*http.Response, error)) error {
	result := api.DeadLetterResult{Handled: []api.HandledDeadLetter{}}
	var err error
	for some := range slices.Chunk(ids, api.MaxDeadLetters) {
		var part api.DeadLetterResult
		if part, err = call[api.DeadLetterResult](handle(some)); err != nil {
			break
		}
		result.Handled = append(result.Handled, part.Handled...)
		if part.Error != nil {
			result.Error, result.More, err = part.Error, part.More, problemError(part.Error)
			break
		}
	}
	if err != nil && len(result.Handled) == 0 {
		return err
	}
	kept := slices.ContainsFunc(result.Handled, func(one api.HandledDeadLetter) bool { return one.Outcome == api.DeadLetterOutcomeKept })
	if kept && err == nil {
		err = &Error{Code: ExitFailed, Err: errors.New("not all dead letters could be handled; the others remain")}
	}
	return errors.Join(show(s, result, func(p *page, result api.DeadLetterResult) {
		rows := make([][]string, len(result.Handled))
		for i, one := range result.Handled {
			outcome := string(one.Outcome)
			if one.Outcome == api.DeadLetterOutcomeKept {
				outcome = p.style(red, outcome)
			}
			rows[i] = []string{one.DeadLetterID, outcome, diagnosis.Fault(one.Code, one.Detail)}
		}
		p.table([]string{"DEAD LETTER", "OUTCOME", "WHY"}, rows)
	}), err)
}
