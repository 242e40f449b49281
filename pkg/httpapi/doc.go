// Package httpapi is the HTTP transport: it turns requests into calls of the
// use cases, and what they return into responses. It decides nothing itself.
//
//	request ─► Server ─► mux ─► guard ─► generated glue ─► endpoints ─► Commands, Jobs,
//	             │                │        (package api)       │         Callbacks, Work,
//	             │                │                            │         Admin, Readiness
//	             ├ request id,    ├ who calls, and its rule    ├ body: type, size, JSON,
//	             │ access log,    │ (package access), limits   │       unknown fields, limits
//	             │ metrics, audit └ whose the object is        └ problem+json
//	             ├ panics                  (Owners)
//	             └ 503 while it drains
//
// Every request that is not public passes the guard: [access.Authenticator] says
// who calls, the rule of the route whether that role may, and [Owners] whose the
// object is that the path names. One of another tenant is answered there, as one
// that is not there is, before the body is read. What names its tenant in the
// body or the query is asked about by its endpoint, a command by the use case that
// reads it ([Submission].Admit). Use cases find the caller in their context.
//
// The use cases are interfaces of this package's own, with the wire types of
// package api; the program that is put together adapts its use cases to them.
// They report what a client may know as a [problem.Error]; any other error is
// logged here, once, and answered as internal without details.
//
// Bodies are decoded with encoding/json into structs and checked by hand: no
// schema is interpreted while requests are served. Unknown fields are refused
// where they are mostly typing errors, in control and operators' requests (the
// use case refuses them in commands), and ignored and counted where workers of
// another version may send them, in callbacks and /v1/work.
//
// Requests that wait, for a job's end or for work, hold no goroutine but their
// own. They end when the wait is over, when the client goes away (the context
// is done), and when the server drains ([Wait].Ended is closed).
package httpapi
