package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// published checks a message that the bus accepted.
func (c *checker) published(m *ledger.Message) {
	id := m.MessageID()
	if want := c.directive(m.JobID, m.StepIndex, m.AttemptNo); !bytes.Equal(want, m.Directive) && !c.job(m.JobID).purged {
		c.violate("S8", "%s was published with another directive than the stored one", id)
	}
	c.checkMessage(m.JobID, m.StepID, m.AttemptNo, m.LeaseID, id)
	for _, row := range c.job(m.JobID).outbox {
		if row.Message() == id && row.Bus == "queue" {
			c.violate("S7", "%s was published, and its outbox row is for the pull queue", id)
		}
	}
	message := *m
	c.sent[id] = &message
}

// checkMessage checks that each message id and each lease belong to one attempt, and each
// attempt to one message id.
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

// directive returns the stored directive of an attempt.
func (c *checker) directive(jobID string, step, attempt int) []byte {
	return tablestore.Large(c.rows[tablestore.Key{
		Table: tableLedger, Partition: jobID,
		Row: "DIRECTIVE:" + tablestore.Pad(int64(step), 4) + ":" + tablestore.Pad(int64(attempt), 6),
	}], "directive")
}

// checkQueue checks a batch on the queue's table: only void hints may be deleted, and a hint
// may be written only once its kind of work is in the catalog.
func (c *checker) checkQueue(writes []write) {
	for i := range writes {
		w := &writes[i]
		if w.op.Key.Partition == runPartition && w.was {
			c.checkRunSlot(w.old.Get("work_id").String())
		}
		parts := strings.Split(w.op.Key.Row, ":")
		if !strings.HasPrefix(w.op.Key.Partition, "ready:") || len(parts) != 5 {
			continue
		}
		kind := strings.Split(w.op.Key.Partition, ":") // Its shard comes before the class.
		catalog := tablestore.Key{Table: tableQueue, Partition: "catalog", Row: strings.Join(slices.Concat(kind[1:3], kind[4:]), ":")}
		if _, known := c.rows[catalog]; !known {
			c.violate("queue", "the ready hint %s was written before its kind of work was in the catalog", w.op.Key.Row)
		}
		id, err := ledger.ParseOutboxID(parts[2])
		rev, err2 := strconv.ParseInt(parts[4], 10, 64)
		if err != nil || err2 != nil {
			c.violate("queue", "the ready hint %s is not readable", w.op.Key.Row)
		} else if j := c.job(id.JobID); w.gone() && w.was {
			c.checkHintGone(j, w.op.Key, rev)
		}
	}
}

// checkHintGone checks that a deleted hint was void: the change that needed it has landed or
// can no longer land, and no queued item names the hint.
func (c *checker) checkHintGone(j *job, key tablestore.Key, rev int64) {
	if j.purged || j.row.Tombstone {
		return
	}
	evidence := j.evidence()
	item := evidence.Queued()
	switch {
	case j.row.Rev < rev:
		c.violate("queue", "the ready hint %s of job %s was deleted at rev %d", key.Row, j.id, j.row.Rev)
	case item != nil && evidence.HintKey(item, auditOptions) == key:
		c.violate("queue", "the ready hint %s of job %s was deleted, and its queued item names it", key.Row, j.id)
	}
}

// takeItem copies the row of a work item.
func (c *checker) takeItem(j *job, w *write) {
	row := w.op.Key.Row
	if w.kind == "ITEM" && w.was && !j.purged && (w.gone() || audit.Raw(w.old) != audit.Raw(w.op.Properties)) {
		c.violate("queue", "%s of job %s changed after it had ended", row, j.id)
	}
	if w.gone() {
		delete(j.items, row)
		return
	}
	item, err := audit.ReadItem(row, w.op.Properties)
	if err != nil {
		c.violate("queue", "%s of job %s: %v", row, j.id, err)
	}
	j.items[row] = item
}

// takeMoves copies the moves of work items from a row of the history, and returns them.
func (c *checker) takeMoves(j *job, w *write) []statemachine.ItemEvent {
	if w.gone() {
		return nil
	}
	moves, err := audit.ReadMoves(w.op.Properties)
	if err != nil || w.was {
		c.violate("queue", "%s of job %s was overwritten, or is not readable: %v", w.op.Key.Row, j.id, err)
	}
	for _, e := range moves {
		j.moves[e.WorkID] = append(j.moves[e.WorkID], e)
	}
	return moves
}

// checkItems compares the work items of a job with those before: each change must be a move
// of the lifecycle, and in the item's history.
func (c *checker) checkItems(was, j *job, moves []statemachine.ItemEvent) {
	evidence := j.evidence()
	for i := range evidence.Items {
		row := &evidence.Items[i]
		item, old := evidence.Item(row), was.items[row.Key]
		if old.Raw == row.Raw {
			continue
		}
		if err := statemachine.ValidateItemHistory(item, j.moves[row.WorkID]); err != nil {
			c.violate("queue", "the history of %s of job %s: %v", row.Key, j.id, err)
		}
		if item.Status != statemachine.StatusQueued {
			continue
		}
		moved := old.ReadyClass != row.ReadyClass && old.Rev == row.Rev && old.ReadySince.Equal(row.ReadySince)
		if old.WorkID != "" && old.Attempt >= row.Attempt && !moved {
			c.violate("queue", "%s of job %s is offered again for attempt %d", row.Key, j.id, row.Attempt)
		}
		c.checkMessage(j.id, item.StepID, item.AttemptNo, item.LeaseID, item.MessageID)
	}
	for _, e := range moves {
		if e.Type == statemachine.ItemEventClaimed {
			c.checkMemory(j, e)
		}
		if !slices.ContainsFunc(evidence.Items, func(row audit.ItemRow) bool {
			return row.WorkID == e.WorkID && (row.Rev >= e.Rev || row.Removed && row.Rev == e.Rev-1)
		}) {
			c.violate("queue", "work item %s was %s at rev %d, which its row has not reached", e.WorkID, e.Type, e.Rev)
		}
	}
}

// checkMemory checks that the claim row was stored before the claim took an item.
func (c *checker) checkMemory(j *job, e statemachine.ItemEvent) {
	sum := sha256.Sum256([]byte(e.Actor + "\x00" + e.RequestID))
	memory := c.rows[tablestore.Key{
		Table: tableQueue, Partition: "claims:" + tablestore.Pad(int(sum[31])%16, 2), Row: hex.EncodeToString(sum[:16]),
	}]
	var candidates []ledger.Candidate
	err := json.Unmarshal(tablestore.Large(memory, "candidates"), &candidates)
	for _, of := range candidates {
		for _, row := range j.items {
			if of.WorkID == e.WorkID && row.WorkID == e.WorkID && row.Attempt == of.AttemptNo {
				return
			}
		}
	}
	c.violate("queue", "%s claimed work item %s by request %s, whose row has %v (%v)", e.Actor, e.WorkID, e.RequestID, candidates, err)
}
