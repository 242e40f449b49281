package statemachine

import "time"

// Closure asks to start no more work of a service until a time, because the service throttled an
// attempt.
type Closure struct {
	Service string
	// TenantID limits the closure to the service's work for a tenant; empty means all tenants.
	TenantID string
	// Until is when the service takes work again, as the worker said: it may be a week ahead.
	Until time.Time
	// ResultAt is when the RESULT was applied, by the clock of the process that applied it.
	ResultAt time.Time
	Actor    string // the caller that sent the RESULT; empty if it is not known
	Reason   string // the error of the attempt
}

// Closure returns what the RESULT closes, given the job as the RESULT left it, and whether it
// closes anything. A caller that may not answer for every tenant closes the service only for the
// tenant of the job.
func (e Result) Closure(after *Aggregate, actor string, everyTenant func(service string) bool) (c Closure, closes bool) {
	if e.Throttled == "" || e.Status != ResultFailedRetry {
		return Closure{}, false
	}
	for i := range after.Steps {
		step := &after.Steps[i]
		if step.ID != e.StepID {
			continue
		}
		at := after.Job.UpdatedAt
		c = Closure{
			Service: step.Service, Until: deadline(at, e.RetryAfter), ResultAt: at, Actor: actor,
			Reason: truncate(e.Status.ErrorCode(e.ErrorCode)+prefixed(": ", e.ErrorMessage), maxMessage),
		}
		if e.Throttled == ThrottleTenant || everyTenant == nil || !everyTenant(step.Service) {
			c.TenantID = after.Job.TenantID
		}
		return c, true
	}
	return Closure{}, false
}
