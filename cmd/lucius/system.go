package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/envelope"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/sweeper"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// inboxSize is how many directives the hot path holds between commit and relay.
const inboxSize = 8192

// system is one server, put together.
type system struct {
	cfg       *config.Config
	log       *slog.Logger
	store     tablestore.Store
	ledger    *ledger.Ledger
	queue     *workqueue.Queue
	inbox     *outbox.Inbox
	breakers  *breaker.Set
	relay     *outbox.Relay
	sweeper   *sweeper.Sweeper
	handler   *httpapi.Server
	metrics   *metrics
	protocols *protocol.Holder
	ended     jobs.Ended
	// defect is closed by an illegal transition in the relay's window.
	defect chan *seqledger.IllegalTransitionError
}

// assemble puts a server together on its store. Close it when that succeeds.
func assemble(ctx context.Context, cfg *config.Config, log *slog.Logger) (*system, error) {
	registry, err := protocol.Load(cfg.ProtocolsDir)
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_PROTOCOLS_DIR %s: %w", cfg.ProtocolsDir, err)
	}
	s := &system{
		cfg: cfg, log: log, protocols: protocol.NewHolder(registry), inbox: outbox.NewInbox(inboxSize),
		defect: make(chan *seqledger.IllegalTransitionError, 1),
	}
	if s.store, err = openStore(cfg, log); err != nil {
		return nil, err
	}
	if err := s.build(ctx); err != nil {
		return nil, errors.Join(err, s.store.Close())
	}
	return s, nil
}

// openStore opens the configured backend.
func openStore(cfg *config.Config, log *slog.Logger) (tablestore.Store, error) {
	if cfg.StorageBackend == config.BackendMemory {
		return memstore.New(memstore.Options{}), nil
	}
	store, err := pebblestore.Open(pebblestore.Options{Dir: cfg.DataDir, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_DATA_DIR %s: %w", cfg.DataDir, err)
	}
	return store, nil
}

// build makes the parts, from the store outwards.
func (s *system) build(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	s.metrics = newMetrics(registry)
	storage := workqueue.NewStorage(s.store, "")
	var err error
	s.ledger, err = ledger.Open(ctx, ledger.Config{
		Store: s.store, Hold: s.cfg.PublishTimeout * 3 / 2, Jitter: s.cfg.Jitter, Handoff: s.inbox, Follower: storage,
		Ended: s.ended.Tell,
	})
	if err != nil {
		return err
	}
	if s.queue, err = workqueue.New(workqueue.Config{Storage: storage, Ledger: s.ledger, Logger: s.log}); err != nil {
		return err
	}
	if err := s.buildLoops(); err != nil {
		return err
	}
	s.metrics.watch(registry, s)
	return s.buildAPI(registry)
}

// buildLoops makes the relay and the sweeper.
func (s *system) buildLoops() error {
	var err error
	if s.breakers, err = breaker.NewSet(breaker.Config{}); err != nil {
		return err
	}
	s.relay, err = outbox.NewRelay(outbox.Config{
		Ledger: s.ledger, Publisher: s.queue, Inbox: s.inbox, Breakers: s.breakers, Fatal: s.fatal,
		Deadline: s.cfg.PublishTimeout, Interval: s.cfg.RetryInterval, Logger: s.log, Observe: s.metrics.relayed,
	})
	if err != nil {
		return err
	}
	s.sweeper, err = sweeper.New(sweeper.Config{
		Ledger: s.ledger, Interval: s.cfg.SweepInterval, Logger: s.log, Observe: s.metrics.swept,
	})
	return err
}

// fatal is told of a defect in the relay. The process must not go on.
func (s *system) fatal(illegal *seqledger.IllegalTransitionError) {
	s.log.Error("illegal transition in the relay's window", "transition", illegal)
	select {
	case s.defect <- illegal:
	default:
	}
}

// buildAPI makes the use cases and the HTTP server in front of them.
func (s *system) buildAPI(registry *prometheus.Registry) error {
	router, err := routing.New(routing.Config{Lanes: s.cfg.Lanes, TopicPrefix: s.cfg.TopicPrefix})
	if err != nil {
		return err
	}
	accepting, err := commands.New(commands.Config{
		Ledger: s.ledger, Protocols: s.protocols, Router: router, Limit: s.cfg.MaxInflight,
		Policy: envelope.Policy{AllowedRefs: s.cfg.RefPrefixes, MaxPayloadBytes: s.cfg.MaxPayloadBytes},
		Defaults: statemachine.Policy{
			AckTimeout: s.cfg.AckTimeout, Lease: s.cfg.Lease, Timeout: s.cfg.StepTimeout, Dispatch: s.cfg.DispatchBackoff,
			Ack: s.cfg.AckBackoff, Execution: s.cfg.ExecutionBackoff, MaxAttempts: s.cfg.MaxAttempts,
		},
	})
	if err != nil {
		return err
	}
	s.handler, err = httpapi.New(httpapi.Config{
		Commands: commandsAPI{accepting}, Jobs: jobsAPI{jobs.New(s.ledger, &s.ended)},
		Callbacks: callbacksAPI{callbacks.New(s.ledger)}, Work: workAPI{s.queue},
		Admin: adminAPI{outbox.NewOperator(s.ledger)}, Readiness: readiness{s}, Registry: registry, Log: s.log,
		MaxBodyBytes: int64(s.cfg.MaxBodyBytes),
	})
	return err
}

// readiness asks the store; an open circuit is a warning.
type readiness struct{ s *system }

func (r readiness) Ready(ctx context.Context) ([]string, error) {
	if _, _, err := r.s.ledger.Live(ctx, 0, 1, ""); err != nil {
		return nil, ledger.Problem(err)
	}
	var warnings []string
	for _, circuit := range r.s.breakers.Open(time.Now()) {
		warnings = append(warnings, fmt.Sprintf("the circuit of %s is %s", circuit.Name, circuit.State))
	}
	return warnings, nil
}

// serve runs the server on the listener until the context ends, and then
// finishes what is in hand: no new requests, the requests under way, what they
// have handed to the relay.
func (s *system) serve(ctx context.Context, listener net.Listener) error {
	loops, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(loops)
	group.Go(func() error { return s.relay.Run(failed) })
	group.Go(func() error { return s.sweeper.Run(failed) })
	server := httpapi.NewHTTPServer(s.handler, s.log)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

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

// close closes the store. Nothing may be under way.
func (s *system) close() error {
	if err := s.store.Close(); err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}

// newLogger is the log that the configuration asks for, on standard error.
func newLogger(level, format string) (*slog.Logger, error) {
	var parsed slog.Level
	if err := parsed.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	options := &slog.HandlerOptions{Level: parsed}
	if format == "text" {
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
}
