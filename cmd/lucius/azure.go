//go:build !nodrivers

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/servicebus/namespace"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
)

// azure returns lucius azure. Its commands take the settings of a server.
func (p *program) azure() *cobra.Command {
	cmd := &cobra.Command{
		Use: "azure", GroupID: cli.GroupOperate, Short: "Check or create what a server needs on Azure",
		Example: "  lucius azure check",
	}
	config.Flags(cmd.PersistentFlags())
	verb := func(use, short string, run func(ctx context.Context, cfg *config.Config) error) *cobra.Command {
		sub := &cobra.Command{Use: use, Short: short, Example: "  lucius azure " + use, Args: cli.Takes(0, 0)}
		sub.RunE = func(sub *cobra.Command, _ []string) error {
			loaded, err := config.Load(sub.Flags(), p.Environment)
			if err != nil {
				return checkError(err)
			}
			return checkError(run(sub.Context(), &loaded.Config))
		}
		return sub
	}
	cmd.AddCommand(
		verb("check", "Check tables, topics and rights", func(ctx context.Context, cfg *config.Config) error {
			return p.checkAzure(ctx, cfg, false)
		}),
		verb("provision", "Create what is missing, and check", func(ctx context.Context, cfg *config.Config) error {
			return p.checkAzure(ctx, cfg, true)
		}),
		verb("emulator-config", "Print the configuration of Microsoft's Service Bus emulator",
			func(_ context.Context, cfg *config.Config) error { return p.emulatorConfig(cfg) }),
		p.deadLetters(),
	)
	return cmd
}

// checkAzure checks what a server needs on Azure, and first creates what is missing if
// provision is set.
func (p *program) checkAzure(ctx context.Context, cfg *config.Config, provision bool) error {
	needs, err := p.azureNeeds(cfg)
	if err != nil {
		return err
	}
	// The tables and the topics are independent: a fault of one must not hide findings
	// about the other.
	wrong, failed := needs.doTables(ctx, provision)
	more, alsoFailed := needs.doTopics(ctx, provision)
	if err := errors.Join(failed, alsoFailed); err != nil {
		return err
	}
	if wrong += more; wrong > 0 {
		return found("%d findings to fix", wrong)
	}
	return nil
}

// emulatorConfig prints the Config.json of Microsoft's Service Bus emulator.
func (p *program) emulatorConfig(cfg *config.Config) error {
	topics, err := topicsOf(cfg)
	if err != nil {
		return err
	}
	text, err := topics.EmulatorConfig()
	if err != nil {
		return err
	}
	_, err = p.Stdout.Write(text)
	return err
}

// azureNeeds is what a server needs on Azure: tables, topics, or both.
type azureNeeds struct {
	out    io.Writer
	tables *aztablestore.Options // nil if the store is elsewhere
	topics *namespace.Topology   // nil if the bus is elsewhere
	// admin manages the namespace. It is nil for an emulator whose management interface
	// is not known.
	admin namespace.Admin
	// namespace holds the topics, with the credential of a server.
	namespace servicebus.Namespace
}

// azureNeeds returns what the configuration needs.
func (p *program) azureNeeds(cfg *config.Config) (*azureNeeds, error) {
	n := &azureNeeds{out: p.Stdout}
	if cfg.OnAzure() {
		options := tableOptions(cfg, slog.New(slog.DiscardHandler))
		n.tables = &options
	}
	if cfg.Bus == config.BusServiceBus {
		var err error
		if n.topics, err = topicsOf(cfg); err != nil {
			return nil, err
		}
		n.namespace = namespaceOf(cfg)
		bus := &cfg.ServiceBus
		variable, connection := "LUCIUS_SERVICEBUS_ADMIN_CONNECTION", bus.AdminConnection
		if connection == "" {
			variable, connection = "LUCIUS_SERVICEBUS_CONNECTION", bus.Connection
		}
		if bus.AdminConnection != "" || !namespace.Emulator(bus.Connection) {
			n.admin, err = namespace.Open(namespace.Options{Connection: connection, Namespace: bus.Namespace})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", variable, err)
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
func topicsOf(cfg *config.Config) (*namespace.Topology, error) {
	registry, err := commands.LoadProtocols(cfg.ProtocolsDir)
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_PROTOCOLS_DIR %s: %w", cfg.ProtocolsDir, err)
	}
	wanted := namespace.Config{
		TopicPrefix: cfg.TopicPrefix, Lanes: cfg.Lanes, MessageBytes: cfg.MaxPayloadBytes + directiveOverhead,
	}
	for _, known := range registry.Protocols() {
		for i := range known.Steps {
			step := &known.Steps[i]
			wanted.Directives = append(wanted.Directives, namespace.Directive{Service: step.Service, StepType: step.Type})
			wanted.AckTimeout = max(wanted.AckTimeout, cmp.Or(step.Overrides.AckTimeout, cfg.Steps.AckTimeout))
			wanted.Lease = max(wanted.Lease, cmp.Or(step.Overrides.Lease, cfg.Steps.Lease))
		}
	}
	if cfg.ServiceBus.Replies {
		wanted.ReplyPrefix, wanted.ReplySubscription = cfg.ServiceBus.ReplyPrefix, cfg.ServiceBus.ReplySubscription
	}
	return namespace.New(wanted)
}

// doTables creates the missing tables if it is told to, and reports the ones that a
// server cannot use.
func (n *azureNeeds) doTables(ctx context.Context, provision bool) (wrong int, err error) {
	if n.tables == nil {
		return 0, nil
	}
	if provision {
		created, err := aztablestore.Create(ctx, *n.tables)
		for _, table := range created {
			fmt.Fprintln(n.out, "created: table", table)
		}
		if err != nil {
			return 0, fmt.Errorf("create the tables: %w", err)
		}
	}
	checks, err := aztablestore.Check(ctx, *n.tables)
	if err != nil {
		return 0, fmt.Errorf("check the tables: %w", err)
	}
	var findings []namespace.Finding
	for _, check := range checks {
		found := namespace.Finding{Entity: "table " + check.Name, Level: namespace.Wrong, Missing: check.Missing}
		switch {
		case check.Missing:
			found.Detail = "the table is missing"
		case check.Err != nil:
			found.Detail = check.Err.Error()
		default:
			fmt.Fprintln(n.out, "ok: table", check.Name)
			continue
		}
		findings = append(findings, found)
	}
	return n.report(findings, "tables", len(checks)), nil
}

// doTopics creates the missing topics and subscriptions if it is told to, and reports
// how the topics differ from what a server needs. It also tries what a server does with
// them, which needs no right to manage the namespace.
func (n *azureNeeds) doTopics(ctx context.Context, provision bool) (wrong int, err error) {
	if n.topics == nil {
		return 0, nil
	}
	if provision {
		if n.admin == nil {
			return 0, errNoAdmin
		}
		created, err := n.topics.Provision(ctx, n.admin)
		for _, entity := range created {
			fmt.Fprintln(n.out, "created:", entity)
		}
		if err != nil {
			return 0, err
		}
	}
	findings, err := n.inspect(ctx)
	if err != nil {
		return 0, err
	}
	faults, err := servicebus.Try(ctx, n.namespace, n.trial(findings))
	if err != nil {
		return 0, err
	}
	for _, fault := range faults {
		findings = append(findings, namespace.Finding{Entity: fault.Entity, Level: namespace.Wrong, Detail: fault.Detail})
	}
	return n.report(findings, "topics", len(n.topics.Topics)), nil
}

// errNoAdmin is returned when an emulator is to be managed through the address of its
// messages.
var errNoAdmin = errors.New("LUCIUS_SERVICEBUS_CONNECTION is that of an emulator, which is managed at another address: " +
	"set LUCIUS_SERVICEBUS_ADMIN_CONNECTION (Microsoft's emulator: the same with port 5300), or write its Config.json with " +
	"lucius azure emulator-config")

// inspect compares the namespace with the topics. Without the right or the address to
// do so, it says so in a warning.
func (n *azureNeeds) inspect(ctx context.Context) ([]namespace.Finding, error) {
	err := errNoAdmin
	if n.admin != nil {
		var findings []namespace.Finding
		if findings, err = n.topics.Check(ctx, n.admin); !errors.Is(err, namespace.ErrForbidden) {
			return findings, err
		}
	}
	return []namespace.Finding{{
		Entity: "the namespace", Level: namespace.Warning,
		Detail: "filters and settings could not be inspected (" + err.Error() + "); checked only what a server does",
	}}, nil
}

// report prints the findings and how many entities were checked, and counts the findings
// that lose messages or stop a server.
func (n *azureNeeds) report(findings []namespace.Finding, things string, checked int) (wrong int) {
	for _, found := range findings {
		line := found.String()
		if found.Missing {
			line += "; provision creates it"
		}
		fmt.Fprintln(n.out, line)
		if found.Level == namespace.Wrong {
			wrong++
		}
	}
	fmt.Fprintf(n.out, "%s: %d checked, %d wrong\n", things, checked, wrong)
	return wrong
}

// trial returns the topics that a server sends to and the subscriptions that it reads,
// without those that are known to be missing.
func (n *azureNeeds) trial(known []namespace.Finding) servicebus.Trial {
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
			if path := (servicebus.Subscription{Topic: topic.Name, Name: s.Name}); s.Service == "" && !missing[path.String()] {
				trial.Subscriptions = append(trial.Subscriptions, path)
			}
		}
	}
	return trial
}
