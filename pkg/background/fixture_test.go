package background_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const table = "luciusschedule"

// world is a real ledger, and a service on it.
type world struct {
	*ledgertest.Ledger
	*background.Operations
}

func open(t *testing.T, store tablestore.Store) *world {
	t.Helper()
	l := ledgertest.Publishing(t, ledger.Config{Store: store, Shards: 2})
	return &world{l, serve(t, l, store)}
}

func serve(t *testing.T, l background.OperationsLedger, store tablestore.Store) *background.Operations {
	t.Helper()
	var reruns background.Rerunner = newSketch(0)
	switch l := l.(type) {
	case background.Rerunner:
		reruns = l
	case *ledgertest.Ledger:
		reruns = accepting(t, l)
	}
	return background.NewOperations(background.OperationsConfig{Ledger: l, Commands: reruns, Store: store, Table: table})
}

// accepting returns the service that makes the reruns of a ledger.
func accepting(t *testing.T, l *ledgertest.Ledger) *commands.Service {
	t.Helper()
	return musttest.Make(t, commands.New, commands.Config{
		Ledger:    l.Ledger,
		Protocols: commands.NewProtocolHolder(musttest.Make[fs.FS](t, commands.LoadProtocolsFS, fstest.MapFS{"ocr.yaml": {Data: []byte(protocol)}})),
		Router:    musttest.Make(t, routing.New, routing.Config{Lanes: 1, TopicPrefix: "topic"}),
	})
}

// protocol is that of the jobs of [world.accept] with a step of the type OCR.
const protocol = `
protocol_id: ocr
request_types: [type.OCR]
steps:
  - {step_id: one, step_type: OCR, service: s, payload_schema: {type: object, properties: {model: {type: string}}}}
`

// accept accepts a job with one step of that type.
func (w *world) accept(tenant, stepType string) string {
	cmd := ledgertest.Command(tenant, uuid.NewString(), ledgertest.Step("one", stepType, "s"))
	cmd.Job.RequestType, cmd.Job.SchemaVersion, cmd.Job.DocID = "type."+stepType, "1", "doc"
	cmd.Job.InputRef, cmd.Job.OutputRef = json.RawMessage(`{"uri":"mem://in"}`), json.RawMessage(`{"uri":"mem://out"}`)
	return w.Submit(cmd)
}

// end reports the result of the last job.
func (w *world) end(status statemachine.ResultStatus, code string) {
	w.End(w.Handoff.Last(), status, code)
}

// succeed adds n jobs that succeeded.
func (w *world) succeed(n int) {
	for range n {
		w.accept("t", "OCR")
		w.end(statemachine.ResultSucceeded, "")
	}
}

// fail adds a job that failed.
func (w *world) fail(tenant, code string) string {
	id := w.accept(tenant, "OCR")
	w.end(statemachine.ResultFailedFinal, code)
	return id
}

// jobsOf returns all jobs of a tenant in this month.
func (w *world) jobsOf(t *testing.T, tenant string) []string {
	t.Helper()
	entries, more, err := w.Index(t.Context(), ledger.IndexQuery{TenantID: tenant, Month: time.Now(), Limit: 1000})
	if err != nil || more {
		t.Fatal(more, err)
	}
	var ids []string
	for _, entry := range entries {
		if _, err := w.Job(t.Context(), entry.JobID); err == nil {
			ids = append(ids, entry.JobID)
		}
	}
	return ids
}

func runner(t *testing.T, service *background.Operations, set ...func(*background.BulkConfig)) *background.Bulk {
	t.Helper()
	cfg := background.BulkConfig{Operations: service}
	for _, f := range set {
		f(&cfg)
	}
	return background.NewBulk(cfg)
}

func create(t *testing.T, s *background.Operations, key string, r background.BulkRequest) background.Operation {
	t.Helper()
	r.All = len(r.JobIDs) == 0
	op, err := s.Create(t.Context(), key, r)
	musttest.NoError(t, err)
	return op
}

func runOnce(t *testing.T, r *background.Bulk) background.Pass {
	t.Helper()
	result, err := r.RunOnce(t.Context())
	musttest.NoError(t, err)
	return result
}

// get reads an operation with all its items, in pages.
func get(t *testing.T, s *background.Operations, id string) background.OperationPage {
	t.Helper()
	var all background.OperationPage
	for after := ""; ; {
		page, err := s.Get(t.Context(), id, "", 700, after)
		musttest.NoError(t, err)
		page.Items = append(all.Items, page.Items...)
		if all, after = page, page.Next; after == "" {
			return all
		}
	}
}

// outcomes counts the items' outcomes.
func outcomes(page background.OperationPage) map[background.ItemOutcome]int {
	counts := map[background.ItemOutcome]int{}
	for _, item := range page.Items {
		counts[item.Outcome]++
	}
	return counts
}

// sketch is a fake ledger that holds many jobs, all of which failed.
type sketch struct {
	background.OperationsLedger // nil: there are no live jobs

	mu      sync.Mutex
	jobs    map[string]*statemachine.Aggregate
	entries map[string][]ledger.IndexEntry // by tenant, newest first
	reruns  map[string]string
	by      map[string]string // new job: request id
	starts  []time.Time       // of reruns
	// veto may fail a rerun; it is called without the lock.
	veto func(agg *statemachine.Aggregate) error
}

// newSketch returns a ledger with n failed jobs of the tenant t.
func newSketch(n int) *sketch {
	s := &sketch{
		jobs: map[string]*statemachine.Aggregate{}, entries: map[string][]ledger.IndexEntry{},
		reruns: map[string]string{}, by: map[string]string{}, veto: func(*statemachine.Aggregate) error { return nil },
	}
	s.fail("t", n, "x")
	return s
}

// fail adds n failed jobs of the tenant, the newest created now and each other one a
// millisecond earlier, and returns them newest first.
func (s *sketch) fail(tenant string, n int, code string) []string {
	var ids []string
	now := time.Now()
	for i := range n {
		id := newID(now.Add(time.Duration(i-n+1) * time.Millisecond))
		s.jobs[id] = &statemachine.Aggregate{Job: statemachine.Job{
			ID: id, TenantID: tenant, State: statemachine.JobFailedFinal, ErrorCode: code, RequestType: "r",
			CreatedAt: ledger.IDTime(id), CompletedAt: ledger.IDTime(id),
		}, Steps: []statemachine.Step{{Type: "S"}}}
		s.entries[tenant] = append(s.entries[tenant], ledger.IndexEntry{IndexRow: ledger.IndexRow{
			JobID: id, RequestType: "r", StepType: "S", ErrorCode: code, EndedAt: ledger.IDTime(id),
		}})
		ids = append(ids, id)
	}
	slices.SortFunc(s.entries[tenant], func(a, b ledger.IndexEntry) int { return ledger.IDTime(b.JobID).Compare(ledger.IDTime(a.JobID)) })
	slices.Reverse(ids)
	return ids
}

func (s *sketch) Atomic() bool { return false }

func (s *sketch) ListsLive() bool { return false }

func (s *sketch) NewJobID() (string, error) { return newID(time.Now()), nil }

func (s *sketch) Tenants(_ context.Context, after string, limit int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.entries {
		if name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names[:min(limit, len(names))], nil
}

func (s *sketch) Index(_ context.Context, q ledger.IndexQuery) ([]ledger.IndexEntry, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.entries[q.TenantID]
	if q.After != "" {
		all = all[slices.IndexFunc(all, func(e ledger.IndexEntry) bool { return e.JobID == q.After })+1:]
	}
	elsewhere := func(e ledger.IndexEntry) bool { return ledger.IDTime(e.JobID).UTC().Month() != q.Month.UTC().Month() }
	for len(all) > 0 && elsewhere(all[0]) {
		all = all[1:]
	}
	all = all[:min(q.Limit+1, len(all))]
	if end := slices.IndexFunc(all, elsewhere); end >= 0 {
		all = all[:end]
	}
	n := min(q.Limit, len(all))
	return all[:n], n < len(all), nil
}

func (s *sketch) Job(_ context.Context, jobID string) (*statemachine.Aggregate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if agg, ok := s.jobs[jobID]; ok {
		return agg, nil
	}
	return nil, ledger.ErrJobNotFound
}

func (s *sketch) History(_ context.Context, jobID string, _ int64, _ int) ([]ledger.HistoryEntry, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []ledger.HistoryEntry{{RequestID: s.by[jobID], At: ledger.IDTime(jobID)}}, 0, nil
}

func (s *sketch) Rerun(ctx context.Context, r commands.Rerun) (ledger.Accepted, error) {
	agg, err := s.Job(ctx, r.JobID)
	if err == nil {
		err = s.veto(agg)
	}
	if err != nil {
		return ledger.Accepted{}, fmt.Errorf("rerun: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starts = append(s.starts, time.Now())
	id, replayed := s.reruns[r.JobID]
	if !replayed {
		id = newID(time.Now())
		s.reruns[r.JobID], s.by[id] = id, r.RequestID
	}
	return ledger.Accepted{Job: statemachine.Job{ID: id}, Replayed: replayed}, nil
}

func (s *sketch) PlanRerun(ctx context.Context, r commands.Rerun) (plan commands.RerunPlan, err error) {
	plan.Old, err = s.Job(ctx, r.JobID)
	return plan, err
}

// SupersededBy finds no rerun: Rerun knows them.
func (s *sketch) SupersededBy(context.Context, *statemachine.Job) (string, error) { return "", nil }

// newID returns a job id of that time. Package uuid never goes back behind the latest time
// that the process has seen, which mixes up the clocks of concurrent tests.
func newID(at time.Time) string {
	id := uuid.New()
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(at.UnixMilli()))
	copy(id[:6], ms[2:])
	id[6] = id[6]&0x0f | 0x70
	return id.String()
}

// count returns how many reruns were requested.
func (s *sketch) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.starts)
}
