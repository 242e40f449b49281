package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/reload"
)

// hangups returns what gives each watcher of files a channel of its own, which
// gets a value for each SIGHUP until stop is called.
func hangups() (notify func() <-chan os.Signal, stop func()) {
	var channels []chan os.Signal
	notify = func() <-chan os.Signal {
		channel := make(chan os.Signal, 1)
		signal.Notify(channel, syscall.SIGHUP)
		channels = append(channels, channel)
		return channel
	}
	return notify, func() {
		for _, channel := range channels {
			signal.Stop(channel)
		}
	}
}

// hangup is a channel for a watcher, nil where nothing is to come.
func (s *system) hangup() <-chan os.Signal {
	if s.hangups == nil {
		return nil
	}
	return s.hangups()
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
			Name: name, Look: look, InUse: inUse, Interval: s.cfg.ProtocolsInterval, Signal: s.hangup(), Logger: s.log,
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
