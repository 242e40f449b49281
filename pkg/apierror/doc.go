// Package apierror defines the errors that use cases return to clients: a stable
// machine-readable code with details.
//
//	use case ──► *apierror.Error{Code, Detail, Errors, RetryAfter, Err}
//	                  │
//	                  ├─ Code.Status, Code.Title   one table, see codes.go
//	                  ├─ Detail, Errors            for the client
//	                  └─ Err                       for the log, never sent
//	                  ▼
//	          application/problem+json (RFC 9457)
//
// A use case returns an [Error] if a client can act on it, and any other error otherwise;
// [From] converts the latter to the code internal, whose cause is only logged. The package
// imports no other package of the project, so that every layer can use it.
package apierror
