// Package liveness walks the live jobs, slowly and for ever, and checks that each
// has a way forward: a pending row, a deadline or a retry time with its schedule
// entry, a directive in the pull queue, or a pause.
//
// Everything else in the system makes this true with every change. The walk is
// what turns a defect of it into lateness: what it can put right it does, and
// counts; the rest it exports, so that somebody looks. Both counters are zero in
// a healthy system.
package liveness
