// Package tracing reports jobs as OpenTelemetry spans.
//
//	the sender's span
//	 └ job doc.ingest                    accept … end
//	    ├ accept
//	    ├ step OCR                       an attempt: row made … RESULT or deadline
//	    │  ├ publish                     row made … SENT
//	    │  ├ deliver                     SENT … ACK, linked to the span that sent it
//	    │  ├ run                         ACK … RESULT, linked likewise
//	    │  └ the worker's spans          by the directive's traceparent
//	    ├ step OCR                       the next attempt, linked to the one before
//	    └ webhook                        one for each attempt
//
// A job belongs to no process, so no process holds its span. The process that makes a
// commit reports the spans that the commit ends: their start times are stored with the job,
// and their ids are derived from the job's (statemachine.Trace). So nothing is stored just
// for tracing, and a trace is connected whichever replicas made the changes. If a process
// crashes right after a commit, the spans of that commit are missing.
//
// A command without a traceparent starts a trace, whose id is derived from the job's id,
// and OTEL_TRACES_SAMPLER decides whether it is recorded. Otherwise the command's sender
// decides.
//
// Source: Option B spec, 20.
package tracing
