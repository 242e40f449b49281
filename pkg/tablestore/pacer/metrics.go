package pacer

import "github.com/lucius-project/lucius/pkg/metrics"

// Watch registers the metrics of the pace. They are read at each scrape.
func (s *Store) Watch(to metrics.Registry) {
	to.Gauge("lucius_store_call_limit", "Calls of the store that may be under way at once: fewer while calls time out.",
		func() float64 { return float64(s.Pace().Limit) })
	to.Gauge("lucius_store_calls_underway", "Calls of the store that are under way.",
		func() float64 { return float64(s.Pace().Underway) })
	to.Gauge("lucius_store_calls_waiting", "Calls that wait because the limit of calls is reached.",
		func() float64 { return float64(s.Pace().Waiting) })
	to.Gauge("lucius_store_call_deadline_seconds", "How long a call of the store may take: longer while calls time out.",
		func() float64 { return s.Pace().Deadline.Seconds() })
	to.Count("lucius_store_timeouts_total", "Calls that the store did not answer within their deadline.",
		func() float64 { return float64(s.Pace().Timeouts) })
}
