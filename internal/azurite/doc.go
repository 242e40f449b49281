// Package azurite runs Azurite, the emulator of Azure Table Storage, for tests. It
// needs Node 20 or later with npm on the path.
//
//	tools/azurite/package-lock.json     pins the installation
//	        │ npm ci, once (package npmcache)
//	        ▼
//	user cache/lucius-azurite/<hash>    shared by all test binaries
//	        │ node run.js               one process per Start
//	        ▼
//	127.0.0.1:<free port>               in memory, lost at Stop
//
// Azurite emulates the semantics of Azure Tables (ETags, transactions, paging,
// errors), not its durability, throttling or speed; package aztablestore checks the
// limits that Azurite does not enforce. At the start one setting is changed: its
// limit for the JSON of an updated entity, which is lower than Azure's limit for the
// stored entity (see tools/azurite/run.js).
package azurite
