package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/reload"
)

// watchProtocols makes what takes up changed protocol files, and its metrics.
func (s *system) watchProtocols(registry *prometheus.Registry) error {
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lucius_protocol_reloads_total", Help: "Attempts to reload the protocol files, by outcome.",
	}, []string{"outcome"})
	for _, outcome := range []reload.Outcome{reload.Reloaded, reload.Refused} {
		reloads.WithLabelValues(outcome.String()) // So that the first one is seen to be an increase.
	}
	watcher, err := protocol.NewWatcher(protocol.WatcherConfig{
		Dir: s.cfg.ProtocolsDir, Holder: s.protocols, Logger: s.log,
		Observe: func(outcome reload.Outcome) { reloads.WithLabelValues(outcome.String()).Inc() },
	})
	if err != nil {
		return err
	}
	s.watchers = append(s.watchers, watcher)
	registry.MustRegister(reloads,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lucius_protocols_loaded_timestamp_seconds", Help: "When the protocols in use were loaded, in Unix time.",
		}, func() float64 { return float64(s.protocols.LoadedAt().UnixMilli()) / 1000 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lucius_protocols_refused", Help: "1 while the protocol files on disk are refused and older ones in use, else 0.",
		}, func() float64 {
			if watcher.Err() != nil {
				return 1
			}
			return 0
		}))
	return nil
}
