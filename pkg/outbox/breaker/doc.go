// Package breaker limits publishing during an outage of a topic or of the whole
// bus.
//
// An outage is not a failing message: it must not use up attempts or fail jobs. The relay
// therefore asks the breaker before it takes up rows, and leaves rows that are not granted.
// There is one circuit for each entity (a topic, a queue) and one above them for the bus. A
// row needs room in both, and both are asked in one step.
//
//	            TripAfter failures in a row
//	┌────────┐ ─────────────────────────────▶ ┌────────┐
//	│ closed │                                │  open  │ admits nothing
//	└────────┘ ◀── ramp ──┐                   └────────┘
//	                      │   a probe failed,   ▲    │ after CoolDown,
//	  the page was        │   or none answered  │    │ twice as long each
//	  answered, no        │                     │    ▼ time, up to a limit
//	  failure in it       │                   ┌───────────┐
//	                      └────────────────── │ half-open │ admits a page
//	                                          └───────────┘ of Probes rows
//
// A half-open circuit admits a bounded page. Once every admitted row is
// answered, even if they are fewer than the bound, the circuit closes, and the
// backlog drains along a [Ramp]: at a rate of RampStep rows a second after
// closing, which doubles each second, until RampFor has passed. A failure on the
// ramp opens the circuit again, with the longer cool-down. The ramp of a pause
// that was resumed is the same.
//
// [Set.Allow] returns a [Grant], and the relay reports every row of it under that grant. A
// grant holds the epoch of each circuit: a report that arrives after the circuit has
// changed its state is ignored. So if a page of a hundred rows fails, its other ninety-nine
// failures neither prolong the outage nor fail its probes.
//
// The package is pure: each call passes the time, there are no goroutines or
// timers, and a circuit's state depends on the calls so far and on now, not on
// how often it was read.
//
// # Why not a library
//
// github.com/sony/gobreaker/v2 (v2.4.0) reads the clock itself, so it cannot run in a
// deterministic simulation. Its half-open state ends only after MaxRequests consecutive
// successes, which a smaller backlog never reaches, and a probe without an outcome occupies
// its permit forever. It admits one request at a time, while a page needs room in two
// circuits before it takes any. Its cool-down is fixed, and it does not record since when
// or why a circuit is open. Only the pace of the ramp is a library's, golang.org/x/time/rate.
package breaker
