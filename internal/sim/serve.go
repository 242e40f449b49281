package sim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing/fstest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/marks"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// maxSteps is the most steps of a command. Each number of steps has a request type.
const maxSteps = 3

// registries caches the parsed protocols by retryUnit: parsing them costs more than
// everything else that a process does at its start. A registry never changes.
var registries sync.Map

// protocols returns the protocols of one to three steps.
func (s *scenario) protocols() (*commands.ProtocolHolder, error) {
	if known, ok := registries.Load(s.retryUnit); ok {
		return commands.NewProtocolHolder(known.(*commands.Protocols)), nil
	}
	files := fstest.MapFS{}
	for steps := 1; steps <= maxSteps; steps++ {
		var text strings.Builder
		fmt.Fprintf(&text, "protocol_id: p%d\nrequest_types: [job.%d]\nsteps:\n", steps, steps)
		for i := range steps {
			fmt.Fprintf(&text, "  - {step_id: s%d, step_type: t, service: svc%d, input: previous, ack_timeout: %s, lease: %s,\n",
				i, i%2, ackTimeout, leaseTime)
			u := s.retryUnit
			fmt.Fprintf(&text, "     retry: {dispatch: [%s, %s], ack: [%s, %s, %s], execution: [%s, %s, %s], max_attempts: 1000}}\n",
				2*u, 4*u, 2*u, 4*u, 7*u, 2*u, 4*u, 7*u)
		}
		files[fmt.Sprintf("p%d.yaml", steps)] = &fstest.MapFile{Data: []byte(text.String())}
	}
	registry, err := commands.LoadProtocolsFS(files)
	if err != nil {
		return nil, fmt.Errorf("the simulation's protocols: %w", err)
	}
	registries.Store(s.retryUnit, registry)
	return commands.NewProtocolHolder(registry), nil
}

// serve builds the HTTP API of the parts, as the program does.
func (m *parts) serve(w *world, p *process, store tablestore.Store) error {
	holder, err := w.scenario.protocols()
	if err != nil {
		return err
	}
	router, err := routing.New(routing.Config{Lanes: 2, TopicPrefix: "topic"})
	if err != nil {
		return err
	}
	accepting, err := commands.New(commands.Config{
		Ledger: m.ledger, Protocols: holder, Router: router,
	})
	if err != nil {
		return err
	}
	if w.scenario.scheduled {
		m.openSchedules(w, p, store, accepting)
	}
	random, table := (&randomSource{rng: w.source(p.name + "/operator")}).float, m.ledger.Tables().Schedule
	operations := background.NewOperations(background.OperationsConfig{
		Ledger: m.ledger, Commands: accepting, Store: store, Table: table, Random: random,
	})
	m.callbacks = callbacks.New(callbacks.Config{Ledger: m.ledger, Logger: w.log})
	m.every(countsInterval, background.Loop{Name: "counts", Pass: m.counts.RunOnce})
	around := search.Surroundings{Pause: m.gate.Covering}
	if m.outages != nil {
		around.Circuit = m.outages.Circuit
	}
	m.handler, err = httpapi.New(httpapi.Config{
		UseCases: httpapi.UseCases{
			Ledger: m.ledger, Commands: accepting, Jobs: search.New(m.ledger, &m.ended, around),
			Callbacks: m.callbacks, Queue: m.queue, Operator: outbox.NewOperator(m.ledger, nil), Reconciler: m.reconciler,
			Counts: m.counts, Operations: operations, Admission: m.admission, Gate: m.gate,
			Protocols: holder, Marks: marks.New(store, table),
		},
		Ready: func(context.Context) ([]string, error) { return nil, nil }, // No visitor calls it.
		Auth:  auth.New(auth.Config{}), Registry: prometheus.NewRegistry(), Log: w.log,
	})
	return err
}
