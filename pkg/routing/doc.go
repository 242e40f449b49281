// Package routing chooses the lane of the bus for a step's directives.
//
//	request's mode ─┐
//	protocol's mode ┼─► mode ──► routing key ──► lane ──► topic
//	DEFAULT ────────┘            tenant id       CRC-32    prefix + lane
//	                             (BURST: tenant  modulo
//	                             id + doc id)    lanes
//
// All directives of one routing key share a lane. In the mode DEFAULT this is
// all of a tenant's work, so that a busy tenant fills only one lane; in BURST a
// tenant's documents spread over the lanes.
//
// Ids are normalised first, so that spellings of the same id share a lane:
// Unicode NFC, white space trimmed, lower case (rune by rune, without
// language-specific rules). The concatenation of BURST has no separator:
// tenant_a with doc_1 and tenant_ad with oc_1 share a lane, which is harmless.
//
// A key's lane changes only with the number of lanes. The decision and its
// reason are stored with the step, and never made twice.
//
// The package is pure and safe for concurrent use.
//
// Source: Option B spec, 7. Routing and Partitioning; Orchestrator flow canvas,
// Partition + Routing.
package routing
