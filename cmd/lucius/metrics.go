package main

import (
	"errors"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/metrics"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pacer"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// programMetrics are those of the process and of the drivers, which package server does
// not know.
type programMetrics struct {
	metrics.Registry

	replies       *prometheus.CounterVec
	replySeconds  *prometheus.HistogramVec
	storeRequests *prometheus.CounterVec
	storeSeconds  *prometheus.HistogramVec
}

func newMetrics() *programMetrics {
	m := &programMetrics{Registry: metrics.Registry{Registry: prometheus.NewRegistry()}}
	m.replies = m.Counter("lucius_bus_replies_total", "Deliveries from reply topics, by type and outcome.", "type", "outcome")
	types := metrics.Names(servicebus.ReplyAck, servicebus.ReplyResult, servicebus.ReplyHeartbeat, servicebus.ReplyUnknown)
	metrics.Create(m.replies, types, metrics.Names(servicebus.ReplyApplied, servicebus.ReplyDuplicate, servicebus.ReplyRefused,
		servicebus.ReplyDeadLettered, servicebus.ReplyAbandoned, servicebus.ReplyLockLost, servicebus.ReplyUnsettled))
	m.replySeconds = m.Histogram("lucius_bus_reply_duration_seconds",
		"Time from the receipt of a reply until it was applied and settled, by type.", metrics.Latencies, "type")
	metrics.Create(m.replySeconds, types)
	m.storeRequests = m.Counter("lucius_store_requests_total", "Requests to the store, by operation and outcome.", "operation", "outcome")
	m.storeSeconds = m.Histogram("lucius_store_request_seconds", "Time from a request to the store to its answer.",
		metrics.Latencies, "operation")
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lucius_build_info", Help: "1, with the versions of the program and of Go as labels.",
		ConstLabels: prometheus.Labels{"version": moduleVersion(), "go": runtime.Version()},
	})
	build.Set(1)
	m.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// watchStore registers the metrics that are read from the store, and creates the series of
// its requests.
func (m *programMetrics) watchStore(store tablestore.Store) {
	outcomes := metrics.Names(aztablestore.Succeeded, aztablestore.Refused, aztablestore.Unreachable, aztablestore.Unanswered)
	operations := []string{"get", "scan", "commit"}
	switch store := store.(type) {
	case *aztablestore.Store:
		outcomes = append(outcomes, metrics.Names(aztablestore.Throttled, aztablestore.Cancelled, aztablestore.Held)...)
		m.Gauge("lucius_store_outage_seconds", "Time for which the storage account has been out of service, else 0.",
			func() float64 { return store.Outage().Seconds() })
		m.Gauge("lucius_clock_skew_seconds", "Time by which this host's clock is ahead of the storage account's, negative if behind.",
			func() float64 { return store.Skew().Seconds() })
	case *pebblestore.Store:
		m.watchDisk(store)
	case *pgstore.Store:
		m.Gauge("lucius_store_notifications_up", "1 while this process hears the notifications of others on PostgreSQL, else 0.",
			func() float64 {
				if store.Notified() {
					return 1
				}
				return 0
			})
		return // Its requests are not counted.
	default:
		return // In memory.
	}
	metrics.Create(m.storeRequests, operations, outcomes)
	metrics.Create(m.storeSeconds, operations)
}

// paced returns a remote store with a pace that adapts to it, which the metrics show. A local
// store needs none.
func (m *programMetrics) paced(store tablestore.Store) tablestore.Store {
	var settings pacer.Config
	switch store.(type) {
	case *aztablestore.Store:
	case *pgstore.Store:
		settings.Deadline = 30 * time.Second // A commit may wait for a standby.
	default:
		return store
	}
	store = pacer.New(store, settings)
	pace := store.(tablestore.Paced).Pace
	m.Gauge("lucius_store_call_limit", "Calls of the store that may be under way at once: fewer while calls time out.",
		func() float64 { return float64(pace().Limit) })
	m.Gauge("lucius_store_calls_underway", "Calls of the store that are under way.",
		func() float64 { return float64(pace().Underway) })
	m.Gauge("lucius_store_calls_waiting", "Calls that wait because the limit of calls is reached.",
		func() float64 { return float64(pace().Waiting) })
	m.Gauge("lucius_store_call_deadline_seconds", "How long a call of the store may take: longer while calls time out.",
		func() float64 { return pace().Deadline.Seconds() })
	m.Count("lucius_store_timeouts_total", "Calls that the store did not answer within their deadline.",
		func() float64 { return float64(pace().Timeouts) })
	return store
}

// watchDisk registers the gauges and counters of the data directory.
func (m *programMetrics) watchDisk(store *pebblestore.Store) {
	m.Count("lucius_store_commits_total", "Commits written to the data directory.", func() float64 {
		return float64(store.Counts().Commits)
	})
	m.Count("lucius_store_reads_total", "Reads of rows and of ranges of rows from the data directory.", func() float64 {
		return float64(store.Counts().Reads)
	})
	m.Count("lucius_store_rows_read_total", "Rows that these reads returned.", func() float64 {
		return float64(store.Counts().Rows)
	})
	m.Gauge("lucius_store_free_bytes", "Free space of the data directory's disk.", func() float64 {
		free, _ := store.Space()
		return float64(free)
	})
	m.Gauge("lucius_store_reserve_bytes", "Free space below which the store takes no writes.", func() float64 {
		_, reserve := store.Space()
		return float64(reserve)
	})
	m.MustRegister(engineCollector{store})
}

// engineCollector shows the local store's engine.
type engineCollector struct{ store *pebblestore.Store }

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
	stats := c.store.EngineStats()
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	to <- prometheus.MustNewConstMetric(engineBytes, gauge, float64(stats.Bytes))
	to <- prometheus.MustNewConstMetric(engineCompactions, counter, float64(stats.Compactions))
	to <- prometheus.MustNewConstMetric(engineDebt, gauge, float64(stats.CompactionDebt))
	to <- prometheus.MustNewConstMetric(engineStalls, counter, float64(stats.Stalls))
	to <- prometheus.MustNewConstMetric(engineBlocks, counter, float64(stats.CacheHits), "yes")
	to <- prometheus.MustNewConstMetric(engineBlocks, counter, float64(stats.CacheMisses), "no")
	to <- prometheus.MustNewConstMetric(engineLog, counter, float64(stats.LogBytes))
}

// observeAccount counts one request to the storage account.
func (m *programMetrics) observeAccount(sample aztablestore.Sample) {
	m.storeRequests.WithLabelValues(sample.Operation, string(sample.Outcome)).Inc()
	if sample.Outcome != aztablestore.Held {
		m.storeSeconds.WithLabelValues(sample.Operation).Observe(sample.Took.Seconds())
	}
}

// observeLocal counts one request to the local store, with the account's outcomes.
func (m *programMetrics) observeLocal(operation string, took time.Duration, err error) {
	outcome := aztablestore.Refused
	switch {
	case err == nil:
		outcome = aztablestore.Succeeded
	case errors.Is(err, tablestore.ErrUnknown):
		outcome = aztablestore.Unanswered
	case errors.Is(err, tablestore.ErrUnavailable):
		outcome = aztablestore.Unreachable
	}
	m.observeAccount(aztablestore.Sample{Operation: operation, Outcome: outcome, Took: took})
}

// observeReloads returns the observer of attempts to reload files. It creates the series
// of both outcomes, so that the first attempt shows as an increase.
func observeReloads(attempts *prometheus.CounterVec) func(background.ReloadOutcome) {
	for _, outcome := range []background.ReloadOutcome{background.Reloaded, background.Refused} {
		attempts.WithLabelValues(outcome.String())
	}
	return func(outcome background.ReloadOutcome) { attempts.WithLabelValues(outcome.String()).Inc() }
}

// watchRefusals registers the gauge that is 1 while the watcher refuses its files.
func (m *programMetrics) watchRefusals(name, help string, labels prometheus.Labels, watcher *background.Watcher) {
	options := prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}
	m.MustRegister(prometheus.NewGaugeFunc(options, func() float64 {
		if watcher.Err() != nil {
			return 1
		}
		return 0
	}))
}
