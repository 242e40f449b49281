// Package protocol is the registry of protocols, which map the request type of a
// command to its steps, their order and their services.
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
// compile, each is an error that names file, line and fault. A loaded registry needs
// no further checks.
//
// A [Watcher] loads the folder again when files change and hands the registry to the
// [Holder]; if loading fails, the old one stays in use. Jobs
// keep the steps that they were accepted with. docs/protocols.md has the rules
// as users see them.
//
// Registry, Protocol and Step are immutable and safe for concurrent use.
//
// Source: Option B spec, 6. Protocol Registry and Step Definitions.
package protocol
