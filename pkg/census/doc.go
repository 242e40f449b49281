// Package census counts jobs, and the attempts of their steps by service and step type, for
// all protocols together and for each, so that queries about them need no scan.
//
//	commits of this process ──Observe──► own sheet ◄──Begin, Walked, End── reconciler
//	                                        │ RunOnce
//	                                        ▼
//	                          one row for each process, and a base
//	                                        │ RunOnce
//	             Report ◄── own sheet, those of the other processes, and the base
//
// A sheet holds gauges (live jobs by state, their active steps by phase, the ages of both)
// and counters (accepted and ended jobs, refused commands, publishes, started attempts, and
// ended ones with their durations, in windows of an hour).
// Counters add up across processes.
//
// Gauges are exact if no other process writes the store: after a crash one walk of the
// reconciler over the live jobs recounts them, and every commit keeps them exact. An
// orderly stop stores them for the next start. If processes share the store, each sheet
// holds the changes that its process made. Their sum lacks what crashed processes had not
// stored, and each walk corrects it with a new base:
//
//	base = live jobs of the walk − changes on the sheets
//
// So these counts are exact one walk after the last change. No decision uses them.
//
// In a store that no other process writes, the census also knows which live jobs have which
// [Traits], so that a list of a few among many reads only those.
package census
