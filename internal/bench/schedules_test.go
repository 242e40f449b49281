package bench_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/bench"
)

// planner answers what concerns schedules in place of the server: the nth job is accepted n ms after it was due.
type planner struct {
	server *fakeServer
	due    time.Time
	made   map[string]int // by tenant
	lost   int            // schedules without a job
	next   time.Duration  // of a schedule, after its start
}

func (p *planner) answer(w http.ResponseWriter, r *http.Request) bool {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	parts := strings.Split(r.URL.Path, "/")
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/schedules/"):
		request := decode[api.ScheduleRequest](p.server.t, r)
		p.due = request.StartAt.Time
		p.made[parts[3]]++
		p.server.answer(w, http.StatusCreated, api.Schedule{Next: []api.ScheduleTime{{At: api.NewTime(p.due.Add(p.next))}}})
	case r.URL.Path == "/metrics":
		fired := 0
		if !p.due.IsZero() && !time.Now().Before(p.due) {
			for _, n := range p.made {
				fired += n
			}
		}
		const name = "lucius_schedule_fires_total"
		_, _ = fmt.Fprintf(w, "# TYPE %s counter\n%s{outcome=\"fired\"} %d\n", name, name, fired)
	case r.URL.Path == "/v1/jobs":
		page := api.JobPage{Jobs: []api.Job{}}
		for n := range p.made[r.URL.Query().Get("tenant_id")] - p.lost {
			page.Jobs = append(page.Jobs, api.Job{CreatedAt: api.NewTime(p.due.Add(time.Duration(n) * time.Millisecond))})
		}
		if err := json.NewEncoder(w).Encode(page); err != nil {
			p.server.t.Error(err)
		}
	default:
		return false
	}
	return true
}

func TestSchedulesAreMeasuredFromWhenTheyWereDue(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lost int
		next time.Duration
		err  error
	}{
		"each has a job":                    {0, 0, nil},
		"one has no job":                    {1, 0, bench.ErrAudit},
		"one is made after it has been due": {0, 24 * time.Hour, bench.ErrLatePlan},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, nil)
			p := &planner{server: server, made: map[string]int{}, lost: test.lost, next: test.next}
			server.spoil = p.answer
			options := short(t, server)
			options.Loads, options.Schedules, options.Finished = []string{bench.Schedules}, 11, 0
			report, err := bench.Measure(t.Context(), options)
			if !errors.Is(err, test.err) {
				t.Fatal(err)
			}
			if test.err != nil {
				return
			}
			row := report.Rows[0]
			if row.Jobs != 11 || int(row.EndToEnd.P50) != 5 || int(row.EndToEnd.Max) != 10 || int(row.PerSecond+1) != 1100 {
				t.Errorf("%+v", row)
			}
			if len(row.Goals) != 1 || !row.Goals[0].Met || row.Goals[0].Got != row.EndToEnd.Max {
				t.Errorf("goals: %+v", row.Goals)
			}
		})
	}
}
