// Package routing chooses the lane of the bus for a step's directives.
//
//	request's mode ─┐
//	protocol's mode ┼─► mode ──► routing key ──► lane ──► topic
//	DEFAULT ────────┘            tenant id       CRC-32    prefix + lane
//	                             (BURST: tenant  modulo
//	                             id + doc id)    lanes
//
// All directives of one routing key share a lane. In the mode DEFAULT this is
// all of a tenant's work, so that a busy tenant fills only one lane; in BURST a
// tenant's documents spread over the lanes.
//
// Ids are normalised first, so that spellings of the same id share a lane:
// Unicode NFC, white space trimmed, lower case (rune by rune, without
// language-specific rules). The concatenation of BURST has no separator:
// tenant_a with doc_1 and tenant_ad with oc_1 share a lane, which is harmless.
//
// A key's lane changes only with the number of lanes. The decision and its
// reason are stored with the step, and never made twice.
//
// The package is pure and safe for concurrent use.
//
// Source: Option B spec, 7. Routing and Partitioning; Orchestrator flow canvas,
// Partition + Routing.
package routing

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The defaults of [Config].
const (
	DefaultLanes       = 16
	DefaultTopicPrefix = "global-bus-p"
)

// MaxLanes is the greatest number of lanes. Each lane is a topic of its own.
const MaxLanes = 1024

// Config configures the lanes.
type Config struct {
	// Lanes is the number of lanes, 1 to [MaxLanes]. Optional. Defaults to
	// [DefaultLanes]. Changing it moves routing keys to other lanes.
	Lanes int
	// TopicPrefix is the topic's name without the lane's number. Optional.
	// Defaults to [DefaultTopicPrefix].
	TopicPrefix string
}

// Router makes routing decisions. It is immutable and safe for concurrent use.
type Router struct{ config Config }

// New returns a router over the configured lanes, or an error that names the invalid
// field.
func New(config Config) (*Router, error) {
	if config.Lanes < 0 || config.Lanes > MaxLanes {
		return nil, fmt.Errorf("routing: Lanes is %d and must be 1 to %d", config.Lanes, MaxLanes)
	}
	config.Lanes = cmp.Or(config.Lanes, DefaultLanes)
	config.TopicPrefix = cmp.Or(config.TopicPrefix, DefaultTopicPrefix)
	return &Router{config}, nil
}

var (
	// ErrTenantIDRequired is returned when the tenant id is empty or blank.
	ErrTenantIDRequired = errors.New("routing: a tenant id is required")
	// ErrDocIDRequired is returned when the mode is BURST and the doc id is
	// empty or blank.
	ErrDocIDRequired = errors.New("routing: the mode BURST requires a doc_id")
	// ErrUnknownMode is returned when a mode is neither DEFAULT nor BURST.
	ErrUnknownMode = errors.New("routing: unknown mode")
)

// The sources of a mode, in order of precedence.
const (
	SourceRequest  = "request"
	SourceProtocol = "protocol"
	SourceDefault  = "default"
)

// Decide routes a step: by the mode that the command asks for, else by the one that
// the protocol gives the step, else by DEFAULT. The doc id is required in the mode
// BURST. It returns [ErrTenantIDRequired], [ErrDocIDRequired] or [ErrUnknownMode].
//
// Source: Option B spec, 7.1 and 7.2; Orchestrator flow canvas, Partition + Routing.
func (r *Router) Decide(tenantID, docID string, requested, protocol statemachine.Mode) (statemachine.Routing, error) {
	mode, source := statemachine.ModeDefault, SourceDefault
	asked := "" // Without a mode nothing was decided.
	switch {
	case requested != "":
		mode, source, asked = requested, SourceRequest, "The request asks for "
	case protocol != "":
		mode, source, asked = protocol, SourceProtocol, "The request names no mode and the protocol asks for "
	}
	key := normalise(tenantID)
	if key == "" {
		return statemachine.Routing{}, ErrTenantIDRequired
	}
	what := "the tenant id alone chooses the lane"
	switch mode {
	case statemachine.ModeDefault:
	case statemachine.ModeBurst:
		doc := normalise(docID)
		if doc == "" {
			return statemachine.Routing{}, ErrDocIDRequired
		}
		key += doc
		what = "the tenant id and the doc id choose the lane"
	default:
		return statemachine.Routing{}, fmt.Errorf("%w %q: it must be %s or %s",
			ErrUnknownMode, mode, statemachine.ModeDefault, statemachine.ModeBurst)
	}
	lane := int(crc32.ChecksumIEEE([]byte(key)) % uint32(r.config.Lanes))
	reason := ""
	if asked != "" {
		reason = asked + string(mode) + ": " + what + "."
	}
	return statemachine.Routing{
		ResolvedMode: mode, Lane: lane, RoutingKeyUsed: key, Topic: r.config.TopicPrefix + strconv.Itoa(lane),
		DecisionSource: source, DecisionReason: reason,
	}, nil
}

// normalise maps all spellings of an id to one text: Unicode NFC, trimmed,
// lower case.
func normalise(id string) string {
	return strings.ToLower(strings.TrimSpace(norm.NFC.String(id)))
}
