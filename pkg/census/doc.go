// Package census counts jobs, and the attempts of their steps by service and step type, over
// all protocols and for each of them, so that queries for these counts need no scan.
//
//	commits of this process ──Observe──► own sheet ◄──Begin, Walked, End── reconciler
//	                                        │ RunOnce
//	                                        ▼
//	                          one row for each process, and a base
//	                                        │ RunOnce
//	             Report ◄── own sheet, those of the other processes, and the base
//
// A sheet holds gauges (live jobs by state, their active steps by phase, and the ages of
// both) and counters (accepted and ended jobs, refused commands, publishes, started attempts,
// and ended attempts with their durations, in windows of an hour). The counters of the
// processes add up. A crash loses the events that its process had not stored, so a sheet says
// when it may last have missed one.
//
// The gauges are exact if no other process writes the store: after a crash, one walk of the
// reconciler over the live jobs counts them again, and then every commit keeps them exact.
// An orderly stop stores them for the next start. If several processes share the store, each
// sheet holds the changes that its process has made. The sum of the sheets lacks changes that
// a process made just before it crashed, so each walk corrects it with a new base:
//
//	base = live jobs of the walk − changes on the sheets
//
// So these counts are exact one walk after the last change. No decision depends on them.
//
// If no other process writes the store, the census also keeps the [Traits] of all live jobs,
// so that a list of a few among many reads only those.
package census
