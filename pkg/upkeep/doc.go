// Package upkeep works in the background: it acts on deadlines, purges ended jobs,
// walks the live ones for defects, reruns failed ones in bulk, and tells receivers how
// their jobs ended.
//
//	Loop ──▶ Sweeper     due timers       ──▶ ledger.Fire
//	     ──▶ Retention   ended jobs       ──▶ ledger.Purge
//	     ──▶ Reconciler  all live jobs    ──▶ ledger.Inspect
//	     ──▶ Bulk        retry operations ──▶ ledger.Rerun
//	     ──▶ Webhooks    due webhooks     ──▶ webhook.Dispatcher
//
// Each room makes one pass with RunOnce, which a test can call, and says with Loop
// how its passes follow one another. Any number of processes may do so on one store,
// without leases and without a leader: if two act on one entry, the compare-and-swap
// decides.
package upkeep
