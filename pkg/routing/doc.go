// Package routing decides on which lane of the bus a step's directives travel.
//
//	request's mode ─┐
//	protocol's mode ┼─► mode ──► routing key ──► lane ──► topic
//	DEFAULT ────────┘            tenant id       CRC-32    prefix + lane
//	                             (BURST: tenant  modulo
//	                             id + doc id)    lanes
//
// All directives of one routing key share a lane. In the mode DEFAULT that is
// all of a tenant's work, so that a busy tenant fills one lane and leaves the
// others alone; in BURST a tenant's documents spread over the lanes.
//
// Ids are normalised first, so that spellings which people take for the same id
// meet on one lane: Unicode NFC, white space trimmed, lower case (rune by rune,
// in no language's special way). The concatenation of BURST has no separator:
// tenant_a with doc_1 and tenant_ad with oc_1 share a lane, which is harmless.
//
// A lane of a given key changes only with the number of lanes. The decision is
// stored with the step, reason included, and never made twice.
//
// The package is pure and safe for concurrent use.
//
// Source: Option B spec, 7. Routing and Partitioning; Orchestrator flow canvas,
// Partition + Routing.
package routing
