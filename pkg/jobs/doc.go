// Package jobs reads, lists and controls jobs for callers: a job with its steps and
// its history, waiting for its end, cancel, pause, resume and rerun.
//
// Everything is read from the job's own rows, so an answer shows the same state that
// the next change is decided on.
//
// Source: Option B spec, 4 and 18.
package jobs
