// Package problem is the one vocabulary of errors between the use cases and
// those who call Lucius: a stable machine-readable code, and what goes with it.
//
//	use case ──► *problem.Error{Code, Detail, Errors, RetryAfter, Err}
//	                  │
//	                  ├─ Code.Status, Code.Title   one table, see codes.go
//	                  ├─ Detail, Errors            for the client
//	                  └─ Err                       for the log, never sent
//	                  ▼
//	          application/problem+json (RFC 9457)
//
// A use case returns an [Error] where a client can do something about it, and
// any other error where not; [From] makes of the latter the code internal,
// whose cause reaches the log alone. The package imports nothing of the
// project, so that every layer may use it.
package problem
