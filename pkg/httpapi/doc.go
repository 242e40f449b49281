// Package httpapi is the HTTP transport: it turns requests into calls of the
// use cases, and their results into responses. It decides nothing itself.
//
//	request ─► Server ─► mux ─► guard ─► generated glue ─► endpoints ─► use cases:
//	             │                │        (package api)       │         commands, jobs,
//	             │                │                            │         callbacks, workqueue, …
//	             ├ request id,    ├ who calls, and its rule    ├ body: type, size, JSON,
//	             │ access log,    │ (package auth), limits   │       unknown fields, limits
//	             │ metrics, audit └ the object's owner         ├ types of the contract to those
//	             ├ panics                                      │ of the use cases, and back
//	             └ 503 while it drains                         └ problem+json
//
// Every request that is not public passes the guard: [auth.Authenticator] identifies
// the caller, the route's rule checks its role, and the use cases say who owns the
// object in the path. The guard answers foreign and missing objects alike, before
// the body is read. The endpoint authorizes a tenant that the body or the query
// names; for commands [commands.Service.Submit] does, by a function passed to it.
//
// Handlers call the [UseCases] and encode their answers: each area has one file with
// its handlers and encoders. Use cases report what a client may know as a
// [problem.Error]; any other error is logged here, once, and answered as internal
// without details.
//
// Bodies are decoded with encoding/json into structs and checked by hand: no
// schema is interpreted while requests are served. Control and operators' requests
// refuse unknown fields, which are mostly typing errors (for commands the use case
// refuses them). Callbacks and /v1/work ignore and count them, because workers of
// another version may send them.
//
// Requests that wait for a job's end or for work use only their own goroutine. They
// end when the wait is over, when the client goes away (the context is done), and
// when the server drains.
package httpapi
