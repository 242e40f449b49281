// Package retention purges ended jobs whose time has come: some per second, so
// that a backlog of them never competes with the work at hand.
//
// What a purge is, and in which order it deletes, is the ledger's; see
// [github.com/lucius-project/lucius/pkg/ledger.Ledger.Purge]. A purge that
// fails or is cut short is found again through its schedule entry.
package retention
