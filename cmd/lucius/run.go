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
	loops := []func(context.Context) error{s.gate.Run, minding}
	for _, watcher := range s.watchers {
		loops = append(loops, watcher.Run)
	}
	if s.bus.replies != nil && s.cfg.Has(config.RoleAPI) {
		loops = append(loops, s.bus.replies.Run)
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
	server := httpapi.NewHTTPServer(killableAnswers(s.handler), s.log)
	served := make(chan error, 1)
	limited := httpapi.LimitConnections(server, listener, s.maxConnections(ctx))
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
	stop()
	return errors.Join(cause, group.Wait())
}
