package sim

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// published looks at a message that the bus took.
func (c *checker) published(m *ledger.Message) {
	id := m.MessageID()
	if want := c.directive(m.JobID, m.StepIndex, m.AttemptNo); !bytes.Equal(want, m.Directive) && !c.job(m.JobID).purged {
		c.violate("S8", "%s was published with other bytes than those stored", id)
	}
	c.checkMessage(m.JobID, m.StepID, m.AttemptNo, m.LeaseID, id)
	message := *m
	c.sent[id] = &message
}

// checkMessage checks that a message id stands for one attempt, and an attempt
// for one message id.
func (c *checker) checkMessage(jobID, stepID string, attempt int, lease, id string) {
	name := jobID + "/" + stepID + "/" + strconv.Itoa(attempt)
	if known := c.leases[lease]; known != "" && known != name {
		c.violate("S8", "message %s carries the lease of %s", id, known)
	}
	for _, pair := range [][2]string{{"id of " + name, id}, {"attempt of " + id, name}} {
		if known, ok := c.leases[pair[0]]; ok && known != pair[1] {
			c.violate("S8", "%s is %s and was %s", pair[0], pair[1], known)
		}
		c.leases[pair[0]] = pair[1]
	}
}

// directive is the bytes of an attempt, as they are stored with it.
func (c *checker) directive(jobID string, step, attempt int) []byte {
	return tablestore.Large(c.rows[tablestore.Key{
		Table: tableLedger, Partition: jobID,
		Row: "DIRECTIVE:" + tablestore.Pad(int64(step), 4) + ":" + tablestore.Pad(int64(attempt), 6),
	}], "directive")
}

// checkQueue looks at a batch on a job's partition of the queue.
func (c *checker) checkQueue(j *job, writes []write) {
	for i := range writes {
		w := &writes[i]
		switch {
		case w.kind == "ITEM" && w.gone():
			delete(j.items, w.op.Key.Row)
		case w.kind == "ITEM":
			c.checkItem(j, w)
		case w.kind == "MESSAGE" && !w.gone():
			parts := strings.Split(w.op.Key.Row, ":")
			step, _ := strconv.Atoi(parts[1])
			attempt, _ := strconv.Atoi(parts[2])
			want := c.directive(j.id, step, attempt)
			if !bytes.Equal(want, tablestore.Large(w.op.Properties, "directive")) && !j.purged {
				c.violate("S8", "%s of job %s has other bytes than those stored", w.op.Key.Row, j.id)
			}
		}
	}
}

// itemMoves are the moves of an item, in one step or two.
var itemMoves = map[string]string{
	"": "queued", "queued": "queued claimed running", "claimed": "claimed running stalled queued",
	"running": "running succeeded failed stalled queued", "stalled": "stalled queued",
}

// checkItem compares an item with what it was.
func (c *checker) checkItem(j *job, w *write) {
	old, next := audit.ReadItem(w.old), audit.ReadItem(w.op.Properties)
	j.items[w.op.Key.Row] = next
	if old.Terminal() && audit.Raw(w.old) != audit.Raw(w.op.Properties) {
		c.violate("queue", "%s of job %s changed after it was %s", w.op.Key.Row, j.id, old.Status)
		return
	}
	if !strings.Contains(itemMoves[old.Status], next.Status) {
		c.violate("queue", "%s of job %s went from %s to %s", w.op.Key.Row, j.id, old.Status, next.Status)
	}
	if old.Lease != next.Lease || old.Status != "queued" && next.Status == "queued" {
		c.enqueued[next.Message] = true
		c.checkMessage(next.Job, next.Step, next.Attempt, next.Lease, next.Message)
	}
	if next.Terminal() {
		return
	}
	for row, other := range j.items {
		if row != w.op.Key.Row && !other.Terminal() && other.Lease == next.Lease {
			c.violate("queue", "%s and %s of job %s carry one lease", row, w.op.Key.Row, j.id)
		}
	}
	back := next.Status == "queued" && (old.Status == "running" || old.Status == "stalled")
	if old.Attempt > next.Attempt || old.Attempt == next.Attempt && back {
		c.violate("queue", "%s of job %s was %s at attempt %d and is offered again for attempt %d",
			w.op.Key.Row, j.id, old.Status, old.Attempt, next.Attempt)
	}
}
