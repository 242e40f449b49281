package console

import (
	"slices"
	"strings"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// workersPage lists the workers of the pull queue.
type workersPage struct {
	api.WorkerList

	Service string
	Counted bool // The user sees the attempts of all tenants.
	Command string
}

func workers(r *request) (view, error) {
	data := workersPage{Service: r.FormValue("service"), Counted: r.seesAll()}
	var err error
	data.WorkerList, err = call[api.WorkerList](r.api.ListWorkers(r.Context(), &api.ListWorkersParams{Service: optional(data.Service)}))
	// Sorted by name, so that rows of the live page keep their places.
	slices.SortFunc(data.Workers, func(a, b api.Worker) int { return strings.Compare(a.Owner, b.Owner) })
	data.Command = diagnosis.CommandWith("workers", "service", data.Service)
	return view{Title: "Workers", Template: "workers", Data: data}, err
}

// workerPage is one worker.
type workerPage struct {
	api.Worker

	Others  api.AttemptCounts
	Holding []heldAttempt
	Command string
}

// heldAttempt is an attempt that the worker holds.
type heldAttempt struct {
	api.WorkerAttempt

	Done string // its progress
}

func worker(r *request) (view, error) {
	owner := r.PathValue("owner")
	v := view{Title: "Worker " + owner, Template: "worker", Nav: "Workers"}
	list, err := call[api.WorkerList](r.api.ListWorkers(r.Context(), &api.ListWorkersParams{Owner: &owner}))
	if err != nil {
		return v, err
	}
	if len(list.Workers) == 0 {
		return v, refuseMissing("No worker " + owner + " was active in the last day.")
	}
	data := workerPage{Worker: list.Workers[0], Others: list.Others, Command: diagnosis.Command("workers show", owner)}
	if strings.HasPrefix(owner, "-") { // The worker chose its name, which must not become a flag.
		data.Command = diagnosis.Command("workers show", "--", owner)
	}
	for _, held := range data.Held {
		one := heldAttempt{WorkerAttempt: held}
		if held.Progress != (api.Progress{}) {
			one.Done = diagnosis.Progress(&api.Step{Progress: &held.Progress})
		}
		data.Holding = append(data.Holding, one)
	}
	v.Data = data
	return v, nil
}

// queuePage shows the backlog of the pull queue by service and by tenant.
type queuePage struct {
	Overview *api.Overview
	Queue    bool
	Kinds    []api.Service // those with work
	Tenants  []api.TenantWork
	Claimed  int
	Waiting  int // workers that wait for work
	Workers  int // workers that were active in the last day
	Pauses   []api.HeldBy
}

func queue(r *request) (view, error) {
	v := view{Title: "Queue", Template: "queue"}
	if !r.seesAll() {
		return notForTenants(v), nil
	}
	overview, err := call[api.Overview](r.api.GetOverview(r.Context(), nil))
	if err != nil {
		return v, err
	}
	services, err := call[api.ServiceList](r.api.ListServices(r.Context(), nil))
	if err != nil {
		return v, err
	}
	known, err := call[api.WorkerList](r.api.ListWorkers(r.Context(), nil))
	if err != nil {
		return v, err
	}
	data := queuePage{Overview: &overview, Queue: overview.Bus == api.BusQueue, Tenants: services.Tenants, Workers: known.Total}
	for i := range services.Services {
		of := &services.Services[i]
		data.Claimed += of.Claimed
		for _, by := range of.HeldBy {
			data.hold(by)
		}
		if of.Backlog+of.Held+of.Claimed+of.Running > 0 {
			data.Kinds = append(data.Kinds, *of)
		}
	}
	for i := range known.Workers {
		if known.Workers[i].Polling {
			data.Waiting++
		}
	}
	v.Data = data
	return v, nil
}

// hold adds what a pause holds back.
func (q *queuePage) hold(by api.HeldBy) {
	i := slices.IndexFunc(q.Pauses, func(known api.HeldBy) bool { return known.PauseID == by.PauseID })
	if i < 0 {
		q.Pauses = append(q.Pauses, by)
		return
	}
	q.Pauses[i].Count += by.Count
}
