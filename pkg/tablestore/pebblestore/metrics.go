package pebblestore

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/metrics"
)

// Watch registers the metrics of the data directory and of the engine. They are read from the
// store at each scrape.
func (s *Store) Watch(to metrics.Registry) {
	to.Count("lucius_store_commits_total", "Commits written to the data directory.", func() float64 {
		return float64(s.commits.Load())
	})
	to.Count("lucius_store_reads_total", "Reads of rows and of ranges of rows from the data directory.", func() float64 {
		return float64(s.reads.Load())
	})
	to.Count("lucius_store_rows_read_total", "Rows that these reads returned.", func() float64 {
		return float64(s.rowsRead.Load())
	})
	to.Gauge("lucius_store_free_bytes", "Free space of the data directory's disk.", func() float64 {
		free, _ := s.Space()
		return float64(free)
	})
	to.Gauge("lucius_store_reserve_bytes", "Free space below which the store takes no writes.", func() float64 {
		_, reserve := s.Space()
		return float64(reserve)
	})
	to.MustRegister(engineCollector{s})
}

// engineCollector shows the local store's engine.
type engineCollector struct{ store *Store }

var (
	engineBytes       = prometheus.NewDesc("lucius_store_bytes", "Size of the data directory.", nil, nil)
	engineCompactions = prometheus.NewDesc("lucius_store_compactions_total", "Compactions of the local store.", nil, nil)
	engineDebt        = prometheus.NewDesc("lucius_store_compaction_debt_bytes", "Bytes that compactions have yet to rewrite.", nil, nil)
	engineStalls      = prometheus.NewDesc("lucius_store_write_stalls_total",
		"Times at which writes had to wait for flushes or compactions.", nil, nil)
	engineBlocks = prometheus.NewDesc("lucius_store_block_reads_total",
		"Blocks of tables that reads needed, by whether the cache had them.", []string{"cached"}, nil)
	engineLog = prometheus.NewDesc("lucius_store_log_written_bytes_total", "Bytes written to the local store's log.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (c engineCollector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements [prometheus.Collector].
func (c engineCollector) Collect(to chan<- prometheus.Metric) {
	m := c.store.db.Metrics()
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	to <- prometheus.MustNewConstMetric(engineBytes, gauge, float64(m.DiskSpaceUsage()))
	to <- prometheus.MustNewConstMetric(engineCompactions, counter, float64(m.Compact.Count))
	to <- prometheus.MustNewConstMetric(engineDebt, gauge, float64(m.Compact.EstimatedDebt))
	to <- prometheus.MustNewConstMetric(engineStalls, counter, float64(c.store.engine.stalls.Load()))
	to <- prometheus.MustNewConstMetric(engineBlocks, counter, float64(m.BlockCache.Hits), "yes")
	to <- prometheus.MustNewConstMetric(engineBlocks, counter, float64(m.BlockCache.Misses), "no")
	to <- prometheus.MustNewConstMetric(engineLog, counter, float64(m.WAL.BytesWritten))
}
