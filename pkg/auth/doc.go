// Package auth identifies the callers of the HTTP API and decides what they may do.
//
//	request ──► Authenticator.Authenticate ──► Caller ──► Rule.Check ──► use case
//	                 │                           │            │
//	   File          │  bearer token: its hash   │  grants:   │  one rule for each
//	   Issuer        │  bearer JWT: its key      │  role,     │  operation: which
//	   Certificates  │  client certificate       │  tenants,  │  role, and whose
//	   nothing       │  loopback, no browser     │  services  │  tenant is asked
//	                 ▼                           ▼            ▼
//	            unauthenticated 401        not there 404   forbidden 403
//
// A [Caller] is a name and grants; its kind of credential makes no difference to what
// it may do. Roles do not imply each other: an operator who also reads jobs needs
// both. The requirements of each operation are data, [Rules]; docs/run/access.md shows
// the same table.
//
// To a caller, objects of other tenants do not exist: for an object that [Rule.Allows]
// refuses, a transport answers exactly as for a missing one. Only a tenant that the request
// itself names is answered with forbidden, which tells the caller nothing new.
//
// Secrets are held as hashes, and never logged: errors give the log a reason, while
// the client learns only that its credential is not valid.
//
// A [File] and [Certificates] reload their files while the server runs; if the new files
// are invalid, the old ones stay in use. The keys of an [Issuer] are fetched when a token
// first needs them, so an issuer that is down affects only its own callers.
package auth
