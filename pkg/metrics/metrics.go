// Package metrics registers Prometheus metrics, each in one call.
package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Latencies are the buckets, in seconds, for answers of a store or bus, local or remote.
var Latencies = []float64{.0001, .00025, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Registry registers metrics. Its methods panic if the name is taken, as
// [prometheus.Registry.MustRegister] does.
type Registry struct{ *prometheus.Registry }

// Counter registers a counter with labels.
func (r Registry) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(counter)
	return counter
}

// Histogram registers a histogram with labels.
func (r Registry) Histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	histogram := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.MustRegister(histogram)
	return histogram
}

// Gauge registers a gauge that is read at each scrape.
func (r Registry) Gauge(name, help string, read func() float64) { r.GaugeOf(nil, name, help, read) }

// GaugeOf registers one series of a gauge, that of these labels, which is read at each scrape.
func (r Registry) GaugeOf(labels prometheus.Labels, name, help string, read func() float64) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, read))
}

// Count registers a counter that is read at each scrape.
func (r Registry) Count(name, help string, read func() float64) {
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, read))
}

// Create creates the series of each combination of the labels' values, so that the first
// increase of each shows.
func Create[M any](vec interface{ WithLabelValues(values ...string) M }, labels ...[]string) {
	combinations := [][]string{nil}
	for _, values := range labels {
		var longer [][]string
		for _, before := range combinations {
			for _, value := range values {
				longer = append(longer, append(slices.Clone(before), value))
			}
		}
		combinations = longer
	}
	for _, values := range combinations {
		vec.WithLabelValues(values...)
	}
}

// Names returns the values as strings.
func Names[S ~string](values ...S) []string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = string(value)
	}
	return texts
}
