package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Scheduled is the bit of the seeds with schedules.
const Scheduled = 1 << 61

// cronStart is what the clocks of schedules show at the start: soon, those of Berlin skip an hour.
var cronStart = time.Date(2026, 3, 29, 0, 59, 10, 0, time.UTC)

// cronSkews are by how much the clocks of the replicas are wrong for schedules: less than the tolerance.
var cronSkews = []time.Duration{0, 3 * time.Second, -1500 * time.Millisecond}

// cronTime returns what a clock of schedules shows that is not wrong.
func (w *world) cronTime() time.Time { return cronStart.Add(tablestore.Now().Sub(w.start)) }

// openSchedules opens the schedules of a process, and adds the loop that fires them.
func (m *parts) openSchedules(w *world, p *process, store tablestore.Store, accepting *commands.Service) {
	skew := cronSkews[0]
	for i, r := range w.replicas {
		if r == p.replica {
			skew = cronSkews[i%len(cronSkews)]
		}
	}
	random := &randomSource{rng: w.source(p.name + "/schedules")}
	m.schedules = schedules.New(schedules.Config{
		Store: store, Ledger: m.ledger, Commands: accepting, Random: random.float, Entropy: random,
		Now: func() time.Time { return w.cronTime().Add(skew) },
	})
	// One at a time: the Go scheduler would decide which of several draws which id.
	cron := background.NewCron(background.CronConfig{Schedules: m.schedules, Parallel: 1, Logger: w.log})
	m.every(sweepInterval, cron.Loop())
}

// cronNames are the names of the schedules.
var cronNames = []string{"tick", "local"}

// occasional reports whether the correlation id is that of a schedule's command, or of a rerun of
// it. Such a command has no document, and no tags.
func occasional(correlationID string) bool {
	return slices.ContainsFunc(cronNames, func(name string) bool { return strings.HasPrefix(correlationID, "c-"+name+"-") })
}

// definition draws a definition.
func (v *visitor) definition(name string) schedules.Definition {
	pick := func(all ...schedules.Overlap) schedules.Overlap { return all[v.rng.IntN(len(all))] }
	def := schedules.Definition{
		TenantID: "t1", Name: name, Spec: calendar.Spec{Every: time.Duration(10+5*v.rng.IntN(3)) * time.Second},
		Overlap: pick(schedules.OverlapSkip, schedules.OverlapQueue, schedules.OverlapCancel, schedules.OverlapAllow),
		CatchUp: schedules.CatchUp{
			Policy: []schedules.CatchUpPolicy{schedules.CatchUpNone, schedules.CatchUpLast, schedules.CatchUpAll}[v.rng.IntN(3)],
			Window: time.Hour,
		},
		Command: []byte(`{"request_type":"job.1","schema_version":"1","input_ref":{"uri":"mem://in"},"output_ref":{"uri":"mem://out"},` +
			`"payload":{"of":"${scheduled_for}"},"correlation_id":"c-` + name + `-${scheduled_for}"}`),
	}
	if v.chance(30) {
		def.Jitter = 4 * time.Second
		if def.Every == 20*time.Second { // Longer than an occurrence may be late.
			def.Every, def.Jitter = 4*time.Minute, 2*time.Minute
		}
	}
	if name == "local" {
		def.Every, def.Cron, def.TimeZone = 0, []string{"* 1-3 * * *", "* * * * *"}[v.rng.IntN(2)], "Europe/Berlin"
	}
	return def
}

// plan runs an operator who makes, changes and deletes schedules, and deletes them all in the end.
func (v *visitor) plan() {
	for range 12 {
		if !v.pause(8*time.Second) || v.w.isCalm() {
			break
		}
		v.planOne(cronNames[v.rng.IntN(len(cronNames))], v.rng.IntN(13))
	}
	for !v.w.isCalm() {
		if !v.pause(time.Second) {
			return
		}
	}
	for range 3 { // A create without an answer may still land.
		for _, name := range cronNames {
			_, _ = v.retry(9, func() (any, error) {
				return v.schedule("delete "+name, func(r *request) error {
					return r.schedules.Delete(r.ctx, schedules.Change{TenantID: "t1", Name: name})
				})
			})
		}
		if !v.w.sleep(time.Minute) {
			return
		}
	}
}

// planOne does one thing with a schedule.
func (v *visitor) planOne(name string, action int) {
	change := schedules.Change{TenantID: "t1", Name: name, Actor: v.name}
	def, key := v.definition(name), v.rng.IntN(3)
	past := schedules.BackfillRequest{
		Change: change, From: v.w.cronTime().Add(-time.Minute), Repeat: key == 0, Rate: float64(1 + 3*key), Key: fmt.Sprint(v.n),
	}
	_, _ = v.retry(3, func() (any, error) {
		switch {
		case action < 4:
			return v.schedule("create "+name, func(r *request) error {
				_, err := r.schedules.Create(r.ctx, def, v.name)
				return err
			})
		case action < 6:
			return v.schedule("edit "+name, func(r *request) error {
				_, err := r.schedules.Edit(r.ctx, change, def)
				return err
			})
		case action < 7:
			return v.schedule("pause "+name, func(r *request) error {
				_, err := r.schedules.Pause(r.ctx, change)
				return err
			})
		case action < 8:
			return v.schedule("resume "+name, func(r *request) error {
				_, err := r.schedules.Resume(r.ctx, change)
				return err
			})
		case action < 9:
			return v.schedule("run "+name, func(r *request) error {
				_, _, err := r.schedules.Run(r.ctx, change, string(rune('a'+key)))
				return err
			})
		case action < 11:
			return v.schedule("backfill "+name, func(r *request) error {
				_, _, err := r.schedules.Backfill(r.ctx, past)
				return err
			})
		case action < 12:
			return v.schedule("cancel a backfill of "+name, func(r *request) error { return cancelBackfill(r, name) })
		}
		return v.schedule("delete "+name, func(r *request) error { return r.schedules.Delete(r.ctx, change) })
	})
}

// cancelBackfill cancels the newest backfill of a schedule.
func cancelBackfill(r *request, name string) error {
	all, err := r.schedules.Backfills(r.ctx, "t1", name)
	if err != nil || len(all) == 0 {
		return err
	}
	_, err = r.schedules.CancelBackfill(r.ctx, "t1", name, all[0].ID)
	return err
}

// schedule sends one request that concerns schedules.
func (v *visitor) schedule(what string, handle func(r *request) error) (any, error) {
	return v.ask(what, nil, func(r *request) (any, error) { return nil, handle(r) }, func(_ *request, _ any, err error) {
		for _, known := range []error{
			nil, schedules.ErrExists, schedules.ErrNotFound, schedules.ErrRevConflict, schedules.ErrState,
			schedules.ErrBackfilling, schedules.ErrKeyReused, schedules.ErrNoBackfill,
		} {
			if errors.Is(err, known) {
				return
			}
		}
		if _, ok := errors.AsType[*schedules.InvalidError](err); ok { // No occurrence is to be backfilled.
			return
		}
		if v.w.isCalm() && !unknown(err) {
			v.w.check.checkRefusal(what, err)
		}
	})
}
