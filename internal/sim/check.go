package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// The names of the tables.
const (
	tableLedger   = "luciusledger"
	tableSchedule = "luciusschedule"
	tableQueue    = "luciusqueue"
)

// tables holds the names for the audit.
var tables = audit.Tables{
	Ledger: tableLedger, Schedule: tableSchedule, Queue: tableQueue,
	Idempotency: "jobidempotency", Index: "luciusjobindex", Cron: tableCron,
}

// auditOptions holds the settings on which the keys of entries and hints depend.
var auditOptions = &audit.Options{Tables: tables, Shards: shards, ReadyShards: 1}

// checker checks each write, publish and answer against the invariants. It keeps its own
// copy of the durable rows. Only the driver uses it.
type checker struct {
	w          *world
	seq        int // commits so far
	rows       map[tablestore.Key]tablestore.Properties
	jobs       map[string]*job
	violations []string
	ledger     *ledger.Ledger // see reader
	waits      map[string]int // how often jobs waited for each reason

	sent    map[string]*ledger.Message // by message id
	leases  map[string]string          // the attempt of each lease
	holders map[string]string          // the worker that received each lease
	asked   map[string]time.Duration   // what the latest applied ACK of each lease asked for, if it did
	keys    map[string]answered        // the first answer to each command, by its name
	reports map[string]done            // the reports that succeeded, by name

	entered map[string]bool // the jobs for which a schedule entry was written
	// occurrences holds the job of each claim of an occurrence, also after its purge.
	occurrences map[string]string
	lists       map[int]int // how many complete lists by document or tags had so many jobs

	starts     []time.Time          // of the limited service, in order
	running    map[string]bool      // its work items that workers hold
	inLine     map[string]*lineCopy // lines by id
	unlooked   []string             // the lines of entries that the current write deleted
	askedAt    map[string]int       // the number of commits at the first request for each command, by its hash
	answeredAt map[string]int       // that at the first answer with each job

	webhooks webhooks

	partial  bool            // a later batch of the same write changes the job, too
	whole    bool            // several batches are applied in one write
	landing  bool            // a write lands after its caller was told that its outcome is unknown
	outlived map[string]bool // rows that landed so after their job was purged or abandoned
}

// answered is the first answer to a command.
type answered struct {
	jobID   string
	variant int
}

// done records when a report succeeded: the number of commits by then, and the time.
type done struct {
	seq int
	at  time.Time
}

// job is the checker's copy of one job.
type job struct {
	id     string
	row    audit.JobRow
	exists bool
	steps  []audit.StepRow
	outbox map[string]audit.OutboxRow // by row key
	// superseded and ended are the numbers of commits at which each attempt was followed by
	// another, and at which each step ended.
	superseded map[attemptKey]int
	ended      map[int]int
	items      map[string]audit.ItemRow            // open and ended, by row key
	moves      map[string][]statemachine.ItemEvent // the moves of each work item
	rejected   []string                            // the row keys of its rejected callbacks
	seen       *audit.Evidence                     // cached result of evidence
	phase      string                              // what the job waits for, by its rows
	phaseAt    time.Time                           // when phase began
	heard      time.Time                           // the last report on the running attempt
	purged     bool
	created    int    // the number of commits at which it was accepted, 0 if it was not
	stated     int    // the number of commits at which its state last changed
	tenant     string // this and the next two are known even after its purge
	doc        string
	tags       []string // each "key=value"
}

type attemptKey struct{ step, attempt int }

func newChecker(w *world) *checker {
	return &checker{
		w: w, rows: map[tablestore.Key]tablestore.Properties{}, jobs: map[string]*job{},
		sent: map[string]*ledger.Message{}, running: map[string]bool{}, leases: map[string]string{}, holders: map[string]string{},
		asked: map[string]time.Duration{},
		keys:  map[string]answered{}, reports: map[string]done{}, outlived: map[string]bool{}, waits: map[string]int{},
		entered: map[string]bool{}, lists: map[int]int{}, occurrences: map[string]string{},
		webhooks: webhooks{webhookTries: webhookTries{n: map[string]int{}}, all: map[string]*notice{}, results: map[webhook.Outcome]int{}},
		inLine:   map[string]*lineCopy{}, askedAt: map[string]int{}, answeredAt: map[string]int{},
	}
}

// violate records that an invariant does not hold.
func (c *checker) violate(invariant, format string, args ...any) {
	c.violations = append(c.violations, invariant+": "+fmt.Sprintf(format, args...))
}

// job returns the copy of a job, which may not exist yet.
func (c *checker) job(id string) *job {
	j := c.jobs[id]
	if j == nil {
		j = &job{
			id: id, outbox: map[string]audit.OutboxRow{}, superseded: map[attemptKey]int{}, ended: map[int]int{},
			items: map[string]audit.ItemRow{}, moves: map[string][]statemachine.ItemEvent{},
		}
		c.jobs[id] = j
	}
	return j
}

// evidence returns the job as the audit sees it, without its history. Callers must not
// change it.
func (j *job) evidence() *audit.Evidence {
	if j.seen != nil {
		return j.seen
	}
	e := &audit.Evidence{JobID: j.id, Job: &j.row, Steps: j.steps}
	for _, row := range slices.Sorted(maps.Keys(j.outbox)) {
		e.Outbox = append(e.Outbox, j.outbox[row])
	}
	for _, row := range slices.Sorted(maps.Keys(j.items)) {
		e.Items = append(e.Items, j.items[row])
	}
	j.seen = e
	return e
}

// write is one operation of a commit.
type write struct {
	op   *tablestore.Op
	old  tablestore.Properties // the row before
	was  bool                  // the row existed before
	kind string                // the first part of the row key, such as JOB
}

// gone reports whether the operation removes the row.
func (w *write) gone() bool { return w.op.Verb == tablestore.Delete || w.op.Verb == tablestore.Discard }

// before records the rows that a batch is about to write.
func (c *checker) before(batch tablestore.Batch) []write {
	writes := make([]write, len(batch))
	for i := range batch {
		op := &batch[i]
		old, was := c.rows[op.Key]
		kind, _, _ := strings.Cut(op.Key.Row, ":")
		writes[i] = write{op: op, old: old, was: was, kind: kind}
	}
	return writes
}

// committed checks a batch that was applied.
func (c *checker) committed(who actor, batch tablestore.Batch, writes []write) {
	c.seq++
	for i := range writes {
		if w := &writes[i]; w.gone() {
			delete(c.rows, w.op.Key)
		} else {
			c.rows[w.op.Key] = w.op.Properties
		}
	}
	partition := batch[0].Key.Partition
	switch batch[0].Key.Table {
	case tableLedger:
		c.checkJob(who, c.job(partition), writes)
	case tableSchedule:
		if id, ok := lineID(partition); ok {
			c.takeLine(c.lineOf(id), writes)
			break
		}
		if partition == "cron" {
			c.checkCronEntries(writes)
			break
		}
		c.checkSchedule(writes)
	case tableCron:
		c.checkCron(partition, writes)
	case tableQueue:
		c.checkQueue(writes)
	default:
		c.checkIndex(writes)
		c.noteOutlived(batch)
	}
	if !c.whole {
		c.checkLooked()
	}
}

// committedAll checks batches that were applied in one write.
func (c *checker) committedAll(who actor, batches []tablestore.Batch) {
	c.whole = true
	defer func() {
		c.whole = false
		c.checkLooked()
	}()
	for i, batch := range batches {
		c.partial = slices.ContainsFunc(batches[i+1:], func(later tablestore.Batch) bool {
			return later[0].Key.Table == tableLedger && later[0].Key.Partition == batch[0].Key.Partition
		})
		if batch.Clears() {
			batch = c.removals(batch[0].Key)
		}
		if len(batch) == 0 {
			continue
		}
		c.committed(who, batch, c.before(batch))
		if batch[0].Key.Table == tableLedger {
			who.op = nil // A waiting worker's claim in the same write does not stem from the report.
		}
	}
}

// removals returns the removal of each row of a partition that is cleared.
func (c *checker) removals(of tablestore.Key) (batch tablestore.Batch) {
	for key := range c.rows {
		if key.Table == of.Table && key.Partition == of.Partition {
			batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: key})
		}
	}
	slices.SortFunc(batch, func(a, b tablestore.Op) int { return cmp.Compare(a.Key.Row, b.Key.Row) })
	return batch
}

// told checks that a change that the process reveals, for instance to the receiver of a
// webhook, is durable. Any goroutine may call it, because the driver writes the checker's
// rows only while all others are blocked.
func (c *checker) told(job *statemachine.Job) {
	if j := c.jobs[job.ID]; j == nil || !j.purged && j.row.Rev < job.Rev {
		c.w.defect("told: rev %d of job %s was told before it was durable", job.Rev, job.ID)
	}
}

// noteOutlived records projected rows that a late write created after their job was purged.
// Nothing refers to such rows any more, and the guarantees exclude them. Any other projection
// of a purged job is a violation.
func (c *checker) noteOutlived(batch tablestore.Batch) {
	for i := range batch {
		key := batch[i].Key
		id, _, _ := strings.Cut(key.Row, ".")
		if j := cmp.Or(c.jobs[key.Partition], c.jobs[id]); c.landing && j != nil && j.purged {
			c.outlived[key.String()] = true
		}
	}
}

// all returns the jobs by id.
func (c *checker) all() []*job {
	ids := slices.Sorted(maps.Keys(c.jobs))
	list := make([]*job, 0, len(ids))
	for _, id := range ids {
		if c.jobs[id].exists {
			list = append(list, c.jobs[id])
		}
	}
	return list
}

// anyJob returns the id of a random job, or "" if there is none.
func (c *checker) anyJob(draw int) string {
	list := c.all()
	if len(list) == 0 {
		return ""
	}
	return list[draw%len(list)].id
}

// anyItem returns a random open item of the pull queue, or the zero item if there is none.
func (c *checker) anyItem(draw int) statemachine.Item {
	var found []statemachine.Item
	for _, j := range c.all() {
		evidence := j.evidence()
		for i := range evidence.Items {
			if row := &evidence.Items[i]; row.Open {
				found = append(found, evidence.Item(row))
			}
		}
	}
	if len(found) == 0 {
		return statemachine.Item{}
	}
	return found[draw%len(found)]
}

// paused returns the jobs that are paused or pausing.
func (c *checker) paused() []string {
	var ids []string
	for _, j := range c.all() {
		if j.row.State == "PAUSED" || j.row.State == "PAUSING" {
			ids = append(ids, j.id)
		}
	}
	return ids
}

// ended counts the jobs by state.
func (c *checker) ended() map[string]int {
	counts := map[string]int{}
	for _, j := range c.all() {
		counts[j.row.State]++
	}
	return counts
}
