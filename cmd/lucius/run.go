package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// loops are what the process does beside answering requests, by its roles.
func (s *system) loops() []func(context.Context) error {
	loops := []func(context.Context) error{s.gate.Run, mindMemory}
	for _, watcher := range s.watchers {
		loops = append(loops, watcher.Run)
	}
	if s.outages != nil {
		loops = append(loops, s.watchOutages)
	}
	if s.cfg.Has(config.RoleRelay) {
		loops = append(loops, s.relay.Run)
	}
	if s.cfg.Has(config.RoleSweeper) {
		loops = append(loops, s.sweeper.Run, s.purger.Run, s.checker.Run, s.rerunner.Run, s.announcer.Run)
	}
	return loops
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
