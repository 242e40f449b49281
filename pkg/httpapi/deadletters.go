package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"unicode"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
)

// maxShownBody is how much of a dead letter's body is shown, in bytes.
const maxShownBody = 16 << 10

// jsonString matches a string of JSON, with the string that is its value if it is a name.
var jsonString = regexp.MustCompile(`("(?:[^"\\]|\\.)*")(?:(\s*:\s*)("(?:[^"\\]|\\.)*"))?`)

const (
	masked   = "(masked)"
	withheld = "(not shown: it may hold a lease id where none belongs)"
)

// mask returns the body of a dead letter as text without lease ids, which are
// capabilities. The body may not be JSON, or may be JSON with a misspelt name.
func mask(body []byte) string {
	text := strings.ToValidUTF8(string(body), "\uFFFD")
	if !json.Valid([]byte(text)) {
		if mentionsLease(text) {
			return withheld
		}
		return text
	}
	hidden := false
	shown := jsonString.ReplaceAllStringFunc(text, func(match string) string {
		parts := jsonString.FindStringSubmatch(match)
		name, blanks, value := unquoted(parts[1]), parts[2], unquoted(parts[3])
		isLease := strings.EqualFold(strings.NewReplacer("_", "", "-", "", " ", "").Replace(name), "leaseid")
		if mentionsLease(name) && (!isLease || blanks == "") {
			hidden = true
		}
		if isLease || mentionsLease(value) {
			return parts[1] + blanks + `"` + masked + `"`
		}
		return match
	})
	if hidden {
		return withheld
	}
	return shown
}

// unquoted returns the text of a string of JSON.
func unquoted(quoted string) (text string) {
	_ = json.Unmarshal([]byte(quoted), &text) // The string is part of valid JSON, or empty.
	return text
}

// mentionsLease reports whether a text may name a lease id, in any spelling, including
// escapes in a text that is itself JSON.
func mentionsLease(text string) bool {
	letters := strings.Map(func(r rune) rune {
		if !unicode.IsLetter(r) {
			return -1
		}
		return unicode.ToLower(unicode.ToUpper(r)) // the long s is a letter too
	}, text)
	return strings.Contains(letters, "leaseid") || strings.Contains(text, `\u`)
}

// errNoTopics is returned for requests about dead letters if the server has no reply
// topics.
var errNoTopics = apierror.Newf(apierror.NotFound, "There are no dead letters: this server takes no replies from topics.")

// ListDeadLetters is GET /v1/admin/dead-letters.
func (e *endpoints) ListDeadLetters(w http.ResponseWriter, r *http.Request, params api.ListDeadLettersParams) {
	e.page(w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		if e.DeadLetters == nil {
			return nil, errNoTopics
		}
		letters, next, err := e.DeadLetters.List(ctx, min(limit, callbacks.MaxDeadLetters), at.after) // Bodies may be large.
		if at.after != "" && err != nil && apierror.From(err).Code == apierror.InvalidEnvelope {
			return nil, invalid(invalidPageToken, err)
		}
		found := api.DeadLetterPage{DeadLetters: make([]api.DeadLetter, len(letters)), NextPageToken: at.token(next)}
		for i := range letters {
			found.DeadLetters[i] = DeadLetterOf(&letters[i])
		}
		return found, err
	})
}

// DeadLetterOf encodes a dead letter, without lease ids in its body.
func DeadLetterOf(l *callbacks.DeadLetter) api.DeadLetter {
	body := mask(l.Body)
	return api.DeadLetter{
		DeadLetterID: l.ID, Lane: l.Lane, Topic: l.Topic, MessageID: l.MessageID, Reason: l.Reason, Description: l.Description,
		SentAt: api.NewTime(l.SentAt), BodyTruncated: len(body) > maxShownBody,
		Body: strings.ToValidUTF8(body[:min(len(body), maxShownBody)], ""), // without half a character at the end
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
// the outcomes. If some were handled before it failed, the answer has both.
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
		if err != nil && len(handled) == 0 {
			return nil, err
		}
		result := api.DeadLetterResult{Handled: make([]api.HandledDeadLetter, len(handled)), More: more}
		outcomes := map[callbacks.DeadLetterOutcome]int{}
		for i, letter := range handled {
			outcomes[letter.Outcome]++
			result.Handled[i] = api.HandledDeadLetter{DeadLetterID: letter.ID, Outcome: api.DeadLetterOutcome(letter.Outcome)}
			if letter.Cause != nil {
				result.Handled[i].Code, result.Handled[i].Detail = string(letter.Cause.Code), letter.Cause.Summary()
			}
		}
		if err != nil {
			result.Error = e.respond.partOf(r, err)
		}
		e.config.Log.InfoContext(ctx, "dead letters handled", "verb", name, "outcomes", outcomes, "complete", err == nil,
			"reason", request.Reason, "request_id", state.id)
		return result, nil
	})
}
