package ledger

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// head is the part of the Job row that names the job's rows in other partitions.
type head struct {
	Entry  entryRef // the schedule entry of the job's next deadline
	Slot   slotRef  // its in-flight slot
	Record string   `column:"claim"` // row key of its idempotency record
	// Tombstone says that there is no job: its accept was abandoned, or it is purged.
	Tombstone bool `column:"tombstone"`
}

// entryRef names a schedule entry within its job; the zero value names none.
type entryRef struct {
	Kind  Kind      `column:"entry_kind"`
	Due   time.Time `column:"entry_due"`
	Nonce string    `column:"entry_nonce"`
}

// slotRef names an in-flight slot; the zero value names none. Jobs of a tenant with
// a limit take turns in its numbered slots; any other slot belongs to one job.
type slotRef struct {
	Partition string `column:"slot_partition"`
	Row       string `column:"slot_row"`
	Numbered  bool   `column:"slot_numbered"`
}

// jobRow is the content of a JOB row.
type jobRow struct {
	Job  *statemachine.Job
	Head *head
}

// The columns of these rows are the fields with a column tag. An outbox row's directive has
// a separate row, which loading a job does not read.
var (
	jobCodec    = tablestore.NewCodec[jobRow]()
	stepCodec   = tablestore.NewCodec[statemachine.Step](tablestore.FormatAs("attempts", formatAttempts, parseAttempts))
	outboxCodec = tablestore.NewCodec[statemachine.Outbox]()
	itemCodec   = tablestore.NewCodec[statemachine.ItemRecord]()
	emptyCodec  = tablestore.NewCodec[struct{}]()
)

func encodeJob(j *statemachine.Job, h *head, loaded tablestore.Properties) tablestore.Properties {
	return jobCodec.Encode(&jobRow{j, h}, loaded)
}

func decodeJob(row *tablestore.Row, j *statemachine.Job, h *head) error {
	if err := jobCodec.Decode(row, &jobRow{j, h}); err != nil {
		return err
	}
	if j.State == "" && !h.Tombstone {
		return fmt.Errorf("the Job row of %s has no state", row.Key.Partition)
	}
	return nil
}

// largeRow returns the properties of a row that holds one large value.
func largeRow(name string, data []byte) tablestore.Properties {
	return tablestore.AppendLarge(emptyCodec.Encode(&struct{}{}, nil), name, data)
}

// formatAttempts writes "no:digest:acked:result" for each attempt, joined by
// semicolons; digests are hex and results upper-case names.
func formatAttempts(attempts []statemachine.Attempt) string {
	b := make([]byte, 0, 64)
	for i, a := range attempts {
		if i > 0 {
			b = append(b, ';')
		}
		b = strconv.AppendInt(b, int64(a.No), 10)
		b = append(append(b, ':'), a.LeaseDigest...)
		if a.Acked {
			b = append(b, ":acked:"...)
		} else {
			b = append(b, "::"...)
		}
		b = append(b, a.Result...)
	}
	return string(b)
}

func parseAttempts(s string) ([]statemachine.Attempt, error) {
	attempts := make([]statemachine.Attempt, 0, strings.Count(s, ";")+1)
	for part := range strings.SplitSeq(s, ";") {
		no, rest, _ := strings.Cut(part, ":")
		digest, rest, _ := strings.Cut(rest, ":")
		acked, result, ok := strings.Cut(rest, ":")
		n, err := strconv.Atoi(no)
		if err != nil || !ok {
			return nil, fmt.Errorf("bad memory of attempts %q", part)
		}
		attempts = append(attempts, statemachine.Attempt{
			No: n, LeaseDigest: digest, Acked: acked != "", Result: statemachine.ResultStatus(result),
		})
	}
	return attempts, nil
}
