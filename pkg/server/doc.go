// Package server puts a server together: the ledger and all that works on it, the
// background loops and the HTTP API. The program, the test kit of the Go SDK and any Go
// program that has Lucius inside itself share this one assembly.
//
//	           ┌─ ServeHTTP ──▶ httpapi ──▶ commands, jobs, callbacks, workqueue ─┐
//	Open ──▶ Server                                                              ledger ──▶ Store
//	           └─ Run ──▶ relay, sweeper, retention, reconciler, webhooks, census ┘
//
// A program opens a store, and closes it at the end:
//
//	store, err := pebblestore.Open(pebblestore.Options{Dir: "lucius-data"})
//	registry, err := protocol.LoadFS(files)
//	s, err := server.Open(ctx, server.Config{
//		Store: store, Protocols: protocol.NewHolder(registry),
//		HTTP: httpapi.Config{Auth: auth.New(auth.Config{})},
//	})
//	front := httpapi.NewHTTPServer(s, logger)
//	go front.Serve(listener)
//	err = s.Run(ctx)
//	front.Close()
//
// The example has a worker in the same process.
//
// An authenticator without callers lets everyone in who calls by a loopback address, so
// such a server must listen on one: see package auth. Requests may be served before Run
// begins; commands are accepted, and nothing is dispatched. Run ends in good order: see
// there. What is on disk does not depend on that.
//
// A server that shares its store with other processes, each with some of the roles, is
// the same: see [Config] and [ledger.Config].
package server
