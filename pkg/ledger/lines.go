package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// LineView is a line as it is read. What it says may be a moment old.
type LineView struct {
	ID       string
	TenantID string
	Key      string
	// Places is how many jobs are in the line, with those whose place the next look removes.
	Places int64
	// Since is when jobs began to wait in the line, or its first job to block it; the zero time if no look
	// has seen that yet.
	Since time.Time
	// First is the first place that is not gone, nil if there is none.
	First *statemachine.FirstPlace
}

// Blocked reports whether the line stands after a failure.
func (v *LineView) Blocked() bool {
	return v.First != nil && v.First.Job.Standing() == statemachine.PlaceBlocks
}

// BlockedSince returns when the job that blocks the line ended, and the zero time if the line is not blocked.
func (v *LineView) BlockedSince() time.Time {
	if !v.Blocked() {
		return time.Time{}
	}
	return v.First.Job.CompletedAt
}

// Waiting returns how many jobs are behind the first.
func (v *LineView) Waiting() int64 { return max(0, v.Places-1) }

// Line returns a line. It returns [ErrLineNotFound] if no job is in it.
func (l *Ledger) Line(ctx context.Context, id string) (*LineView, error) {
	ln, first, err := l.firstInLine(ctx, id)
	if err != nil {
		return nil, err
	}
	if ln.tag == "" {
		return nil, ErrLineNotFound
	}
	var listed listRow
	if ln.Listed {
		row, err := l.store.Get(ctx, l.listKey(ln))
		if err == nil {
			err = listCodec.Decode(&row, &listed)
		}
		if err != nil && !errors.Is(err, tablestore.ErrNotFound) {
			return nil, fmt.Errorf("read line %s: %w", ln.id, err)
		}
	}
	view := viewOf(ln, first, listed.Since)
	return &view, nil
}

// LineTenant returns the tenant of a line. It returns [ErrLineNotFound].
func (l *Ledger) LineTenant(ctx context.Context, id string) (string, error) {
	ln, err := l.readLine(ctx, id)
	if err == nil && ln.tag == "" {
		err = ErrLineNotFound
	}
	if err != nil {
		return "", err
	}
	return ln.TenantID, nil
}

// viewOf is the view of a line with that first place.
func viewOf(ln *line, first *statemachine.FirstPlace, since time.Time) LineView {
	return LineView{ID: ln.id, TenantID: ln.TenantID, Key: ln.Key, Places: ln.Count, Since: since, First: first}
}

// Lines returns one page of the lines in which jobs wait or a failure blocks, in one shard, and the key
// after which the next page begins, empty at the end. They are those of a tenant, or without one of all
// tenants, one after the other. A row of a line that is gone is deleted past the grace.
func (l *Ledger) Lines(ctx context.Context, tenantID string, shard, limit int, after string) ([]LineView, string, error) {
	prefix := l.shardKey(shard, tablestore.Join("line", ""))
	if tenantID != "" {
		prefix = l.shardKey(shard, tablestore.Join("line", tenantID, ""))
	}
	from, end := prefix.Row, tablestore.PrefixEnd(prefix.Row)
	if after != "" {
		from = max(from, after+"!") // No key extends another.
	}
	if from >= end {
		return nil, "", nil
	}
	page, err := l.store.Scan(ctx, tablestore.Query{
		Table: prefix.Table, Partition: prefix.Partition, From: from, To: end, Limit: limit,
	})
	if err != nil {
		return nil, "", fmt.Errorf("read the lines of tenant %q: %w", tenantID, err)
	}
	var views []LineView
	for i := range page.Rows {
		view, err := l.viewListed(ctx, &page.Rows[i])
		if err != nil {
			return nil, "", err
		}
		if view.First != nil {
			views = append(views, view)
		}
	}
	next := ""
	if n := len(page.Rows); n > 0 && page.Next != "" {
		next = page.Rows[n-1].Key.Row
	}
	return views, next, nil
}

// viewListed reads the line of a row of the list, the zero view if that line is gone.
func (l *Ledger) viewListed(ctx context.Context, row *tablestore.Row) (view LineView, err error) {
	parts, err := tablestore.Split(row.Key.Row)
	if err != nil || len(parts) != 4 {
		return view, fmt.Errorf("bad key %q in the list of lines", row.Key.Row)
	}
	var listed listRow
	if err := listCodec.Decode(row, &listed); err != nil {
		return view, err
	}
	ln, first, err := l.firstInLine(ctx, parts[2])
	if err != nil {
		return view, err
	}
	if ln.tag == "" || ln.Epoch != parts[3] {
		if time.Since(listed.Since) > orphanGrace {
			_, err = l.deleteVersion(ctx, row.Key, row.ETag)
		}
		return view, err
	}
	return viewOf(ln, first, listed.Since), nil
}

// ValidLinesKey reports whether a page of [Ledger.Lines] may begin after that key.
func ValidLinesKey(key string) bool {
	parts, err := tablestore.Split(key)
	return err == nil && len(parts) == 4 && parts[0] == "line"
}

// LineJobs calls visit with the jobs of a line in their order, from that seq on, until it returns false. It
// returns the errors of visit, and [ErrLineNotFound].
func (l *Ledger) LineJobs(ctx context.Context, id string, from int64, visit func(agg *statemachine.Aggregate) (bool, error)) error {
	ln, err := l.readLine(ctx, id)
	if err != nil {
		return err
	}
	if ln.tag == "" {
		return ErrLineNotFound
	}
	return l.scanPlaces(ctx, ln, from, func(p *place) (bool, error) {
		j, err := l.judge(ctx, ln, p, false)
		if err != nil || j.standing == statemachine.PlaceGone || j.job == nil {
			return true, err
		}
		return visit(&j.s.agg)
	})
}

// scanPlaces reads the places of a line from that seq on, in their order, until visit returns false.
func (l *Ledger) scanPlaces(ctx context.Context, ln *line, from int64, visit func(p *place) (bool, error)) error {
	query := tablestore.Query{
		Table: l.tables.Schedule, Partition: l.lineKey(ln.id).Partition,
		From: l.placeKey(ln.id, max(1, from)).Row, To: l.placeKey(ln.id, ln.Next).Row, Limit: 1000,
	}
	for {
		page, err := l.store.Scan(ctx, query)
		if err != nil {
			return fmt.Errorf("read line %s: %w", ln.id, err)
		}
		for i := range page.Rows {
			p, err := decodePlace(page.Rows[i])
			if err != nil {
				return err
			}
			if p.Epoch != ln.Epoch {
				continue
			}
			if more, err := visit(p); err != nil || !more {
				return err
			}
		}
		if query.Continue = page.Next; query.Continue == "" {
			return nil
		}
	}
}

// CancelWaiting is a request to cancel the jobs of a line that have not begun.
type CancelWaiting struct {
	LineID           string
	Actor, RequestID string
	Reason           string
	Limit            int       // how many jobs to cancel at most
	Until            time.Time // when to stop
}

// CancelWaiting cancels the jobs of a line that have not begun. It begins with the last, because the end of
// an earlier one could begin the next. It returns how many it cancelled, and whether more may wait. It may
// be repeated. It returns [ErrLineNotFound].
func (l *Ledger) CancelWaiting(ctx context.Context, r CancelWaiting) (cancelled int, more bool, err error) {
	ln, err := l.readLine(ctx, r.LineID)
	if err != nil {
		return 0, false, err
	}
	if ln.tag == "" {
		return 0, false, ErrLineNotFound
	}
	places, more, err := l.lastPlaces(ctx, ln, r.Limit)
	if err != nil {
		return 0, false, err
	}
	cancel := statemachine.Cancel{Reason: r.Reason, IfWaits: true}
	var gone []*place
	var forget tablestore.Stage
	for _, p := range slices.Backward(places) {
		if time.Now().After(r.Until) {
			more = true
			break
		}
		o := &options{
			actor: r.Actor, requestID: r.RequestID, quiet: true, at: statemachine.Place{Line: r.LineID, Epoch: p.Epoch, Seq: p.seq},
		}
		result, err := l.change(ctx, p.JobID, nil, cancel, o)
		if errors.Is(err, ErrJobNotFound) {
			continue // Its accept is under way, or it was purged.
		}
		if err != nil {
			return cancelled, false, fmt.Errorf("cancel job %s: %w", p.JobID, err)
		}
		if result.Outcome == statemachine.Applied {
			cancelled++
		}
		if job := &result.Job.Job; job.State.Terminal() && job.Standing() == statemachine.PlaceGone {
			gone = append(gone, p)
		}
		forget = append(forget, o.forget...)
		if len(gone) == maxRemoved { // Before the entries of their ends are due.
			if err := l.removePlaces(ctx, r.LineID, gone, forget); err != nil {
				return cancelled, true, err
			}
			gone, forget = nil, nil
		}
	}
	if err := l.look(ctx, r.LineID, nil); err != nil { // The first of them may have been the first of the line.
		return cancelled, more, err
	}
	return cancelled, more, l.removePlaces(ctx, r.LineID, gone, forget)
}

// lastPlaces returns the last places of a line in their order, and whether there are places before them. Seqs
// without a place make it read again from an earlier one.
func (l *Ledger) lastPlaces(ctx context.Context, ln *line, limit int) (places []*place, before bool, err error) {
	for span := int64(limit); ; span *= 4 {
		from := max(1, ln.Next-span)
		places = nil
		err := l.scanPlaces(ctx, ln, from, func(p *place) (bool, error) {
			if p.ReleasedAt.IsZero() {
				places = append(places, p)
			}
			return true, nil
		})
		if err != nil {
			return nil, false, err
		}
		if from == 1 || len(places) >= limit {
			n := max(0, len(places)-limit)
			return places[n:], n > 0 || from > 1, nil
		}
	}
}
