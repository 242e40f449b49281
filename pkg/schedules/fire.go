package schedules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// orphanGrace is how long after its time an entry stays though its change has not committed.
const orphanGrace = 5 * time.Minute

// Act acts on a due entry: it fires what is due, and writes the next entry. Several processes may act on one entry.
func (s *Service) Act(ctx context.Context, entry ledger.Entry) (ledger.FireOutcome, error) {
	if id, of := strings.CutPrefix(entry.Nonce, backfillNonce); of {
		return s.goOn(ctx, entry, id)
	}
	sc, err := s.load(ctx, entry.JobID)
	missing := errors.Is(err, ErrNotFound)
	switch {
	case err != nil && !missing:
		return 0, err
	case (missing || sc.Seq < entry.Rev) && s.cfg.Now().Sub(entry.Due) < orphanGrace:
		return ledger.Early, nil
	case missing:
		return ledger.Orphaned, s.abandon(ctx, entry.JobID)
	case sc.Seq < entry.Rev: // Its change becomes impossible.
		return ledger.Orphaned, s.commit(ctx, sc, sc.EntryDue)
	case !sc.EntryDue.Equal(entry.Due) || sc.EntryNonce != entry.Nonce:
		return ledger.Stale, s.drop(ctx, entry)
	}
	cal, err := calendar.Parse(sc.def.Spec)
	if err != nil {
		return 0, fmt.Errorf("schedule %s: %w", sc.id, err)
	}
	if s.cfg.Build > sc.Build { // Its time zones may be newer.
		sc.Build = s.cfg.Build
		if next, ok := cal.Next(sc.Last); ok && sc.Trying.IsZero() {
			sc.Next = next
		}
	}
	return ledger.Acted, s.pass(ctx, sc, cal)
}

// abandon makes the create of a schedule impossible whose HEAD is missing.
func (s *Service) abandon(ctx context.Context, id string) error {
	deleted := stored{id: id, head: head{State: Deleted, Seq: 1, Rev: 1}}
	err := s.commit(ctx, &deleted, time.Time{})
	if errors.Is(err, tablestore.ErrConflict) {
		return nil
	}
	return err
}

// drop deletes an entry that HEAD does not name.
func (s *Service) drop(ctx context.Context, entry ledger.Entry) error {
	_, err := s.cfg.Store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Discard, Key: s.entryKey(entry.JobID, entry.Due, entry.Nonce),
	}})
	if err != nil {
		return fmt.Errorf("delete an entry of schedule %s: %w", entry.JobID, err)
	}
	return nil
}

// decisions are what a pass has decided, and the writes that say so.
type decisions struct {
	fires []Fire
	rows  tablestore.Batch
}

func (d *decisions) add(fire *Fire, op *tablestore.Op) {
	if d.fires = append(d.fires, *fire); op.Key.Row != "" {
		d.rows = append(d.rows, *op)
	}
}

// observe tells of what was decided, once HEAD counts it as decided: so each occurrence is told of once, by the process that
// committed HEAD, although others may have decided it before and lost HEAD.
func (s *Service) observe(sc *stored, d *decisions) {
	for i := range d.fires {
		fire := &d.fires[i]
		if fire.stopped() {
			continue
		}
		s.cfg.Observe(fire, max(0, fire.Late()-calendar.Jitter(sc.id, fire.ScheduledFor, sc.def.Jitter)))
	}
}

// pass decides the occurrences that are due, and commits HEAD with the rows that say so. Further occurrences that are due are for
// the next pass, whose entry is due at once.
func (s *Service) pass(ctx context.Context, sc *stored, cal *calendar.Calendar) error {
	d, again, err := s.decideDue(ctx, sc, cal, false)
	if err != nil {
		return err
	}
	var due time.Time
	if again {
		if due = sc.asOf.Add(tryDelay(sc.Tries)); sc.tryUntil(cal).Before(due) {
			due = sc.tryUntil(cal)
		}
	}
	trim := sc.Seq%trimEvery == 0
	if trim {
		if err := s.planTrim(ctx, sc, sc.asOf); err != nil {
			return err
		}
	}
	if err := s.record(ctx, sc, due, d); err != nil {
		return err
	}
	if trim {
		return s.trim(ctx, sc)
	}
	return nil
}

// record commits HEAD with what was decided. Until then nothing is: if another process has changed HEAD, it decides what was
// claimed. After an unknown outcome the next pass reads HEAD again.
func (s *Service) record(ctx context.Context, sc *stored, due time.Time, d decisions) error {
	err := s.commit(ctx, sc, due, d.rows...)
	if err == nil || s.landed(ctx, sc, err) {
		s.observe(sc, &d)
	}
	return err
}

// decideDue decides occurrences that are due, by the HEAD that is then to be committed with the rows. settle is as in due: nothing is
// left to be tried again.
func (s *Service) decideDue(ctx context.Context, sc *stored, cal *calendar.Calendar, settle bool) (d decisions, again bool, err error) {
	p := sc.due(cal, sc.asOf, settle)
	if p.many != nil {
		if err := s.skipMany(ctx, sc, cal, p.many, sc.asOf, &d); err != nil {
			return d, false, err
		}
		sc.Last = p.many.ScheduledFor
	}
	for i := 0; i < len(p.steps) && !again; i++ {
		if again, err = s.take(ctx, sc, p.steps[i], settle, &d); err != nil {
			return d, false, err
		}
	}
	if sc.advance(cal, d.fires); len(d.fires) > 0 {
		sc.Build = s.cfg.Build
	}
	return d, again, nil
}

// take decides one occurrence. If it is refused for a reason that may pass, it is to be tried again, unless the pass settles.
func (s *Service) take(ctx context.Context, sc *stored, one step, settles bool, d *decisions) (again bool, err error) {
	now := s.cfg.Now()
	fire, op, err := s.decide(ctx, sc, one, now)
	switch {
	case errors.Is(err, ledger.ErrClaimConflict): // Before MayPass: to a client, it would be an error of the server.
		return false, errors.Join(tablestore.ErrConflict, err)
	case err != nil && one.fire && apierror.MayPass(err):
		if !settles {
			sc.tryAgain(one.at, now, reason(err))
			return true, nil
		}
		one.fire, one.detail = false, "was refused when the schedule was changed: "+reason(err)
		fire, op, err = s.decide(ctx, sc, one, now)
	}
	if err != nil {
		return false, err
	}
	d.add(&fire, &op)
	sc.Last = one.at
	return false, nil
}

// tryAgain notes that an occurrence was refused for a reason that may pass.
func (sc *stored) tryAgain(at, now time.Time, detail string) {
	if !sc.Trying.Equal(at) {
		sc.Trying, sc.TryingSince, sc.Tries = at, now, 0
	}
	sc.Tries, sc.TryDetail = sc.Tries+1, detail
}

// advance sets the next occurrence and what was lost after the decided occurrences.
func (sc *stored) advance(cal *calendar.Calendar, decided []Fire) {
	for i := range decided {
		sc.relist = sc.note(&decided[i]) || sc.relist
	}
	if len(decided) == 0 {
		return
	}
	if sc.Next, _ = cal.Next(sc.Last); sc.Next.IsZero() {
		sc.State = Completed
	}
	if !sc.Trying.After(sc.Last) {
		sc.Trying, sc.TryingSince, sc.Tries, sc.TryDetail = time.Time{}, time.Time{}, 0, ""
	}
}

// skipMany decides many missed occurrences. Some may have claims of a process that crashed.
func (s *Service) skipMany(ctx context.Context, sc *stored, cal *calendar.Calendar, many *Fire, now time.Time, d *decisions) error {
	many.Count = countOccurrences(cal, many.From, many.ScheduledFor)
	many.Outcome, many.Version, many.DecidedAt, many.Detail = Missed, sc.Version, now, "were not fired in time"
	if err := s.settleClaims(ctx, sc, many.From, many.ScheduledFor, "was not fired in time", d); err != nil {
		return err
	}
	key := s.key(sc.id, rowRange, newestFirst(many.ScheduledFor))
	d.add(many, &tablestore.Op{Verb: tablestore.Insert, Key: key, Properties: fireCodec.Encode(many, nil)})
	return nil
}

// settleClaims decides the occurrences between two times, both included, that have a row: the process that claimed one may have
// crashed, or its clock is ahead.
func (s *Service) settleClaims(ctx context.Context, sc *stored, from, to time.Time, detail string, d *decisions) error {
	if to.Before(from) {
		return nil
	}
	claims, err := tablestore.ScanAll(ctx, s.cfg.Store, tablestore.Query{
		Table: s.table, Partition: sc.id, From: fireRow(to), To: tablestore.PrefixEnd(fireRow(from)),
	})
	if err != nil {
		return fmt.Errorf("read the claims of schedule %s: %w", sc.id, err)
	}
	for i := range claims {
		claim, err := decodeFire(&claims[i])
		if err != nil {
			return err
		}
		fire, op, err := s.decide(ctx, sc, step{at: claim.ScheduledFor, detail: detail}, s.cfg.Now())
		if err != nil {
			return err
		}
		d.add(&fire, &op)
	}
	return nil
}

// decide fires an occurrence, or prepares that it is missed. It returns what became of it, and the write that says so, if the row is
// to be changed. The error is one of the store, or a refusal that passes.
func (s *Service) decide(ctx context.Context, sc *stored, one step, now time.Time) (Fire, tablestore.Op, error) {
	fire := Fire{ScheduledFor: one.at, Version: sc.Version, DecidedAt: now}
	if !one.fire {
		fire.Outcome, fire.Detail = Missed, one.detail
		return s.settle(ctx, sc, fireRow(one.at), &fire)
	}
	return s.submit(ctx, sc, &ledger.OccurrenceClaim{Row: fireRow(one.at), With: sc.asRead}, &fire)
}

// submit accepts the command of an occurrence under the claim, and sets its columns. A refusal that does not pass becomes the
// outcome.
func (s *Service) submit(ctx context.Context, sc *stored, claim *ledger.OccurrenceClaim, fire *Fire) (Fire, tablestore.Op, error) {
	row := claim.Row
	claim.Columns = fireCodec.Encode(fire, nil)
	submission, err := s.submission(&sc.def, sc.id, fire, claim)
	if err == nil {
		_, err = submission.Accept(ctx)
	}
	switch {
	case err == nil, errors.Is(err, ledger.ErrClaimSettled):
		return s.outcome(ctx, sc.id, row)
	case errors.Is(err, ledger.ErrClaimConflict), apierror.MayPass(err), fire.waits(err):
		return *fire, tablestore.Op{}, err
	}
	problem, _ := errors.AsType[*apierror.Error](err)
	fire.Outcome, fire.Code, fire.Detail = Refused, string(problem.Code), problem.Summary()
	if problem.Code == apierror.LineBusy && sc.def.Overlap == OverlapSkip {
		fire.Outcome = Skipped
	}
	return s.settle(ctx, sc, row, fire)
}

// waits reports whether a backfill waits until the line of the schedule, or that of the command's own key, is empty. It never
// cancels what runs, and skips nothing.
func (f *Fire) waits(err error) bool {
	problem, ok := errors.AsType[*apierror.Error](err)
	return f.BackfillID != "" && ok && problem.Code == apierror.LineBusy
}

// reason returns what the history says of a refusal.
func reason(err error) string {
	if problem, ok := errors.AsType[*apierror.Error](err); ok {
		return problem.Summary()
	}
	return "the server could not accept the command"
}

// settle prepares the outcome of fire for the occurrence, unless it has one or its job exists. It returns what became of it, and the
// write that says so, if the row is to be changed.
func (s *Service) settle(ctx context.Context, sc *stored, row string, fire *Fire) (Fire, tablestore.Op, error) {
	stored, op, err := s.cfg.Ledger.Settle(ctx, sc.TenantID, sc.id, row, fireCodec.Encode(fire, nil))
	if err != nil || op.Key.Row != "" {
		return *fire, op, err
	}
	return s.mark(&stored)
}

// outcome reads what became of an occurrence whose command was accepted, now or before.
func (s *Service) outcome(ctx context.Context, id, row string) (Fire, tablestore.Op, error) {
	stored, err := s.cfg.Store.Get(ctx, tablestore.Key{Table: s.table, Partition: id, Row: row})
	if err != nil {
		return Fire{}, tablestore.Op{}, fmt.Errorf("read an occurrence of schedule %s: %w", id, err)
	}
	return s.mark(&stored)
}

// mark returns the outcome of a decided occurrence. If its row is still a claim, its job exists, and op marks it as fired.
func (s *Service) mark(row *tablestore.Row) (fire Fire, op tablestore.Op, err error) {
	if fire, err = decodeFire(row); err != nil || fire.Outcome != Claimed {
		return fire, op, err
	}
	fire.Outcome = Fired
	return fire, tablestore.Op{
		Verb: tablestore.Replace, Key: row.Key, ETag: row.ETag, Properties: fireCodec.Encode(&fire, row.Properties),
	}, nil
}

// submission prepares the command of an occurrence.
func (s *Service) submission(def *Definition, id string, fire *Fire, claim *ledger.OccurrenceClaim) (*commands.Submission, error) {
	body, err := def.body(fire.ScheduledFor)
	if err != nil {
		return nil, err
	}
	submission, err := s.cfg.Commands.Prepare(body, commands.Headers{}, func(string) error { return nil })
	if err == nil { // The protocol may have got an order key since the definition was checked.
		err = def.checkOverlap(submission)
	}
	if err != nil {
		return nil, err
	}
	order, most := &statemachine.Order{Key: id, Kind: statemachine.OrderOfSchedule, Mode: statemachine.OrderFIFO}, 0
	own := submission.Order()
	if own.Key != "" {
		order = &own
	}
	switch {
	case def.Overlap == OverlapAllow, own.Key != "" && fire.BackfillID == "":
		order = nil
	case fire.BackfillID != "":
		order.Mode, order.CancelsRunning = statemachine.OrderReject, false
	case def.Overlap == OverlapQueue:
		most = 1
	case def.Overlap == OverlapCancel:
		order.Mode, order.CancelsRunning = statemachine.OrderNewest, true
	default:
		order.Mode = statemachine.OrderReject
	}
	submission.Occur(statemachine.Occurrence{ScheduleID: id, Version: fire.Version, For: fire.ScheduledFor}, claim, order, most)
	return submission, nil
}

// body returns the command of an occurrence.
func (d *Definition) body(at time.Time) ([]byte, error) {
	zone, err := calendar.Zone(d.TimeZone)
	if err != nil {
		return nil, &apierror.Error{
			Code: apierror.InvalidEnvelope, Detail: "The server does not know the time zone " + d.TimeZone + ".", Err: err,
		}
	}
	tenant, err := json.Marshal(d.TenantID)
	if err != nil {
		return nil, fmt.Errorf("write a tenant id: %w", err)
	}
	text := bytes.TrimSpace(d.Command)
	text = bytes.ReplaceAll(text, []byte("${scheduled_for}"), []byte(at.UTC().Format(time.RFC3339)))
	text = bytes.ReplaceAll(text, []byte("${scheduled_date}"), []byte(at.In(zone).Format(time.DateOnly)))
	if rest, isObject := bytes.CutPrefix(text, []byte("{")); isObject && len(rest) > 1 {
		text = append([]byte(`{"tenant_id":`+string(tenant)+","), rest...)
	}
	return text, nil
}
