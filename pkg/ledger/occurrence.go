package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// OccurrenceClaim is the row of an occurrence, in the partition of its schedule: under it a command is accepted, and it stays as the
// history of the occurrence. Unlike an idempotency record it is never released, has no hash and no TTL, and an
// accept that is abandoned and a job that is purged leave it in place:
//
//	invariant: at most one job was ever committed under the row, unless Replaces allows more
type OccurrenceClaim struct {
	Row string
	// Columns are what the row holds besides what the ledger writes: job_id, outcome, job_purged, created_at.
	Columns tablestore.Properties
	// Replaces reports whether the accept may replace an outcome that has no job, whose row is given. Optional. It is none by default.
	Replaces func(row tablestore.Properties) bool
	// With is written in the batch that writes the row, as long as its version is unchanged. Its partition is that of the row.
	// The accept sets its ETag to the version that it has written. Optional.
	With *tablestore.Op
}

// goesWith reports whether the claim is written with the row of that key.
func (c *OccurrenceClaim) goesWith(key tablestore.Key) bool {
	return c != nil && c.With != nil && c.With.Key == key
}

// wrote notes the version of the row With, if it was written.
func (c *OccurrenceClaim) wrote(applied tablestore.Applied) {
	if c == nil || c.With == nil {
		return
	}
	if tag, ok := applied.ETags[c.With.Key]; ok {
		c.With.ETag = tag
	}
}

// ClaimOpen is the outcome of a claim of which an accept may be under way.
const ClaimOpen = "claimed"

// claimState is what an idempotency record holds of an [OccurrenceClaim].
type claimState struct {
	Outcome string `column:"outcome"`
	// JobPurged says that the job has existed: no accept takes the claim over.
	JobPurged bool `column:"job_purged"`
}

// ErrClaimSettled is returned for a command whose claim has an outcome without a job, or whose job is purged.
var ErrClaimSettled = errors.New("the occurrence is decided")

// ErrClaimConflict is returned for a command if another writer has changed the row With of its claim.
var ErrClaimConflict = errors.New("the row that is written with the claim has changed")

// same reports whether the record is of the same command, as far as one record is of one command.
func (a *acceptance) same(c *idempotencyRecord) bool {
	return a.cmd.Claim != nil || c.Hash == a.cmd.Job.IdempotencyHash
}

// settled returns [ErrClaimSettled] if the claim, whose job does not exist, may not be taken over.
func (a *acceptance) settled(c *idempotencyRecord, row *tablestore.Row) error {
	claim := a.cmd.Claim
	switch {
	case claim == nil || c.Outcome == ClaimOpen && !c.JobPurged:
		return nil
	case !c.JobPurged && c.JobID == "" && claim.Replaces != nil && claim.Replaces(row.Properties):
		return nil
	}
	return ErrClaimSettled
}

// Settle prepares an outcome without a job for the claim, which columns hold, unless it has an outcome. An accept may be under way
// under the claim: its job gets a tombstone, so that it never commits. If the job exists, the claim is left. Settle returns
// the row as it is, and the write of the outcome under the version of the row, whose key is empty if the row is to be left.
func (l *Ledger) Settle(
	ctx context.Context, tenantID, scheduleID, rowKey string, columns tablestore.Properties,
) (row tablestore.Row, op tablestore.Op, err error) {
	key := l.recordKey("", scheduleID, rowKey)
	err = tablestore.Retry(ctx, l.cfg.Random, func() error {
		op = tablestore.Op{}
		row, err = l.store.Get(ctx, key)
		switch {
		case errors.Is(err, tablestore.ErrNotFound):
			op = tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: columns}
		case err != nil:
			return err
		default:
			var c idempotencyRecord
			if err := recordCodec.Decode(&row, &c); err != nil {
				return err
			}
			if c.Outcome != ClaimOpen || c.JobPurged {
				return nil
			}
			abandoned := &statemachine.Job{
				ID: c.JobID, TenantID: tenantID, CorrelationID: c.Correlation, DocID: c.DocID, Tags: c.Tags,
			}
			if exists, err := l.abandonClaim(ctx, abandoned); exists || err != nil {
				return err
			}
			op = tablestore.Op{Verb: tablestore.Replace, Key: key, ETag: row.ETag, Properties: columns}
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("decide occurrence %s of schedule %s: %w", rowKey, scheduleID, err)
	}
	return row, op, err
}

// abandonClaim makes the accept of that job impossible, and reports whether the job exists.
func (l *Ledger) abandonClaim(ctx context.Context, job *statemachine.Job) (exists bool, err error) {
	inserted, err := l.insertTombstone(ctx, job)
	if err != nil {
		return false, err
	}
	if inserted { // No entry may lead to the tombstone, and none to what lists the job: the accept may have written anything before them.
		return false, l.commitEach(ctx, l.retainTombstone(job))
	}
	s, err := l.load(ctx, job.ID)
	if errors.Is(err, ErrJobNotFound) { // The tombstone was purged, and so was its claim.
		return false, tablestore.ErrConflict
	}
	return err == nil && !s.head.Tombstone, err
}

// forgetRecord deletes the idempotency record of a job that is purged. That of an occurrence is marked instead: without
// the mark, another process could take the claim over and run the command again.
func forgetRecord(job *statemachine.Job, record *tablestore.Row) tablestore.Op {
	if job.Occurrence.ScheduleID == "" {
		return tablestore.Op{Verb: tablestore.Delete, Key: record.Key, ETag: record.ETag}
	}
	return tablestore.Op{
		Verb: tablestore.Replace, Key: record.Key, ETag: record.ETag, Properties: markCodec.Encode(&purgeMark{true}, record.Properties),
	}
}

// purgeMark is what a purge changes in the row of an occurrence.
type purgeMark struct {
	JobPurged bool `column:"job_purged"`
}

// markCodec keeps the other columns.
var markCodec = tablestore.NewCodec[purgeMark]()
