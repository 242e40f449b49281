package servicebus

import "github.com/lucius-project/lucius/pkg/metrics"

// Watch registers the publisher's metrics. They are read at each scrape.
func (p *Publisher) Watch(to metrics.Registry) {
	to.Gauge("lucius_bus_sends_stuck", "Sends that were abandoned and have not returned.", func() float64 { return float64(p.Stuck()) })
	to.Count("lucius_bus_cuts_total", "Connections that were cut because a send exceeded its deadline.",
		func() float64 { return float64(p.Cuts()) })
}

// WatchReplies registers the metrics of deliveries from reply topics, and returns the
// [RepliesConfig.Observe] that counts them.
func WatchReplies(to metrics.Registry) func(Delivery) {
	types := metrics.Names(ReplyAck, ReplyResult, ReplyHeartbeat, ReplyUnknown)
	count := to.Counter("lucius_bus_replies_total", "Deliveries from reply topics, by type and outcome.", "type", "outcome")
	metrics.Create(count, types, metrics.Names(ReplyApplied, ReplyDuplicate, ReplyRefused, ReplyDeadLettered, ReplyAbandoned,
		ReplyLockLost, ReplyUnsettled))
	seconds := to.Histogram("lucius_bus_reply_duration_seconds",
		"Time from the receipt of a reply until it was applied and settled, by type.", metrics.Latencies, "type")
	metrics.Create(seconds, types)
	return func(d Delivery) {
		count.WithLabelValues(string(d.Type), string(d.Outcome)).Inc()
		seconds.WithLabelValues(string(d.Type)).Observe(d.Took.Seconds())
	}
}
