package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outages"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/reload"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/webhook"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// inboxSize is how many directives the hot path holds between commit and relay.
const inboxSize = 8192

// system is one server, put together.
type system struct {
	cfg        *config.Config
	log        *slog.Logger
	store      tablestore.Store
	writable   func() error // Why the store takes no writes now, see writableOf.
	answer     answered     // What the store said when it was last asked for readyz.
	ledger     *ledger.Ledger
	queue      *workqueue.Queue
	mirror     *workqueue.Mirror // of the ready index
	callbacks  *callbacks.Service
	bus        *bus
	outages    *outages.Board // nil on the pull queue
	inbox      *outbox.Inbox
	breakers   *breaker.Set
	relay      *outbox.Relay
	sweeper    *upkeep.Sweeper
	retention  *upkeep.Retention
	reconciler *upkeep.Reconciler
	guard      *webhook.Guard
	sender     *webhook.Sender
	webhooks   *upkeep.Webhooks
	failures   *upkeep.Failures
	bulk       *upkeep.Bulk
	pauses     *pauses.Service
	gate       *pauses.Gate
	handler    *httpapi.Server
	room       int // How many connections may be open.
	metrics    *metrics
	protocols  *protocol.Holder
	admission  *admission
	hangups    <-chan os.Signal
	watchers   []*reload.Watcher
	ended      jobs.Ended
	// defect receives an illegal transition in the relay's window.
	defect chan *seqledger.IllegalTransitionError
}

// assemble puts a server together on its store. Close it when that succeeds.
func assemble(ctx context.Context, cfg *config.Config, log *slog.Logger, hangups <-chan os.Signal,
) (*system, error) {
	registry, err := protocol.Load(cfg.ProtocolsDir)
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_PROTOCOLS_DIR %s: %w", cfg.ProtocolsDir, err)
	}
	s := &system{
		cfg: cfg, log: log, protocols: protocol.NewHolder(registry), inbox: outbox.NewInbox(inboxSize),
		hangups: hangups, bus: &bus{}, defect: make(chan *seqledger.IllegalTransitionError, 1),
	}
	if s.admission, err = admit(ctx, cfg, log); err != nil {
		return nil, err
	}
	if s.store, err = openStore(ctx, cfg, log); err != nil {
		return nil, errors.Join(err, s.admission.close())
	}
	s.writable = writableOf(s.store)
	s.room = s.maxConnections(ctx)
	s.store = killableStore(s.store)
	if err := s.build(ctx); err != nil {
		return nil, errors.Join(err, s.store.Close(), s.admission.close())
	}
	return s, nil
}

// goodbye is how long a bus may take to say that it heard of the end.
const goodbye = 2 * time.Second

// close closes the bus and the store. Nothing may be under way.
func (s *system) close() error {
	s.sender.Close()
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	if err := s.bus.close(ctx); err != nil {
		s.log.Warn("bus not closed well", "error", err) // Nothing hangs on it.
	}
	err := s.store.Close()
	if err != nil {
		err = fmt.Errorf("close the store: %w", err)
	}
	return errors.Join(err, s.admission.close())
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
