// Package server assembles a server: the ledger, the use cases, the background loops and
// the HTTP API. The lucius program, the test kit of the Go SDK and any Go program that
// embeds Lucius share this assembly.
//
//	           ┌─ ServeHTTP ──▶ httpapi ──▶ commands, jobs, callbacks, workqueue ─┐
//	Open ──▶ Server                                                              ledger ──▶ Store
//	           └─ Run ──▶ relay, sweeper, retention, reconciler, webhooks, counts ┘
//
// A program opens a store, and closes it at the end:
//
//	store, err := pebblestore.Open(pebblestore.Options{Dir: "lucius-data"})
//	registry, err := commands.LoadProtocolsFS(files)
//	s, err := server.Open(ctx, server.Config{
//		Store: store, Protocols: commands.NewProtocolHolder(registry),
//		HTTP: httpapi.Config{Auth: auth.New(auth.Config{})},
//	})
//	front := httpapi.NewHTTPServer(s, logger)
//	go front.Serve(listener)
//	err = s.Run(ctx)
//	front.Close()
//
// The example also runs a worker in the same process.
//
// An authenticator without callers admits every caller on a loopback address, so such a
// server must listen on one: see package auth. The server may handle requests before Run
// starts: it then accepts commands, but dispatches nothing. [Server.Run] shuts down in
// order, but no data is lost if the process ends without it.
//
// A server that shares its store with other processes, each with some of the roles, is set
// up the same way: see [Config] and [ledger.Config].
package server
