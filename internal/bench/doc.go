// Package bench measures a running server from outside, over HTTP, the way its
// clients and workers use it.
//
//	submitter 1..N ──POST /v1/commands──▶ ┌────────┐
//	     ▲                                │ server │
//	     │ job ended                      │        │
//	     └──────── puller ◀──work:claim── │        │
//	                  └────:complete────▶ └────────┘
//
// The loop is closed: each submitter sends one command, waits for its job to
// end, and only then sends the next. So there are never more jobs in flight
// than submitters, and a slow server gets fewer commands instead of being overrun.
//
// A job has ended when the server has answered the completion of its last
// step: that answer follows the commit that made the job SUCCEEDED. Taking the
// time there is exact and costs no request; waiting for every job with
// GET /v1/jobs would measure the polling as well. As a check, a sample of the jobs
// is read back afterwards, and one that is not SUCCEEDED fails the run.
//
// The same client code then measures the ceiling: a bare net/http server, in this
// process, that answers each request once its bytes are on disk, with one fdatasync
// for all waiting requests. No durable service on this machine answers more requests
// than that, and the ratio to it says more about the server than an absolute figure,
// which depends on the machine.
package bench
