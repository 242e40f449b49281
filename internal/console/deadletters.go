package console

import (
	"context"
	"fmt"

	"github.com/lucius-project/lucius/api"
)

// deadLettersPage shows the replies that could not be handled.
type deadLettersPage struct {
	Letters []api.DeadLetter
	More    string
	// None says that this server takes no replies from topics, and Everywhere that the
	// user may see the dead letters.
	None, Everywhere bool
}

func deadLetters(r *request) (view, error) {
	v := view{Title: "Dead letters", Template: "deadletters", Nav: "Outbox", Data: deadLettersPage{}}
	if !r.May(api.GrantRoleAdmin, "") {
		return v, nil
	}
	list, err := call[api.DeadLetterPage](r.api.ListDeadLetters(r.Context(), &api.ListDeadLettersParams{
		PageToken: r.pageToken(),
	}))
	if isMissing(err) {
		v.Data = deadLettersPage{Everywhere: true, None: true}
		return v, nil
	}
	v.Data = deadLettersPage{Everywhere: true, Letters: list.DeadLetters, More: r.more(list.NextPageToken)}
	return v, err
}

// replayLetters handles dead letters again, and purgeLetters deletes them.
func replayLetters(r *request) (deed, error) {
	request, what, args := lettersOf(r)
	return deed{
		Title: "Handle " + what + " again?", Button: "Handle again",
		Text: "Each reply is applied as if it arrived now. A reply that the ledger has, or will never accept, is deleted; any " +
			"other stays, with its cause. A reply counts at most once.",
		Command: command("dead-letters replay", args...),
		do: func(ctx context.Context, reason string) (string, error) {
			request.Reason = reason
			done, err := call[api.DeadLetterResult](r.api.ReplayDeadLetters(ctx, request))
			return handled(&done, err)
		},
	}, nil
}

func purgeLetters(r *request) (deed, error) {
	request, what, args := lettersOf(r)
	return deed{
		Title: "Delete " + what + "?", Button: "Delete", Danger: true, NeedsReason: true,
		Text:    "They are not applied. A step whose only result is among them waits until its lease expires, and is then retried.",
		Command: command("dead-letters purge", args...),
		do: func(ctx context.Context, reason string) (string, error) {
			request.Reason = reason
			done, err := call[api.DeadLetterResult](r.api.PurgeDeadLetters(ctx, request))
			return handled(&done, err)
		},
	}, nil
}

// lettersOf returns the API's request for the letters that the form selects, and the
// selection in words and as arguments of the command line.
func lettersOf(r *request) (request api.DeadLetterRequest, what string, args []string) {
	if id := r.FormValue("letter"); id != "" {
		return api.DeadLetterRequest{DeadLetterIDs: []string{id}}, "dead letter " + shortID(id), []string{id}
	}
	return api.DeadLetterRequest{All: true}, "all dead letters", []string{"--all"}
}

// handled returns the page to show next. A letter that the server had to keep is an error.
func handled(done *api.DeadLetterResult, err error) (string, error) {
	switch {
	case err != nil:
		return "", err
	case done.Error != nil:
		return "", &refusal{Problem: *done.Error}
	}
	for i := range done.Handled {
		if h := &done.Handled[i]; h.Outcome == api.DeadLetterOutcomeKept {
			return "", badInput(fmt.Sprintf("Dead letter %s stays: %s", h.DeadLetterID, h.Detail))
		}
	}
	return link("dead-letters"), nil
}
