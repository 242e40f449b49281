// Package server assembles a server: the ledger, the use cases, the background loops and
// the HTTP API. The lucius program, the test kit of the Go SDK and any Go program that
// embeds Lucius share this assembly.
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
// An authenticator without callers admits every caller on a loopback address, so such a
// server must listen on one: see package auth. Requests may be served before Run starts;
// commands are accepted, but nothing is dispatched. [Server.Run] stops in order, but data
// on disk does not depend on that.
//
// A server that shares its store with other processes, each with some of the roles, is set
// up the same way: see [Config] and [ledger.Config].
package server
