package fakeservicebus

import (
	"fmt"
	"net/http"
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
	answer := c.server.answer
	if asked := t.link.requests; asked.topic == nil && asked.queue == nil {
		answer = c.server.answerToken
	}
	reply := answer(t.link.requests, r)
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	t.settle(outcome(outcomeAccepted))
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
	if refusal := s.tokenRefusal(textOf(r.properties.get("name"))); refusal != nil {
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
