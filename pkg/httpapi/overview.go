package httpapi

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
)

// maxWorkers bounds the workers that are listed for each service.
const maxWorkers = 100

// ListServices is GET /v1/admin/services.
func (e *endpoints) ListServices(w http.ResponseWriter, r *http.Request, params api.ListServicesParams) {
	e.answer(w, r, http.StatusOK, func(_ context.Context) (any, error) {
		if err := checkMinutes(params.Minutes); err != nil {
			return nil, err
		}
		var kinds []ledger.WorkKind
		protocol := orZero(params.ProtocolID)
		for _, p := range e.Protocols.Load().Protocols() {
			if protocol != "" && p.ID != protocol {
				continue
			}
			for i := range p.Steps {
				kinds = append(kinds, ledger.WorkKind{Service: p.Steps[i].Service, StepType: p.Steps[i].Type})
			}
		}
		report := e.Counts.ReportOf(protocol, kinds...)
		out := api.ServiceList{
			Bus: e.bus(), Exact: report.Exact, AsOf: api.NewTime(report.AsOf), Since: api.NewTime(report.Since),
			CompleteSince: api.NewTime(report.Complete), Services: []api.Service{}, Ended: endedOf(report, params.Minutes),
			DaySince: api.NewTime(report.DaySince), EndedInDay: make(map[string]int, len(report.InDay)),
		}
		for state, n := range report.InDay {
			out.EndedInDay[string(state)] = n
		}
		now := time.Now()
		for i := range report.Services {
			out.Services = append(out.Services, serviceOf(&report.Services[i], now, params.Minutes))
		}
		for i := range report.Tenants {
			one := &report.Tenants[i]
			out.Tenants = append(out.Tenants, api.TenantWork{
				TenantID: one.TenantID, Backlog: one.Queued, Held: one.Held, Claimed: one.Claimed, Running: one.Running,
				OldestWaitingAt: api.NewTime(one.Oldest),
			})
		}
		for _, worker := range report.Unmatched[:min(len(report.Unmatched), maxWorkers)] {
			out.UnmatchedWorkers = append(out.UnmatchedWorkers, api.UnmatchedWorker{
				Owner: worker.Owner, Services: append([]string{}, worker.Services...), StepTypes: append([]string{}, worker.StepTypes...),
				LastPollAt: api.NewTime(worker.LastPoll), Polling: worker.Waiting,
			})
		}
		return out, nil
	})
}

// checkMinutes checks how many minutes a request asks for: the answer has a number for each.
func checkMinutes(minutes *api.Minutes) error {
	if minutes != nil && (*minutes < 1 || *minutes > api.MaxMinutes) {
		return invalid("parameter minutes "+mustBeMinutes, nil)
	}
	return nil
}

// bus names the bus by which directives reach the workers.
func (e *endpoints) bus() api.Bus {
	if e.Circuits != nil { // The pull queue has none.
		return api.BusServiceBus
	}
	return api.BusQueue
}

// serviceOf encodes what the counts knows of one kind of work.
func serviceOf(s *search.ServiceCounts, now time.Time, minutes *int32) api.Service {
	out := api.Service{
		Service: s.Service, StepType: s.StepType, Backlog: s.Queued, Dispatching: s.Dispatching, Claimed: s.Claimed,
		Running: s.Running, Backoff: s.Backoff, Attempts: ratesOf(s.Attempts, minutes),
		Held: s.Held, DurationSeconds: percentilesOf(s.Took), QueueWaitSeconds: percentilesOf(s.Waited),
		DurationSecondsInDay: percentilesOf(s.TookInDay), QueueWaitSecondsInDay: percentilesOf(s.WaitedInDay),
		Workers: []api.ServiceWorker{},
	}
	if minutes != nil {
		out.BacklogByMinute = s.QueuedByMinute(int(*minutes))
	}
	if !s.Oldest.IsZero() {
		out.OldestWaitingAt, out.OldestWaitingSeconds = api.NewTime(s.Oldest), now.Sub(s.Oldest).Seconds()
	}
	for _, id := range slices.Sorted(maps.Keys(s.HeldBy)) {
		out.HeldBy = append(out.HeldBy, api.HeldBy{PauseID: id, Count: s.HeldBy[id]})
	}
	if s.Errors > 0 {
		out.TopError = api.StepError{ErrorCode: s.Error, Count: s.Errors}
	}
	known := map[string]bool{}
	for i := range s.Workers {
		worker := &s.Workers[i]
		if known[worker.Owner] {
			continue // It polls with several filters.
		}
		known[worker.Owner] = true
		if len(out.Workers) < maxWorkers {
			out.Workers = append(out.Workers, api.ServiceWorker{
				Owner: worker.Owner, LastPollAt: api.NewTime(worker.LastPoll), Polling: worker.Waiting,
			})
		}
	}
	out.WorkersTotal = len(known)
	return out
}

func ratesOf(r search.Rates, minutes *int32) api.Rates {
	out := api.Rates{LastMinute: rateOf(r.Minute), LastHour: rateOf(r.Hour), Total: int(r.Total)}
	if minutes != nil {
		all, failed := r.ByMinute(int(*minutes))
		out.ByMinute = &api.MinuteCounts{Counts: all, Failed: failed}
	}
	return out
}

func endedOf(report *search.CountsReport, minutes *int32) map[string]api.Rates {
	ended := make(map[string]api.Rates, len(report.Ended))
	for state, r := range report.Ended {
		ended[string(state)] = ratesOf(r, minutes)
	}
	return ended
}

func rateOf(r search.Rate) api.Rate {
	return api.Rate{
		Count: int(r.Count), Failed: int(r.Failed), OverSeconds: r.Over.Seconds(), PerSecond: r.PerSecond(), ErrorRate: r.ErrorRate(),
	}
}

func percentilesOf(p search.Percentiles) api.Percentiles {
	return api.Percentiles{Count: p.Count, P50: p.P50.Seconds(), P95: p.P95.Seconds(), P99: p.P99.Seconds()}
}

// GetOverview is GET /v1/admin/overview.
func (e *endpoints) GetOverview(w http.ResponseWriter, r *http.Request, params api.GetOverviewParams) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		if err := checkMinutes(params.Minutes); err != nil {
			return nil, err
		}
		report, found := e.Counts.Report(), e.Reconciler.Report()
		out := api.Overview{
			Bus: e.bus(), Exact: report.Exact, AsOf: api.NewTime(report.AsOf), Since: api.NewTime(report.Since),
			CompleteSince: api.NewTime(report.Complete), Jobs: map[string]int{},
			Accepted: ratesOf(report.Accepted, params.Minutes), Refused: ratesOf(report.Refused, params.Minutes),
			Published: ratesOf(report.Published, params.Minutes), Started: ratesOf(report.Started, params.Minutes),
			OldestJobAt: api.NewTime(report.OldestJob), OldestRunningAt: api.NewTime(report.OldestRunning),
			NextRetryAt: api.NewTime(report.NextRetry),
			Ended:       endedOf(report, params.Minutes), Pauses: []api.Pause{},
		}
		if !found.RoundEnded.IsZero() { // otherwise this process does not know
			pending := found.OldestPending.Seconds()
			out.OldestPendingSeconds = &pending
			out.Stuck = api.StuckCount{
				Count: len(found.Stuck), Checked: found.Checked, Repaired: found.Repaired, RoundEndedAt: api.NewTime(found.RoundEnded),
			}
		}
		if !found.Counted.IsZero() {
			out.Lines = api.LineCounts{
				Blocked: found.Lines.Blocked, Moving: found.Lines.Moving,
				BlockedSince: api.NewTime(found.Lines.BlockedSince), AsOf: api.NewTime(found.Counted),
			}
		}
		if e.InboxSurvey != nil {
			out.Inbox = new(inboxCounts(e.InboxSurvey()))
		}
		for state, n := range report.Jobs {
			out.Jobs[string(state)] = n
		}
		now := time.Now()
		for i := range report.Services {
			service := &report.Services[i]
			out.Backlog += service.Queued
			out.Running += service.Running
			out.Held += service.Held
			if at := service.Oldest; !at.IsZero() && (out.OldestWaiting.At.IsZero() || at.Before(out.OldestWaiting.At.Time)) {
				out.OldestWaiting = api.OldestWaiting{
					Service: service.Service, StepType: service.StepType, At: api.NewTime(at), Seconds: now.Sub(at).Seconds(),
				}
			}
		}
		active := e.Gate.Active()
		slices.SortFunc(active, func(a, b admission.Pause) int { return strings.Compare(a.ID(), b.ID()) })
		for i := range active {
			out.Pauses = append(out.Pauses, e.pauseOf(&active[i]))
		}
		var err error
		out.Circuits, err = e.circuits(ctx)
		return out, err
	})
}

// circuits encodes the circuits of the bus that are not closed.
func (e *endpoints) circuits(ctx context.Context) ([]api.Circuit, error) {
	found := []api.Circuit{}
	if e.Circuits == nil {
		return found, nil
	}
	circuits, err := e.Circuits(ctx)
	for _, circuit := range circuits {
		found = append(found, api.Circuit{
			Name: circuit.Name, State: api.CircuitState(circuit.State.String()), Since: api.NewTime(circuit.Since),
			Until: api.NewTime(circuit.Until), Reason: circuit.Reason,
		})
	}
	return found, ledger.Problem(err)
}
