package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/reload"
)

// heedHangups has the watchers read their files again at each SIGHUP.
func (s *system) heedHangups(ctx context.Context) error {
	for {
		select {
		case <-s.hangups:
			for _, watcher := range s.watchers {
				watcher.Ask()
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// watchAccess makes what takes up a changed token file and changed certificates.
func (s *system) watchAccess(registry *prometheus.Registry) error {
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lucius_access_reloads_total", Help: "Attempts to reload the token file or the certificates, by outcome.",
	}, []string{"files", "outcome"})
	refused := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "lucius_access_refused", Help: "1 while files on disk are refused and what they held before is in use, else 0.",
	}, []string{"files"})
	registry.MustRegister(reloads, refused)
	watch := func(name, label string, look func() (string, reload.Load), inUse func() string) error {
		reloads.WithLabelValues(label, reload.Reloaded.String())
		reloads.WithLabelValues(label, reload.Refused.String())
		shown := refused.WithLabelValues(label)
		watcher, err := reload.New(reload.Config{
			Name: name, Look: look, InUse: inUse, Logger: s.log,
			Observe: func(outcome reload.Outcome) {
				reloads.WithLabelValues(label, outcome.String()).Inc()
				shown.Set(0)
				if outcome == reload.Refused {
					shown.Set(1)
				}
			},
		})
		s.watchers = append(s.watchers, watcher)
		return err
	}
	if file := s.admission.file; file != nil {
		if err := watch("tokens", "token_file", file.Look, file.InUse); err != nil {
			return err
		}
	}
	if certificates := s.admission.certificates; certificates != nil {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lucius_tls_certificate_expires_timestamp_seconds", Help: "When the server's certificate ends, in Unix time.",
		}, func() float64 { return float64(certificates.Expires().Unix()) }))
		return watch("certificates", "certificates", certificates.Look, certificates.InUse)
	}
	return nil
}
