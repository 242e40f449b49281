// Package upkeep works in the background: it acts on deadlines, purges ended jobs,
// walks the live ones for defects, carries out operations on many jobs, reloads files, and
// tells receivers how their jobs ended.
//
//	Loop ──▶ Sweeper     due timers       ──▶ ledger.Fire
//	     ──▶ Retention   ended jobs       ──▶ ledger.Purge
//	     ──▶ Reconciler  all live jobs    ──▶ ledger.Inspect
//	     ──▶ Bulk        operations       ──▶ ledger.Rerun, ledger.Change
//	     ──▶ Webhooks    due webhooks     ──▶ webhook.Dispatcher
//	     ──▶ Watcher     changed files    ──▶ Files.Look
//
// Each of them makes one pass with RunOnce, which a test can call, and returns with Loop
// the loop that repeats it. Any number of processes may run them on one store, without a
// leader: if two act on one entry, the compare-and-swap decides. Only operations
// and attempts of webhooks are claimed for a while.
package upkeep
