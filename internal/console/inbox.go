package console

import (
	"cmp"
	"context"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// inboxPage shows the inbox's commands in one state.
type inboxPage struct {
	State    api.InboxState
	Commands []api.InboxCommand
	Counts   api.InboxCounts
	More     string
	// None says that this server has no inbox, and Everywhere that the user may see its
	// commands.
	None, Everywhere bool
}

func inbox(r *request) (view, error) {
	v := view{Title: "Inbox", Template: "inbox", Nav: "Outbox", Data: inboxPage{}}
	if !r.May(api.GrantRoleAdmin, "") {
		return v, nil
	}
	state := cmp.Or(api.InboxState(r.FormValue("state")), api.InboxStateRefused)
	list, err := call[api.InboxPage](r.api.ListInbox(r.Context(), &api.ListInboxParams{State: &state, PageToken: r.pageToken()}))
	if isMissing(err) {
		v.Data = inboxPage{Everywhere: true, None: true}
		return v, nil
	}
	v.Data = inboxPage{Everywhere: true, State: state, Commands: list.Commands, Counts: list.Counts, More: r.more(list.NextPageToken)}
	return v, err
}

// retryInbox tries refused commands again.
func retryInbox(r *request) (deed, error) {
	ids, what, args := inboxOf(r, "refused")
	return deed{
		Title: "Try " + what + " again?", Button: "Try again",
		Text: "A replica tries each command again, with the current protocols and settings. An accepted command is one job, " +
			"however often it is tried.",
		Command: diagnosis.Command("inbox retry", args...),
		do: func(ctx context.Context, reason string) (string, error) {
			request := api.InboxRetryRequest{CommandIDs: ids, All: ids == nil, Reason: reason}
			result, err := call[api.InboxResult](r.api.RetryInbox(ctx, request))
			if err == nil {
				err = unfinished(&result, ids, "queued again")
			}
			return link("inbox"), err
		},
	}, nil
}

// discardInbox ends refused or waiting commands.
func discardInbox(r *request) (deed, error) {
	state := cmp.Or(api.InboxState(r.FormValue("state")), api.InboxStateRefused)
	ids, what, args := inboxOf(r, string(state))
	request := api.InboxDiscardRequest{CommandIDs: ids, All: ids == nil}
	text := "It ends without a job. An application that queries the result gets the reason."
	if state != api.InboxStateRefused {
		text += " A command that a replica is trying right now becomes a job, or is discarded after that."
		if ids == nil {
			request.State, args = &state, append(args, "--state", string(state))
		}
	}
	return deed{
		Title: "Discard " + what + "?", Button: "Discard", Danger: true, NeedsReason: true,
		Text: text, Command: diagnosis.Command("inbox discard", args...),
		do: func(ctx context.Context, reason string) (string, error) {
			request.Reason = reason
			result, err := call[api.InboxResult](r.api.DiscardInbox(ctx, request))
			if err == nil {
				err = unfinished(&result, ids, "discarded")
			}
			return link("inbox", "state", r.FormValue("state")), err
		},
	}, nil
}

// unfinished returns an error if the named command is absent, or if the selection has more commands
// than one request takes.
func unfinished(result *api.InboxResult, ids []string, done string) error {
	handled := 0
	for _, one := range result.Handled {
		if one.Outcome != api.InboxOutcomeAbsent {
			handled++
		}
	}
	switch {
	case ids != nil && handled < len(result.Handled):
		return badInput("The command is not there any more, or in another state.")
	case result.More && handled > 0:
		commands := diagnosis.Counted(handled, "command was", "commands were")
		return badInput(commands + " " + done + ", and there are more. Send the form again.")
	}
	return nil
}

// inboxOf returns the ids of the commands that the form selects, nil for all of the state,
// and the selection in words and as arguments of the command line.
func inboxOf(r *request, state string) (ids []string, what string, args []string) {
	if id := r.FormValue("command"); id != "" {
		return []string{id}, "command " + diagnosis.ShortID(id), []string{id}
	}
	return nil, "all " + state + " commands", []string{"--all"}
}
