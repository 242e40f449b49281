package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// placeKey returns the key of the place in a line that the job names.
func (e *Evidence) placeKey(o *Options) tablestore.Key {
	return tablestore.Key{
		Table: o.Tables.Schedule, Partition: tablestore.Join("line", e.Job.Place.Line),
		Row: tablestore.Join("P", tablestore.Pad(e.Job.Place.Seq, 12)),
	}
}

// judgePlace checks that a live job has its place in its line.
func (j *judge) judgePlace() {
	at := j.Job.Place
	if (at.Line == "") != (j.Job.OrderKey == "") {
		j.violate(Lines, "its order key has %d bytes, and its place is in line %q", len(j.Job.OrderKey), at.Line)
	}
	if at.Line == "" || j.Job.Terminal() {
		return
	}
	place, there := j.outside[j.placeKey(j.o)]
	if !there || place.Get("job_id").String() != j.JobID || place.Get("epoch").String() != at.Epoch {
		j.violate(Lines, "it is %s, and its place %d in line %s is not there", j.Job.State, at.Seq, at.Line)
	}
}

// began returns when the job dispatched its first step, the zero time if it has not.
func (e *Evidence) began() time.Time {
	for _, c := range e.changes {
		if slices.ContainsFunc(c.moves, func(m move) bool {
			return m.Object == "step" && m.To == "DISPATCHING" && m.From != m.To
		}) {
			return c.at
		}
	}
	return time.Time{}
}

// turn is when a job of a line began and ended.
type turn struct {
	jobID        string
	seq          int64
	began, ended time.Time
}

// turn returns the turn of a job that has a place in a line.
func (e *Evidence) turn() turn { return turn{e.JobID, e.Job.Place.Seq, e.began(), e.Job.Completed} }

// overlaps reports whether the job should have ended before the other began, and had not.
func (t *turn) overlaps(next *turn, o *Options) bool {
	return t.seq < next.seq && !next.began.IsZero() && (t.ended.IsZero() || t.ended.After(next.began.Add(o.Clocks)))
}

// order judges the lines: no job began before those before it in its line had ended.
func (a *auditor) order() {
	for name, turns := range a.turns {
		line, _, _ := strings.Cut(name, " ")
		slices.SortFunc(turns, func(s, t turn) int { return cmp.Compare(s.seq, t.seq) })
		last := &turns[0] // The one that ended last.
		for i := range turns {
			if next := &turns[i]; last.overlaps(next, &a.o) {
				a.suspectTurn(line, *last, *next)
			}
			if t := &turns[i]; !last.ended.IsZero() && (t.ended.IsZero() || t.ended.After(last.ended)) {
				last = t
			}
		}
	}
}

// suspectTurn notes a job that began too early. Both jobs are read again before it counts.
func (a *auditor) suspectTurn(line string, first, next turn) {
	ended := "has not ended"
	if !first.ended.IsZero() {
		ended = "ended at " + stamp(first.ended) + " (if no clock was set back)"
	}
	found := []Finding{{Invariant: Lines, JobID: next.jobID, Detail: fmt.Sprintf("it began at %s, and job %s before it in line %s %s",
		stamp(next.began), first.jobID, line, ended)}}
	a.suspect = append(a.suspect, suspicion{found, func(ctx context.Context) ([]Finding, error) {
		for _, t := range []*turn{&first, &next} {
			e, err := a.read(ctx, t.jobID)
			if err != nil || e.Job == nil || e.Job.Place.Line == "" {
				return nil, err
			}
			*t = e.turn()
		}
		if first.overlaps(&next, &a.o) {
			return found, nil
		}
		return nil, nil
	}})
}

// lineRow judges a line when its first row is read.
func (a *auditor) lineRow(ctx context.Context, row *tablestore.Row) error {
	if row.Key.Partition == a.line {
		return nil
	}
	a.line = row.Key.Partition
	findings, err := a.strayLine(ctx, row.Key.Partition)
	if err != nil || len(findings) == 0 {
		return err
	}
	a.suspect = append(a.suspect, suspicion{findings, func(ctx context.Context) ([]Finding, error) {
		return a.strayLine(ctx, row.Key.Partition)
	}})
	return nil
}

// leftLine reports whether a job of a line ended before it began, and does not block the line. Its place may be in
// the middle of the line.
func (j *JobRow) leftLine() bool {
	expired := j.Code == statemachine.ErrorExpired
	blocks := j.State == "FAILED_FINAL" && j.Blocks && !expired || j.Place.Took != "" && (j.State == "CANCELLED" || expired)
	return j.Place.Line != "" && j.Terminal() && j.Attempts == 0 && !blocks
}

// strayLine judges the rows of a line: LINE counts its places, and each place has a job that has not left the line.
func (a *auditor) strayLine(ctx context.Context, partition string) ([]Finding, error) {
	query := tablestore.Query{Table: a.o.Tables.Schedule, Partition: partition}
	var ln struct {
		there                     bool
		count, next, places, last int64
	}
	var findings []Finding
	say := func(late bool, jobID, format string, args ...any) {
		findings = append(findings, Finding{Invariant: Lines, Late: late, JobID: jobID, Detail: fmt.Sprintf(format, args...)})
	}
	for {
		page, err := a.store.Scan(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", partition, err)
		}
		for i := range page.Rows {
			row := page.Rows[i].Properties
			parts, err := tablestore.Split(page.Rows[i].Key.Row)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", partition, err)
			}
			if parts[0] == "LINE" {
				ln.there, ln.count, ln.next = true, row.Get("count").Int(), row.Get("next").Int()
				continue
			}
			ln.places++
			_, _ = fmt.Sscan(parts[len(parts)-1], &ln.last)
			jobID, at := row.Get("job_id").String(), row.Get("created_at").Time()
			f, there, err := a.fact(ctx, jobID, true)
			switch {
			case err != nil:
				return nil, err
			case !there && a.past(at.Add(placeGrace)):
				say(true, jobID, "it has a place in %s since %s, and it is missing", partition, stamp(at))
			case f.left != nil && a.past(f.left.Completed.Add(placeGrace)) && f.left.Place.Seq == ln.last &&
				f.left.Place.Epoch == row.Get("epoch").String():
				say(true, jobID, "it ended at %s before it began, and still has a place in %s", stamp(f.left.Completed), partition)
			}
		}
		if query.Continue = page.Next; query.Continue == "" {
			break
		}
	}
	if ln.there != (ln.places > 0) || ln.count != ln.places || ln.places > 0 && ln.last >= ln.next {
		say(false, "", "%s counts %d places and gives %d next; it has %d, the last is %d", partition, ln.count, ln.next, ln.places, ln.last)
	}
	return findings, nil
}

// placeGrace is how long the job of a place may be missing, and its place left after its end.
const placeGrace = 6 * time.Minute
