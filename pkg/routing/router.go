package routing

import (
	"fmt"
	"hash/crc32"
	"strconv"
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

// Validate returns an error that names the first invalid field.
func (c Config) Validate() error {
	if c.Lanes < 0 || c.Lanes > MaxLanes {
		return fmt.Errorf("routing: Lanes is %d and must be 1 to %d", c.Lanes, MaxLanes)
	}
	return nil
}

// Router makes routing decisions. It is immutable and safe for concurrent use.
type Router struct{ config Config }

// New returns a router over the configured lanes, or the error of
// [Config.Validate].
func New(config Config) (*Router, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Lanes == 0 {
		config.Lanes = DefaultLanes
	}
	if config.TopicPrefix == "" {
		config.TopicPrefix = DefaultTopicPrefix
	}
	return &Router{config: config}, nil
}

// Lanes returns the number of lanes.
func (r *Router) Lanes() int { return r.config.Lanes }

// Topic returns the name of the lane's topic.
func (r *Router) Topic(lane int) string { return r.config.TopicPrefix + strconv.Itoa(lane) }

// lane returns the lane of a routing key.
//
// Source: Option B spec, 7.2.
func (r *Router) lane(key string) int {
	return int(crc32.ChecksumIEEE([]byte(key)) % uint32(r.config.Lanes))
}
