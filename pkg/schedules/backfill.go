package schedules

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// BackfillRequest asks to fire the occurrences of the current version from From to To, both included. Those that have a
// job are left alone unless Repeat is set.
type BackfillRequest struct {
	Change

	From, To time.Time
	Repeat   bool
	Reason   string
	// Key is the idempotency key. Required: a request with the same key returns the backfill that the first one made.
	Key string
}

const (
	// backfillNonce begins the nonces of the entries of backfills, which the id follows.
	backfillNonce = "b-"
	// backfillAgain is the delay after a refusal that passes.
	backfillAgain = 5 * time.Second
	// mostBackfills is how many backfills are shown.
	mostBackfills = 100
)

// Backfill starts to fire past occurrences, which [Service.Backfills] shows. It returns [ErrNotFound], [ErrRevConflict], and an
// [*InvalidError], also for more than [MaxBackfill] occurrences.
func (s *Service) Backfill(ctx context.Context, request BackfillRequest) (*Backfill, error) {
	if request.Key == "" {
		return nil, &InvalidError{Message: "the Idempotency-Key is required"}
	}
	sc, err := s.find(ctx, request.TenantID, request.Name)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(request.Key))
	id := hex.EncodeToString(sum[:16])
	if known, _, err := s.backfill(ctx, sc.id, id); err == nil || !errors.Is(err, tablestore.ErrNotFound) {
		return known, err
	}
	cal, err := calendar.Parse(sc.def.Spec)
	if err != nil {
		return nil, fmt.Errorf("schedule %s: %w", sc.id, err)
	}
	from, to := request.From.UTC().Truncate(time.Second), request.To.UTC().Truncate(time.Second)
	if to.After(sc.Last) { // What comes later is not decided yet.
		to = sc.Last
	}
	switch {
	case request.Rev != 0 && request.Rev != sc.Rev:
		return nil, ErrRevConflict
	case !from.After(sc.Trimmed):
		return nil, &InvalidError{"/from", "must be later than " + sc.Trimmed.Format(time.RFC3339) + ", up to which the history is deleted"}
	case from.After(to):
		return nil, &InvalidError{"/to", "must not be earlier than from: no occurrence of the past is between them"}
	}
	now := s.cfg.Now()
	b := &Backfill{
		ID: id, From: from, To: to, Repeat: request.Repeat, Cursor: from.Add(-time.Second), Due: now,
		Actor: request.Actor, Reason: request.Reason, CreatedAt: now,
	}
	for at, ok := cal.Next(b.Cursor); ok && !at.After(to); at, ok = cal.Next(at) {
		if b.Total++; b.Total > MaxBackfill {
			return nil, &InvalidError{"/to", fmt.Sprintf("more than %d occurrences are between from and to", MaxBackfill)}
		}
	}
	if err := s.moveBackfill(ctx, sc.id, b, "", time.Time{}); err != nil {
		if errors.Is(err, tablestore.ErrConflict) || errors.Is(err, tablestore.ErrUnknown) {
			known, _, readErr := s.backfill(ctx, sc.id, id)
			return known, readErr
		}
		return nil, err
	}
	return b, nil
}

// Backfills returns the backfills of a schedule, the newest first, at most 100. It returns [ErrNotFound].
func (s *Service) Backfills(ctx context.Context, tenantID, name string) ([]Backfill, error) {
	sc, err := s.find(ctx, tenantID, name)
	if err != nil {
		return nil, err
	}
	all, err := backfillCodec.ScanAll(ctx, s.cfg.Store, tablestore.Query{
		Table: s.table, Partition: sc.id, From: rowBackfill + ":", To: tablestore.PrefixEnd(rowBackfill + ":"),
	})
	if err != nil {
		return nil, fmt.Errorf("read the backfills of schedule %s: %w", sc.id, err)
	}
	slices.SortFunc(all, func(a, b Backfill) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return all[:min(len(all), mostBackfills)], nil
}

// backfill reads a backfill. The error may wrap [tablestore.ErrNotFound].
func (s *Service) backfill(ctx context.Context, id, backfillID string) (*Backfill, tablestore.ETag, error) {
	row, err := s.cfg.Store.Get(ctx, s.key(id, rowBackfill, backfillID))
	var b Backfill
	if err == nil {
		err = backfillCodec.Decode(&row, &b)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read a backfill of schedule %s: %w", id, err)
	}
	return &b, row.ETag, nil
}

// moveBackfill writes a backfill under its version, its next entry before it, and deletes the old one after it.
func (s *Service) moveBackfill(ctx context.Context, id string, b *Backfill, tag tablestore.ETag, old time.Time) error {
	var change tablestore.Change
	if !b.Done {
		change.Pre = []tablestore.Stage{{{{
			Verb: tablestore.Put, Key: s.entryKey(id, b.Due, backfillNonce+b.ID), Properties: entryCodec.Encode(&entryRow{}, nil),
		}}}}
	}
	op := tablestore.Op{
		Verb: tablestore.Replace, Key: s.key(id, rowBackfill, b.ID), ETag: tag, Properties: backfillCodec.Encode(b, nil),
	}
	if tag == "" {
		op.Verb = tablestore.Insert
	}
	change.Commit = tablestore.Batch{op}
	if !old.IsZero() && !old.Equal(b.Due) {
		change.Post = []tablestore.Stage{{{{Verb: tablestore.Discard, Key: s.entryKey(id, old, backfillNonce+b.ID)}}}}
	}
	if _, err := tablestore.Apply(ctx, s.cfg.Store, change, nil); err != nil {
		return fmt.Errorf("move a backfill of schedule %s: %w", id, err)
	}
	return nil
}

// goOn fires the next occurrences of a backfill, as many as a second allows.
func (s *Service) goOn(ctx context.Context, entry ledger.Entry, backfillID string) (ledger.FireOutcome, error) {
	b, tag, err := s.backfill(ctx, entry.JobID, backfillID)
	now := s.cfg.Now()
	switch {
	case errors.Is(err, tablestore.ErrNotFound) && now.Sub(entry.Due) < orphanGrace:
		return ledger.Early, nil
	case errors.Is(err, tablestore.ErrNotFound):
		return ledger.Stale, s.drop(ctx, entry)
	case err != nil:
		return 0, err
	case b.Done || entry.Due.Before(b.Due):
		return ledger.Stale, s.drop(ctx, entry)
	case entry.Due.After(b.Due) && now.Sub(entry.Due) < orphanGrace:
		return ledger.Early, nil // Its change may still commit.
	case entry.Due.After(b.Due):
		return ledger.Stale, s.drop(ctx, entry)
	}
	sc, err := s.load(ctx, entry.JobID)
	if err != nil {
		return 0, err
	}
	old := b.Due
	if err := s.fill(ctx, sc, b, now); err != nil {
		return 0, err
	}
	return ledger.Acted, s.moveBackfill(ctx, sc.id, b, tag, old)
}

// fill fires occurrences, and moves the cursor of the backfill.
func (s *Service) fill(ctx context.Context, sc *stored, b *Backfill, now time.Time) error {
	if b.Due = now.Add(time.Second); sc.State == Deleted {
		b.Done = true
		return nil
	}
	cal, err := calendar.Parse(sc.def.Spec)
	if err != nil {
		return fmt.Errorf("schedule %s: %w", sc.id, err)
	}
	for range BackfillRate {
		at, ok := cal.Next(b.Cursor)
		if b.Done = !ok || at.After(b.To); b.Done {
			return nil
		}
		fire, err := s.refire(ctx, sc, b, at, now)
		switch {
		case err != nil && passing(err):
			b.Due = now.Add(backfillAgain)
			return nil
		case err != nil:
			return err
		case !fire.DecidedAt.Equal(now):
			b.Left++
		case fire.Outcome == Fired:
			b.Fired++
		default:
			b.Refused++
		}
		b.Cursor = at
	}
	return nil
}

// refire fires an occurrence of the past, unless it has a job.
func (s *Service) refire(ctx context.Context, sc *stored, b *Backfill, at, now time.Time) (Fire, error) {
	fire := Fire{ScheduledFor: at, Version: sc.Version, DecidedAt: now, Actor: b.Actor}
	row := fireRow(at)
	if b.Repeat {
		row, fire.RunKey = tablestore.Join(rowRepeat, b.ID, newestFirst(at)), b.ID
	}
	done, op, err := s.submit(ctx, sc, row, &fire, func(outcome string) bool {
		return outcome == string(Missed) || outcome == string(Skipped)
	})
	if err == nil && op.Key.Row != "" {
		_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{op})
	}
	return done, err
}
