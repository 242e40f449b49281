package fakeservicebus

import (
	"fmt"
	"net/http"
	"time"
)

// request is a message that asks for a reply.
type request struct {
	id         any
	replyTo    string
	operation  string
	properties pairs
	body       any
}

// response is the content of a reply.
type response struct {
	status      int // as in HTTP
	description string
	body        any
}

// parseRequest decodes a request.
func parseRequest(data []byte) (request, error) {
	found, err := sections(data)
	if err != nil {
		return request{}, err
	}
	var r request
	for _, s := range found {
		switch s.code {
		case sectionProperties:
			list, _ := s.value.([]any)
			r.id, r.replyTo = fields(list).at(0), fields(list).text(4)
		case sectionApplication:
			r.properties, _ = s.value.(pairs)
			r.operation = textOf(r.properties.get("operation"))
		case sectionValue:
			r.body = s.value
		}
	}
	return r, nil
}

// encode encodes the response to a request.
func (r response) encode(to request) []byte {
	b := appendDescribed(nil, sectionProperties, []any{nil, nil, nil, nil, nil, to.id})
	b = appendDescribed(b, sectionApplication, pairs{
		{"status-code", int32(r.status)},
		{"status-description", r.description},
	})
	return appendDescribed(b, sectionValue, r.body)
}

// request answers a request on the link that the client opened for replies.
func (c *connection) request(t *incoming) error {
	if t.oversize {
		return fmt.Errorf("%w: a request is too large", errFrame)
	}
	r, err := parseRequest(t.payload)
	if err != nil {
		return err
	}
	answer, fault := c.server.answer, Fault{}
	if asked := t.link.requests; asked.topic == nil && asked.queue == nil {
		answer = c.server.answerToken
	} else {
		fault = c.server.hooks.Load().OnRequest(t.link.address, r.operation)
	}
	var reply response
	if fault.Effect == None {
		reply = answer(t.link.requests, r)
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if fault.Effect == Detach {
		t.conclude(fault)
		return nil
	}
	t.settle(outcome(outcomeAccepted))
	if fault.Effect == Silence {
		return nil
	}
	for _, l := range t.link.session.links {
		if l.replyTo != "" && l.replyTo == r.replyTo {
			l.replies = append(l.replies, reply.encode(r))
			l.resume()
			break
		}
	}
	return nil
}

// answerToken accepts any token, unless the hook refuses it.
func (s *Server) answerToken(_ *entity, r request) response {
	if r.operation != "put-token" {
		return unknownOperation(r)
	}
	if refusal := s.hooks.Load().OnToken(textOf(r.properties.get("name"))); refusal != nil {
		return response{status: http.StatusUnauthorized, description: refusal.Description}
	}
	return response{status: http.StatusAccepted, description: "Accepted"}
}

// unknownOperation answers an operation that the broker does not have.
func unknownOperation(r request) response {
	return response{
		status:      http.StatusNotImplemented,
		description: fmt.Sprintf("The operation '%s' is not supported.", r.operation),
	}
}

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

// answerLockLost answers a request about a lock that is lost.
func answerLockLost() response { return response{status: http.StatusGone, description: lockLost} }

// answerRenew renews locks up to the first that is lost.
func (q *queue) answerRenew(body pairs) response {
	var until []time.Time
	for _, token := range tokensOf(body) {
		renewed, ok := q.renew(token)
		if !ok {
			return answerLockLost()
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
			return answerLockLost()
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
