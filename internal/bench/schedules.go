package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

const (
	// perTenant is how many schedules a tenant has, as many as the server allows.
	perTenant = 1000
	// planBase and planEach are how long before they are due the first of the schedules is made.
	planBase = 3 * time.Second
	planEach = 30 * time.Millisecond
	// firesWithin bounds the time in which all of them fire.
	firesWithin = 10 * time.Minute
)

// ErrLatePlan is returned if the schedules of [Schedules] were due before all were made.
var ErrLatePlan = errors.New("the schedules were due before all were made: the machine is too slow, or too busy")

// onSchedules makes schedules on a new server that are all due at one time, and measures how long after it their jobs
// are accepted. No worker takes these.
func (b *bench) onSchedules(ctx context.Context, load *load) (row Row, err error) {
	err = b.withServer(ctx, 0, func(server Server) error {
		r := b.newRun(server, load, Empty)
		defer r.client.close()
		due := time.Now().Add(planBase + time.Duration(b.options.Schedules)*planEach).Truncate(time.Second).Add(time.Second)
		if err := r.planAll(ctx, b.progress, due); err != nil {
			return err
		}
		before, err := costNow(ctx, r.client)
		if err != nil {
			return err
		}
		if err := r.awaitFires(ctx, b.progress, due); err != nil {
			return err
		}
		after, err := costNow(ctx, r.client)
		if err != nil {
			return err
		}
		for tenant := range r.tenantsOfPlans() {
			if err := r.recordFires(ctx, tenant, due); err != nil {
				return err
			}
		}
		r.row.Jobs, r.row.EndToEnd = r.endToEnd.count(), r.endToEnd.percentiles()
		r.row.PerSecond = ratio(float64(r.row.Jobs), r.row.EndToEnd.Max/1000)
		r.row.Cost = after.minus(before).per(r.row.Jobs)
		row = r.row
		return server.Stop()
	})
	return row, err
}

// planAll makes the schedules.
func (r *run) planAll(ctx context.Context, progress *progress, due time.Time) error {
	defer progress.follow(ctx, "making schedules", "schedules", window{})()
	command, err := json.Marshal(map[string]any{
		"request_type": waitingType, "schema_version": "1", "payload": r.payload,
		"input_ref": map[string]string{"uri": "bench://input"}, "output_ref": map[string]string{"uri": "bench://output"},
	})
	if err != nil {
		return fmt.Errorf("encode the command: %w", err)
	}
	body, err := json.Marshal(api.ScheduleRequest{Every: "24h", StartAt: api.NewTime(due), Command: command})
	if err != nil {
		return fmt.Errorf("encode the schedule: %w", err)
	}
	var taken atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range batchClients {
		group.Go(func() error {
			for {
				n := int(taken.Add(1)) - 1
				if n >= r.options.Schedules {
					return nil
				}
				path := fmt.Sprintf("/v1/schedules/%s/schedule-%d", planTenant(n/perTenant), n)
				var made api.Schedule
				if err := r.client.send(ctx, http.MethodPut, path, body, &made); err != nil {
					return err
				}
				if len(made.Next) == 0 || !made.Next[0].At.Equal(due) {
					return ErrLatePlan
				}
				r.count()
			}
		})
	}
	return group.Wait()
}

func planTenant(n int) string { return fmt.Sprintf("bench-plan-%d", n) }

func (r *run) tenantsOfPlans() int { return (r.options.Schedules + perTenant - 1) / perTenant }

// awaitFires waits until the server has decided each occurrence.
func (r *run) awaitFires(ctx context.Context, progress *progress, due time.Time) error {
	ctx, cancel := context.WithDeadlineCause(ctx, due.Add(firesWithin), ErrUnfinished)
	defer cancel()
	defer progress.follow(ctx, "firing", "schedules", window{})()
	for at, before := due, 0; ; at = at.Add(250 * time.Millisecond) {
		if !sleepUntil(ctx, at) {
			return context.Cause(ctx)
		}
		families, err := readMetrics(ctx, r.client)
		if err != nil {
			return err
		}
		fired := int(counterIn(families, "lucius_schedule_fires_total"))
		for ; before < fired; before++ {
			r.count()
		}
		if fired >= r.options.Schedules {
			return nil
		}
	}
}

// recordFires records how late the jobs of a tenant's schedules were accepted.
func (r *run) recordFires(ctx context.Context, tenant int, due time.Time) error {
	query := url.Values{"tenant_id": {planTenant(tenant)}, "limit": {fmt.Sprint(perTenant)}}
	jobs := 0
	for {
		var page api.JobPage
		if err := r.client.send(ctx, http.MethodGet, "/v1/jobs?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		for i := range page.Jobs {
			r.endToEnd.record(max(0, page.Jobs[i].CreatedAt.Sub(due)))
		}
		if jobs += len(page.Jobs); page.NextPageToken == "" {
			break
		}
		query.Set("page_token", page.NextPageToken)
	}
	if want := min(perTenant, r.options.Schedules-tenant*perTenant); jobs != want {
		return fmt.Errorf("%w: %d schedules of tenant %s have %d jobs", ErrAudit, want, planTenant(tenant), jobs)
	}
	return nil
}
