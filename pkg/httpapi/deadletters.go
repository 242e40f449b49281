package httpapi

import (
	"context"
	"net/http"
	"regexp"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/problem"
)

// maxShownBody is how much of a dead letter's body is shown, in bytes.
const maxShownBody = 16 << 10

// leaseID matches a lease id in a body, even if that is not JSON.
var leaseID = regexp.MustCompile(`("lease_id"\s*:\s*")(?:[^"\\]|\\.)*`)

// errNoTopics is returned for requests about dead letters where there are none.
var errNoTopics = problem.Newf(problem.NotFound, "There are no dead letters: this server takes no replies from topics.")

// ListDeadLetters is GET /v1/admin/dead-letters.
func (e *endpoints) ListDeadLetters(w http.ResponseWriter, r *http.Request, params api.ListDeadLettersParams) {
	e.page(w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, after string) (any, error) {
		if e.DeadLetters == nil {
			return nil, errNoTopics
		}
		letters, next, err := e.DeadLetters.List(ctx, limit, after)
		found := api.DeadLetterPage{DeadLetters: make([]api.DeadLetter, len(letters)), NextPageToken: pageToken(next)}
		for i := range letters {
			found.DeadLetters[i] = DeadLetterOf(&letters[i])
		}
		return found, err
	})
}

// DeadLetterOf encodes a dead letter, without the lease id in its body.
func DeadLetterOf(l *callbacks.DeadLetter) api.DeadLetter {
	body := leaseID.ReplaceAllString(strings.ToValidUTF8(string(l.Body), "\uFFFD"), "${1}(masked)")
	return api.DeadLetter{
		DeadLetterID: l.ID, Lane: l.Lane, Topic: l.Topic, MessageID: l.MessageID, Reason: l.Reason, Description: l.Description,
		SentAt: api.NewTime(l.SentAt), BodyTruncated: len(body) > maxShownBody,
		Body: strings.ToValidUTF8(body[:min(len(body), maxShownBody)], ""), // Not half a character.
	}
}

// ReplayDeadLetters is POST /v1/admin/dead-letters:replay.
func (e *endpoints) ReplayDeadLetters(w http.ResponseWriter, r *http.Request) {
	e.handleDeadLetters(w, r, "replay", callbacks.DeadLetters.Replay)
}

// PurgeDeadLetters is POST /v1/admin/dead-letters:purge.
func (e *endpoints) PurgeDeadLetters(w http.ResponseWriter, r *http.Request) {
	e.handleDeadLetters(w, r, "purge", callbacks.DeadLetters.Purge)
}

// handleDeadLetters calls a verb with the dead letters that the request names, and logs
// it with the outcomes.
func (e *endpoints) handleDeadLetters(w http.ResponseWriter, r *http.Request, name string,
	verb func(callbacks.DeadLetters, context.Context, []string) ([]callbacks.HandledDeadLetter, bool, error),
) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.DeadLetterRequest) (any, error) {
		if e.DeadLetters == nil {
			return nil, errNoTopics
		}
		state := requestStateOf(ctx)
		state.object = someOf(request.DeadLetterIDs)
		handled, more, err := verb(e.DeadLetters, ctx, request.DeadLetterIDs)
		result := api.DeadLetterResult{Handled: make([]api.HandledDeadLetter, len(handled)), More: more}
		outcomes := map[callbacks.DeadLetterOutcome]int{}
		for i, letter := range handled {
			outcomes[letter.Outcome]++
			result.Handled[i] = api.HandledDeadLetter{DeadLetterID: letter.ID, Outcome: api.DeadLetterOutcome(letter.Outcome)}
			if letter.Cause != nil {
				result.Handled[i].Code, result.Handled[i].Detail = string(letter.Cause.Code), letter.Cause.Summary()
			}
		}
		e.config.Log.InfoContext(ctx, "dead letters handled", "verb", name, "outcomes", outcomes, "reason", request.Reason,
			"request_id", state.id)
		return result, err
	})
}
