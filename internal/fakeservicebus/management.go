package fakeservicebus

import (
	"net/http"
	"time"
)

// peekLimit limits the messages of one reply, in bytes.
const peekLimit = maxFrame

// answer executes an operation on the queue that a management link manages. Topics
// have no operations.
func (s *Server) answer(on *entity, r request) response {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := r.body.(pairs)
	if on.queue == nil {
		return unknownOperation(r)
	}
	switch r.operation {
	case "com.microsoft:renew-lock":
		return on.queue.answerRenew(body)
	case "com.microsoft:update-disposition":
		return on.queue.answerDisposition(body)
	case "com.microsoft:peek-message":
		return on.queue.answerPeek(body)
	default:
		return unknownOperation(r)
	}
}

// tokensOf returns the lock tokens that a request names.
func tokensOf(body pairs) []uuid {
	named, _ := body.get("lock-tokens").(array)
	var tokens []uuid
	for _, item := range named.items {
		if token, ok := item.(uuid); ok {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// gone answers a request about a lock that is lost.
func gone() response { return response{status: http.StatusGone, description: lockLost} }

// answerRenew renews locks up to the first that is lost.
func (q *queue) answerRenew(body pairs) response {
	var until []time.Time
	for _, token := range tokensOf(body) {
		renewed, ok := q.renew(token)
		if !ok {
			return gone()
		}
		until = append(until, renewed)
	}
	return response{status: http.StatusOK, description: "OK", body: pairs{{"expirations", timestamps(until)}}}
}

// answerDisposition settles messages whose link is closed.
func (q *queue) answerDisposition(body pairs) response {
	changes, _ := body.get("properties-to-modify").(pairs)
	for _, token := range tokensOf(body) {
		var held bool
		switch status := textOf(body.get("disposition-status")); status {
		case "completed":
			held = q.complete(token)
		case "abandoned":
			held = q.giveBack(token, true, changes)
		case "suspended":
			held = q.deadLetter(token,
				textOf(body.get("deadletter-reason")), textOf(body.get("deadletter-description")), changes)
		default:
			return response{status: http.StatusBadRequest, description: "The disposition '" + status + "' is not supported."}
		}
		if !held {
			return gone()
		}
	}
	return response{status: http.StatusOK, description: "OK"}
}

// answerPeek returns messages without locking them.
func (q *queue) answerPeek(body pairs) response {
	from, _ := body.get("from-sequence-number").(int64)
	count, _ := body.get("message-count").(int32)
	var shown []any
	size := 0
	for _, m := range q.all() {
		if m.sequence < from || len(shown) >= int(count) {
			continue
		}
		encoded := m.encode(time.Time{})
		if size += len(encoded); size > peekLimit && len(shown) > 0 {
			break
		}
		shown = append(shown, pairs{{"message", encoded}})
	}
	if len(shown) == 0 {
		return response{status: http.StatusNoContent, description: "No messages"}
	}
	return response{status: http.StatusOK, description: "OK", body: pairs{{"messages", shown}}}
}
