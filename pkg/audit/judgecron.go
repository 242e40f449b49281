package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// occurrence judges the job of a schedule: no other was accepted under its claim.
func (a *auditor) occurrence(e *Evidence) {
	if e.Job.Occurrence.ScheduleID == "" {
		return
	}
	claim := e.Job.Occurrence.ScheduleID + "/" + e.Job.Record
	if other := a.claims[claim]; other != "" {
		found := Finding{
			Invariant: Schedules, JobID: max(e.JobID, other),
			Detail: "occurrence " + claim + " has the jobs " + min(e.JobID, other) + " and " + max(e.JobID, other),
		}
		a.suspect = append(a.suspect, suspicion{[]Finding{found}, func(context.Context) ([]Finding, error) {
			return []Finding{found}, nil // Jobs and their claims do not change.
		}})
	}
	a.claims[claim] = e.JobID
}

// schedule judges a schedule when its first row is read.
func (a *auditor) schedule(ctx context.Context, id string) error {
	findings, err := a.judgeSchedule(ctx, id)
	if err != nil || len(findings) == 0 {
		return err
	}
	a.suspect = append(a.suspect, suspicion{findings, func(ctx context.Context) ([]Finding, error) { return a.judgeSchedule(ctx, id) }})
	return nil
}

// history is what a schedule's partition says.
type history struct {
	head      columns
	version   columns                 // The current one.
	fires     map[time.Time]columns   // By the time of the occurrence.
	ranges    []tablestore.Properties // Of many missed ones.
	backfills []columns               // Those that go on.
	findings  []Finding
	id        string
}

func (h *history) say(format string, args ...any) {
	h.findings = append(h.findings, Finding{
		Invariant: Schedules, Detail: "schedule " + h.id + ": " + fmt.Sprintf(format, args...),
	})
}

// judgeSchedule judges the rows of one schedule.
func (a *auditor) judgeSchedule(ctx context.Context, id string) ([]Finding, error) {
	h := &history{id: id, fires: map[time.Time]columns{}}
	versions := map[string]columns{}
	query := tablestore.Query{Table: a.o.Tables.Cron, Partition: id}
	for {
		page, err := a.store.Scan(ctx, query)
		if err != nil {
			return nil, fmt.Errorf("read schedule %s: %w", id, err)
		}
		for i := range page.Rows {
			row := columns(page.Rows[i].Properties)
			parts, err := tablestore.Split(page.Rows[i].Key.Row)
			if err != nil {
				return nil, fmt.Errorf("read schedule %s: %w", id, err)
			}
			switch parts[0] {
			case "HEAD":
				h.head = row
			case "VERSION":
				versions[parts[1]] = row
			case "RANGE":
				h.ranges = append(h.ranges, page.Rows[i].Properties)
			case "FIRE":
				h.fires[row.time("scheduled_for")] = row
			case "BACKFILL":
				if !row.get("done").Bool() {
					h.backfills = append(h.backfills, row)
				}
			}
		}
		if query.Continue = page.Next; query.Continue == "" {
			break
		}
	}
	if h.head == nil {
		return nil, nil // Its create is under way, or was lost.
	}
	h.version = versions[tablestore.Pad(h.head.get("version").Int(), 9)]
	if err := a.judgeFires(ctx, h); err != nil {
		return nil, err
	}
	for _, b := range h.backfills {
		if err := a.judgeEntry(ctx, h, "the entry of its backfill", b.time("due"), "b-"+b.text("id")); err != nil {
			return nil, err
		}
	}
	if h.head.text("state") != "active" {
		return h.findings, nil
	}
	h.judgeDecided()
	return h.findings, a.judgeNext(ctx, h)
}

// judgeFires checks that an occurrence has a job exactly if its outcome says so.
func (a *auditor) judgeFires(ctx context.Context, h *history) error {
	for at, row := range h.fires {
		outcome, jobID := row.text("outcome"), row.text("job_id")
		switch outcome {
		case "skipped", "refused", "missed":
			if jobID != "" {
				h.say("occurrence %s is %s and names job %s", stamp(at), outcome, jobID)
			}
		case "claimed":
			if by := row.text("backfill_id"); by != "" && !h.goesOn(by) {
				h.say("occurrence %s is claimed for backfill %s, which has ended", stamp(at), by)
			}
		case "fired":
			_, there, err := a.fact(ctx, jobID, false)
			if err != nil {
				return err
			}
			if !there && !row.get("job_purged").Bool() {
				h.say("occurrence %s was fired, and its job %s is missing", stamp(at), jobID)
			}
		}
	}
	return nil
}

// goesOn reports whether a backfill has not ended.
func (h *history) goesOn(id string) bool {
	return slices.ContainsFunc(h.backfills, func(b columns) bool { return b.text("id") == id })
}

// mostOccurrences is how many occurrences of a schedule are looked for in its history.
const mostOccurrences = 5_000

// judgeDecided checks that the history has each occurrence of the current version up to the last that is decided, unless it
// is trimmed.
func (h *history) judgeDecided() {
	spec := calendar.Spec{
		Cron: h.version.text("cron"), Every: time.Duration(h.version.get("every_ms").Int()) * time.Millisecond,
		TimeZone: h.version.text("time_zone"), StartAt: h.version.time("start_at"), EndAt: h.version.time("end_at"),
	}
	if dates := h.version.text("excluded_dates"); dates != "" {
		spec.ExcludedDates = strings.Split(dates, "\n")
	}
	cal, err := calendar.Parse(spec)
	if err != nil {
		h.say("its version cannot be read: %v", err)
		return
	}
	from, last := h.version.time("created_at"), h.head.time("last")
	if trimmed := h.head.time("trimmed"); trimmed.After(from) {
		from = trimmed
	}
	at, ok := cal.Next(from)
	for n := 0; ok && !at.After(last) && n < mostOccurrences; n++ {
		if h.fires[at] == nil && !h.covered(at) {
			h.say("occurrence %s counts as decided, and is not in the history", stamp(at))
			return
		}
		at, ok = cal.Next(at)
	}
}

// covered reports whether a row of many missed occurrences has that time.
func (h *history) covered(at time.Time) bool {
	for _, row := range h.ranges {
		if !at.Before(row.Get("from").Time()) && !at.After(row.Get("scheduled_for").Time()) {
			return true
		}
	}
	return false
}

// judgeNext checks that an entry leads to the next occurrence in time.
func (a *auditor) judgeNext(ctx context.Context, h *history) error {
	last, next, due := h.head.time("last"), h.head.time("next"), h.head.time("entry_due")
	if !last.Before(next) {
		h.say("the last occurrence is %s, and the next is %s", stamp(last), stamp(next))
	}
	latest := next.Add(time.Duration(h.version.get("jitter_ms").Int()) * time.Millisecond)
	if due.After(latest) && h.head.time("trying").IsZero() {
		h.say("its entry is due at %s, and the next occurrence at %s", stamp(due), stamp(latest))
	}
	return a.judgeEntry(ctx, h, "its entry", due, h.head.text("entry_nonce"))
}

// judgeEntry checks that an entry is there.
func (a *auditor) judgeEntry(ctx context.Context, h *history, what string, due time.Time, nonce string) error {
	key := tablestore.Key{
		Table: a.o.Tables.Schedule, Partition: "cron", Row: tablestore.Join(tablestore.Pad(due.UnixMilli(), 13), h.id, nonce),
	}
	_, there, err := a.get(ctx, key)
	if err == nil && !there {
		h.say("%s, %s, is missing", what, key.Row)
	}
	return err
}
