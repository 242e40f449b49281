package luciustest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing/fstest"
	"time"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/census"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/prometheus/client_golang/prometheus"
)

// defaults are those of lucius serve.
var defaults = statemachine.Policy{
	AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, MaxAttempts: 10,
	Dispatch:  []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute},
	Ack:       []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute},
	Execution: []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute},
}

// system is the server's parts, as cmd/lucius puts them together for a process without
// a disk, a bus, operators and webhooks.
type system struct {
	store    tablestore.Store
	ledger   *ledger.Ledger
	inbox    *outbox.Inbox
	relay    *outbox.Relay
	useCases httpapi.UseCases
	ended    jobs.Ended
}

// serve returns the server's handler, and runs its loops in the group until the context
// ends.
func serve(ctx context.Context, group *sync.WaitGroup, protocols []string) (http.Handler, error) {
	s := &system{store: memstore.New(memstore.Options{}), inbox: outbox.NewInbox(1024)}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	if err := s.accept(protocols); err != nil {
		return nil, err
	}
	sweeper, err := upkeep.NewSweeper(upkeep.SweeperConfig{Ledger: s.ledger})
	if err != nil {
		return nil, err
	}
	handler, err := httpapi.New(httpapi.Config{
		UseCases: s.useCases, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), Lanes: 1,
		Ready: func(context.Context) ([]string, error) { return nil, nil },
		Auth:  auth.New(auth.Config{Hosts: []string{"localhost"}}),
	})
	if err != nil {
		return nil, err
	}
	relay := upkeep.Loop{Name: "relay", Pass: func(ctx context.Context) error {
		_, err := s.relay.RunOnce(ctx)
		return err
	}}
	for _, loop := range []func(context.Context) error{
		s.relay.Run, relay.Run, sweeper.Loop().Run, s.useCases.Reconciler.Loop().Run,
		func(ctx context.Context) error { <-ctx.Done(); handler.Drain(); return nil },
	} {
		group.Go(func() { _ = loop(ctx) }) // It repeats what fails.
	}
	return handler, nil
}

// open opens the ledger and what works on it.
func (s *system) open(ctx context.Context) (err error) {
	u, mirror := &s.useCases, workqueue.NewMirror(0)
	s.ledger, err = ledger.Open(ctx, ledger.Config{
		Store: s.store, Ready: mirror.Ready, Taker: mirror.Taker, Ended: s.ended.Tell, Handoff: s.inbox,
		Bus: statemachine.BusQueue, Held: func(target statemachine.Target) bool { return u.Gate.HoldsNew(target) },
		Observe: func(_ context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition) {
			u.Census.Observe(before, after, history)
		},
	})
	if err != nil {
		return err
	}
	if u.Queue, err = workqueue.New(workqueue.Config{Ledger: s.ledger, Store: s.store, Mirror: mirror}); err != nil {
		return err
	}
	table := s.ledger.Tables().Schedule
	u.Pauses = pauses.New(s.store, table, nil)
	if u.Gate, err = pauses.NewGate(ctx, u.Pauses); err != nil {
		return err
	}
	u.Census, err = census.New(census.Config{Store: s.store, Table: s.ledger.Tables().Queue, Exclusive: true, Queue: u.Queue})
	if err == nil {
		err = u.Census.Open(ctx)
	}
	if err != nil {
		return err
	}
	if u.Operations, err = upkeep.NewOperations(upkeep.OperationsConfig{Ledger: s.ledger, Store: s.store, Table: table}); err != nil {
		return err
	}
	if u.Reconciler, err = upkeep.NewReconciler(upkeep.ReconcilerConfig{Ledger: s.ledger}); err != nil {
		return err
	}
	breakers, err := breaker.NewSet(breaker.Config{})
	if err != nil {
		return err
	}
	s.relay, err = outbox.NewRelay(outbox.Config{
		Ledger: s.ledger, Publisher: u.Queue, Inbox: s.inbox, Breakers: breakers,
		Fatal: func(defect *seqledger.IllegalTransitionError) { panic(defect) },
	})
	u.Ledger, u.Callbacks = s.ledger, callbacks.New(callbacks.Config{Ledger: s.ledger})
	u.Jobs = jobs.New(s.ledger, &s.ended, jobs.Surroundings{
		Pause: u.Gate.Covering, LastPoll: u.Queue.LastPoll, EndRate: u.Census.EndRate,
	})
	u.Operator = outbox.NewOperator(s.ledger)
	return err
}

// accept adds the protocols and the use case that accepts commands.
func (s *system) accept(protocols []string) error {
	files := fstest.MapFS{}
	for i, text := range protocols {
		files[fmt.Sprintf("protocol%d.yaml", i)] = &fstest.MapFile{Data: []byte(text)}
	}
	registry, err := protocol.LoadFS(files)
	if err != nil {
		return err
	}
	s.useCases.Protocols = protocol.NewHolder(registry)
	router, err := routing.New(routing.Config{Lanes: 1, TopicPrefix: "lane"})
	if err != nil {
		return err
	}
	s.useCases.Commands, err = commands.New(commands.Config{
		Ledger: s.ledger, Protocols: s.useCases.Protocols, Router: router, Defaults: defaults,
	})
	return err
}
