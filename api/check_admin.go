package api

import (
	"github.com/lucius-project/lucius/pkg/problem"
)

// The limits of openapi.yaml on operators' requests.
const (
	// MaxBatch is how many commands a batch may hold.
	MaxBatch = 100
	// MaxRetryJobs is how many jobs a retry may name.
	MaxRetryJobs = 1000
	// MaxRetryRate is the largest rate_per_second.
	MaxRetryRate = 1000
	// MaxRamp is the largest ramp_seconds.
	MaxRamp = 3600
)

// Check returns what is wrong with the request by itself.
func (c *RerunRequest) Check() []problem.Violation {
	var v violations
	v.from(c.From)
	v.text("/reason", c.Reason, 0, MaxReason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *RetryRequest) Check() []problem.Violation {
	var v violations
	v.texts("/job_ids", c.JobIDs, MaxRetryJobs, MaxName)
	filtered := c.TenantID != "" || c.RequestType != "" || c.StepType != "" || c.ErrorCode != "" ||
		!c.CreatedAfter.IsZero() || !c.CreatedBefore.IsZero() || c.Limit != 0
	if len(c.JobIDs) > 0 && filtered {
		v.add("/job_ids", "must not be combined with filters")
	}
	v.text("/tenant_id", c.TenantID, 0, MaxTenantID)
	v.text("/request_type", c.RequestType, 0, MaxName)
	v.text("/step_type", c.StepType, 0, MaxName)
	v.text("/error_code", c.ErrorCode, 0, MaxName)
	v.from(c.From)
	v.number("/limit", float64(c.Limit), MaxRetryLimit)
	v.number("/rate_per_second", c.RatePerSecond, MaxRetryRate)
	v.text("/reason", c.Reason, 0, MaxReason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *PauseRequest) Check() []problem.Violation {
	var v violations
	scopes := 0
	for _, named := range []bool{c.TenantID != "", c.ProtocolID != "", c.Lane != nil, c.All} {
		if named {
			scopes++
		}
	}
	if scopes != 1 {
		v.add("", "must hold exactly one of tenant_id, protocol_id, lane and all")
	}
	v.text("/tenant_id", c.TenantID, 0, MaxTenantID)
	v.text("/protocol_id", c.ProtocolID, 0, MaxName)
	if c.Lane != nil {
		v.atLeast("/lane", float64(*c.Lane), 0)
	}
	v.text("/reason", c.Reason, 1, MaxReason)
	return v
}

// Check returns what is wrong with the request by itself.
func (c *ResumeRequest) Check() []problem.Violation {
	var v violations
	if c.RampSeconds != nil {
		v.number("/ramp_seconds", *c.RampSeconds, MaxRamp)
	}
	v.text("/reason", c.Reason, 0, MaxReason)
	return v
}

// from checks the starting point of a rerun, which may be absent.
func (v *violations) from(from RerunFrom) {
	if from != "" && !from.Valid() {
		v.add("/from", "must be failed or start")
	}
}
