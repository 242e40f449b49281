package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing/fstest"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// protocols could be an embed.FS.
var protocols = fstest.MapFS{"greeting.yaml": {Data: []byte(`
protocol_id: greeting_v1
request_types: [greeting]
steps:
  - {step_id: greet, step_type: GREET, service: greeter}
`)}}

// A program embeds Lucius: it keeps the store in a folder, serves the API on its own mux, and
// runs a worker in the same process.
func Example() {
	dir, err := os.MkdirTemp("", "lucius")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // A real program keeps the folder.
	if err := run(context.Background(), dir); err != nil {
		fmt.Println(err)
	}
	// Output:
	// SUCCEEDED greeting:world
}

func run(ctx context.Context, dir string) (err error) {
	store, err := pebblestore.Open(pebblestore.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	registry, err := commands.LoadProtocolsFS(protocols)
	if err != nil {
		return err
	}
	s, err := server.Open(ctx, server.Config{
		Store: store, Protocols: commands.NewProtocolHolder(registry),
		HTTP: httpapi.Config{Auth: auth.New(auth.Config{})}, // Callers on loopback may do everything.
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", s)
	mux.HandleFunc("GET /hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the program's own page") })
	front := httptest.NewServer(mux) // A program has an http.Server, from httpapi.NewHTTPServer.
	defer front.Close()
	client, err := lucius.NewClient(lucius.ClientConfig{URL: front.URL})
	if err != nil {
		return err
	}
	worker := lucius.NewWorker(lucius.WorkerConfig{Client: client, Service: "greeter"})
	worker.Handle("GREET", func(_ context.Context, task *lucius.Task) (any, error) {
		return lucius.URI("greeting:" + task.InputRef.URI()), nil
	})

	// The worker stops before the server, so that the server still answers it.
	serving, stop := context.WithCancel(ctx)
	working, rest := context.WithCancel(ctx)
	served, worked := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.Run(serving) }()
	go func() { worked <- worker.Run(working) }()
	defer func() {
		rest()
		err = errors.Join(err, <-worked)
		stop()
		err = errors.Join(err, <-served)
	}()

	accepted, err := client.Submit(ctx, lucius.Command{
		TenantID: "tenant_a", RequestType: "greeting", SchemaVersion: "1", IdempotencyKey: "first",
		InputRef: lucius.URI("world"), OutputRef: lucius.URI("anywhere"),
	})
	if err != nil {
		return err
	}
	job, err := client.Wait(ctx, accepted.JobID)
	if err != nil {
		return err
	}
	fmt.Println(job.State, job.Steps[0].ResultRef.URI())
	return nil
}
