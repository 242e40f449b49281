// Package breaker says how much may be published while a topic, or the whole
// bus, is in trouble.
//
// An outage is not a failing message: it must spend no attempt and fail no
// job. So the relay asks before it takes rows up, and leaves alone what it is
// not given. There is one circuit for each entity (a topic, a queue) and one
// above them for the bus; a row needs room in both, and the two are asked in
// one step.
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
// A half-open circuit admits a bounded page. Once every row of it is answered,
// which may well be fewer than the bound, the circuit closes, and the backlog
// drains along a ramp: in the k-th RampInterval after it closed at most
// k·RampStep rows, until RampFor has passed. A failure on the ramp opens it
// again, with the longer cool-down.
//
// [Set.Allow] answers with a [Grant], and every row of it is reported under
// that grant. A grant remembers in which period of each circuit it was given:
// an answer that arrives after the circuit has moved on is evidence about a
// time that has passed, and changes nothing. So the other ninety-nine failures
// of a page of a hundred neither prolong the outage nor fail its probes.
//
// The package is pure: time comes in with each call, no goroutine and no timer
// runs, and a circuit's state is a function of the calls so far and of now,
// not of how often somebody looked.
//
// # Why not a library
//
// github.com/sony/gobreaker/v2 (v2.4.0) was weighed as the core of a circuit,
// and does not fit at these points:
//
//   - It reads the clock itself, while here time is a parameter, so that several
//     replicas run in one deterministic simulation.
//   - Half-open ends only after MaxRequests successes in a row, and MaxRequests
//     is also the bound on what is admitted. With a bound of ten and a backlog
//     of three it never closes.
//   - A probe whose outcome never arrives keeps its place for good, for
//     half-open does not expire.
//   - It admits one request at a time and takes the place as it answers. A page
//     through two circuits needs to know the room in both before it takes any.
//   - The cool-down is fixed, and since when and why a circuit is open is not
//     kept.
//
// The ramp would have been ours in any case. What would be left of the library
// is a switch over three states.
package breaker
