// Package ledgertest opens ledgers for tests and drives their jobs: it accepts commands, acts
// as the relay, the worker and the sweeper, and reads jobs back. Each helper fails the test
// unless the ledger does what it is asked for.
package ledgertest

import (
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// Ledger is the ledger of one process in a test.
type Ledger struct {
	*ledger.Ledger
	// Store is the store of the ledger.
	Store tablestore.Store
	// Handoff has the messages of a ledger that [Publishing] opened.
	Handoff *Handoff

	t testing.TB
}

// Open opens a ledger. Without a store it opens one on an empty store in memory. Under
// [projectionstest.TableLayout] it has the projections of that layout.
func Open(t testing.TB, cfg ledger.Config) *Ledger {
	t.Helper()
	l := &Ledger{Store: cfg.Store, Handoff: &Handoff{}, t: t}
	l.open(&cfg)
	return l
}

// Publishing opens a ledger that publishes to Service Bus and offers its messages to its Handoff.
func Publishing(t testing.TB, cfg ledger.Config) *Ledger {
	t.Helper()
	l := &Ledger{Store: cfg.Store, Handoff: &Handoff{}, t: t}
	cfg.Bus, cfg.Handoff = statemachine.BusServiceBus, l.Handoff
	l.open(&cfg)
	return l
}

func (l *Ledger) open(cfg *ledger.Config) {
	l.t.Helper()
	if l.Store == nil {
		l.Store = Atomic()
	}
	cfg.Store = l.Store
	if cfg.Projector == nil {
		cfg.Projector = projectionstest.Projector(l.t, l.Store)
	}
	var err error
	if l.Ledger, err = ledger.Open(l.t.Context(), *cfg); err != nil {
		l.t.Fatal(err)
	}
}

// Atomic returns an empty store in memory that applies a change as a whole.
func Atomic() tablestore.Store { return memstore.New(memstore.Options{}) }

// Split returns an empty store in memory that applies a change batch by batch, as Azure
// Table Storage does.
func Split() tablestore.Store { return memstore.New(memstore.Options{Split: true}) }

// Pebble returns an empty store on disk, which is closed when the test ends.
func Pebble(t testing.TB) tablestore.Store {
	t.Helper()
	store, err := pebblestore.Open(pebblestore.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return store
}

// OnEachStore runs a parallel test on an atomic store and on a split one.
func OnEachStore(t *testing.T, run func(t *testing.T, store tablestore.Store)) {
	t.Helper()
	for name, open := range map[string]func() tablestore.Store{"atomic": Atomic, "split": Split} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, open())
		})
	}
}

// Handoff collects the messages that a ledger hands to the relay of its process. It is safe for
// concurrent use.
type Handoff struct {
	mu       sync.Mutex
	messages []ledger.Message
}

// Offer adds a message.
func (h *Handoff) Offer(message ledger.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.messages = append(h.messages, message)
}

// Len returns the number of messages.
func (h *Handoff) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.messages)
}

// Last returns the newest message, and a zero one if there is none.
func (h *Handoff) Last() ledger.Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.messages) == 0 {
		return ledger.Message{}
	}
	return h.messages[len(h.messages)-1]
}

// Policy returns the policy of the steps of [Command]: 30 seconds for an ACK, a lease of 15
// minutes, and three retries of each kind, each after a minute.
func Policy() statemachine.Policy {
	delays := []time.Duration{time.Minute, time.Minute, time.Minute}
	return statemachine.Policy{
		AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, Dispatch: delays, Ack: delays, Execution: delays,
	}
}

// Step returns a step of that type and service, with its id, and with [Policy].
func Step(id, stepType, service string) statemachine.Step {
	return statemachine.Step{ID: id, Type: stepType, Service: service, Policy: Policy()}
}

// Command returns a command of a tenant with these steps, or with one step of the type OCR
// and the service ocr. Commands with the same key are repeats of each other.
func Command(tenant, key string, steps ...statemachine.Step) ledger.Command {
	if len(steps) == 0 {
		steps = []statemachine.Step{Step("one", "OCR", "ocr")}
	}
	return ledger.Command{
		Job:   statemachine.Job{TenantID: tenant, IdempotencyHash: key, RequestType: "doc.ingest"},
		Steps: steps, Payload: []byte(`{}`),
	}
}

// MustAccept accepts a command.
func (l *Ledger) MustAccept(cmd ledger.Command) ledger.Accepted {
	l.t.Helper()
	accepted, err := l.Accept(l.t.Context(), cmd)
	if err != nil {
		l.t.Fatalf("accept: %v", err)
	}
	return accepted
}

// Submit accepts a command, and returns the id of its job.
func (l *Ledger) Submit(cmd ledger.Command) string {
	l.t.Helper()
	return l.MustAccept(cmd).Job.ID
}

// RerunOf reruns a job from there, and returns the id of the new job.
func (l *Ledger) RerunOf(jobID string, from ledger.RerunFrom) string {
	l.t.Helper()
	accepted, err := l.Rerun(l.t.Context(), ledger.Rerun{JobID: jobID, From: from})
	if err != nil {
		l.t.Fatalf("rerun: %v", err)
	}
	return accepted.Job.ID
}

// Send applies an event to a job, whatever its outcome.
func (l *Ledger) Send(jobID string, event statemachine.Event, opts ...ledger.Option) ledger.Result {
	l.t.Helper()
	result, err := l.Change(l.t.Context(), jobID, event, opts...)
	if err != nil {
		l.t.Fatalf("%T: %v", event, err)
	}
	return result
}

// Apply applies an event to a job, which must accept it.
func (l *Ledger) Apply(jobID string, event statemachine.Event, opts ...ledger.Option) ledger.Result {
	l.t.Helper()
	result := l.Send(jobID, event, opts...)
	if result.PostErr != nil || result.Outcome != statemachine.Applied {
		l.t.Fatalf("%T: %s: %s, %v", event, result.Outcome, result.Reason, result.PostErr)
	}
	return result
}

// Read returns a job.
func (l *Ledger) Read(jobID string) *statemachine.Aggregate {
	l.t.Helper()
	agg, err := l.Job(l.t.Context(), jobID)
	if err != nil {
		l.t.Fatalf("read: %v", err)
	}
	return agg
}

// Past returns the history of a job.
func (l *Ledger) Past(jobID string) []ledger.HistoryEntry {
	l.t.Helper()
	entries, _, err := l.History(l.t.Context(), jobID, 0, 1000)
	if err != nil {
		l.t.Fatalf("history: %v", err)
	}
	return entries
}

// MessageOf returns the directive of a job's active attempt.
func (l *Ledger) MessageOf(jobID string) ledger.Message {
	l.t.Helper()
	message, err := l.Message(l.t.Context(), l.Read(jobID))
	if err != nil {
		l.t.Fatalf("message: %v", err)
	}
	return *message
}

// Pair returns the attempt and the lease of a directive.
func Pair(m ledger.Message) statemachine.Pair {
	return statemachine.Pair{AttemptNo: m.AttemptNo, LeaseID: m.LeaseID}
}

// Sent returns the event by which a relay says that it published a directive.
func Sent(m ledger.Message) statemachine.Published {
	return statemachine.Published{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo}
}

// Started returns the ACK of a directive.
func Started(m ledger.Message) statemachine.Ack {
	return statemachine.Ack{StepID: m.StepID, Pair: Pair(m)}
}

// Ended returns the RESULT of a directive.
func Ended(m ledger.Message, status statemachine.ResultStatus, code string) statemachine.Result {
	return statemachine.Result{StepID: m.StepID, Pair: Pair(m), Status: status, ErrorCode: code}
}

// End publishes a directive and reports the end of its attempt.
func (l *Ledger) End(m ledger.Message, status statemachine.ResultStatus, code string) {
	l.t.Helper()
	l.Apply(m.JobID, Sent(m))
	l.Apply(m.JobID, Ended(m, status, code))
}

// Entries returns the entries of a kind that are due at a time.
func (l *Ledger) Entries(kind ledger.Kind, at time.Time) []ledger.Entry {
	l.t.Helper()
	var all []ledger.Entry
	for shard := range l.Shards() {
		page, _, err := l.Due(l.t.Context(), kind, shard, at, 1000, "")
		if err != nil {
			l.t.Fatalf("due: %v", err)
		}
		all = append(all, page...)
	}
	return all
}

// Expire fires the entries of these kinds, or of all, that are due, as the sweeper does, and
// counts the outcomes.
func (l *Ledger) Expire(kinds ...ledger.Kind) map[ledger.FireOutcome]int {
	l.t.Helper()
	if len(kinds) == 0 {
		kinds = ledger.Kinds
	}
	outcomes := map[ledger.FireOutcome]int{}
	for _, kind := range kinds {
		for _, entry := range l.Entries(kind, time.Now()) {
			outcome, _, err := l.Fire(l.t.Context(), entry, statemachine.DeadlinePassed{})
			if err != nil {
				l.t.Fatalf("fire: %v", err)
			}
			outcomes[outcome]++
		}
	}
	return outcomes
}

// LiveJobs returns the ids of the jobs that have not ended.
func (l *Ledger) LiveJobs() []string {
	l.t.Helper()
	var all []string
	for shard := range l.Shards() {
		page, _, err := l.Live(l.t.Context(), "", shard, 1000, "")
		if err != nil {
			l.t.Fatalf("live: %v", err)
		}
		all = append(all, page...)
	}
	return all
}

// Row returns one row, which must exist.
func (l *Ledger) Row(key tablestore.Key) tablestore.Row {
	l.t.Helper()
	row, err := l.Store.Get(l.t.Context(), key)
	if err != nil {
		l.t.Fatalf("get %v: %v", key, err)
	}
	return row
}

// Put writes one row without the ledger.
func (l *Ledger) Put(key tablestore.Key, properties tablestore.Properties) {
	l.t.Helper()
	l.write(tablestore.Op{Verb: tablestore.Put, Key: key, Properties: properties})
}

// Discard deletes one row without the ledger.
func (l *Ledger) Discard(key tablestore.Key) {
	l.t.Helper()
	l.write(tablestore.Op{Verb: tablestore.Discard, Key: key})
}

func (l *Ledger) write(op tablestore.Op) {
	l.t.Helper()
	if _, err := l.Store.Commit(l.t.Context(), tablestore.Batch{op}); err != nil {
		l.t.Fatalf("commit: %v", err)
	}
}
