package statemachine

import "time"

// Cause is what an attempt failed of; each has its own budget.
type Cause string

// The causes that spend a budget. Pausing, shutdown, an outage of the bus and
// an operator's retry spend nothing.
const (
	CauseDispatch  Cause = "dispatch"  // a publish was rejected for the message's own sake
	CauseAck       Cause = "ack"       // no ACK within the ACK timeout
	CauseExecution Cause = "execution" // RESULT FAILED_RETRY, lease or step timeout expired
)

// Policy is what a step was accepted with: its timeouts and budgets.
//
// Source: Ledger and state model, Timeouts and retries.
type Policy struct {
	// AckTimeout is the time from SENT (from the claim, in the pull queue) to ACK.
	AckTimeout time.Duration
	// Lease is the time that an ACK or a heartbeat gives the worker.
	Lease time.Duration
	// Timeout is the absolute limit of one attempt's run from its ACK; 0 is none.
	Timeout time.Duration
	// Dispatch, Ack and Execution are the delays before each retry of that
	// cause; a list of n allows n retries.
	Dispatch  []time.Duration
	Ack       []time.Duration
	Execution []time.Duration
	// MaxAttempts caps the attempts that spend a budget, over all causes; 0 is
	// no cap.
	MaxAttempts int
}

// Spent counts a step's failures by cause.
type Spent struct {
	Dispatch  int
	Ack       int
	Execution int
}

// delays returns the cause's delays.
func (p *Policy) delays(cause Cause) []time.Duration {
	switch cause {
	case CauseDispatch:
		return p.Dispatch
	case CauseAck:
		return p.Ack
	case CauseExecution:
		return p.Execution
	}
	return nil
}

// counter returns the cause's counter.
func (s *Spent) counter(cause Cause) *int {
	switch cause {
	case CauseDispatch:
		return &s.Dispatch
	case CauseAck:
		return &s.Ack
	case CauseExecution:
	}
	return &s.Execution
}

// total is the number of failures over all causes.
func (s *Spent) total() int { return s.Dispatch + s.Ack + s.Execution }

// spend counts a failure of the cause and returns the delay before the retry,
// or false where the cause's list or the cap over all causes is exhausted.
func spend(spent *Spent, policy *Policy, cause Cause) (time.Duration, bool) {
	count := spent.counter(cause)
	*count++
	delays := policy.delays(cause)
	if *count > len(delays) {
		return 0, false
	}
	if policy.MaxAttempts > 0 && spent.total()+1 > policy.MaxAttempts {
		return 0, false
	}
	return delays[*count-1], true
}

// jitter spreads a delay over [1-factor, 1+factor] of itself: the
// randomisation of an exponential back-off, from a given random in [0, 1).
func jitter(delay time.Duration, factor, random float64) time.Duration {
	if factor <= 0 || delay <= 0 {
		return delay
	}
	spread := factor * float64(delay)
	return time.Duration(float64(delay) - spread + 2*spread*random)
}

// deadline is now + delay, rounded up to the millisecond in which the schedule
// counts, so that a deadline and its entry agree.
func deadline(now time.Time, delay time.Duration) time.Time {
	at := now.Add(delay)
	if cut := at.Truncate(time.Millisecond); !cut.Equal(at) {
		return cut.Add(time.Millisecond)
	}
	return at
}
