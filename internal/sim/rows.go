package sim

import (
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The rows as the invariants read them: by the names of their columns, not by
// the code that is put to the test.

// jobRow is a JOB row.
type jobRow struct {
	raw                                  string
	tenant, key, hash, state, rerunOf    string
	rev, attempts                        int64
	updated, completed                   time.Time
	entryKind, entryNonce, slotPart, row string
	entryDue                             time.Time
	tombstone                            bool
}

func readJob(p tablestore.Properties) jobRow {
	text := func(name string) string { return p.Get(name).String() }
	return jobRow{
		raw: rawOf(p), tenant: text("tenant_id"), key: text("idempotency_key"), hash: text("idempotency_hash"),
		state: text("state"), rerunOf: text("rerun_of"), rev: p.Get("rev").Int(), attempts: p.Get("attempts_total").Int(),
		updated: p.Get("updated_at").Time(), completed: p.Get("completed_at").Time(),
		entryKind: text("entry_kind"), entryNonce: text("entry_nonce"), entryDue: p.Get("entry_due").Time(),
		slotPart: text("slot_partition"), row: text("slot_row"), tombstone: p.Get("tombstone").Bool(),
	}
}

// terminal reports whether the job has ended.
func (j *jobRow) terminal() bool {
	return j.state == "SUCCEEDED" || j.state == "FAILED_FINAL" || j.state == "CANCELLED"
}

// stepRow is a STEP row.
type stepRow struct {
	raw                                   string
	id, state, lease, outboxID, errorCode string
	index, attempt                        int
	expires, timeout, next                time.Time
	result                                string
	memory                                []attemptMemory
	spent, budget                         [3]int // dispatch, ack, execution
}

// attemptMemory is what a step remembers of an attempt.
type attemptMemory struct {
	no     int
	acked  bool
	result string
}

func readStep(p tablestore.Properties) stepRow {
	text := func(name string) string { return p.Get(name).String() }
	s := stepRow{
		raw: rawOf(p), id: text("step_id"), state: text("state"), lease: text("lease_id"), outboxID: text("outbox_id"),
		errorCode: text("last_error_code"), index: int(p.Get("step_index").Int()), attempt: int(p.Get("attempt_no").Int()),
		expires: p.Get("lease_expires_at").Time(), timeout: p.Get("timeout_at").Time(), next: p.Get("next_attempt_at").Time(),
		result: string(p.Get("result_ref").Bytes()),
	}
	for i, cause := range []string{"dispatch", "ack", "execution"} {
		s.spent[i] = int(p.Get("spent_" + cause).Int())
		if delays := text("retry_" + cause); delays != "" {
			s.budget[i] = strings.Count(delays, ",") + 1
		}
	}
	for part := range strings.SplitSeq(text("attempts"), ";") {
		fields := strings.Split(part, ":")
		if no, err := strconv.Atoi(fields[0]); err == nil && len(fields) == 4 {
			s.memory = append(s.memory, attemptMemory{no, fields[2] != "", fields[3]})
		}
	}
	return s
}

// terminal reports whether the step has ended.
func (s *stepRow) terminal() bool {
	return s.state == "SUCCEEDED" || s.state == "FAILED_FINAL" || s.state == "CANCELLED"
}

// active reports whether the step is in somebody's hands, or waits to be again.
func (s *stepRow) active() bool { return s.state != "PENDING" && !s.terminal() }

// end is the deadline of the attempt in hand.
func (s *stepRow) end() time.Time {
	if !s.timeout.IsZero() && s.timeout.Before(s.expires) {
		return s.timeout
	}
	return s.expires
}

// remembers finds what the step remembers of an attempt.
func (s *stepRow) remembers(no int) attemptMemory {
	for _, m := range s.memory {
		if m.no == no {
			return m
		}
	}
	return attemptMemory{}
}

// outboxRow is an OUTBOX row.
type outboxRow struct {
	raw              string
	id, state, lease string
	step, attempt    int
	due              time.Time
}

func readOutbox(p tablestore.Properties) outboxRow {
	text := func(name string) string { return p.Get(name).String() }
	return outboxRow{
		raw: rawOf(p), id: text("outbox_id"), state: text("state"), lease: text("lease_id"),
		step: int(p.Get("step_index").Int()), attempt: int(p.Get("attempt_no").Int()), due: p.Get("due_at").Time(),
	}
}

// message is the row's message id.
func (o *outboxRow) message() string { return o.id + "/" + strconv.Itoa(o.attempt) }

// itemRow is an ITEM row of the pull queue.
type itemRow struct {
	workID, status, owner, messageID, lease, job, step string
	attempt                                            int // the ledger's
	rev                                                int64
}

func readItem(p tablestore.Properties) itemRow {
	text := func(name string) string { return p.Get(name).String() }
	return itemRow{
		workID: text("work_id"), status: text("status"), owner: text("owner"), messageID: text("message_id"), lease: text("lease_id"),
		job: text("job_id"), step: text("step_id"), attempt: int(p.Get("attempt_no").Int()), rev: p.Get("rev").Int(),
	}
}

// terminal reports whether the item has ended.
func (i *itemRow) terminal() bool { return i.status == "succeeded" || i.status == "failed" }

// rawOf is a row byte for byte.
func rawOf(p tablestore.Properties) string { return string(tablestore.EncodeProperties(nil, p)) }

// rowPrefix reports whether a row key is of that kind.
func rowPrefix(row, kind string) bool { return strings.HasPrefix(row, kind+":") }

func itoa(n int) string { return strconv.Itoa(n) }
