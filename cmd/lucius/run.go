package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// loopJitter is the share by which the intervals of loops vary, so that replicas do
// not work in step.
const loopJitter = 0.1

// loops are what the process does beside answering requests, by its roles.
func (s *system) loops() []func(context.Context) error {
	var runs []func(context.Context) error
	every := func(interval time.Duration, loop upkeep.Loop) {
		loop.Interval, loop.Jitter, loop.Logger, loop.Observe = interval, loopJitter, s.log, s.metrics.passed(loop.Name)
		runs = append(runs, loop.Run)
	}
	every(time.Second, upkeep.Loop{Name: "pauses", Pass: s.gate.Refresh})
	every(time.Second, memoryLoop())
	for _, watcher := range s.watchers {
		every(s.cfg.ProtocolsInterval, upkeep.Loop{Name: watcher.Name(), Wake: watcher.Asked(), Pass: func(ctx context.Context) error {
			_, _ = watcher.RunOnce(ctx) // It is logged, and Err has it.
			return nil
		}})
	}
	runs = append(runs, s.heedHangups)
	if s.outages != nil {
		every(time.Second, upkeep.Loop{Name: "outages", Pass: func(ctx context.Context) error {
			return s.outages.NoteAll(ctx, s.outOfService(time.Now()))
		}})
	}
	if s.cfg.Has(config.RoleRelay) {
		runs = append(runs, s.relay.Run)
		every(s.cfg.RetryInterval, upkeep.Loop{Name: "relay", Pass: func(ctx context.Context) error {
			_, err := s.relay.RunOnce(ctx)
			return err
		}})
	}
	if s.cfg.Has(config.RoleSweeper) {
		every(s.cfg.SweepInterval, s.sweeper.Loop())
		every(s.cfg.SweepInterval, s.retention.Loop())
		every(time.Second, s.reconciler.Loop())
		every(time.Second, s.bulk.Loop())
		every(time.Second, s.webhooks.Loop())
	}
	return runs
}

// serve runs the server on the listener until the context ends, and then
// finishes what is in hand: no new requests, the requests under way, what they
// have handed to the relay.
func (s *system) serve(ctx context.Context, listener net.Listener) error {
	loops, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(loops)
	for _, run := range s.loops() {
		group.Go(func() error { return run(failed) })
	}
	stopReplies := s.takeReplies(failed)
	server := httpapi.NewHTTPServer(killableAnswers(s.handler), s.log)
	served := make(chan error, 1)
	limited := httpapi.LimitConnections(server, listener, s.room)
	go func() { served <- s.admission.serve(server, limited) }()

	var cause error
	select {
	case <-ctx.Done():
	case cause = <-served:
		cause = fmt.Errorf("serve: %w", cause)
	case illegal := <-s.defect:
		cause = fmt.Errorf("relay stopped: %w", illegal)
	case <-failed.Done():
	}
	s.handler.Drain()
	grace, cancel := context.WithTimeout(context.Background(), s.cfg.ShutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		cause = errors.Join(cause, fmt.Errorf("requests did not end in %s: %w", s.cfg.ShutdownGrace, err), server.Close())
	}
	stopReplies() // What it commits goes to the relay.
	stop()
	return errors.Join(cause, group.Wait())
}

// takeReplies reads reply topics until it is stopped, which takes until what is in hand
// is settled. It is a callback that comes another way, so it is the API's.
func (s *system) takeReplies(ctx context.Context) (stop func()) {
	if s.bus.replies == nil || !s.cfg.Has(config.RoleAPI) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.bus.replies.Run(ctx) // A topic that cannot be read is a warning, and no error.
	}()
	return func() {
		cancel()
		<-done
	}
}
