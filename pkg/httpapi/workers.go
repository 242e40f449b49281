package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
)

const (
	// maxListedWorkers bounds a list of workers, and maxShownHeld the held attempts of one.
	maxListedWorkers = 1000
	maxShownHeld     = 50
)

// ListWorkers is GET /v1/admin/workers.
func (e *endpoints) ListWorkers(w http.ResponseWriter, r *http.Request, params api.ListWorkersParams) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		owner, service := orZero(params.Owner), orZero(params.Service)
		if longest := 4 * api.MaxName; len(owner) > longest || len(service) > longest { // A character may take four bytes.
			return nil, invalid(fmt.Sprintf("parameters owner and service must be at most %d characters", api.MaxName), nil)
		}
		if err := e.reserve(ctx, jobWeight+e.Counts.WorkersBytes()); err != nil {
			return nil, err
		}
		all, err := e.Counts.Workers(ctx)
		if err != nil {
			return nil, ledger.Problem(err)
		}
		if !e.guard.allows(ctx, "") {
			all = e.disclosed(ctx, all)
		}
		all = slices.DeleteFunc(all, func(one search.Worker) bool { return !serves(&one, service) })
		if owner != "" {
			return e.oneWorker(ctx, all, owner)
		}
		out := api.WorkerList{Bus: e.bus(), Workers: []api.Worker{}, Total: len(all)}
		for i := range all[:min(len(all), maxListedWorkers)] {
			out.Workers = append(out.Workers, workerOf(&all[i], time.Now()))
		}
		return out, nil
	})
}

// oneWorker returns the worker with its attempts, and the counts of all other workers.
func (e *endpoints) oneWorker(ctx context.Context, all []search.Worker, owner string) (out api.WorkerList, err error) {
	out.Bus, out.Workers = e.bus(), []api.Worker{}
	var others search.AttemptCounts
	for i := range all {
		one := &all[i]
		if one.Owner != owner {
			others.Add(one.Day(time.Now()))
			continue
		}
		shown := workerOf(one, time.Now())
		if shown.Held, err = e.stillHeld(ctx, one); err != nil {
			return out, err
		}
		shown.Holds += len(shown.Held) - min(len(one.Held), maxShownHeld)
		for j := range one.Attempts {
			shown.Attempts = append(shown.Attempts, attemptOf(&one.Attempts[j]))
		}
		out.Total, out.Workers = 1, append(out.Workers, shown)
	}
	out.Others = api.AttemptCounts(others)
	return out, nil
}

// disclosed returns the workers with attempts of the caller's tenants, without any other attempt. What
// a worker is and when it polls is left out if it asks for the work of another tenant by name.
func (e *endpoints) disclosed(ctx context.Context, all []search.Worker) (some []search.Worker) {
	hidden := func(tenant string) bool { return !e.guard.allows(ctx, tenant) }
	foreign := func(a search.Attempt) bool { return hidden(a.TenantID) }
	for _, one := range all {
		one.Held, one.Attempts = slices.DeleteFunc(one.Held, foreign), slices.DeleteFunc(one.Attempts, foreign)
		if slices.ContainsFunc(one.Tenants, hidden) {
			one = search.Worker{Owner: one.Owner, Held: one.Held, Attempts: one.Attempts, Last: one.Last}
		}
		if one.Hours = nil; len(one.Held)+len(one.Attempts) > 0 {
			some = append(some, one)
		}
	}
	return some
}

// serves reports whether the worker asks for work of the service, or has attempts of it.
func serves(one *search.Worker, service string) bool {
	of := func(a search.Attempt) bool { return a.Service == service }
	return service == "" || slices.Contains(one.Services, service) || len(one.Services) == 0 && !one.LastPoll.IsZero() ||
		slices.ContainsFunc(one.Held, of) || slices.ContainsFunc(one.Attempts, of)
}

// workerOf encodes a worker without its attempts.
func workerOf(one *search.Worker, now time.Time) api.Worker {
	return api.Worker{
		Owner: one.Owner, Version: one.Version, Host: one.Host, Library: one.Library,
		Services: append([]string{}, one.Services...), StepTypes: append([]string{}, one.StepTypes...),
		Polling: one.Waiting, LastPollAt: api.NewTime(one.LastPoll), LastHeartbeatAt: api.NewTime(one.Heartbeat),
		ActiveAt: api.NewTime(one.Last), Holds: len(one.Held), LastDay: api.AttemptCounts(one.Day(now)),
	}
}

func attemptOf(a *search.Attempt) api.WorkerAttempt {
	return api.WorkerAttempt{
		TenantID: a.TenantID, JobID: a.JobID.String(), StepID: a.StepID, Service: a.Service, StepType: a.StepType, AttemptNo: a.No,
		ClaimedAt: api.NewTime(a.Claimed), EndedAt: api.NewTime(a.Ended), Outcome: api.WorkerAttemptOutcome(a.Outcome), ErrorCode: a.Code,
	}
}

// stillHeld reads the jobs of the recorded held attempts, and returns those that the worker still holds.
func (e *endpoints) stillHeld(ctx context.Context, one *search.Worker) (held []api.WorkerAttempt, err error) {
	for i := range one.Held[:min(len(one.Held), maxShownHeld)] {
		shown := attemptOf(&one.Held[i])
		job, err := e.Ledger.Job(ctx, shown.JobID)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound):
			continue // The job was purged.
		case err != nil:
			return nil, ledger.Problem(err)
		}
		at, live := job.Active()
		if !live {
			continue
		}
		step := &job.Steps[at]
		if step.Holder() != one.Owner || step.ID != shown.StepID || step.AttemptNo != shown.AttemptNo {
			continue
		}
		shown.LeaseExpiresAt, shown.LastHeartbeatAt = api.NewTime(step.LeaseExpiresAt), api.NewTime(step.UpdatedAt)
		if step.Progress != nil {
			shown.Progress = api.Progress(*step.Progress)
		}
		held = append(held, shown)
	}
	return held, nil
}
