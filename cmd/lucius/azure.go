package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/servicebus/topology"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// exitFindings and exitUnchecked are the exit codes of a check that found
// something that has to be mended, and of one that could not be made.
const (
	exitFindings  = 1
	exitUnchecked = 2
)

// azure checks what a server needs on Azure, or creates what of it is missing.
func (p *program) azure(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] != "check" && args[0] != "provision" {
		return &exitError{exitUnchecked, errors.New("say what: lucius azure check, or lucius azure provision")}
	}
	loaded, flags, err := config.Load(args[1:], p.lookup, p.stderr)
	if err != nil {
		return unchecked(err)
	}
	if flags.NArg() > 0 {
		return unchecked(fmt.Errorf("azure %s takes no argument, and was given %q", args[0], flags.Arg(0)))
	}
	needs, err := p.azureNeedsOf(&loaded.Config)
	if err != nil {
		return unchecked(err)
	}
	if args[0] == "provision" {
		if err := needs.provision(ctx); err != nil {
			return unchecked(err)
		}
	}
	wrong, err := needs.check(ctx)
	if err != nil {
		return unchecked(err)
	}
	if wrong > 0 {
		return &exitError{exitFindings, fmt.Errorf("%d things have to be mended", wrong)}
	}
	return nil
}

// unchecked is the error of a check that could not be made.
func unchecked(err error) error { return endWith(exitUnchecked, err) }

// azureNeeds are what a server needs on Azure: tables, topics, or both.
type azureNeeds struct {
	out    io.Writer
	tables *aztablestore.Options
	topics *topology.Topology
	admin  topology.Admin
	// namespace is the one of the topics, with the right of a server.
	namespace servicebus.Namespace
}

// azureNeedsOf works out what the configuration needs.
func (p *program) azureNeedsOf(cfg *config.Config) (*azureNeeds, error) {
	n := &azureNeeds{out: p.stdout}
	if cfg.OnAzure() {
		options := tableOptions(cfg, slog.New(slog.DiscardHandler))
		n.tables = &options
	}
	if cfg.Bus == config.BusServiceBus {
		n.namespace = namespaceOf(cfg)
		var err error
		if n.topics, err = topicsOf(cfg); err != nil {
			return nil, err
		}
		if n.admin, err = p.manage(cfg); err != nil {
			return nil, err
		}
	}
	if n.tables == nil && n.topics == nil {
		return nil, errors.New("nothing is on Azure: LUCIUS_STORAGE_BACKEND is neither ledger nor table, " +
			"and LUCIUS_BUS is not servicebus")
	}
	return n, nil
}

// directiveOverhead is what a directive has beside its payload: two references,
// ids and names.
const directiveOverhead = 32 << 10

// topicsOf works out the topics. Each service of the protocols has a subscription
// of its own.
func topicsOf(cfg *config.Config) (*topology.Topology, error) {
	registry, err := protocol.Load(cfg.ProtocolsDir)
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_PROTOCOLS_DIR %s: %w", cfg.ProtocolsDir, err)
	}
	var services []string
	for _, known := range registry.Protocols() {
		for i := range known.Steps {
			services = append(services, known.Steps[i].Service)
		}
	}
	slices.Sort(services)
	wanted := topology.Config{
		TopicPrefix: cfg.TopicPrefix, Lanes: cfg.Lanes, Services: slices.Compact(services),
		MessageBytes: cfg.MaxPayloadBytes + directiveOverhead,
	}
	if cfg.ServiceBus.Replies {
		wanted.ReplyPrefix, wanted.ReplySubscription = cfg.ServiceBus.ReplyPrefix, cfg.ServiceBus.ReplySubscription
	}
	return topology.New(wanted)
}

// manage opens the management side of the namespace.
func (p *program) manage(cfg *config.Config) (topology.Admin, error) {
	if p.namespace != nil {
		return p.namespace, nil
	}
	admin, err := topology.Open(topology.NamespaceOptions{
		Connection: cfg.ServiceBus.Connection, Namespace: cfg.ServiceBus.Namespace,
	})
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_BUS %s: %w", cfg.Bus, err)
	}
	return admin, nil
}

// provision creates what is missing. What is there stays as it is.
func (n *azureNeeds) provision(ctx context.Context) error {
	if n.tables != nil {
		store, err := aztablestore.Open(ctx, *n.tables) // It creates its tables.
		if err != nil {
			return fmt.Errorf("create the tables: %w", err)
		}
		if err := store.Close(); err != nil {
			return fmt.Errorf("create the tables: %w", err)
		}
	}
	if n.topics == nil {
		return nil
	}
	created, err := n.topics.Provision(ctx, n.admin)
	for _, entity := range created {
		fmt.Fprintln(n.out, "created:", entity)
	}
	return err
}

// check prints what is not as it has to be, and returns how many of that would
// lose messages or keep a server from working.
func (n *azureNeeds) check(ctx context.Context) (wrong int, err error) {
	if n.tables != nil {
		if wrong, err = n.checkTables(ctx); err != nil {
			return 0, err
		}
	}
	if n.topics != nil {
		more, err := n.checkTopics(ctx)
		if err != nil {
			return 0, err
		}
		wrong += more
	}
	return wrong, nil
}

// checkTables tries each table.
func (n *azureNeeds) checkTables(ctx context.Context) (wrong int, err error) {
	checks, err := aztablestore.Check(ctx, *n.tables)
	if err != nil {
		return 0, err
	}
	for _, found := range checks {
		switch {
		case found.Missing:
			fmt.Fprintf(n.out, "%s: table %s: the table is not there; provision creates it\n", topology.Wrong, found.Name)
		case found.Err != nil:
			fmt.Fprintf(n.out, "%s: table %s: %v\n", topology.Wrong, found.Name, found.Err)
		default:
			continue
		}
		wrong++
	}
	fmt.Fprintf(n.out, "tables: %d looked at, %d wrong\n", len(checks), wrong)
	return wrong, nil
}

// checkTopics looks at each topic, and tries what a server does with it. A
// credential that may not look, as that of a server need not, is tried all the same.
func (n *azureNeeds) checkTopics(ctx context.Context) (wrong int, err error) {
	findings, err := n.topics.Check(ctx, n.admin)
	if errors.Is(err, topology.ErrForbidden) {
		findings = []topology.Finding{{
			Entity: "the namespace", Level: topology.Warning,
			Detail: "it cannot be looked at (" + err.Error() + "), so it was only tried what a server does with it",
		}}
	} else if err != nil {
		return 0, err
	}
	faults, err := n.tryTopics(ctx, findings)
	if err != nil {
		return 0, err
	}
	for _, fault := range faults {
		findings = append(findings, topology.Finding{Entity: fault.Entity, Level: topology.Wrong, Detail: fault.Detail})
	}
	for _, found := range findings {
		line := found.String()
		if found.Missing {
			line += "; provision creates it"
		}
		fmt.Fprintln(n.out, line)
		if found.Level == topology.Wrong {
			wrong++
		}
	}
	fmt.Fprintf(n.out, "topics: %d looked at, %d wrong\n", len(n.topics.Topics), wrong)
	return wrong, nil
}

// tryTopics opens the topics that directives go to, and looks into the subscriptions
// that are read, but for what is known to be missing.
func (n *azureNeeds) tryTopics(ctx context.Context, known []topology.Finding) ([]servicebus.Fault, error) {
	missing := map[string]bool{}
	for _, found := range known {
		missing[found.Entity] = found.Missing
	}
	trial := servicebus.Trial{MessageBytes: n.topics.MessageBytes}
	for i := range n.topics.Topics {
		topic := &n.topics.Topics[i]
		if missing[topic.Name] {
			continue
		}
		if topic.Window > 0 {
			trial.Topics = append(trial.Topics, topic.Name)
		}
		for _, s := range topic.Subscriptions {
			if path := (servicebus.Subscription{Topic: topic.Name, Name: s.Name}); s.Ours && !missing[path.String()] {
				trial.Subscriptions = append(trial.Subscriptions, path)
			}
		}
	}
	return servicebus.Try(ctx, n.namespace, trial)
}
