// Package jobs is what callers see of jobs and ask of them: reading one with
// its steps and its history, waiting for its end, and cancel, pause and resume.
//
// Everything is read from the job's own rows, so that what one answer says is
// what the next change is decided on.
//
// Source: Option B spec, 4 and 18.
package jobs
