// Package protocol is the registry of protocols: which steps, in which order and
// by which services, a command of a given request type becomes.
//
//	protocols/*.yaml, *.yml, *.json
//	        │ Load: the whole folder, or nothing
//	        ▼
//	     Registry ──Lookup(request_type)──► Protocol ──► Steps
//	        ▲                                   │          ├ Policy(global)
//	        │ Replace ◄── Watcher               │          └ payload pointer
//	     Holder ◄── Current ── use cases        ├ CheckSchemaVersion
//	                                            └ ValidatePayload
//
// A protocol is a file. All files of a folder are read and checked together and
// become one registry, which never changes: two files that claim one request
// type, an unknown key, a duration without a unit, a JSON Schema that does not
// compile, each is an error that names file, line and what is wrong. A registry
// that was loaded can be used without another look at it.
//
// A [Watcher] takes up changed files: it loads the folder again and hands the
// registry to the [Holder]; where loading fails, the old one stays in use. Jobs
// keep the steps that they were accepted with. docs/protocols.md has the rules
// as users see them.
//
// Registry, Protocol and Step are immutable and safe for concurrent use.
//
// Source: Option B spec, 6. Protocol Registry and Step Definitions.
package protocol
