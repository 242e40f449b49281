// Package background does the background work: it acts on deadlines, purges ended jobs, checks
// live jobs for defects, carries out operations on many jobs, reloads files, and sends
// webhooks.
//
//	Loop ──▶ Sweeper     due timers       ──▶ ledger.Fire
//	     ──▶ Retention   ended jobs       ──▶ ledger.Purge
//	     ──▶ Reconciler  all live jobs    ──▶ ledger.Inspect
//	     ──▶ Bulk        operations       ──▶ commands.Rerun, ledger.Change
//	     ──▶ Webhooks    due webhooks     ──▶ webhook.Gate, Sender
//	     ──▶ Cron        due schedules    ──▶ schedules.Act
//	     ──▶ Watcher     changed files    ──▶ Files.Look
//
// Each has a RunOnce method, which makes one pass and which tests can call, and a Loop
// method, which returns the loop that repeats it. Any number of processes may run them on
// one store, without a leader: if two act on the same entry, compare-and-swap decides. Only
// operations and webhook attempts are leased.
package background
