// Package tracing reports what happens to jobs as spans of OpenTelemetry.
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
// A job lives in no process, so no process holds its span. Each commit is observed by
// the process that made it, which reports the spans that the commit ends: their begin
// is stored with the job, and their ids follow from the job's (statemachine.Trace). So
// nothing is stored for tracing, and a trace is connected whichever replica made which
// change. A process that crashes right after a commit leaves its spans out.
//
// A command without a traceparent begins a trace, whose id follows from the job's id.
// Whether it is recorded is decided then, by OTEL_TRACES_SAMPLER; otherwise by the
// trace's sender.
//
// Source: Option B spec, 20.
package tracing
