package aztablestore

import "github.com/lucius-project/lucius/pkg/metrics"

// Watch registers the metrics of the storage account. They are read from the store at each
// scrape.
func (s *Store) Watch(to metrics.Registry) {
	to.Gauge("lucius_store_outage_seconds", "Time for which the storage account has been out of service, else 0.",
		func() float64 { return s.Outage().Seconds() })
	to.Gauge("lucius_clock_skew_seconds", "Time by which this host's clock is ahead of the storage account's, negative if behind.",
		func() float64 { return s.Skew().Seconds() })
}
