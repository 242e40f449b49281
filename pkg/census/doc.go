// Package census counts jobs, and the attempts of their steps by service and step type,
// so that no answer about them needs a scan.
//
//	commits of this process ──Observe──► own sheet ◄──Begin, Walked, End── reconciler
//	                                        │ RunOnce
//	                                        ▼
//	                          one row for each process, and a base
//	                                        │ RunOnce
//	             Report ◄── own sheet, those of the other processes, and the base
//
// A sheet holds what stands (live jobs by state, their active steps by phase) and what
// happened (accepted and ended jobs, ended attempts with their durations, in windows of
// an hour). What happened adds up over the processes.
//
// What stands is exact if no other process writes the store: a walk of the reconciler
// over the live jobs finds it once after a crash, and every commit keeps it so. An
// orderly stop stores it for the next start. If processes share the store, each sheet
// holds the changes that its process made. Their sum is wrong by what crashed processes
// have not stored, and each walk corrects that by a new base:
//
//	base = live jobs of the walk − changes on the sheets
//
// So these counts are exact one walk after the last change. Nothing decides by them.
//
// In a store that no other process writes, the census also knows which live jobs have which
// [Traits], so that a list of a few among many reads only those.
package census
