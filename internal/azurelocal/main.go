// Command azurelocal fakes Azure on this machine: a storage account, a namespace of
// Service Bus, and the platform services of the demo that read it. It prints the
// variables with which `lucius serve` uses them. Their data is in memory and is lost
// when the command ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/samplepipeline"
	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/servicebus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "azurelocal:", err)
		stop()
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	lanes     int
	documents string
	work      string
	layout    string
}

// run fakes Azure until the context ends.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("azurelocal", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.lanes, "lanes", 16, "number of lanes")
	flags.StringVar(&o.documents, "documents-dir", "./internal/demo/documents", "folder of documents that services may read")
	flags.StringVar(&o.work, "work-dir", "./lucius-azure", "folder that services write to")
	flags.StringVar(&o.layout, "layout", "ledger", "ledger or table")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.lanes < 1 || flags.NArg() > 0 {
		return errors.New("--lanes must be at least 1, and there are no arguments")
	}
	if o.layout != "ledger" && o.layout != "table" {
		return fmt.Errorf("--layout is %q, must be ledger or table", o.layout)
	}
	account, err := azurite.Start(ctx)
	if err != nil {
		return err
	}
	defer account.Stop()
	workspace, err := workspaceOf(&o)
	if err != nil {
		return err
	}
	namespace, err := fakeservicebus.Start(namespaceFor(&o, workspace))
	if err != nil {
		return err
	}
	defer namespace.Close()
	admin, err := namespace.ServeAdmin()
	if err != nil {
		return err
	}
	if err := tell(stdout, &o, account.ConnectionString(), namespace.ConnectionString(), admin, workspace); err != nil {
		return err
	}
	return work(ctx, &o, namespace.ConnectionString(), workspace, slog.New(slog.NewTextHandler(stderr, nil)))
}

// workspaceOf makes the folders absolute, as file URIs need them.
func workspaceOf(o *options) (samplepipeline.Workspace, error) {
	documents, err := filepath.Abs(o.documents)
	if err != nil {
		return samplepipeline.Workspace{}, fmt.Errorf("folder of the documents: %w", err)
	}
	folder, err := filepath.Abs(o.work)
	if err != nil {
		return samplepipeline.Workspace{}, fmt.Errorf("work folder: %w", err)
	}
	return samplepipeline.Workspace{Documents: documents, Work: folder}, nil
}

// namespaceFor declares the topics and subscriptions that provisioning would create.
func namespaceFor(o *options, workspace samplepipeline.Workspace) fakeservicebus.Config {
	var config fakeservicebus.Config
	for lane := range o.lanes {
		directives := fakeservicebus.Topic{Name: fmt.Sprint("global-bus-p", lane)}
		for service := range workspace.Services() {
			directives.Subscriptions = append(directives.Subscriptions, fakeservicebus.Subscription{
				Name: service, Filter: map[string]string{"service": service},
			})
		}
		replies := fakeservicebus.Topic{
			Name: fmt.Sprint("global-bus-replies-p", lane), Subscriptions: []fakeservicebus.Subscription{{Name: "lucius-invoker"}},
		}
		config.Topics = append(config.Topics, directives, replies)
	}
	return config
}

// tell prints the variables and the next steps.
func tell(out io.Writer, o *options, account, namespace, admin string, workspace samplepipeline.Workspace) error {
	for _, v := range [][2]string{
		{"LUCIUS_STORAGE_BACKEND", o.layout}, {"LUCIUS_TABLE_CONNECTION", account}, {"LUCIUS_BUS", "servicebus"},
		{"LUCIUS_SERVICEBUS_CONNECTION", namespace}, {"LUCIUS_SERVICEBUS_ADMIN_CONNECTION", admin},
		{"LUCIUS_SERVICEBUS_LANES", fmt.Sprint(o.lanes)}, {"LUCIUS_SERVICEBUS_REPLIES", "true"},
	} {
		if _, err := fmt.Fprintf(out, "export %s='%s'\n", v[0], v[1]); err != nil {
			return fmt.Errorf("print the variables: %w", err)
		}
	}
	example, err := json.Marshal(api.Command{
		TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1", Payload: json.RawMessage(`{"language":"en"}`),
		InputRef:  refOf(filepath.Join(workspace.Documents, "bees.txt")),
		OutputRef: refOf(filepath.Join(workspace.Work, "output", "bees.txt.json")),
	})
	if err != nil {
		return fmt.Errorf("encode the example: %w", err)
	}
	_, err = fmt.Fprintf(out, advice, example)
	if err != nil {
		return fmt.Errorf("print the variables: %w", err)
	}
	return nil
}

// advice explains how to use the variables.
const advice = `
# in another terminal, with these variables:
#   go run ./cmd/lucius azure provision
# which creates the tables and checks everything; once or more often (--listen-addr):
#   go run ./cmd/lucius serve
# and then:
#   curl -H 'Content-Type: application/json' -d '%s' http://127.0.0.1:8080/v1/commands
# Ctrl-C ends it.
`

// refOf returns the reference of a file.
func refOf(path string) json.RawMessage { return json.RawMessage(samplepipeline.FileRef(path)) }

// work runs the platform services until the context ends.
func work(ctx context.Context, o *options, connection string, workspace samplepipeline.Workspace, log *slog.Logger) error {
	services := workspace.Services()
	names := make([]string, 0, len(services))
	for name := range services {
		names = append(names, name)
	}
	slices.Sort(names)
	var group errgroup.Group
	for _, name := range names {
		handlers := lucius.NewWorker(lucius.WorkerConfig{Log: log})
		handlers.Handle(lucius.AnyStep, services[name])
		group.Go(func() error {
			return servicebus.Run(ctx, handlers, servicebus.Config{Connection: connection, Service: name, Lanes: o.lanes, Log: log})
		})
	}
	return group.Wait()
}
