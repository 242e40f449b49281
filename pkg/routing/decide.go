package routing

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

var (
	// ErrTenantIDRequired is returned when the tenant id is empty or blank.
	ErrTenantIDRequired = errors.New("routing: a tenant id is required")
	// ErrDocIDRequired is returned when the mode is BURST and the doc id is
	// empty or blank.
	ErrDocIDRequired = errors.New("routing: the mode BURST requires a doc_id")
	// ErrUnknownMode is returned when a mode is neither DEFAULT nor BURST.
	ErrUnknownMode = errors.New("routing: unknown mode")
)

// Mode is how the routing key is made.
//
// Source: Option B spec, 7.1.
type Mode string

// The modes.
const (
	// Default makes the key from the tenant id.
	Default Mode = "DEFAULT"
	// Burst makes the key from the tenant id and the doc id.
	Burst Mode = "BURST"
)

// Valid reports whether the mode is one of the modes.
func (m Mode) Valid() bool { return m == Default || m == Burst }

// Source is where the mode comes from.
type Source string

// The sources, in order of precedence.
const (
	SourceRequest  Source = "request"
	SourceProtocol Source = "protocol"
	SourceDefault  Source = "default"
)

// Request is the input of a decision.
type Request struct {
	// TenantID is the command's tenant_id. Required.
	TenantID string
	// DocID is the command's doc_id. Required if the mode is BURST.
	DocID string
	// RequestMode is the mode that the command asks for, or empty.
	RequestMode Mode
	// ProtocolMode is the mode that the protocol gives the step, or empty.
	ProtocolMode Mode
}

// Decision is where a step's directives go, and why.
type Decision struct {
	// Mode is the resolved mode.
	Mode Mode
	// Lane is the lane's number, counted from 0.
	Lane int
	// RoutingKey is the normalised key that the lane was computed from.
	RoutingKey string
	// Topic is the name of the lane's topic.
	Topic string
	// Source is where the mode comes from.
	Source Source
	// Reason is a sentence for people.
	Reason string
}

// Decide routes a step. It returns [ErrTenantIDRequired], [ErrDocIDRequired] or
// [ErrUnknownMode].
//
// Source: Option B spec, 7.1 and 7.2; Orchestrator flow canvas, Partition + Routing.
func (r *Router) Decide(request Request) (Decision, error) {
	mode, source := resolve(request)
	key, err := routingKey(mode, request)
	if err != nil {
		return Decision{}, err
	}
	lane := r.lane(key)
	return Decision{
		Mode:       mode,
		Lane:       lane,
		RoutingKey: key,
		Topic:      r.Topic(lane),
		Source:     source,
		Reason:     reason(mode, source),
	}, nil
}

// resolve picks the mode: the request's, else the protocol's, else DEFAULT.
func resolve(request Request) (Mode, Source) {
	switch {
	case request.RequestMode != "":
		return request.RequestMode, SourceRequest
	case request.ProtocolMode != "":
		return request.ProtocolMode, SourceProtocol
	default:
		return Default, SourceDefault
	}
}

// routingKey returns the mode's key.
func routingKey(mode Mode, request Request) (string, error) {
	tenant := normalise(request.TenantID)
	if tenant == "" {
		return "", ErrTenantIDRequired
	}
	switch mode {
	case Default:
		return tenant, nil
	case Burst:
		doc := normalise(request.DocID)
		if doc == "" {
			return "", ErrDocIDRequired
		}
		return tenant + doc, nil
	default:
		return "", fmt.Errorf("%w %q: it must be %s or %s", ErrUnknownMode, mode, Default, Burst)
	}
}

// normalise maps all spellings of an id to one text: Unicode NFC, trimmed,
// lower case.
func normalise(id string) string {
	return strings.ToLower(strings.TrimSpace(norm.NFC.String(id)))
}

// reason returns the decision as a sentence.
func reason(mode Mode, source Source) string {
	var why, what string
	switch source {
	case SourceRequest:
		why = fmt.Sprintf("The request asks for %s", mode)
	case SourceProtocol:
		why = fmt.Sprintf("The request names no mode and the protocol asks for %s", mode)
	case SourceDefault:
		why = fmt.Sprintf("Neither the request nor the protocol names a mode, which means %s", mode)
	}
	switch mode {
	case Default:
		what = "the tenant id alone chooses the lane"
	case Burst:
		what = "the tenant id and the doc id choose the lane"
	}
	return why + ": " + what + "."
}
