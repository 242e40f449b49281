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

// azure checks what a server needs on Azure, and provision first creates what is missing.
func (p *program) azure(ctx context.Context, args []string) (err error) {
	defer func() { err = checkError(err) }()
	if len(args) == 0 || args[0] != "check" && args[0] != "provision" {
		return errors.New("usage: lucius azure check, or lucius azure provision")
	}
	loaded, flags, err := config.Load(args[1:], p.lookup, p.stderr)
	if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("azure %s takes no argument, and was given %q", args[0], flags.Arg(0))
	}
	needs, err := p.azureNeeds(&loaded.Config)
	if err != nil {
		return err
	}
	if args[0] == "provision" {
		if err := needs.provision(ctx); err != nil {
			return err
		}
	}
	wrong, err := needs.checkTables(ctx)
	if err != nil {
		return err
	}
	more, err := needs.checkTopics(ctx)
	if err != nil {
		return err
	}
	if wrong += more; wrong > 0 {
		return &exitError{exitFindings, fmt.Errorf("%d findings to fix", wrong)}
	}
	return nil
}

// azureNeeds is what a server needs on Azure: tables, topics, or both.
type azureNeeds struct {
	out    io.Writer
	tables *aztablestore.Options // nil if the store is elsewhere
	topics *topology.Topology    // nil if the bus is elsewhere
	admin  topology.Admin
	// namespace holds the topics, with the credential of a server.
	namespace servicebus.Namespace
}

// azureNeeds returns what the configuration needs.
func (p *program) azureNeeds(cfg *config.Config) (*azureNeeds, error) {
	n := &azureNeeds{out: p.stdout}
	if cfg.OnAzure() {
		options := tableOptions(cfg, slog.New(slog.DiscardHandler))
		n.tables = &options
	}
	if cfg.Bus == config.BusServiceBus {
		n.namespace, n.admin = namespaceOf(cfg), p.namespace
		var err error
		if n.topics, err = topicsOf(cfg); err != nil {
			return nil, err
		}
		if n.admin == nil {
			n.admin, err = topology.Open(topology.NamespaceOptions{
				Connection: cfg.ServiceBus.Connection, Namespace: cfg.ServiceBus.Namespace,
			})
			if err != nil {
				return nil, fmt.Errorf("LUCIUS_BUS %s: %w", cfg.Bus, err)
			}
		}
	}
	if n.tables == nil && n.topics == nil {
		return nil, errors.New("nothing is on Azure: LUCIUS_STORAGE_BACKEND is neither ledger nor table, " +
			"and LUCIUS_BUS is not servicebus")
	}
	return n, nil
}

// directiveOverhead is the size of a directive without its payload: references, ids
// and names.
const directiveOverhead = 32 << 10

// topicsOf returns the topics, with a subscription for each service of the protocols.
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

// provision creates what is missing, and changes nothing that exists.
func (n *azureNeeds) provision(ctx context.Context) error {
	if n.tables != nil {
		store, err := aztablestore.Open(ctx, *n.tables) // It creates its tables.
		if err == nil {
			err = store.Close()
		}
		if err != nil {
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

// checkTables reports the tables that a server cannot use.
func (n *azureNeeds) checkTables(ctx context.Context) (wrong int, err error) {
	if n.tables == nil {
		return 0, nil
	}
	checks, err := aztablestore.Check(ctx, *n.tables)
	if err != nil {
		return 0, err
	}
	var findings []topology.Finding
	for _, check := range checks {
		found := topology.Finding{Entity: "table " + check.Name, Level: topology.Wrong, Missing: check.Missing}
		switch {
		case check.Missing:
			found.Detail = "the table is missing"
		case check.Err != nil:
			found.Detail = check.Err.Error()
		default:
			continue
		}
		findings = append(findings, found)
	}
	return n.report(findings, "tables", len(checks)), nil
}

// checkTopics reports how the topics differ from what a server needs. It also tries what
// a server does with them, which needs no right to manage the namespace.
func (n *azureNeeds) checkTopics(ctx context.Context) (wrong int, err error) {
	if n.topics == nil {
		return 0, nil
	}
	findings, err := n.topics.Check(ctx, n.admin)
	if errors.Is(err, topology.ErrForbidden) {
		findings = []topology.Finding{{
			Entity: "the namespace", Level: topology.Warning,
			Detail: "no right to inspect it (" + err.Error() + "); checked only what a server does",
		}}
	} else if err != nil {
		return 0, err
	}
	faults, err := servicebus.Try(ctx, n.namespace, n.trial(findings))
	if err != nil {
		return 0, err
	}
	for _, fault := range faults {
		findings = append(findings, topology.Finding{Entity: fault.Entity, Level: topology.Wrong, Detail: fault.Detail})
	}
	return n.report(findings, "topics", len(n.topics.Topics)), nil
}

// report prints the findings among so many things, and counts those that lose messages
// or stop a server.
func (n *azureNeeds) report(findings []topology.Finding, things string, checked int) (wrong int) {
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
	fmt.Fprintf(n.out, "%s: %d checked, %d wrong\n", things, checked, wrong)
	return wrong
}

// trial returns the topics that a server sends to and the subscriptions that it reads,
// without those that are known to be missing.
func (n *azureNeeds) trial(known []topology.Finding) servicebus.Trial {
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
	return trial
}
