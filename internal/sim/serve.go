package sim

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing/fstest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/internal/serving"
	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxSteps is the most steps that a command of the simulation has; each number has
// a request type of its own.
const maxSteps = 3

// protocols are the protocols of one to three steps.
func (s *scenario) protocols() (*protocol.Holder, error) {
	files := fstest.MapFS{}
	for steps := 1; steps <= maxSteps; steps++ {
		var text strings.Builder
		fmt.Fprintf(&text, "protocol_id: p%d\nrequest_types: [job.%d]\nsteps:\n", steps, steps)
		for i := range steps {
			fmt.Fprintf(&text, "  - {step_id: s%d, step_type: t, service: svc%d, input: previous, ack_timeout: %s, lease: %s,\n",
				i, i%2, ackTimeout, leaseTime)
			p := s.patience
			fmt.Fprintf(&text, "     retry: {dispatch: [%s, %s], ack: [%s, %s, %s], execution: [%s, %s, %s], max_attempts: 1000}}\n",
				2*p, 4*p, 2*p, 4*p, 7*p, 2*p, 4*p, 7*p)
		}
		files[fmt.Sprintf("p%d.yaml", steps)] = &fstest.MapFile{Data: []byte(text.String())}
	}
	registry, err := protocol.LoadFS(files)
	if err != nil {
		return nil, fmt.Errorf("the simulation's protocols: %w", err)
	}
	return protocol.NewHolder(registry), nil
}

// serve puts the parts behind the HTTP API, as the program does.
func (m *parts) serve(ctx context.Context, w *world, store tablestore.Store) error {
	holder, err := w.scenario.protocols()
	if err != nil {
		return err
	}
	router, err := routing.New(routing.Config{Lanes: 2, TopicPrefix: "topic"})
	if err != nil {
		return err
	}
	accepting, err := commands.New(commands.Config{
		Ledger: serving.Admitting(m.ledger), Protocols: holder, Router: router, Limit: w.scenario.limit,
	})
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	retries, err := failures.New(failures.Config{Ledger: m.ledger, Store: store, Table: m.ledger.Tables().Schedule})
	if err != nil {
		return err
	}
	held, err := pauses.New(pauses.Config{Store: store, Table: m.ledger.Tables().Schedule})
	if err != nil {
		return err
	}
	if m.gate, err = pauses.NewGate(ctx, held, log); err != nil {
		return err
	}
	config, err := serving.Ports(&serving.Parts{
		Ledger: m.ledger, Commands: accepting, Jobs: jobs.New(m.ledger, &m.ended, w.scenario.limit),
		Callbacks: callbacks.New(m.ledger), Queue: m.queue, Operator: outbox.NewOperator(m.ledger), Checker: m.checker,
		Failures: retries, Pauses: held, Gate: m.gate, Protocols: holder, Log: log,
	})
	if err != nil {
		return err
	}
	config.Readiness, config.Registry, config.Access = ready{}, prometheus.NewRegistry(), access.New(access.Config{})
	m.handler, err = httpapi.New(config)
	return err
}

// ready is a server that is always ready: nobody asks.
type ready struct{}

// Ready implements [httpapi.Readiness].
func (ready) Ready(context.Context) ([]string, error) { return nil, nil }
