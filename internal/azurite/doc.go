// Package azurite runs Azurite, the emulator of Azure Table Storage, for tests
// of what is stored there. It needs Node 20 or later with npm on the path.
//
//	tools/azurite/package-lock.json     what is installed, to the last byte
//	        │ npm ci, once, under a lock
//	        ▼
//	user cache/lucius-azurite/<hash>    shared by all test binaries
//	        │ node run.js               one process per Start
//	        ▼
//	127.0.0.1:<free port>               in memory, gone with Stop
//
// Azurite is a peer for the semantics of Azure Tables (ETags, transactions,
// paging, errors), not for its durability, its throttling or its speed; what it
// is laxer about, package aztablestore guards. One thing is changed at the
// start: its limit for the JSON of an updated entity, which is lower than
// Azure's for what it stores (see tools/azurite/run.js).
package azurite
