package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The states of a claim. Only a claimed one is rolled forward: a committed one
// whose job is missing belongs to a job that was purged.
const (
	claimClaimed   = "claimed"
	claimCommitted = "committed"
)

// claim is what the row of an idempotency key stores.
//
// Source: Option B spec, 12.4.
type claim struct {
	jobID     string
	key       string
	hash      string
	state     string
	createdAt time.Time
}

var claimCodec = newCodec(
	text(columnJob, func(c *claim) *string { return &c.jobID }),
	text("idempotency_key", func(c *claim) *string { return &c.key }),
	text("idempotency_hash", func(c *claim) *string { return &c.hash }),
	text("state", func(c *claim) *string { return &c.state }),
	instant("created_at", func(c *claim) *time.Time { return &c.createdAt }),
)

// claimRow makes the properties of the acceptance's claim.
func (a *acceptance) claimRow(state string, now time.Time) tablestore.Properties {
	return claimCodec.encode(&claim{
		jobID: a.jobID, key: a.cmd.Job.IdempotencyKey, hash: a.cmd.Job.IdempotencyHash, state: state, createdAt: now,
	}, nil)
}

// readClaim reads the row of the acceptance's key. It returns
// [tablestore.ErrNotFound] for a key that nobody claims.
func (a *acceptance) readClaim(ctx context.Context) (claim, tablestore.Row, error) {
	var c claim
	row, err := a.l.store.Get(ctx, a.claim)
	if err == nil {
		err = claimCodec.decode(&row, &c)
	}
	return c, row, err
}

// meetClaim handles a key that is claimed: by the same command, which is
// answered with its job, or whose job never came and is rolled forward under
// the claimed id; or by another command.
func (a *acceptance) meetClaim(ctx context.Context) (Accepted, bool, error) {
	c, row, err := a.readClaim(ctx)
	if errors.Is(err, tablestore.ErrNotFound) {
		a.claimed = ""
		return Accepted{}, false, nil
	}
	if err != nil {
		return Accepted{}, false, fmt.Errorf("accept: read the claim: %w", err)
	}
	s, err := a.l.load(ctx, c.jobID)
	switch {
	case err == nil && a.l.keyExpired(s, time.Now()):
		return Accepted{}, false, a.rollForward(ctx, row, true)
	case c.hash != a.cmd.Job.IdempotencyHash && err == nil && !s.head.tombstone:
		return Accepted{}, false, ErrIdempotencyMismatch
	case c.hash != a.cmd.Job.IdempotencyHash:
		// Whoever claimed the key may have been refused since, and the key be another's.
		return Accepted{}, false, a.stillClaimed(ctx, &row, ErrIdempotencyMismatch)
	case err == nil && !s.head.tombstone:
		return Accepted{Job: s.agg.Job, Replayed: true}, true, nil
	case err != nil && !errors.Is(err, ErrJobNotFound):
		return Accepted{}, false, fmt.Errorf("accept: %w", err)
	case c.state == claimCommitted:
		// The job may have been purged since the claim was read, its claim before it:
		// then the key is free. A claim that still stands has lost its job.
		return Accepted{}, false, a.stillClaimed(ctx, &row, fmt.Errorf("accept: the key's job %s is gone", c.jobID))
	}
	return Accepted{}, false, a.rollForward(ctx, row, err == nil)
}

// rollForward takes an orphaned claim over by rewriting it under its version.
// The claimed id is used again unless it has a tombstone, or is that of a job
// whose key has had its time.
func (a *acceptance) rollForward(ctx context.Context, row tablestore.Row, used bool) error {
	if err := a.freeOwnSlot(ctx); err != nil {
		return err
	}
	if used {
		if err := a.newJob(); err != nil {
			return err
		}
	} else {
		a.adopt(row.Properties.Get(columnJob).String())
	}
	now := tablestore.Now()
	tags, err := a.l.store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Replace, Key: a.claim, ETag: row.ETag, Properties: a.claimRow(claimClaimed, now),
	}})
	conflict := errors.Is(err, tablestore.ErrConflict)
	switch {
	case err == nil:
		a.claimed = tags[0]
	case conflict || errors.Is(err, tablestore.ErrUnknown):
		a.claimed = ""
	default:
		return fmt.Errorf("accept: take the claim over: %w", err)
	}
	return nil
}

// adopt goes on under another job id.
func (a *acceptance) adopt(jobID string) {
	a.jobID, a.adopted = jobID, true
	if a.cmd.Limit == 0 {
		a.slot = a.l.ownSlot(a.cmd.Job.TenantID, jobID)
	}
}

// moveSlot chooses another slot; where there is none, the command is refused
// and its claim released.
func (a *acceptance) moveSlot(ctx context.Context) (Accepted, bool, error) {
	a.slotTag = ""
	slot, err := a.l.freeSlot(ctx, a.cmd.Job.TenantID, a.cmd.Limit)
	if err == nil {
		a.slot = slot
		return Accepted{}, false, nil
	}
	if !errors.Is(err, ErrTenantLimit) {
		return Accepted{}, false, err
	}
	return a.refuse(ctx)
}

// refuse answers a command over the tenant's limit. A replay is never refused:
// where the command made no claim yet, one that exists is looked for first. A
// claim that was taken over is released only when the accept that made it can
// not commit any more: its job would be one without a claim, and the same
// command would be carried out again.
func (a *acceptance) refuse(ctx context.Context) (Accepted, bool, error) {
	if a.claimed == "" {
		accepted, found, err := a.replay(ctx)
		if found || err != nil {
			return accepted, found, err
		}
		return Accepted{}, false, ErrTenantLimit
	}
	if a.adopted {
		buried, err := a.l.entomb(ctx, a.jobID)
		if err != nil {
			return Accepted{}, false, err
		}
		if !buried {
			return a.lose(ctx)
		}
	}
	if err := a.release(ctx, a.claim, a.claimed); err != nil {
		return Accepted{}, false, err
	}
	return Accepted{}, false, ErrTenantLimit
}

// Replay answers a command with the job that it has already, if it has one: a
// command that was accepted is answered so whatever was changed since. Of the
// command it reads the tenant, the key and the hash. The errors are those of
// [Ledger.Accept].
func (l *Ledger) Replay(ctx context.Context, cmd Command) (Accepted, bool, error) {
	a := &acceptance{l: l, cmd: &cmd, claim: l.claimKey(&cmd)}
	return a.replay(ctx)
}

// replay answers with the job of an existing claim, if there is one.
func (a *acceptance) replay(ctx context.Context) (Accepted, bool, error) {
	c, _, err := a.readClaim(ctx)
	if errors.Is(err, tablestore.ErrNotFound) {
		return Accepted{}, false, nil
	}
	if err != nil {
		return Accepted{}, false, fmt.Errorf("accept: read the claim: %w", err)
	}
	s, err := a.l.load(ctx, c.jobID)
	missing := errors.Is(err, ErrJobNotFound)
	switch {
	case err != nil && !missing:
		return Accepted{}, false, fmt.Errorf("accept: %w", err)
	case !missing && a.l.keyExpired(s, time.Now()):
		return Accepted{}, false, nil
	case c.hash != a.cmd.Job.IdempotencyHash:
		return Accepted{}, false, ErrIdempotencyMismatch
	case missing || s.head.tombstone:
		return Accepted{}, false, nil
	}
	return Accepted{Job: s.agg.Job, Replayed: true}, true, nil
}

// release removes a reservation of ours; one that somebody rewrote is theirs.
func (a *acceptance) release(ctx context.Context, key tablestore.Key, tag tablestore.ETag) error {
	_, err := a.l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: tag}})
	if errors.Is(err, tablestore.ErrConflict) || err == nil {
		return nil
	}
	return fmt.Errorf("accept: release %s: %w", key.Row, err)
}

// stillClaimed returns the refusal if the claim stands as it was read. Otherwise the
// acceptance begins anew.
func (a *acceptance) stillClaimed(ctx context.Context, claim *tablestore.Row, refusal error) error {
	now, err := a.l.store.Get(ctx, claim.Key)
	switch {
	case errors.Is(err, tablestore.ErrNotFound), err == nil && now.ETag != claim.ETag:
		a.claimed = ""
		return nil
	case err != nil:
		return fmt.Errorf("accept: read the claim: %w", err)
	}
	return refusal
}

// freeOwnSlot gives back what the acceptance took under the id that it leaves.
func (a *acceptance) freeOwnSlot(ctx context.Context) error {
	if !a.slot.Numbered || a.slotTag == "" {
		return nil
	}
	tag := a.slotTag
	a.slotTag = ""
	return a.release(ctx, a.l.slotKey(a.slot), tag)
}

// lose ends an acceptance whose claim somebody else rolled forward to a job:
// that job is the answer. Both acceptances have one job id, so the other may have
// found the slot that was taken here, and the job may hold it.
func (a *acceptance) lose(ctx context.Context) (Accepted, bool, error) {
	s, err := a.l.load(ctx, a.jobID)
	if err != nil && !errors.Is(err, ErrJobNotFound) {
		return Accepted{}, false, fmt.Errorf("accept: %w", err)
	}
	if err == nil && !s.head.tombstone && !s.agg.Job.State.Terminal() && s.head.slot == a.slot {
		a.slotTag = ""
	}
	if err := a.freeOwnSlot(ctx); err != nil {
		return Accepted{}, false, err
	}
	a.claimed = ""
	return a.meetClaim(ctx)
}

// startOver goes on under a new id after the old one got a tombstone.
func (a *acceptance) startOver(ctx context.Context) error {
	if err := a.freeOwnSlot(ctx); err != nil {
		return err
	}
	a.claimed = ""
	return a.newJob()
}
