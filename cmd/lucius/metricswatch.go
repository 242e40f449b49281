package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// watchStore registers what is read of the store, and creates the series of its requests.
func (m *metrics) watchStore(store tablestore.Store) {
	outcomes := names(aztablestore.Succeeded, aztablestore.Refused, aztablestore.Unreachable, aztablestore.Unanswered)
	operations := []string{"get", "scan", "commit"}
	switch store := store.(type) {
	case *aztablestore.Store:
		outcomes = append(outcomes, names(aztablestore.Throttled, aztablestore.Cancelled, aztablestore.Held)...)
		m.gauge("lucius_store_outage_seconds", "Time for which the storage account has been out of service, else 0.",
			func() float64 { return store.Outage().Seconds() })
		m.gauge("lucius_clock_skew_seconds", "Time by which this host's clock is ahead of the storage account's, negative if behind.",
			func() float64 { return store.Skew().Seconds() })
	case *pebblestore.Store:
		m.watchDisk(store)
	default:
		return // In memory.
	}
	create(m.storeRequests, operations, outcomes)
	create(m.storeSeconds, operations)
}

// watchDisk registers the gauges and counters of the data directory.
func (m *metrics) watchDisk(store *pebblestore.Store) {
	m.count("lucius_store_commits_total", "Commits written to the data directory.", func() float64 {
		return float64(store.Counts().Commits)
	})
	m.count("lucius_store_reads_total", "Reads of rows and of ranges of rows from the data directory.", func() float64 {
		return float64(store.Counts().Reads)
	})
	m.count("lucius_store_rows_read_total", "Rows that these reads returned.", func() float64 {
		return float64(store.Counts().Rows)
	})
	m.gauge("lucius_store_free_bytes", "Free space of the data directory's disk.", func() float64 {
		free, _ := store.Space()
		return float64(free)
	})
	m.gauge("lucius_store_reserve_bytes", "Free space below which the store takes no writes.", func() float64 {
		_, reserve := store.Space()
		return float64(reserve)
	})
	m.registry.MustRegister(engineCollector{store})
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

// watchRelay registers the gauges of the relay.
func (m *metrics) watchRelay(inbox *outbox.Inbox, relay *outbox.Relay, circuits *breaker.Set) {
	m.gauge("lucius_relay_inbox_waiting", "Directives between a commit and the relay.",
		func() float64 { return float64(inbox.Waiting()) })
	m.count("lucius_relay_inbox_dropped_total", "Directives that the inbox left to the dispatch schedule.",
		func() float64 { return float64(inbox.Dropped()) })
	m.gauge("lucius_relay_window_in_flight", "Outbox rows that are being published.",
		func() float64 { return float64(relay.Window().Counters().InFlight) })
	m.gauge("lucius_relay_window_dispatched", "Outbox rows that the relay took and does not publish yet.",
		func() float64 { return float64(relay.Window().Counters().Dispatched) })
	m.gauge("lucius_relay_window_terminal", "Outbox rows whose outcome is not committed yet.",
		func() float64 { return float64(relay.Window().Counters().Terminal) })
	m.count("lucius_relay_window_committed_total", "Outbox rows whose outcome was committed.",
		func() float64 { return float64(relay.Window().Counters().Committed) })
	m.gauge("lucius_circuits_open", "Circuits that are not closed.",
		func() float64 { return float64(len(circuits.Open(time.Now()))) })
}

// watchDeadLetters registers the gauges of the reply topics' dead letters.
func (m *metrics) watchDeadLetters(letters *servicebus.DeadLetters) {
	m.gauge("lucius_bus_dead_letters", "Replies in the dead letters of the reply topics, at most 500 of each.",
		func() float64 { return float64(letters.Survey().Count) })
	m.gauge("lucius_bus_dead_letters_oldest_seconds", "Time since the oldest of these replies was sent, or 0.", func() float64 {
		if oldest := letters.Survey().Oldest; !oldest.IsZero() {
			return time.Since(oldest).Seconds()
		}
		return 0
	})
}

// watchUpkeep registers what the reconciler and the pauses know.
func (m *metrics) watchUpkeep(c *core, reconciler *upkeep.Reconciler) {
	m.gauge("lucius_pauses_active", "Scopes whose dispatch is paused or ramps up.",
		func() float64 { return float64(len(c.gate.Active())) })
	m.gauge("lucius_jobs_stuck", "Live jobs without a way forward that could not be repaired.",
		func() float64 { return float64(len(reconciler.Report().Stuck)) })
	m.count("lucius_reconciler_repaired_total", "Defects that the reconciler and timers have repaired.",
		func() float64 { return float64(reconciler.Report().Repaired) + float64(c.ledger.Restored()) })
	m.gauge("lucius_outbox_oldest_pending_seconds", "Time that the oldest due outbox row has waited to be published.",
		func() float64 { return reconciler.Report().OldestPending.Seconds() })
}
