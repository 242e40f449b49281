package console

import (
	"context"

	"github.com/lucius-project/lucius/api"
)

// inboxPage is the commands of applications' transactions that were refused.
type inboxPage struct {
	Commands []api.InboxCommand
	More     string
	// None says that this server has no inbox, and Everywhere that the user may see it.
	None, Everywhere bool
}

func inbox(r *request) (view, error) {
	v := view{Title: "Inbox", Template: "inbox", Nav: "Outbox", Data: inboxPage{}}
	if !r.May(api.GrantRoleAdmin, "") {
		return v, nil
	}
	list, err := call[api.InboxPage](r.api.ListInbox(r.Context(), &api.ListInboxParams{PageToken: r.pageToken()}))
	if isMissing(err) {
		v.Data = inboxPage{Everywhere: true, None: true}
		return v, nil
	}
	v.Data = inboxPage{Everywhere: true, Commands: list.Commands, More: r.more(list.NextPageToken)}
	return v, err
}

// retryInbox tries refused commands again, and discardInbox ends them.
func retryInbox(r *request) (deed, error) {
	ids, what, args := inboxOf(r)
	return deed{
		Title: "Try " + what + " again?", Button: "Try again",
		Text: "A replica tries each again, with the current protocols and settings. An accepted command is one job, " +
			"however often it is tried.",
		Command: command("inbox retry", args...),
		do: func(ctx context.Context, reason string) (string, error) {
			request := api.InboxRetryRequest{CommandIDs: ids, All: ids == nil, Reason: reason}
			_, err := call[api.InboxResult](r.api.RetryInbox(ctx, request))
			return link("inbox"), err
		},
	}, nil
}

func discardInbox(r *request) (deed, error) {
	ids, what, args := inboxOf(r)
	return deed{
		Title: "Discard " + what + "?", Button: "Discard", Danger: true, NeedsReason: true,
		Text:    "It ends without a job. The application that asks for the result is told the reason.",
		Command: command("inbox discard", args...),
		do: func(ctx context.Context, reason string) (string, error) {
			request := api.InboxDiscardRequest{CommandIDs: ids, All: ids == nil, Reason: reason}
			_, err := call[api.InboxResult](r.api.DiscardInbox(ctx, request))
			return link("inbox"), err
		},
	}, nil
}

// inboxOf returns what the request selects, in words and as arguments as well; nil ids are
// all commands.
func inboxOf(r *request) (ids []string, what string, args []string) {
	if id := r.FormValue("command"); id != "" {
		return []string{id}, "command " + shortID(id), []string{id}
	}
	return nil, "all refused commands", []string{"--all"}
}
