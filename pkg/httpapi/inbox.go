package httpapi

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/inbox"
)

// maxShownBody is how much of a command's body is shown, in bytes.
const maxShownBody = 16 << 10

// errNoInbox is returned for requests about the inbox if the server has none.
var errNoInbox = apierror.Newf(apierror.NotFound, "There is no inbox: this server's store is not PostgreSQL.")

// ListInbox is GET /v1/admin/inbox.
func (e *endpoints) ListInbox(w http.ResponseWriter, r *http.Request, params api.ListInboxParams) {
	e.page(w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		state := cmp.Or(orZero(params.State), api.InboxStateRefused)
		if !state.Valid() {
			return nil, invalid("parameter state must be waiting or refused", nil)
		}
		if e.Inbox == nil {
			return nil, errNoInbox
		}
		listed, next, err := e.Inbox.List(ctx, inbox.State(state), min(limit, inbox.MaxHandled), at.after) // Bodies may be large.
		if at.after != "" && err != nil && apierror.From(err).Code == apierror.InvalidEnvelope {
			return nil, invalid(invalidPageToken, err)
		}
		if err != nil {
			return nil, err
		}
		survey, err := e.Inbox.Survey(ctx)
		found := api.InboxPage{
			Commands: make([]api.InboxCommand, len(listed)), Counts: inboxCounts(survey), NextPageToken: at.token(next),
		}
		for i := range listed {
			found.Commands[i] = inboxCommandOf(&listed[i])
		}
		return found, err
	})
}

func inboxCommandOf(c *inbox.Listed) api.InboxCommand {
	shown := api.InboxCommand{
		CommandID: c.ID, TenantID: c.TenantID, State: api.InboxState(c.State), SubmittedBy: c.SubmittedBy,
		SubmittedAt: api.NewTime(c.SubmittedAt), RefusedAt: api.NewTime(c.RefusedAt), Tries: c.Tries,
		Code: string(c.Code), Detail: c.Detail, Errors: c.Errors, DiscardReason: c.DiscardReason,
		BodyTruncated: len(c.Body) > maxShownBody,
		Body:          strings.ToValidUTF8(string(c.Body[:min(len(c.Body), maxShownBody)]), ""), // without half a character at the end
	}
	if c.State == inbox.Waiting {
		shown.DueAt = api.NewTime(c.DueAt)
	}
	return shown
}

func inboxCounts(s inbox.Survey) api.InboxCounts {
	return api.InboxCounts{
		Waiting: s.Waiting, OldestWaitingAt: api.NewTime(s.OldestWaiting),
		Refused: s.Refused, OldestRefusedAt: api.NewTime(s.OldestRefused),
	}
}

// RetryInbox is POST /v1/admin/inbox:retry.
func (e *endpoints) RetryInbox(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.InboxRetryRequest) (any, error) {
		return e.handleInbox(ctx, "retry", request.CommandIDs, request.Reason, func() ([]inbox.Handled, bool, error) {
			return e.Inbox.Retry(ctx, request.CommandIDs)
		})
	})
}

// DiscardInbox is POST /v1/admin/inbox:discard.
func (e *endpoints) DiscardInbox(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.InboxDiscardRequest) (any, error) {
		return e.handleInbox(ctx, "discard", request.CommandIDs, request.Reason, func() ([]inbox.Handled, bool, error) {
			state := cmp.Or(orZero(request.State), api.InboxStateRefused)
			return e.Inbox.Discard(ctx, request.CommandIDs, inbox.State(state), request.Reason)
		})
	})
}

// handleInbox calls a verb with the commands that the request names, and logs the outcomes.
func (e *endpoints) handleInbox(ctx context.Context, name string, ids []string, reason string,
	verb func() ([]inbox.Handled, bool, error),
) (any, error) {
	if e.Inbox == nil {
		return nil, errNoInbox
	}
	state := requestStateOf(ctx)
	state.object = someOf(ids)
	handled, more, err := verb()
	if err != nil {
		return nil, err
	}
	result := api.InboxResult{Handled: make([]api.HandledInboxCommand, len(handled)), More: more}
	outcomes := map[inbox.HandledOutcome]int{}
	for i, one := range handled {
		outcomes[one.Outcome]++
		result.Handled[i] = api.HandledInboxCommand{CommandID: one.ID, Outcome: api.InboxOutcome(one.Outcome)}
	}
	e.config.Log.InfoContext(ctx, "commands of the inbox handled", "verb", name, "outcomes", outcomes,
		"reason", reason, "request_id", state.id)
	return result, nil
}
