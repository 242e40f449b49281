package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Cost is what server and client use for one job. The client is the submitters and workers
// together.
type Cost struct {
	// ServerCPU and ClientCPU are processor times, in microseconds.
	ServerCPU float64 `json:"server_cpu_us"`
	ClientCPU float64 `json:"client_cpu_us"`
	// ServerBytes and ClientBytes are the bytes allocated on the heap.
	ServerBytes float64 `json:"server_allocated_bytes"`
	ClientBytes float64 `json:"client_allocated_bytes"`
	// Commits and Reads are counts of the server's store.
	Commits float64 `json:"commits"`
	Reads   float64 `json:"reads"`
}

// cost is what the processes have used since they started, or in a window. Times are in
// seconds.
type cost struct{ serverCPU, clientCPU, serverBytes, clientBytes, commits, reads float64 }

// watchCost returns what server and client use in the window.
func watchCost(ctx context.Context, client *client, window window) (used cost, err error) {
	if !sleepUntil(ctx, window.start) {
		return cost{}, nil
	}
	before, err := costNow(ctx, client)
	if err != nil || !sleepUntil(ctx, window.end) {
		return cost{}, err
	}
	after, err := costNow(ctx, client)
	return after.minus(before), err
}

// minus returns what was used since the other time.
func (c cost) minus(before cost) cost {
	return cost{
		c.serverCPU - before.serverCPU, c.clientCPU - before.clientCPU,
		c.serverBytes - before.serverBytes, c.clientBytes - before.clientBytes,
		c.commits - before.commits, c.reads - before.reads,
	}
}

// costNow reads the metrics of the server, and the same ones of this process.
func costNow(ctx context.Context, client *client) (cost, error) {
	server, err := readMetrics(ctx, client)
	if err != nil {
		return cost{}, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := registry.Gather()
	if err != nil {
		return cost{}, fmt.Errorf("read this process's metrics: %w", err)
	}
	own := map[string]*dto.MetricFamily{}
	for _, family := range families {
		own[family.GetName()] = family
	}
	const cpu, allocated = "process_cpu_seconds_total", "go_memstats_alloc_bytes_total"
	return cost{
		serverCPU: counterIn(server, cpu), clientCPU: counterIn(own, cpu),
		serverBytes: counterIn(server, allocated), clientBytes: counterIn(own, allocated),
		commits: counterIn(server, "lucius_store_commits_total"), reads: counterIn(server, "lucius_store_reads_total"),
	}, nil
}

// readMetrics reads the metrics of the server.
func readMetrics(ctx context.Context, client *client) (map[string]*dto.MetricFamily, error) {
	text, err := client.exchange(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the server's metrics: %w", err)
	}
	return families, nil
}

// counterIn returns the counter of that name, or 0 if there is none: a process reports its
// CPU time only on some systems.
func counterIn(families map[string]*dto.MetricFamily, name string) float64 {
	var sum float64
	for _, metric := range families[name].GetMetric() {
		sum += metric.GetCounter().GetValue()
	}
	return sum
}

// per returns the cost of one job.
func (c cost) per(jobs int64) Cost {
	if jobs == 0 {
		return Cost{}
	}
	n := float64(jobs)
	return Cost{
		ServerCPU: c.serverCPU * 1e6 / n, ClientCPU: c.clientCPU * 1e6 / n,
		ServerBytes: c.serverBytes / n, ClientBytes: c.clientBytes / n, Commits: c.commits / n, Reads: c.reads / n,
	}
}
