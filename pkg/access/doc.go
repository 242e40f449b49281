// Package access decides who calls the HTTP API, and what they may do there.
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
// A [Caller] is a name and grants; where it came from makes no difference to
// what it may do. Roles do not imply each other: an operator who reads jobs as
// well is granted both. What each operation asks for is data, [Rules], and the
// page docs/access.md shows that same table.
//
// What a caller of another tenant asks for is not there: a transport answers an
// object that [Rule.Allows] refuses exactly as one that does not exist. Only a
// tenant that the request itself names is answered with forbidden, which tells
// the caller nothing that it did not say.
//
// Secrets are held as hashes, and never logged: errors name a reason, which is
// for the log, and the client is told only that its credential is not valid.
//
// The token file and the certificates are taken up while the server runs.
// [File.Reload] and [Certificates.Reload] do that, whoever calls them; what is
// wrong leaves in use what was there before. The keys of an [Issuer] are fetched
// when a token first needs them, so an issuer that is down stops nobody but its
// own callers.
package access
